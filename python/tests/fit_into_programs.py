"""Random small models for the tests of fit_into: autograd's odd corners in any order, from a seed."""

import contextlib
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Cube(torch.autograd.Function):
    """Saves an input, an output and a number."""

    @staticmethod
    def forward(ctx, x, scale):
        y = x * x * x * scale
        ctx.save_for_backward(x, y.sign())
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx, grad):
        x, sign = ctx.saved_tensors
        return grad * 3 * ctx.scale * x * x + 0 * sign, None


class Doubled(torch.autograd.Function):
    """Changes its input in place."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Block(nn.Module):
    """A few operations with the same sizes in and out."""

    def __init__(self, dice, width):
        super().__init__()
        self.names = dice.choices(sorted(OPERATIONS), k=dice.randint(2, 6))
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.norm, self.batch = nn.LayerNorm(width), nn.BatchNorm1d(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("mask", torch.ones(width).bernoulli_(0.5))
        if dice.random() < 0.3:
            self.linears[0].weight.requires_grad_(False)
        self.is_checkpointed = dice.random() < 0.15
        self.count = 0

    def forward(self, x):
        if self.is_checkpointed:
            return checkpoint(self.run, x, use_reentrant=False)
        return self.run(x)

    def run(self, x):
        for name in self.names:
            x = OPERATIONS[name](self, x)
        return x


def heads(self, x):
    q, k, v = (part.unflatten(-1, (2, -1)).transpose(-2, -3) for part in self.up(x).chunk(3, -1))
    y = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), dropout_p=0.1 if self.training else 0.0)
    return x + y.transpose(-2, -3).flatten(-2)


def step_of_its_own(self, x):
    """Another constant in every call."""
    self.count += 1
    return x * (1 + self.count * 1e-3) + self.count * 1e-3


def reassigned(self, x):
    y = self.linears[1](x)
    y[..., 0] = 0.5
    return torch.tanh(y) + x


def by_two_ways(self, x):
    """The same tensor saved by several nodes, and a view of it."""
    y = torch.exp(-x.square())
    return y * y.roll(1, -1) + y.t().contiguous().t() if y.dim() == 2 else y * y.roll(1, -1) + y.transpose(0, 1).contiguous().transpose(0, 1)


def no_gradient(self, x):
    with torch.no_grad():
        gate = torch.sigmoid(x.mean(-1, keepdim=True) * self.scale)
    return x * gate


def sorted_values(self, x):
    values, order = x.sort(-1)
    return values.gather(-1, order) + x


OPERATIONS = {
    "linear": lambda self, x: self.linears[0](x),
    "gelu": lambda self, x: F.gelu(x),
    "mlp": lambda self, x: x + self.down(F.gelu(self.up(x), approximate="tanh")),
    "relu_": lambda self, x: F.relu_(self.linears[1](x)),
    "silu": lambda self, x: F.silu(x) * self.scale,
    "norm": lambda self, x: self.norm(x),
    "batch": lambda self, x: self.batch(x.flatten(0, -2)).view_as(x),
    "dropout": lambda self, x: F.dropout(x, 0.2, self.training),
    "dropout_": lambda self, x: F.dropout(self.linears[0](x), 0.2, self.training, inplace=True),
    "softmax": lambda self, x: x.softmax(-1) + x,
    "tanh": lambda self, x: torch.tanh(x),
    "heads": heads,
    "cube": lambda self, x: Cube.apply(torch.tanh(x), 0.5),
    "doubled": lambda self, x: Doubled.apply(self.linears[0](x)),
    "add_": lambda self, x: self.linears[0](x).add_(x),
    "cat": lambda self, x: torch.cat([x, x.flip(-1)], -1).unfold(-1, 2, 2).sum(-1) * 0.5,
    "where": lambda self, x: torch.where(x > 0, x, x * 0.1) * self.mask,
    "einsum": lambda self, x: torch.einsum("...i,ij->...j", x, self.linears[1].weight),
    "detach": lambda self, x: x * x.detach().clamp(-1, 1),
    "noise": lambda self, x: x + torch.rand_like(x) * 0.1,
    "pow": lambda self, x: (x.abs() + 0.1) ** 1.5,
    "step": step_of_its_own,
    "reassigned": reassigned,
    "two_ways": by_two_ways,
    "no_gradient": no_gradient,
    "sorted": sorted_values,
    "double": lambda self, x: (x.double() * self.scale.double()).to(x.dtype),
    "half": lambda self, x: F.gelu(x.to(torch.bfloat16)).to(x.dtype),
    "complex": lambda self, x: torch.view_as_complex(torch.stack([x, x.sin()], -1)).abs(),
    "expand": lambda self, x: x + self.scale.expand_as(x).cumsum(-1) * 1e-2,
    "max": lambda self, x: x - x.max(-1, keepdim=True).values,
}


class Model(nn.Module):
    """Blocks, now and then one that is used twice, and some in a random order."""

    def __init__(self, seed):
        super().__init__()
        dice = random.Random(seed)
        self.width = dice.choice((8, 16))
        self.embed = nn.Linear(self.width, self.width)
        shared = Block(dice, self.width)
        self.blocks = nn.ModuleList(shared if dice.random() < 0.2 else Block(dice, self.width) for _ in range(dice.randint(1, 4)))
        self.skips = dice.random() < 0.1
        self.dice = random.Random(seed)
        self.autocast = dice.random() < 0.3
        self.accumulates = dice.random() < 0.25
        self.twice = dice.random() < 0.15
        self.retains = dice.random() < 0.15
        self.shape = dice.choice(((4, 6), (24,)))

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            if self.skips and self.dice.random() < 0.3:
                continue
            x = block(x)
        return x

    def step(self, number):
        """A step's losses; gradients add up."""
        generator = torch.Generator().manual_seed(number)
        for _ in range(2 if self.accumulates else 1):
            x = torch.randn(*self.shape, self.width, generator=generator)
            with torch.autocast("cpu", torch.bfloat16) if self.autocast else contextlib.nullcontext():
                loss = self(x).float().square().mean()
                if self.twice:
                    loss = loss + self(x * 0.5).float().mean()
            if self.retains:
                loss.backward(retain_graph=True)
            loss.backward()
        return loss.detach()


def train(seed, steps, prepare=None):
    """Losses, gradients and the generator's state after each step. `prepare` gets the model, and is called with each
    step's number if it returns a function."""
    torch.manual_seed(seed)
    model = Model(seed)
    each = prepare(model) if prepare is not None else None
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    seen = []
    for number in range(steps):
        if each is not None:
            each(number)
        loss = model.step(number)
        seen.append([loss, torch.get_rng_state(), *(None if p.grad is None else p.grad.clone() for p in model.parameters())])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return seen


def differs(one, other):
    """The first step and entry at which two runs are not the same bits; None if they are the same."""
    for step, (a, b) in enumerate(zip(one, other)):
        for entry, (x, y) in enumerate(zip(a, b)):
            if (x is None) != (y is None) or (x is not None and not torch.equal(torch.nan_to_num(x), torch.nan_to_num(y))):
                return step, entry
    return None
