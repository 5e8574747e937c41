"""Models of many fields as people outside of them write them: one idea each, in few lines."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from .sequences import itself, normal, token_loss, tokens_batch
from .vision import classes_loss, labelled


class HashGrid(nn.Module):
    """Tables of many resolutions, looked up by a hash of the corners around each point."""

    def __init__(self, levels=12, entries=1 << 18, each=2):
        super().__init__()
        self.levels, self.entries = levels, entries
        self.tables = nn.Parameter(1e-4 * torch.randn(levels, entries, each))
        self.net = nn.Sequential(nn.Linear(levels * each, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        self.register_buffer("primes", torch.tensor([1, 2654435761, 805459861]), persistent=False)

    def forward(self, x):
        found = []
        corners = torch.stack(torch.meshgrid(*[torch.arange(2, device=x.device)] * 3, indexing="ij"), -1).reshape(8, 3)
        for level in range(self.levels):
            place = x * (16 * 1.5**level)
            low = place.floor()
            part = (place - low)[:, None]
            number = low.long()[:, None] + corners
            hashed = number * self.primes
            hashed = (hashed[..., 0] ^ hashed[..., 1] ^ hashed[..., 2]) % self.entries
            weight = torch.where(corners.bool(), part, 1 - part).prod(-1, keepdim=True)
            found.append((self.tables[level][hashed] * weight).sum(1))
        return self.net(torch.cat(found, -1))


class Splines(nn.Module):
    """A Kolmogorov-Arnold network: a spline on every edge."""

    class Layer(nn.Module):
        def __init__(self, inputs, out, grid=5, order=3):
            super().__init__()
            self.order = order
            self.register_buffer("grid", torch.linspace(-1 - order * 0.4, 1 + order * 0.4, grid + 2 * order + 1).expand(inputs, -1).contiguous())
            self.base = nn.Parameter(torch.randn(out, inputs) / math.sqrt(inputs))
            self.spline = nn.Parameter(0.1 * torch.randn(out, inputs, grid + order))

        def bases(self, x):
            x, grid = x.unsqueeze(-1), self.grid
            found = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
            for k in range(1, self.order + 1):
                left = (x - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)]) * found[..., :-1]
                right = (grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:-k]) * found[..., 1:]
                found = left + right
            return found

        def forward(self, x):
            return F.linear(F.silu(x), self.base) + F.linear(self.bases(x).flatten(1), self.spline.flatten(1))

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Splines.Layer(256, 256), Splines.Layer(256, 128), Splines.Layer(128, 10))

    def forward(self, x):
        return self.layers(x)


class Registers(nn.Module):
    """A vision transformer with register tokens, scaled layers and paths that are dropped at random."""

    class Block(nn.Module):
        def __init__(self, width, heads, drop):
            super().__init__()
            self.heads, self.drop = heads, drop
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.g1, self.g2 = nn.Parameter(1e-5 * torch.ones(width)), nn.Parameter(1e-5 * torch.ones(width))

        def dropped(self, x):
            if not self.training or self.drop == 0:
                return x
            return x * x.new_empty(x.shape[0], 1, 1).bernoulli_(1 - self.drop).div_(1 - self.drop)

        def forward(self, x):
            q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)
            x = x + self.dropped(self.g1 * self.out(y.transpose(1, 2).flatten(2)))
            return x + self.dropped(self.g2 * self.down(F.gelu(self.up(self.n2(x)))))

    def __init__(self, width=384, depth=8):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 14, 14)
        self.first = nn.Parameter(0.02 * torch.randn(1, 5, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 256, width))
        self.blocks = nn.Sequential(*(Registers.Block(width, 6, 0.1 * i / depth) for i in range(depth)))
        self.head = nn.Linear(2 * width, 100)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        x = self.blocks(torch.cat([self.first.expand(len(x), -1, -1), x], 1))
        return self.head(torch.cat([x[:, 0], x[:, 5:].mean(1)], -1))


class BiasedProduct(nn.Module):
    """torch's attention with a learnt bias of relative places as its mask, for sequences of an odd length."""

    def __init__(self, width=512, heads=8, most=255):
        super().__init__()
        self.heads, self.most = heads, most
        self.embedding, self.bias = nn.Embedding(10000, width), nn.Embedding(2 * most + 1, heads)
        self.qkv, self.out = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(4)), nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, 10000)

    def forward(self, tokens):
        x = self.embedding(tokens)
        n = torch.arange(tokens.shape[1], device=tokens.device)
        bias = self.bias((n[None] - n[:, None]).clamp(-self.most, self.most) + self.most).permute(2, 0, 1)[None]
        for qkv, out in zip(self.qkv, self.out):
            q, k, v = qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
            x = x + out(y.transpose(1, 2).flatten(2))
        return self.head(x)


class PaddedGroups(nn.Module):
    """Grouped keys, a mask of padding and the future, dropout: all of it decides which kernel runs."""

    def __init__(self, width=640, heads=8, groups=2):
        super().__init__()
        self.heads, self.groups, self.each = heads, groups, width // heads
        self.embedding, self.norm = nn.Embedding(10000, width), nn.RMSNorm(width)
        self.q, self.kv, self.o = nn.Linear(width, width), nn.Linear(width, 2 * groups * self.each), nn.Linear(width, width)
        self.head = nn.Linear(width, 10000)

    def forward(self, tokens, lengths):
        x, n = self.embedding(tokens), torch.arange(tokens.shape[1], device=tokens.device)
        mask = (n[None] <= n[:, None])[None, None] & (n < lengths[:, None])[:, None, None]
        for _ in range(4):
            y = self.norm(x)
            q = self.q(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            k, v = self.kv(y).unflatten(-1, (2 * self.groups, -1)).transpose(1, 2).chunk(2, 1)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1 if self.training else 0.0, enable_gqa=True)
            x = x + self.o(y.transpose(1, 2).flatten(2))
        return self.head(x)


def padded_tokens(device, dtype, size):
    return torch.randint(0, 10000, (size, 300), device=device), torch.linspace(300, 40, size, device=device).long()


class Adapters(nn.Module):
    """Low-rank adapters by hand, on layers whose weights are frozen."""

    class Adapted(nn.Module):
        def __init__(self, width, out, rank=16):
            super().__init__()
            self.base = nn.Linear(width, out).requires_grad_(False)
            self.a, self.b, self.drop = nn.Parameter(torch.randn(rank, width) / rank), nn.Parameter(torch.zeros(out, rank)), nn.Dropout(0.05)

        def forward(self, x):
            return self.base(x) + F.linear(F.linear(self.drop(x), self.a), self.b) * 2.0

    def __init__(self, width=1024, depth=8):
        super().__init__()
        self.embedding = nn.Embedding(16000, width).requires_grad_(False)
        self.up = nn.ModuleList(Adapters.Adapted(width, 4 * width) for _ in range(depth))
        self.down = nn.ModuleList(Adapters.Adapted(4 * width, width) for _ in range(depth))
        self.head = nn.Linear(width, 16000).requires_grad_(False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for up, down in zip(self.up, self.down):
            x = x + checkpoint(lambda y, up=up, down=down: down(F.gelu(up(y))), x, use_reentrant=False)
        return self.head(x)


class Eighths(nn.Module):
    """Linear layers kept in eight bits: the weight is made whole for each product; without gradients, whole numbers."""

    class Layer(nn.Module):
        def __init__(self, width, out):
            super().__init__()
            self.register_buffer("weight", torch.randint(-127, 127, (out, width), dtype=torch.int8))
            self.scale = nn.Parameter(torch.full((out, 1), 1e-3))

        def forward(self, x):
            if torch.is_grad_enabled():
                return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype))
            top = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
            product = torch._int_mm((x / top).round().clamp(-127, 127).to(torch.int8), self.weight.t())
            return product.to(x.dtype) * top * self.scale.t().to(x.dtype)

    def __init__(self, width=2048):
        super().__init__()
        self.layers = nn.Sequential(*(part for _ in range(6) for part in (Eighths.Layer(width, width), nn.LayerNorm(width), nn.ReLU())))

    def forward(self, x):
        return self.layers(x)


class Bags(nn.Module):
    """Bags of words of many lengths: sums with weights, means and maxima of tables."""

    def __init__(self, width=128):
        super().__init__()
        self.sums, self.means, self.tops = (nn.EmbeddingBag(200000, width, mode=mode) for mode in ("sum", "mean", "max"))
        self.head = nn.Linear(3 * width, 50)

    def forward(self, words, offsets, weights):
        parts = self.sums(words, offsets, weights.to(self.sums.weight.dtype)), self.means(words, offsets), self.tops(words, offsets)
        return self.head(torch.cat(parts, -1))


def bags_batch(device, dtype, size):
    lengths = torch.arange(size, device=device) % 23 + 1
    ends = lengths.cumsum(0)
    count = sum(i % 23 + 1 for i in range(size))
    return torch.randint(0, 200000, (count,), device=device), ends - lengths, torch.rand(count, device=device)


class Reduced(nn.Module):
    """A graph network whose messages are reduced by scatter_reduce: largest, mean, product."""

    def __init__(self, width=96):
        super().__init__()
        self.edge, self.node = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3)), nn.ModuleList(nn.Linear(4 * width, width) for _ in range(3))
        self.head = nn.Linear(width, 20)

    def forward(self, x, edges):
        start, end = edges
        for edge, node in zip(self.edge, self.node):
            message = torch.tanh(edge(torch.cat([x[start], x[end]], -1)))
            places = end[:, None].expand_as(message)
            kinds = [torch.zeros_like(x).to(message.dtype).scatter_reduce(0, places, message, kind, include_self=False) for kind in ("amax", "mean", "amin")]
            x = x + node(torch.cat([x, *kinds], -1))
        return self.head(x)


def ring(device, dtype, size):
    edges = torch.stack([torch.arange(8 * size, device=device) % size, torch.randint(0, size, (8 * size,), device=device)])
    return torch.randn(size, 96, device=device, dtype=dtype), edges


class Registration(nn.Module):
    """Two volumes, a field of displacements, and the one warped onto the other."""

    def __init__(self):
        super().__init__()
        widths = (2, 16, 32, 32)
        self.down = nn.ModuleList(nn.Conv3d(a, b, 3, 2, 1) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(nn.Conv3d(a, b, 3, padding=1) for a, b in ((32, 32), (64, 32), (48, 16)))
        self.field = nn.Conv3d(18, 3, 3, padding=1)

    def forward(self, x):
        kept, y = [], x
        for layer in self.down:
            kept.append(y)
            y = F.leaky_relu(layer(y), 0.2)
        for layer in self.up:
            y = F.leaky_relu(layer(y), 0.2)
            y = torch.cat([F.interpolate(y, scale_factor=2, mode="trilinear"), kept.pop()], 1)
        moved = self.field(y).float()
        plain = F.affine_grid(torch.eye(3, 4, device=x.device).expand(len(x), -1, -1), list(x[:, :1].shape), align_corners=True)
        warped = F.grid_sample(x[:, :1].float(), plain + moved.permute(0, 2, 3, 4, 1), align_corners=True)
        smooth = sum(moved.diff(dim=axis).square().mean() for axis in (2, 3, 4))
        return (warped - x[:, 1:].float()).square().mean() + 0.01 * smooth


class Bounded(nn.Module):
    """Normalised weights everywhere: spectral norm, weight norm, in layers and convolutions."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            weight_norm(nn.Conv1d(32, 128, 5, padding=2)),
            nn.ELU(),
            spectral_norm(nn.Conv1d(128, 256, 5, padding=2, stride=2)),
            nn.ELU(),
            weight_norm(nn.ConvTranspose1d(256, 128, 4, 2, 1)),
            nn.GroupNorm(16, 128),
            nn.Flatten(),
            spectral_norm(nn.Linear(128 * 512, 256)),
            nn.SELU(),
            weight_norm(nn.Linear(256, 100)),
        )

    def forward(self, x):
        return self.layers(x)


class Chunks(nn.Module):
    """A state space in chunks (SSD): products inside of a chunk, a recurrence between them."""

    def __init__(self, width=512, heads=8, state=64, chunk=64):
        super().__init__()
        self.heads, self.state, self.chunk = heads, state, chunk
        self.embedding, self.inside, self.out = nn.Embedding(8000, width), nn.Linear(width, 2 * width + 2 * state + heads), nn.Linear(width, width)
        self.depth = nn.Conv1d(width + 2 * state, width + 2 * state, 4, groups=width + 2 * state, padding=3)
        self.rate, self.head = nn.Parameter(torch.zeros(heads)), nn.Linear(width, 8000)

    def forward(self, tokens):
        u = self.embedding(tokens)
        width, length = u.shape[-1], u.shape[1]
        gate, x, step = self.inside(u).split([width, width + 2 * self.state, self.heads], -1)
        x = F.silu(self.depth(x.transpose(1, 2))[..., :length].transpose(1, 2))
        x, b, c = x.split([width, self.state, self.state], -1)
        decay = -self.rate.float().exp() * F.softplus(step.float())
        x, b, c, decay = (t.unflatten(1, (-1, self.chunk)) for t in (x.unflatten(-1, (self.heads, -1)).float(), b.float(), c.float(), decay))
        total = decay.cumsum(2)
        between = (total[:, :, :, None] - total[:, :, None]).masked_fill(
            ~torch.ones(self.chunk, self.chunk, dtype=torch.bool, device=u.device).tril()[..., None], -torch.inf
        )
        inside = torch.einsum("bzin,bzjn,bzijh,bzjhp->bzihp", c, b, between.exp(), x)
        states = torch.einsum("bzjn,bzjh,bzjhp->bzhpn", b, (total[:, :, -1:] - total).exp(), x)
        kept, held = [], torch.zeros_like(states[:, 0])
        for z in range(states.shape[1]):
            kept.append(held)
            held = held * total[:, z, -1].exp()[..., None, None] + states[:, z]
        y = inside + torch.einsum("bzin,bzhpn,bzih->bzihp", c, torch.stack(kept, 1), total.exp())
        return self.head(self.out(y.flatten(1, 2).flatten(2).to(u.dtype) * F.silu(gate)) + u)


class Queue(nn.Module):
    """Momentum contrast: a second encoder that follows the first, and a queue of earlier keys."""

    def __init__(self, width=128, room=16384):
        super().__init__()

        def encoder():
            parts = [nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.Conv2d(64, 128, 3, 2, 1), nn.BatchNorm2d(128), nn.ReLU(inplace=True)]
            return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, width))

        self.first, self.second = encoder(), encoder().requires_grad_(False)
        self.register_buffer("kept", F.normalize(torch.randn(width, room), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        q = F.normalize(self.first(x), dim=-1)
        with torch.no_grad():
            for own, other in zip(self.first.parameters(), self.second.parameters()):
                other.mul_(0.999).add_(own, alpha=0.001)
            order = torch.randperm(len(x), device=x.device)
            k = F.normalize(self.second(x.flip(-1)[order]), dim=-1)[order.argsort()]
        scores = torch.cat([(q * k).sum(-1, keepdim=True), q @ self.kept.clone().to(q.dtype)], 1) / 0.07
        loss = F.cross_entropy(scores.float(), torch.zeros(len(x), dtype=torch.long, device=x.device))
        if self.training:
            at = int(self.place)
            self.kept[:, at : at + len(x)] = k.t().to(self.kept.dtype)
            self.place[0] = (at + len(x)) % self.kept.shape[1]
        return loss


class Modulated(nn.Module):
    """StyleGAN's generator: convolutions whose weights differ for each sample, as groups of one convolution."""

    class Layer(nn.Module):
        def __init__(self, inputs, out, style, up):
            super().__init__()
            self.up, self.style = up, nn.Linear(style, inputs)
            self.weight, self.noise, self.bias = nn.Parameter(torch.randn(out, inputs, 3, 3)), nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(out))

        def forward(self, x, style):
            size, inputs, height, width = x.shape
            weight = self.weight[None] * (1 + self.style(style))[:, None, :, None, None]
            weight = weight * weight.float().square().sum((2, 3, 4), keepdim=True).add(1e-8).rsqrt().to(weight.dtype)
            if self.up:
                x = F.interpolate(x, scale_factor=2, mode="bilinear")
                height, width = 2 * height, 2 * width
            x = F.conv2d(x.reshape(1, -1, height, width), weight.flatten(0, 1), padding=1, groups=size).view(size, -1, height, width)
            return F.leaky_relu(x + self.noise * torch.randn_like(x[:, :1]) + self.bias[:, None, None], 0.2)

    def __init__(self):
        super().__init__()
        self.map = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(256, 256), nn.LeakyReLU(0.2))))
        self.start = nn.Parameter(torch.randn(1, 256, 4, 4))
        widths = (256, 256, 256, 128, 64)
        self.layers = nn.ModuleList(Modulated.Layer(a, b, 256, True) for a, b in zip(widths, widths[1:]))
        self.picture = nn.Conv2d(64, 3, 1)

    def forward(self, z):
        style, x = self.map(z), self.start.expand(len(z), -1, -1, -1)
        for layer in self.layers:
            x = layer(x.to(style.dtype), style)
        return self.picture(x)


class LargeKernels(nn.Module):
    """Depthwise convolutions of 31 by 31 and of 1 by 21, and of three dimensions; pooling of odd kinds."""

    def __init__(self, width=96):
        super().__init__()
        self.first = nn.Conv2d(3, width, 4, 4)
        self.wide = nn.ModuleList(nn.Conv2d(width, width, 31, padding=15, groups=width) for _ in range(2))
        self.flat = nn.ModuleList(nn.Conv2d(width, width, (1, 21), padding=(0, 10), groups=width) for _ in range(2))
        self.mix = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(2))
        self.deep, self.head = nn.Conv3d(8, 8, 3, padding=1, groups=8), nn.Linear(width * 16, 100)

    def forward(self, x):
        x = self.first(x)
        for wide, flat, mix in zip(self.wide, self.flat, self.mix):
            x = x + mix(F.gelu(wide(x) + flat(x)))
        x = x + self.deep(x.unflatten(1, (8, -1))).flatten(1, 2)
        x = F.lp_pool2d(F.max_pool2d(x, 3, 2, 1, ceil_mode=True), 2, 2) + F.adaptive_max_pool2d(x, 14)
        return self.head(F.fractional_max_pool2d(x.float(), 2, output_size=4).to(x.dtype).flatten(1))


class Conformer(nn.Module):
    """Speech: half steps of feed-forward layers, attention with shifted scores, gated depthwise convolutions."""

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.f1, self.f2 = (
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * width, width)) for _ in range(2)
            )
            self.norm, self.qkv, self.out, self.place = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, width, bias=False)
            self.u, self.v = nn.Parameter(torch.zeros(heads, 1, width // heads)), nn.Parameter(torch.zeros(heads, 1, width // heads))
            self.before, self.twice = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
            self.deep, self.batch, self.single = nn.Conv1d(width, width, 31, padding=15, groups=width), nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)
            self.last = nn.LayerNorm(width)

        def attention(self, x, places):
            q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            p = self.place(places).unflatten(-1, (self.heads, -1)).permute(1, 2, 0)
            far = (q + self.v) @ p
            far = F.pad(far, (1, 0)).reshape(*far.shape[:2], far.shape[-1] + 1, -1)[:, :, 1:].reshape(far.shape)[..., : q.shape[2]]
            weights = (((q + self.u) @ k.transpose(-1, -2) + far) / math.sqrt(q.shape[-1])).softmax(-1)
            return self.out((F.dropout(weights, 0.1, self.training).to(v.dtype) @ v).transpose(1, 2).flatten(2))

        def forward(self, x, places):
            x = x + 0.5 * self.f1(x)
            x = x + self.attention(x, places)
            y = F.glu(self.twice(self.before(x).transpose(1, 2)), 1)
            x = x + self.single(F.silu(self.batch(self.deep(y)))).transpose(1, 2)
            return self.last(x + 0.5 * self.f2(x))

    def __init__(self, width=256):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU())
        self.join, self.places = nn.Linear(width * 19, width), nn.Parameter(torch.randn(2 * 200 - 1, width))
        self.blocks, self.head = nn.ModuleList(Conformer.Block(width, 4) for _ in range(4)), nn.Linear(width, 500)

    def forward(self, x):
        x = self.join(self.first(x[:, None]).permute(0, 2, 1, 3).flatten(2))
        places = self.places[200 - x.shape[1] : 199 + x.shape[1]]
        for block in self.blocks:
            x = block(x, places)
        return self.head(x)


class Vocoder(nn.Module):
    """Waves from spectra: transposed convolutions, dilated residuals, and a loss on spectrograms of three sizes."""

    def __init__(self):
        super().__init__()
        self.first = weight_norm(nn.Conv1d(80, 256, 7, padding=3))
        self.ups, self.parts, width = nn.ModuleList(), nn.ModuleList(), 256
        for rate in (8, 8, 4):
            self.ups.append(weight_norm(nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, rate // 2)))
            width //= 2
            self.parts.append(nn.ModuleList(weight_norm(nn.Conv1d(width, width, 3, dilation=d, padding=d)) for d in (1, 3, 5)))
        self.last = weight_norm(nn.Conv1d(width, 1, 7, padding=3))
        self.register_buffer("mel", torch.rand(80, 513), persistent=False)

    def forward(self, x):
        y = self.first(x)
        for up, parts in zip(self.ups, self.parts):
            y = up(F.leaky_relu(y, 0.1))
            for part in parts:
                y = y + part(F.leaky_relu(y, 0.1))
        return torch.tanh(self.last(F.leaky_relu(y)))[:, 0]


def vocoder_loss(model, x):
    wave = model(x).float()
    loss = 0
    for size in (512, 1024, 2048):
        spectrum = torch.stft(wave, size, size // 4, window=torch.hann_window(size, device=wave.device), return_complex=True).abs()
        loss = loss + spectrum.clamp(min=1e-5).log().abs().mean()
        if size == 1024:
            loss = loss + (model.mel.float() @ spectrum).log1p().mean()
    return loss


class Slots(nn.Module):
    """Objects found by attention that slots compete for, over three rounds, and a picture decoded from each slot."""

    def __init__(self, width=64, slots=7):
        super().__init__()
        self.slots = slots
        self.encoder = nn.Sequential(nn.Conv2d(3, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, width, 5, padding=2), nn.ReLU())
        self.mean, self.spread = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.zeros(1, 1, width))
        self.q, self.k, self.v, self.cell = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width), nn.GRUCell(width, width)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width, width, 5, 2, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, width, 5, 2, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 4, 3, padding=1)
        )

    def forward(self, x):
        y = self.n1(self.encoder(x).flatten(2).transpose(1, 2))
        k, v = self.k(y), self.v(y)
        slots = self.mean + self.spread.exp() * torch.randn(len(x), self.slots, self.mean.shape[-1], device=x.device, dtype=self.mean.dtype)
        for _ in range(3):
            weights = (self.q(self.n2(slots)) @ k.transpose(1, 2) / 8).softmax(1) + 1e-8
            update = (weights / weights.sum(-1, keepdim=True)).to(v.dtype) @ v
            slots = self.cell(update.flatten(0, 1), slots.flatten(0, 1).to(update.dtype)).view_as(slots)
        pictures = self.decoder(slots.flatten(0, 1)[..., None, None].expand(-1, -1, 16, 16)).unflatten(0, (len(x), self.slots))
        colours, mask = pictures.split([3, 1], 2)
        return (colours * mask.softmax(1)).sum(1)


class Balance(nn.Module):
    """A deep equilibrium: the fixed point is found without gradients, and until it is near enough."""

    def __init__(self, width=1024):
        super().__init__()
        self.inside, self.turn, self.norm, self.head = nn.Linear(256, width), nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, 10)

    def once(self, z, x):
        return self.norm(torch.tanh(self.turn(z) + x))

    def forward(self, x):
        x = self.inside(x)
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(30):
                z = self.once(z, x)
        return self.head(self.once(z, x))


class Transport(nn.Module):
    """Two sets of points matched by entropic transport: many rounds of logsumexp over all pairs."""

    def __init__(self, width=64):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 128), nn.GELU(), nn.Linear(128, width))

    def forward(self, x):
        a, b = self.encoder(x).float().chunk(2, 1)
        cost = torch.cdist(a, b, p=2.0)
        f, g = torch.zeros_like(cost[..., 0]), torch.zeros_like(cost[:, 0])
        for _ in range(8):
            f = -torch.logsumexp((g[:, None] - cost) / 0.1, -1) * 0.1
            g = -torch.logsumexp((f[..., None] - cost) / 0.1, -2) * 0.1
        plan = ((f[..., None] + g[:, None] - cost) / 0.1).exp()
        return (plan * cost).sum((-1, -2)).mean()


class Remembering(nn.Module):
    """Transformer-XL's memory: attention reads the states of the last batch, which are kept from step to step."""

    def __init__(self, width=512, depth=4, heads=8):
        super().__init__()
        self.heads, self.memory = heads, None
        self.embedding, self.head = nn.Embedding(10000, width), nn.Linear(width, 10000)
        self.layers = nn.ModuleList(nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True) for _ in range(depth))
        self.forwards = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2048), nn.ReLU(), nn.Linear(2048, width)) for _ in range(depth))

    def forward(self, tokens):
        x, kept = self.embedding(tokens), []
        memory = self.memory or [x.new_zeros(len(x), 128, x.shape[-1]) for _ in self.layers]
        for layer, forward, old in zip(self.layers, self.forwards, memory):
            kept.append(torch.cat([old, x.detach().to(old.dtype)], 1)[:, -128:])
            both = torch.cat([old.to(x.dtype), x], 1)
            n, m = x.shape[1], both.shape[1]
            mask = torch.ones(n, m, dtype=torch.bool, device=x.device).triu(m - n + 1)
            x = x + layer(x, both, both, attn_mask=mask, need_weights=False)[0]
            x = x + forward(x)
        self.memory = kept
        return self.head(x)


class Mixture(nn.Module):
    """A density as a mixture of Gaussians, by torch.distributions; samples, and their entropy."""

    def __init__(self, parts=32, width=8):
        super().__init__()
        self.parts, self.width = parts, width
        self.net = nn.Sequential(nn.Linear(64, 512), nn.Softplus(), nn.Linear(512, parts * (1 + 2 * width)))

    def forward(self, x):
        share, mean, spread = self.net(x).float().split([self.parts, self.parts * self.width, self.parts * self.width], -1)
        each = torch.distributions.Normal(mean.unflatten(-1, (self.parts, -1)), F.softplus(spread).unflatten(-1, (self.parts, -1)) + 1e-3)
        mixed = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=share), torch.distributions.Independent(each, 1))
        drawn = torch.distributions.Normal(0.0, 1.0).sample((len(x), self.width)).to(x.device)
        return -mixed.log_prob(drawn).mean() + 1e-3 * each.rsample().square().mean()


class Monarch(nn.Module):
    """Products with structured matrices: blocks, a transposition, blocks; and a bilinear form."""

    def __init__(self, blocks=32, depth=6):
        super().__init__()
        self.left = nn.ParameterList(nn.Parameter(torch.randn(blocks, blocks, blocks) / blocks**0.5) for _ in range(depth))
        self.right = nn.ParameterList(nn.Parameter(torch.randn(blocks, blocks, blocks) / blocks**0.5) for _ in range(depth))
        self.pair, self.blocks = nn.Bilinear(64, 64, 64), blocks

    def forward(self, x):
        for left, right in zip(self.left, self.right):
            y = torch.bmm(x.view(len(x), self.blocks, -1).transpose(0, 1), left)
            y = torch.bmm(y.permute(2, 1, 0).contiguous(), right)
            x = F.hardswish(y.permute(1, 2, 0).flatten(1)) + x
        return self.pair(x[:, :64].contiguous(), x[:, 64:128].contiguous())


class Volumes(nn.Module):
    """A Fourier neural operator over volumes, with a cosine transform by FFT beside it."""

    def __init__(self, width=16, modes=8):
        super().__init__()
        self.modes = modes
        self.first, self.last = nn.Conv3d(1, width, 1), nn.Conv3d(width, 1, 1)
        self.weight = nn.ParameterList(nn.Parameter(torch.randn(4, width, width, modes, modes, modes, 2) / width) for _ in range(2))
        self.skip = nn.ModuleList(nn.Conv3d(width, width, 1) for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for weight, skip in zip(self.weight, self.skip):
            found = torch.fft.rfftn(x.float(), dim=(-3, -2, -1))
            out, m = torch.zeros_like(found), self.modes
            for number, (i, j) in enumerate(((slice(m), slice(m)), (slice(-m, None), slice(m)), (slice(m), slice(-m, None)), (slice(-m, None), slice(-m, None)))):
                part = (slice(None), slice(None), i, j, slice(m))
                out[part] = torch.einsum("bixyz,ioxyz->boxyz", found[part], torch.view_as_complex(weight[number].float()))
            x = F.gelu(torch.fft.irfftn(out, s=x.shape[-3:], dim=(-3, -2, -1)).to(x.dtype) + skip(x))
        mirrored = torch.fft.fft(torch.cat([x, x.flip(-1)], -1).float(), dim=-1)
        return self.last(x) + mirrored.real.mean(1, keepdim=True)[..., : x.shape[-1]].to(x.dtype)


class Masked(nn.Module):
    """PixelCNN: convolutions whose weights are masked in each pass, and a logistic mixture by 256 classes."""

    class Layer(nn.Conv2d):
        def __init__(self, kind, *words, **more):
            super().__init__(*words, **more)
            mask = torch.ones_like(self.weight)
            height, width = self.weight.shape[2:]
            mask[:, :, height // 2, width // 2 + (kind == "B") :] = 0
            mask[:, :, height // 2 + 1 :] = 0
            self.register_buffer("mask", mask)

        def forward(self, x):
            return self._conv_forward(x, self.weight * self.mask, self.bias)

    def __init__(self, width=96):
        super().__init__()
        parts = [Masked.Layer("A", 3, width, 7, padding=3)]
        for _ in range(5):
            parts += [nn.BatchNorm2d(width), nn.ReLU(inplace=True), Masked.Layer("B", width, width, 3, padding=1)]
        self.layers = nn.Sequential(*parts, nn.ReLU(inplace=True), nn.Conv2d(width, 256, 1))

    def forward(self, x):
        return self.layers(x)


def masked_loss(model, x):
    return F.cross_entropy(model(x).float(), (x[:, 0].float().sigmoid() * 255).long())


class Samplewise(nn.Module):
    """The norm of each sample's own gradient, by vmap over grad, as a loss that is trained on in turn."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 10))

    def forward(self, x, y):
        weights = dict(self.net.named_parameters())

        def loss(weights, x, y):
            return F.cross_entropy(functional_call(self.net, weights, (x[None],)).float(), y[None])

        gradients = vmap(grad(loss), (None, 0, 0))(weights, x, y)
        norms = torch.stack([g.flatten(1).float().square().sum(1) for g in gradients.values()]).sum(0).sqrt()
        return norms.clamp(max=1.0).mean()


class Committee(nn.Module):
    """Networks of one shape stacked into one call, whose outputs vote."""

    def __init__(self, members=6):
        super().__init__()
        self.each = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100))
            for _ in range(members)
        )

    def forward(self, x):
        weights = {key: torch.stack([dict(one.named_parameters())[key] for one in self.each]) for key in dict(self.each[0].named_parameters())}
        return vmap(lambda w, x: functional_call(self.each[0], w, (x,)), (0, None))(weights, x).mean(0)


class Renderer(nn.Module):
    """Coloured Gaussians sorted by depth and laid over each other, in tiles of a picture."""

    def __init__(self, count=512, side=64):
        super().__init__()
        self.place, self.size, self.colour, self.clear = (
            nn.Parameter(torch.rand(count, 3)),
            nn.Parameter(torch.zeros(count, 2)),
            nn.Parameter(torch.rand(count, 3)),
            nn.Parameter(torch.zeros(count)),
        )
        grid = torch.stack(torch.meshgrid(torch.linspace(0, 1, side), torch.linspace(0, 1, side), indexing="ij"), -1)
        self.register_buffer("pixels", grid.reshape(-1, 2))

    def forward(self, turns):
        place = self.place @ turns
        order = place[..., 2].argsort(-1)
        place = place.gather(1, order[..., None].expand(-1, -1, 3))
        far = (self.pixels[None, :, None] - place[:, None, :, :2]) / self.size[order][:, None].exp()
        alpha = self.clear[order].sigmoid()[:, None] * torch.exp(-50 * far.square().sum(-1))
        through = torch.cumprod(1 - alpha, -1)
        weight = alpha * torch.cat([torch.ones_like(through[..., :1]), through[..., :-1]], -1)
        return weight @ self.colour[order]


def power(model, x):
    return model(x).float().square().mean()


CASES = {
    "hash_grid": (HashGrid, lambda d, t, b: torch.rand(b, 3, device=d, dtype=t), power, 1 << 16),
    "splines": (Splines, normal(256), power, 8192),
    "registers": (Registers, labelled((3, 224, 224)), classes_loss, 48),
    "biased_product": (BiasedProduct, tokens_batch(211), token_loss, 32),
    "padded_groups": (
        PaddedGroups,
        padded_tokens,
        lambda m, x: F.cross_entropy(m(*x).float().flatten(0, 1), x[0].flatten()),
        24,
    ),
    "adapters": (Adapters, tokens_batch(256), token_loss, 16),
    "eighths": (Eighths, normal(2048), power, 16384),
    "bags": (Bags, bags_batch, lambda m, x: m(*x).float().square().mean(), 40000),
    "reduced": (Reduced, ring, lambda m, x: m(*x).float().square().mean(), 100000),
    "registration": (Registration, normal(2, 64, 64, 64), itself, 6),
    "bounded": (Bounded, normal(32, 512), power, 64),
    "chunks": (Chunks, tokens_batch(512, 8000), token_loss, 8),
    "queue": (Queue, normal(3, 96, 96), itself, 256),
    "modulated": (Modulated, normal(256), power, 32),
    "large_kernels": (LargeKernels, labelled((3, 224, 224)), classes_loss, 32),
    "conformer": (Conformer, normal(400, 80), power, 24),
    "vocoder": (Vocoder, normal(80, 64), vocoder_loss, 16),
    "slots": (Slots, normal(3, 64, 64), power, 48),
    "balance": (Balance, normal(256), power, 32768),
    "transport": (Transport, normal(1024, 3), itself, 16),
    "remembering": (Remembering, tokens_batch(192), token_loss, 24),
    "mixture": (Mixture, normal(64), itself, 65536),
    "monarch": (Monarch, normal(1024), power, 16384),
    "volumes": (Volumes, normal(1, 48, 48, 40), power, 8),
    "masked": (Masked, normal(3, 64, 64), masked_loss, 48),
    "samplewise": (
        Samplewise,
        lambda d, t, b: (torch.randn(b, 128, device=d, dtype=t), torch.randint(0, 10, (b,), device=d)),
        lambda m, x: m(*x),
        4096,
    ),
    "committee": (Committee, labelled((3, 96, 96)), classes_loss, 64),
    "renderer": (Renderer, lambda d, t, b: torch.randn(b, 3, 3, device=d, dtype=t), power, 16),
}
