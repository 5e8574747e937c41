"""Images, video, points and rays."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from .sequences import itself, normal, square


def classes_loss(model, batch):
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def labelled(shape, classes=100, layout=torch.contiguous_format):
    def batch(device, dtype, size):
        x = torch.randn(size, *shape, device=device, dtype=dtype)
        return x.contiguous(memory_format=layout), torch.randint(0, classes, (size,), device=device)

    return batch


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride=1, groups=1):
        super().__init__()
        out = 4 * width
        self.a, self.b, self.c = (
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False),
            nn.Conv2d(width, out, 1, bias=False),
        )
        self.na, self.nb, self.nc = nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.BatchNorm2d(out)
        self.skip = nn.Sequential() if inputs == out and stride == 1 else nn.Sequential(nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = F.relu(self.na(self.a(x)), inplace=True)
        y = F.relu(self.nb(self.b(y)), inplace=True)
        return F.relu(self.nc(self.c(y)) + self.skip(x), inplace=True)


def bottlenecks(groups=1):
    parts = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for index in range(count):
            parts.append(Bottleneck(inputs, width, 2 if index == 0 and width > 64 else 1, groups))
            inputs = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 100))


class Inverted(nn.Module):
    """An inverted bottleneck: expand, a depthwise convolution, squeeze and excite, project."""

    def __init__(self, inputs, out, stride, kernel):
        super().__init__()
        wide = 6 * inputs
        self.expand, self.depth, self.project = (
            nn.Conv2d(inputs, wide, 1, bias=False),
            nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False),
            nn.Conv2d(wide, out, 1, bias=False),
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(wide), nn.BatchNorm2d(wide), nn.BatchNorm2d(out)])
        self.squeeze, self.excite = nn.Conv2d(wide, inputs // 4, 1), nn.Conv2d(inputs // 4, wide, 1)
        self.keeps = inputs == out and stride == 1

    def forward(self, x):
        y = F.hardswish(self.norms[0](self.expand(x)))
        y = F.hardswish(self.norms[1](self.depth(y)))
        y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        y = self.norms[2](self.project(y))
        return x + y if self.keeps else y


def mobile():
    plan = [(16, 24, 2, 3), (24, 24, 1, 3), (24, 40, 2, 5), (40, 40, 1, 5), (40, 80, 2, 3), (80, 80, 1, 3), (80, 112, 1, 5), (112, 192, 2, 5), (192, 192, 1, 5)]
    parts = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()]
    return nn.Sequential(*parts, *(Inverted(*row) for row in plan), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(192, 100))


class NextBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depth, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down, self.scale = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


def next_like():
    parts, inputs = [nn.Conv2d(3, 96, 4, 4)], 96
    for width, count in ((96, 2), (192, 2), (384, 4)):
        if width != inputs:
            parts += [nn.GroupNorm(1, inputs), nn.Conv2d(inputs, width, 2, 2)]
        parts += [NextBlock(width) for _ in range(count)]
        inputs = width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 100))


class Volume(nn.Module):
    """A U-Net over volumes: instance normalisation, transposed convolutions."""

    def __init__(self, widths=(16, 32, 64, 128)):
        super().__init__()

        def block(a, b):
            return nn.Sequential(
                nn.Conv3d(a, b, 3, padding=1),
                nn.InstanceNorm3d(b, affine=True),
                nn.LeakyReLU(inplace=True),
                nn.Conv3d(b, b, 3, padding=1),
                nn.InstanceNorm3d(b, affine=True),
                nn.LeakyReLU(inplace=True),
            )

        self.down = nn.ModuleList(block(a, b) for a, b in zip((1, *widths[:-1]), widths))
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in zip(widths[-2::-1], widths[:0:-1]))
        self.mix = nn.ModuleList(block(2 * a, a) for a in widths[-2::-1])
        self.last = nn.Conv3d(widths[0], 1, 1)

    def forward(self, x):
        kept = []
        for index, down in enumerate(self.down):
            x = down(x if index == 0 else F.max_pool3d(x, 2))
            kept.append(x)
        kept.pop()
        for up, mix in zip(self.up, self.mix):
            x = mix(torch.cat([up(x), kept.pop()], 1))
        return self.last(x)


class Adversaries(nn.Module):
    """A generator of transposed convolutions and a critic with spectral normalisation."""

    def __init__(self, width=64):
        super().__init__()

        def up(a, b):
            return nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True))

        def down(a, b):
            return nn.Sequential(spectral_norm(nn.Conv2d(a, b, 4, 2, 1)), nn.LeakyReLU(0.2, True))

        self.first = nn.ConvTranspose2d(128, 8 * width, 4)
        self.make = nn.Sequential(
            up(8 * width, 8 * width), up(8 * width, 4 * width), up(4 * width, 2 * width), up(2 * width, width), nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh()
        )
        self.judge = nn.Sequential(
            down(3, width), down(width, 2 * width), down(2 * width, 4 * width), down(4 * width, 8 * width), spectral_norm(nn.Conv2d(8 * width, 1, 4))
        )

    def forward(self, noise):
        return self.judge(self.make(self.first(noise)))


class Dilated(nn.Module):
    """Segmentation: dilated convolutions side by side, resized to the input."""

    def __init__(self):
        super().__init__()
        self.back = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            *(Bottleneck(i, 64) for i in (64, 256)),
            Bottleneck(256, 128, 2),
            Bottleneck(512, 128),
        )
        self.rates = nn.ModuleList(nn.Conv2d(512, 128, 3, padding=r, dilation=r) for r in (1, 6, 12, 18))
        self.pool, self.mix, self.head = nn.Conv2d(512, 128, 1), nn.Conv2d(640, 128, 1), nn.Conv2d(128, 21, 1)

    def forward(self, x):
        y = self.back(x)
        pooled = F.interpolate(self.pool(F.adaptive_avg_pool2d(y, 1)), y.shape[2:], mode="bilinear")
        y = torch.cat([*(rate(y) for rate in self.rates), pooled], 1)
        return F.interpolate(self.head(F.relu(self.mix(y))), x.shape[2:], mode="bilinear", align_corners=False)


class Deformable(nn.Module):
    """Features gathered at learnt offsets."""

    def __init__(self, width=128):
        super().__init__()
        self.first = nn.Conv2d(3, width, 7, 4, 3)
        self.offsets = nn.ModuleList(nn.Conv2d(width, 18, 3, padding=1) for _ in range(3))
        self.mix = nn.ModuleList(nn.Conv2d(9 * width, width, 1) for _ in range(3))
        self.last = nn.Linear(width, 100)

    def forward(self, x):
        x = self.first(x)
        size, _, height, breadth = x.shape
        rows = torch.linspace(-1, 1, height, device=x.device, dtype=x.dtype)
        columns = torch.linspace(-1, 1, breadth, device=x.device, dtype=x.dtype)
        base = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1)
        for offsets, mix in zip(self.offsets, self.mix):
            moved = offsets(x).view(size, 9, 2, height, breadth).permute(0, 1, 3, 4, 2).to(x.dtype)
            found = [F.grid_sample(x, base + 0.1 * moved[:, k].tanh(), align_corners=False, padding_mode="border") for k in range(9)]
            x = x + F.relu(mix(torch.cat(found, 1)))
        return self.last(x.mean((2, 3)))


class Spatial(nn.Module):
    def __init__(self):
        super().__init__()
        self.where = nn.Sequential(nn.Conv2d(3, 32, 7, 2), nn.MaxPool2d(2), nn.ReLU(), nn.AdaptiveMaxPool2d(8), nn.Flatten(), nn.Linear(32 * 64, 6))
        self.what = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1),
            nn.ReLU(),
            nn.FractionalMaxPool2d(2, output_ratio=0.5),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.LPPool2d(2, 2),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(2048, 100),
        )

    def forward(self, x):
        grid = F.affine_grid(self.where(x).view(-1, 2, 3).to(x.dtype), list(x.shape), align_corners=False)
        return self.what(F.grid_sample(x, grid, align_corners=False))


class SuperResolution(nn.Module):
    def __init__(self, width=96, blocks=8):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(True), nn.Conv2d(width, width, 3, padding=1)) for _ in range(blocks)
        )
        self.up = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Conv2d(width, 4 * width, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Conv2d(width, 3, 3, padding=1),
        )

    def forward(self, x):
        y = self.first(F.interpolate(x, scale_factor=0.25, mode="bicubic"))
        for block in self.blocks:
            y = y + 0.1 * block(y)
        return self.up(y)


class Unpooled(nn.Module):
    """SegNet: the places of the largest values lead the way back."""

    def __init__(self):
        super().__init__()
        widths = [3, 64, 128, 256]
        self.down = nn.ModuleList(nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(True)) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(nn.Sequential(nn.Conv2d(b, a, 3, padding=1), nn.BatchNorm2d(a), nn.ReLU(True)) for a, b in list(zip(widths, widths[1:]))[::-1])

    def forward(self, x):
        kept = []
        for down in self.down:
            x = down(x)
            kept.append((x.shape, None))
            x, places = F.max_pool2d(x, 2, return_indices=True)
            kept[-1] = (kept[-1][0], places)
        for up in self.up:
            shape, places = kept.pop()
            x = up(F.max_unpool2d(x, places, 2, output_size=shape))
        return x


class Neighbourhood(nn.Module):
    """Attention over the neighbours of each pixel, by unfold and fold."""

    def __init__(self, width=64):
        super().__init__()
        self.first, self.qkv, self.last = nn.Conv2d(3, width, 4, 4), nn.ModuleList(nn.Conv2d(width, 3 * width, 1) for _ in range(3)), nn.Conv2d(width, 48, 1)
        self.width = width

    def forward(self, image):
        x = self.first(image)
        size, width, height, breadth = x.shape
        for layer in self.qkv:
            q, k, v = layer(x).chunk(3, 1)
            near = [F.unfold(part, 7, padding=3).view(size, width, 49, -1) for part in (k, v)]
            weights = (q.reshape(size, width, 1, -1) * near[0]).sum(1, keepdim=True).div(math.sqrt(width)).softmax(2)
            x = x + (weights * near[1]).sum(2).view(size, width, height, breadth)
        return F.fold(self.last(x).flatten(2), image.shape[2:], 4, stride=4)


class Codebook(nn.Module):
    """VQ-VAE: the nearest of 1,024 vectors, gradients straight through."""

    def __init__(self, width=128):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1))
        self.decode = nn.Sequential(nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1))
        self.codes = nn.Embedding(1024, width)

    def forward(self, x):
        z = self.encode(x)
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        nearest = torch.cdist(flat.float(), self.codes.weight.float()).argmin(1)
        chosen = self.codes(nearest).view(z.shape[0], *z.shape[2:], -1).permute(0, 3, 1, 2)
        straight = z + (chosen - z).detach()
        return (
            F.mse_loss(self.decode(straight).float(), x.float())
            + F.mse_loss(chosen.float(), z.detach().float())
            + 0.25 * F.mse_loss(z.float(), chosen.detach().float())
        )


class Style(nn.Module):
    def __init__(self):
        super().__init__()

        def part(a, b, kernel, stride):
            return nn.Sequential(nn.ReflectionPad2d(kernel // 2), nn.Conv2d(a, b, kernel, stride), nn.InstanceNorm2d(b, affine=True), nn.ReLU())

        self.layers = nn.Sequential(
            part(3, 32, 9, 1),
            part(32, 64, 3, 2),
            part(64, 128, 3, 2),
            part(128, 128, 3, 1),
            nn.Upsample(scale_factor=2),
            part(128, 64, 3, 1),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            part(64, 32, 3, 1),
            nn.ReplicationPad2d(4),
            nn.Conv2d(32, 3, 9),
        )

    def forward(self, x):
        return self.layers(x)


class Boxes(nn.Module):
    """Detection on a pyramid with a focal loss over all anchors."""

    def __init__(self, classes=20, anchors=3):
        super().__init__()

        def part(a, b, stride):
            return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.1, inplace=True))

        self.stages = nn.ModuleList([nn.Sequential(part(3, 32, 2), part(32, 64, 2), part(64, 128, 2)), part(128, 256, 2), part(256, 512, 2)])
        self.side = nn.ModuleList(nn.Conv2d(w, 128, 1) for w in (128, 256, 512))
        self.heads = nn.ModuleList(nn.Conv2d(128, anchors * (classes + 5), 1) for _ in range(3))
        self.classes = classes

    def forward(self, image, targets):
        kept = []
        x = image
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        above, outs = None, []
        for feature, side, head in zip(kept[::-1], list(self.side)[::-1], self.heads):
            here = side(feature)
            above = here if above is None else here + F.interpolate(above, scale_factor=2, mode="nearest")
            outs.append(head(F.silu(above)).flatten(2).view(image.shape[0], 3, self.classes + 5, -1).permute(0, 1, 3, 2).flatten(1, 2))
        scores = torch.cat(outs, 1).float()
        chance = scores[..., 5:].sigmoid()
        wanted = targets.to(chance.dtype)[:, None].expand_as(chance)
        entropy = F.binary_cross_entropy_with_logits(scores[..., 5:], wanted, reduction="none")
        focal = (entropy * (wanted * (1 - chance) + (1 - wanted) * chance) ** 2).sum()
        return focal / image.shape[0] + F.smooth_l1_loss(scores[..., :4], torch.zeros_like(scores[..., :4]))


class Queries(nn.Module):
    """Set prediction: a transformer over image features, matched to targets on the host."""

    def __init__(self, width=256):
        super().__init__()
        self.back = nn.Sequential(nn.Conv2d(3, 64, 7, 4, 3), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.Conv2d(128, width, 3, 2, 1))
        self.transformer, self.queries = nn.Transformer(width, 8, 3, 3, 1024, batch_first=True), nn.Embedding(100, width)
        self.kind, self.box = nn.Linear(width, 21), nn.Linear(width, 4)

    def forward(self, image, kinds, boxes):
        memory = self.back(image).flatten(2).transpose(1, 2)
        found = self.transformer(memory, self.queries.weight[None].expand(image.shape[0], -1, -1))
        scores, places = self.kind(found).float(), self.box(found).sigmoid().float()
        with torch.no_grad():
            cost = torch.cdist(places, boxes.float(), p=1) - scores.softmax(-1).gather(2, kinds[:, None].expand(-1, 100, -1))
            matched = cost.cpu()
        rows = torch.stack([self.match(one) for one in matched]).to(image.device)
        wanted = torch.full((image.shape[0], 100), 20, device=image.device).scatter(1, rows, kinds)
        near = places.gather(1, rows[..., None].expand(-1, -1, 4))
        return F.cross_entropy(scores.flatten(0, 1), wanted.flatten()) + F.l1_loss(near, boxes.float())

    @staticmethod
    def match(cost):
        """The cheapest free query of each target in turn."""
        taken: list[int] = []
        for column in cost.unbind(1):
            order = column.argsort().tolist()
            taken.append(next(row for row in order if row not in taken))
        return torch.tensor(taken)


class Capsules(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 256, 9), nn.Conv2d(256, 256, 9, 2)
        self.weight = nn.Parameter(torch.randn(10, 1152, 16, 8) * 0.01)

    @staticmethod
    def squash(x):
        norm = x.square().sum(-1, keepdim=True)
        return norm / (1 + norm) * x / (norm + 1e-8).sqrt()

    def forward(self, x):
        parts = self.second(F.relu(self.first(x))).view(x.shape[0], -1, 8)
        votes = torch.einsum("cnoi,bni->bcno", self.weight, self.squash(parts))
        logits = torch.zeros(votes.shape[:3], device=x.device, dtype=votes.dtype)
        for _ in range(3):
            out = self.squash((logits.softmax(1)[..., None] * votes).sum(2))
            logits = logits + (votes * out[:, :, None]).sum(-1)
        return out.norm(dim=-1)


class Diffusion(nn.Module):
    """A denoising U-Net with time embeddings, group normalisation and attention."""

    class Block(nn.Module):
        def __init__(self, a, b, attends):
            super().__init__()
            self.n1, self.c1, self.n2, self.c2 = nn.GroupNorm(32, a), nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(32, b), nn.Conv2d(b, b, 3, padding=1)
            self.time, self.skip = nn.Linear(512, b), nn.Conv2d(a, b, 1) if a != b else nn.Identity()
            self.norm, self.qkv, self.out = (nn.GroupNorm(32, b), nn.Conv1d(b, 3 * b, 1), nn.Conv1d(b, b, 1)) if attends else (None, None, None)

        def forward(self, x, time):
            y = self.c1(F.silu(self.n1(x))) + self.time(F.silu(time))[:, :, None, None]
            x = self.c2(F.dropout(F.silu(self.n2(y)), 0.1, self.training)) + self.skip(x)
            if self.norm is None:
                return x
            size, width, height, breadth = x.shape
            q, k, v = self.qkv(self.norm(x).flatten(2)).view(size, 3, width // 64, 64, -1).transpose(-1, -2).unbind(1)
            y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(size, width, -1)
            return x + self.out(y).view(size, width, height, breadth)

    def __init__(self, width=128):
        super().__init__()
        block = Diffusion.Block
        self.time = nn.Sequential(nn.Linear(width, 512), nn.SiLU(), nn.Linear(512, 512))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([block(width, width, False), block(width, 2 * width, True), block(2 * width, 4 * width, True)])
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in (width, 2 * width))
        self.up = nn.ModuleList([block(8 * width, 2 * width, True), block(4 * width, width, True), block(2 * width, width, False)])
        self.last = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))
        self.width = width

    def forward(self, x, moment):
        angle = moment[:, None].float() * torch.exp(torch.arange(self.width // 2, device=x.device) * (-math.log(10000.0) / (self.width // 2)))
        time = self.time(torch.cat([angle.sin(), angle.cos()], -1).to(x.dtype))
        x = self.first(x)
        kept = []
        for index, down in enumerate(self.down):
            x = down(x, time)
            kept.append(x)
            if index < 2:
                x = self.shrink[index](x)
        for index, up in enumerate(self.up):
            x = up(torch.cat([x, kept.pop()], 1), time)
            if index < 2:
                x = F.interpolate(x, scale_factor=2, mode="nearest")
        return self.last(x)


def diffusion_loss(model, x):
    moment = torch.randint(0, 1000, (x.shape[0],), device=x.device)
    noise = torch.randn_like(x)
    share = (1 - moment.to(x.dtype) / 1000).view(-1, 1, 1, 1)
    return F.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, moment).float(), noise.float())


class Radiance(nn.Module):
    """NeRF: coarse samples along rays, fine ones where the light comes from."""

    def __init__(self, width=256):
        super().__init__()

        def network():
            layers = [nn.Linear(63, width), nn.ReLU()]
            for _ in range(6):
                layers += [nn.Linear(width, width), nn.ReLU()]
            return nn.Sequential(*layers, nn.Linear(width, 4))

        self.coarse, self.fine = network(), network()

    @staticmethod
    def encode(x):
        waves = 2.0 ** torch.arange(10, device=x.device, dtype=x.dtype)
        angles = (x[..., None] * waves).flatten(-2)
        return torch.cat([x, angles.sin(), angles.cos()], -1)

    def render(self, network, origin, direction, depth):
        out = network(self.encode(origin[:, None] + depth[..., None] * direction[:, None]))
        step = torch.cat([depth[:, 1:] - depth[:, :-1], torch.full_like(depth[:, :1], 1e3)], -1)
        alpha = 1 - torch.exp(-F.relu(out[..., 3]).float() * step.float())
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        weights = alpha * clear
        return (weights[..., None] * out[..., :3].sigmoid().float()).sum(1), weights

    def forward(self, rays):
        origin, direction = rays[:, :3], rays[:, 3:]
        depth = torch.linspace(2, 6, 64, device=rays.device, dtype=rays.dtype).expand(rays.shape[0], -1)
        first, weights = self.render(self.coarse, origin, direction, depth)
        share = torch.cumsum((weights.detach() + 1e-5) / (weights.detach() + 1e-5).sum(-1, keepdim=True), -1)
        at = torch.rand(rays.shape[0], 128, device=rays.device)
        found = torch.searchsorted(share.contiguous(), at).clamp(max=63)
        fine, _ = torch.sort(torch.cat([depth, depth.gather(1, found)], -1), -1)
        second, _ = self.render(self.fine, origin, direction, fine)
        return first.square().mean() + second.square().mean()


class Contrast(nn.Module):
    """SimCLR: two views of an image, all others of the batch as negatives."""

    def __init__(self):
        super().__init__()
        self.back = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            Bottleneck(64, 64),
            Bottleneck(256, 128, 2),
            Bottleneck(512, 256, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 128))

    def forward(self, x):
        views = torch.cat([x, x.flip(-1) + 0.1 * torch.randn_like(x)])
        z = F.normalize(self.head(self.back(views)).float(), dim=-1)
        scores = z @ z.T / 0.1
        scores = scores.masked_fill(torch.eye(len(z), dtype=torch.bool, device=x.device), float("-inf"))
        return F.cross_entropy(scores, torch.arange(len(z), device=x.device).roll(len(x)))


class Clouds(nn.Module):
    """Edge convolutions over the nearest neighbours of points."""

    def __init__(self, near=20):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * a, b, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)) for a, b in ((3, 64), (64, 64), (64, 128))
        )
        self.last, self.head, self.near = nn.Conv1d(256, 1024, 1), nn.Linear(2048, 100), near

    def forward(self, x):
        outs = []
        for layer in self.layers:
            distance = torch.cdist(x.transpose(1, 2).float(), x.transpose(1, 2).float())
            index = distance.topk(self.near, largest=False).indices
            size, width, count = x.shape
            flat = (index + torch.arange(size, device=x.device).view(-1, 1, 1) * count).view(-1)
            near = x.transpose(1, 2).reshape(size * count, width)[flat].view(size, count, self.near, width)
            centre = x.transpose(1, 2)[:, :, None].expand_as(near)
            x = layer(torch.cat([near - centre, centre], -1).permute(0, 3, 1, 2)).amax(-1)
            outs.append(x)
        x = self.last(torch.cat(outs, 1))
        return self.head(torch.cat([x.amax(-1), x.mean(-1)], -1))


class Residual3d(nn.Module):
    """Video with space and time apart: (2 + 1)-dimensional convolutions."""

    def __init__(self):
        super().__init__()
        parts, inputs = [], 3
        for width, stride in ((32, 1), (64, 2), (128, 2)):
            parts += [
                nn.Conv3d(inputs, width, (1, 3, 3), (1, stride, stride), (0, 1, 1)),
                nn.BatchNorm3d(width),
                nn.ReLU(),
                nn.Conv3d(width, width, (3, 1, 1), (stride, 1, 1), (1, 0, 0)),
                nn.BatchNorm3d(width),
                nn.ReLU(),
            ]
            inputs = width
        self.layers, self.head = nn.Sequential(*parts, nn.AdaptiveAvgPool3d(1), nn.Flatten()), nn.Linear(128, 100)

    def forward(self, x):
        return self.head(self.layers(x))


CASES = {
    "resnet_channels_last": (
        lambda: bottlenecks().to(memory_format=torch.channels_last),
        labelled((3, 160, 160), layout=torch.channels_last),
        classes_loss,
        48,
    ),
    "resnext": (lambda: bottlenecks(32), labelled((3, 160, 160)), classes_loss, 32),
    "mobile": (mobile, labelled((3, 224, 224)), classes_loss, 48),
    "mobile_channels_last": (lambda: mobile().to(memory_format=torch.channels_last), labelled((3, 192, 192), layout=torch.channels_last), classes_loss, 48),
    "next_like": (next_like, labelled((3, 224, 224)), classes_loss, 32),
    "volume": (Volume, normal(1, 64, 64, 64), square, 4),
    "adversaries": (Adversaries, normal(128, 1, 1), lambda m, x: F.softplus(m(x).float()).mean(), 64),
    "dilated": (Dilated, normal(3, 256, 256), lambda m, x: F.cross_entropy(m(x).float(), torch.randint(0, 21, (x.shape[0], 256, 256), device=x.device)), 16),
    "deformable": (Deformable, labelled((3, 192, 192)), classes_loss, 24),
    "spatial": (Spatial, labelled((3, 128, 128)), classes_loss, 64),
    "super_resolution": (SuperResolution, normal(3, 192, 192), square, 8),
    "unpooled": (Unpooled, normal(3, 224, 224), square, 12),
    "neighbourhood": (Neighbourhood, normal(3, 160, 160), square, 4),
    "codebook": (Codebook, normal(3, 128, 128), itself, 32),
    "style": (Style, normal(3, 256, 256), square, 8),
    "boxes": (Boxes, lambda d, t, b: (torch.randn(b, 3, 320, 320, device=d, dtype=t), torch.randint(0, 2, (b, 20), device=d)), itself, 24),
    "queries": (
        Queries,
        lambda d, t, b: (torch.randn(b, 3, 384, 384, device=d, dtype=t), torch.randint(0, 20, (b, 10), device=d), torch.rand(b, 10, 4, device=d)),
        itself,
        16,
    ),
    "capsules": (Capsules, normal(1, 28, 28), lambda m, x: (0.9 - m(x)).square().mean(), 128),
    "diffusion": (Diffusion, normal(3, 64, 64), diffusion_loss, 16),
    "radiance": (Radiance, normal(6), itself, 2048),
    "contrast": (Contrast, normal(3, 128, 128), itself, 64),
    "clouds": (Clouds, labelled((3, 1024)), classes_loss, 16),
    "video": (Residual3d, labelled((3, 16, 96, 96)), classes_loss, 12),
}
