"""Linear algebra, Fourier space, complex numbers, derivatives of derivatives, transforms of functions."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

from .sequences import itself, normal, square, token_loss, tokens_batch


class Process(nn.Module):
    """A Gaussian process over learnt features: Cholesky, triangular solves, the logarithm of a determinant."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 32))
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x, y):
        z = self.features(x).float()
        kernel = torch.exp(-torch.cdist(z, z).square() * self.scale.float().exp()) + 0.1 * torch.eye(len(z), device=z.device)
        factor = torch.linalg.cholesky(kernel)
        solved = torch.linalg.solve_triangular(factor, y.float()[:, None], upper=False)
        return 0.5 * solved.square().sum() + factor.diagonal().log().sum()


class Whitened(nn.Module):
    """Decorrelated features: eigenvectors of a covariance for each sample."""

    def __init__(self, width=64):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Linear(width * width, 100)

    def forward(self, x):
        y = self.first(x).flatten(2).float()
        y = y - y.mean(-1, keepdim=True)
        covariance = y @ y.transpose(1, 2) / y.shape[-1]
        values, vectors = torch.linalg.eigh(covariance + 1e-3 * torch.eye(y.shape[1], device=y.device))
        root = vectors @ torch.diag_embed(values.clamp(min=1e-6).sqrt()) @ vectors.transpose(1, 2)
        return self.last(root.flatten(1).to(self.last.weight.dtype))


class LowRank(nn.Module):
    """A penalty on singular values of the features."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 256))

    def forward(self, x):
        z = self.layers(x).float().view(-1, 64, 256)
        return torch.linalg.svdvals(z).sum() + torch.linalg.svd(z, full_matrices=False).S.square().mean()


class Rotations(nn.Module):
    """A recurrence whose matrices stay orthogonal."""

    def __init__(self, width=512):
        super().__init__()
        self.embedding, self.turn, self.head = nn.Embedding(10000, width), orthogonal(nn.Linear(width, width)), nn.Linear(width, 10000)

    def forward(self, tokens):
        x = self.embedding(tokens)
        state = torch.zeros_like(x[:, 0])
        out = []
        for step in range(tokens.shape[1]):
            state = F.relu(self.turn(state) + x[:, step])
            out.append(state)
        return self.head(torch.stack(out, 1))


class Implicit(nn.Module):
    """A layer whose output solves a linear system, and least squares by QR."""

    def __init__(self, width=96):
        super().__init__()
        self.make, self.last, self.width = nn.Linear(128, width * width), nn.Linear(width, 128), width

    def forward(self, x):
        matrix = self.make(x).float().view(-1, self.width, self.width) * 0.1 + torch.eye(self.width, device=x.device)
        right = x.float()[:, : self.width, None]
        y = torch.linalg.solve(matrix, right)
        q, r = torch.linalg.qr(matrix)
        z = torch.linalg.solve_triangular(r, q.transpose(1, 2) @ right, upper=True)
        return self.last((y + z).squeeze(-1).to(self.last.weight.dtype))


class Flow(nn.Module):
    """A normalising flow: coupling layers, invertible mixing with its determinant."""

    def __init__(self, width=64, layers=8):
        super().__init__()
        self.mix = nn.ParameterList(nn.Parameter(torch.linalg.qr(torch.randn(width, width))[0]) for _ in range(layers))
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(width // 2, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, width)) for _ in range(layers)
        )

    def forward(self, x):
        logs = 0.0
        for mix, net in zip(self.mix, self.nets):
            x = x @ mix
            logs = logs + torch.linalg.slogdet(mix.float())[1]
            left, right = x.chunk(2, -1)
            scale, shift = net(left).chunk(2, -1)
            scale = scale.tanh()
            x, logs = torch.cat([left, right * scale.exp() + shift], -1), logs + scale.float().sum(-1).mean()
        return 0.5 * x.float().square().sum(-1).mean() - logs


class Operator(nn.Module):
    """A Fourier neural operator in two dimensions, with complex weights."""

    def __init__(self, width=48, modes=16, layers=4):
        super().__init__()
        self.first, self.last, self.modes = nn.Conv2d(3, width, 1), nn.Conv2d(width, 3, 1), modes
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(2, width, width, modes, modes, 2) / width**2) for _ in range(layers))
        self.points = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))

    def forward(self, x):
        x = self.first(x)
        m = self.modes
        for weight, point in zip(self.weights, self.points):
            spectrum = torch.fft.rfft2(x.float())
            out = torch.zeros_like(spectrum)
            kernel = torch.view_as_complex(weight.float())
            out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], kernel[0])
            out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], kernel[1])
            x = F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]).to(x.dtype) + point(x))
        return self.last(x)


class FourierMixing(nn.Module):
    """FNet: Fourier transforms in the place of attention; odd lengths too."""

    def __init__(self, width=480, layers=4):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10000, width), nn.Linear(width, 10000)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for norm, mlp in zip(self.norms, self.mlp):
            x = norm(x + torch.fft.fft2(x.float(), dim=(-2, -1)).real.to(x.dtype))
            x = x + mlp(x)
        return self.head(x)


class Complex(nn.Module):
    """Complex weights and activations from end to end."""

    def __init__(self, width=512):
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.randn(width, width, 2) / width) for _ in range(4))

    def forward(self, x):
        z = torch.fft.fft(x.float(), norm="ortho")
        for part in self.parts:
            z = z @ torch.view_as_complex(part.float())
            z = torch.polar(torch.tanh(z.abs()), z.angle())
        return torch.fft.ifft(z, norm="ortho").real


class Physics(nn.Module):
    """A network that solves a differential equation: second derivatives in the loss."""

    def __init__(self, width=256):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def physics_loss(model, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        u = model.layers(x)
        first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)[0][:, 0]
        return (first[:, 1] - 0.1 * second).float().square().mean() + u.float().square().mean()


class Penalty(nn.Module):
    """A critic with a penalty on its gradient: backward through backward."""

    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(4 * width * 64, 1),
        )


def penalty_loss(model, x):
    with torch.enable_grad():
        mixed = (x + 0.1 * torch.randn_like(x)).requires_grad_()
        scores = model.layers(mixed)
        slope = torch.autograd.grad(scores.sum(), mixed, create_graph=True)[0]
        return scores.float().mean() + 10 * (slope.flatten(1).float().norm(dim=1) - 1).square().mean()


class Ensemble(nn.Module):
    """Eight networks at once by vmap, each with its own weights."""

    def __init__(self, count=8, width=512):
        super().__init__()
        self.one = nn.Sequential(nn.Linear(128, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))
        self.all = nn.ParameterList(nn.Parameter(torch.randn(count, *p.shape) * 0.02) for p in self.one.parameters())
        self.names = [name for name, _ in self.one.named_parameters()]

    def forward(self, x):
        def call(*weights):
            return torch.func.functional_call(self.one, dict(zip(self.names, weights)), (x,))

        return torch.vmap(call)(*self.all)


class Meta(nn.Module):
    """An inner step of gradient descent, then a loss: torch.func.grad inside, autograd outside."""

    def __init__(self, width=512):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 64))


def meta_loss(model, x):
    weights = dict(model.net.named_parameters())

    def inner(weights, x):
        return torch.func.functional_call(model.net, weights, (x,)).float().square().mean()

    with torch.enable_grad():
        slopes = torch.func.grad(inner)(weights, x)
        moved = {name: weight - 0.1 * slopes[name].to(weight.dtype) for name, weight in weights.items()}
        return inner(moved, x.flip(0))


class Tangents(nn.Module):
    """Directional derivatives by forward mode."""

    def __init__(self, width=768):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, width), nn.Softplus(), nn.Linear(width, width), nn.Softplus(), nn.Linear(width, 256))

    def forward(self, x):
        out, slope = torch.func.jvp(self.net, (x,), (torch.ones_like(x),))
        return out.float().square().mean() + slope.float().square().mean()


class FakeQuantised(nn.Module):
    """Training for eight bits: rounding in the forward pass, gradients as if there were none."""

    def __init__(self):
        super().__init__()
        widths = [3, 64, 128, 128]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths, widths[1:]))
        self.head = nn.Linear(128, 100)

    @staticmethod
    def rounded(x, scale):
        return torch.fake_quantize_per_tensor_affine(x.float(), scale, 0, -128, 127).to(x.dtype)

    def forward(self, x):
        for layer in self.layers:
            scales = layer.weight.detach().float().abs().amax((1, 2, 3)).clamp(min=1e-6) / 127
            weight = torch.fake_quantize_per_channel_affine(
                layer.weight.float(), scales, torch.zeros(len(scales), dtype=torch.int32, device=x.device), 0, -128, 127
            )
            x = self.rounded(F.relu(F.conv2d(x, weight.to(x.dtype), layer.bias, padding=1)), 0.05)
            x = F.max_pool2d(x, 2)
        return self.head(x.mean((2, 3)))


class Recomputed(nn.Module):
    """A custom autograd function that keeps its input alone."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, up, down):
            ctx.save_for_backward(x, up, down)
            return F.gelu(x @ up.to(x.dtype)) @ down.to(x.dtype)

        @staticmethod
        def backward(ctx, slope):
            x, up, down = (part.detach().requires_grad_() for part in ctx.saved_tensors)
            with torch.enable_grad():
                y = F.gelu(x @ up.to(x.dtype)) @ down.to(x.dtype)
            return torch.autograd.grad(y, (x, up, down), slope)

    def __init__(self, width=512, layers=4):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10000, width), nn.Linear(width, 10000)
        self.up, self.down = (
            nn.ParameterList(nn.Parameter(torch.randn(*shape) * 0.02) for _ in range(layers)) for shape in ((width, 4 * width), (4 * width, width))
        )

    def forward(self, tokens):
        x = self.embedding(tokens)
        for up, down in zip(self.up, self.down):
            x = x + Recomputed.Function.apply(x, up, down)
        return self.head(x)


class Equation(nn.Module):
    """A neural differential equation by Runge and Kutta's method."""

    def __init__(self, width=384):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 64))

    def forward(self, x):
        for _ in range(10):
            a = self.net(x)
            b = self.net(x + 0.05 * a)
            c = self.net(x + 0.05 * b)
            x = x + 0.1 / 6 * (a + 2 * b + 2 * c + self.net(x + 0.1 * c))
        return x


class Order(nn.Module):
    """Ranking: sorts, running sums, quantiles, masks and their sizes."""

    def __init__(self, width=512):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, width), nn.ReLU(), nn.Linear(width, 64))

    def forward(self, x):
        scores = self.net(x).float()
        ordered, places = scores.sort(dim=-1, descending=True)
        gains = torch.cumsum(ordered.softmax(-1), -1)
        middle = scores.median(-1, keepdim=True).values
        above = torch.where(scores > middle, scores, scores.new_zeros(()))
        spread = torch.quantile(scores[:4096], torch.tensor([0.1, 0.9], device=x.device), dim=-1)
        return gains.mean() + above.mean() + spread.square().mean() + scores.gather(1, places[:, :8]).mean() + scores.kthvalue(5).values.mean()


CASES = {
    "gaussian_process": (Process, lambda d, t, b: (torch.randn(b, 32, device=d, dtype=t), torch.randn(b, device=d, dtype=t)), itself, 4096),
    "whitened": (
        Whitened,
        lambda d, t, b: (torch.randn(b, 3, 48, 48, device=d, dtype=t), torch.randint(0, 100, (b,), device=d)),
        lambda m, x: F.cross_entropy(m(x[0]).float(), x[1]),
        256,
    ),
    "low_rank": (LowRank, normal(784), itself, 64 * 128),
    "rotations": (Rotations, tokens_batch(60), token_loss, 64),
    "implicit": (Implicit, normal(128), square, 1024),
    "flow": (Flow, normal(64), itself, 8192),
    "operator": (Operator, normal(3, 128, 128), square, 16),
    "fourier_mixing": (FourierMixing, tokens_batch(509), token_loss, 16),
    "complex": (Complex, normal(512), square, 16384),
    "physics": (Physics, normal(2), physics_loss, 32768),
    "penalty": (Penalty, normal(3, 64, 64), penalty_loss, 128),
    "ensemble": (Ensemble, normal(128), lambda m, x: m(x).float().square().mean(), 8192),
    "meta": (Meta, normal(64), meta_loss, 8192),
    "tangents": (Tangents, normal(256), itself, 8192),
    "fake_quantised": (
        FakeQuantised,
        lambda d, t, b: (torch.randn(b, 3, 96, 96, device=d, dtype=t), torch.randint(0, 100, (b,), device=d)),
        lambda m, x: F.cross_entropy(m(x[0]).float(), x[1]),
        48,
    ),
    "recomputed": (Recomputed, tokens_batch(256), token_loss, 24),
    "equation": (Equation, normal(64), square, 8192),
    "order": (Order, normal(128), itself, 65536),
}
