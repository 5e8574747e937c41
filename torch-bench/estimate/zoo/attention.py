"""Attention and the models around it."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from .sequences import itself, token_loss, tokens_batch


class Padded(nn.Module):
    """torch's own encoder with a padding mask; in evaluation it takes its fast path."""

    def __init__(self, width=512):
        super().__init__()
        self.embedding = nn.Embedding(10000, width)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 8, 2048, batch_first=True), 6)
        self.head = nn.Linear(width, 10000)

    def forward(self, tokens, lengths):
        mask = torch.arange(tokens.shape[1], device=tokens.device) >= lengths[:, None]
        return self.head(self.encoder(self.embedding(tokens), src_key_padding_mask=mask))


def padded_batch(device, dtype, size):
    return torch.randint(0, 10000, (size, 256), device=device), torch.linspace(256, 64, size, device=device).long()


class Grouped(nn.Module):
    """A decoder of today: rotary positions, grouped keys, RMS normalisation, gated layers."""

    class Layer(nn.Module):
        def __init__(self, width, heads, groups):
            super().__init__()
            self.heads, self.groups, self.each = heads, groups, width // heads
            self.q, self.kv, self.o = (
                nn.Linear(width, width, bias=False),
                nn.Linear(width, 2 * groups * self.each, bias=False),
                nn.Linear(width, width, bias=False),
            )
            self.up, self.down = nn.Linear(width, 6 * width, bias=False), nn.Linear(3 * width, width, bias=False)
            self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)

        @staticmethod
        def turn(x, turns):
            return torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * turns).flatten(-2).to(x.dtype)

        def forward(self, x, turns):
            y = self.n1(x)
            q = self.turn(self.q(y).unflatten(-1, (self.heads, -1)).transpose(1, 2), turns)
            k, v = self.kv(y).unflatten(-1, (2 * self.groups, -1)).transpose(1, 2).chunk(2, 1)
            y = F.scaled_dot_product_attention(q, self.turn(k, turns), v, is_causal=True, enable_gqa=True)
            x = x + self.o(y.transpose(1, 2).flatten(2))
            left, right = self.up(self.n2(x)).chunk(2, -1)
            return x + self.down(F.silu(left) * right)

    def __init__(self, width=768, layers=6, recompute=False):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10000, width), nn.Linear(width, 10000, bias=False)
        self.head.weight = self.embedding.weight
        self.layers = nn.ModuleList(Grouped.Layer(width, 12, 4) for _ in range(layers))
        self.norm, self.recompute = nn.RMSNorm(width), recompute

    def forward(self, tokens):
        x = self.embedding(tokens)
        angles = torch.outer(torch.arange(tokens.shape[1], device=x.device), 10000.0 ** (-torch.arange(0, 64, 2, device=x.device) / 64))
        turns = torch.polar(torch.ones_like(angles), angles)
        for layer in self.layers:
            x = checkpoint(layer, x, turns, use_reentrant=False) if self.recompute and self.training else layer(x, turns)
        return self.head(self.norm(x))


class Biased(nn.Module):
    """Attention with an additive bias for each head, and weights that are looked at."""

    def __init__(self, width=512, layers=4):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10000, width), nn.Linear(width, 10000)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)) for _ in range(layers)
        )
        self.near = nn.Embedding(64, 8)

    def forward(self, tokens):
        x = self.embedding(tokens)
        place = torch.arange(tokens.shape[1], device=x.device)
        apart = (place[None] - place[:, None]).clamp(-31, 31) + 31
        bias = self.near(apart).permute(2, 0, 1)[None]
        for qkv, mlp in zip(self.qkv, self.mlp):
            q, k, v = qkv(x).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
            x = x + F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias.to(q.dtype).expand(q.shape[0], -1, -1, -1), dropout_p=0.1 if self.training else 0.0
            ).transpose(1, 2).flatten(2)
            x = x + mlp(x)
        return self.head(x)


class Weighted(nn.Module):
    """torch's attention that returns its weights, and a loss on them."""

    def __init__(self, width=512):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10000, width), nn.Linear(width, 10000)
        self.layers = nn.ModuleList(nn.MultiheadAttention(width, 8, dropout=0.1, batch_first=True) for _ in range(4))

    def forward(self, tokens):
        x = self.embedding(tokens)
        extra = 0.0
        for layer in self.layers:
            y, weights = layer(x, x, x, need_weights=True, average_attn_weights=False)
            extra = extra + (weights * (weights + 1e-9).log()).sum(-1).mean()
            x = x + y
        return F.cross_entropy(self.head(x).float().flatten(0, 1), tokens.flatten()) + 0.01 * extra


class Experts(nn.Module):
    """Two of eight experts for each token, each over the tokens that chose it."""

    def __init__(self, width=512, count=8):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10000, width), nn.Linear(width, 10000)
        self.gates = nn.ModuleList(nn.Linear(width, count, bias=False) for _ in range(3))
        self.experts = nn.ModuleList(
            nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)) for _ in range(count)) for _ in range(3)
        )

    def forward(self, tokens):
        x = self.embedding(tokens).flatten(0, 1)
        for gate, experts in zip(self.gates, self.experts):
            weights, chosen = gate(x).softmax(-1).topk(2)
            weights = weights / weights.sum(-1, keepdim=True)
            out = torch.zeros_like(x)
            for number, expert in enumerate(experts):
                rows, places = torch.where(chosen == number)
                out.index_add_(0, rows, (expert(x[rows]) * weights[rows, places, None]).to(out.dtype))
            x = x + out
        return self.head(x).view(*tokens.shape, -1)


class Capacity(nn.Module):
    """Experts with a fixed room for tokens, filled by positions from a running count."""

    def __init__(self, width=512, count=8):
        super().__init__()
        self.embedding, self.head, self.gate = nn.Embedding(10000, width), nn.Linear(width, 10000), nn.Linear(width, count)
        self.up, self.down = nn.Parameter(torch.randn(count, width, 2048) * 0.02), nn.Parameter(torch.randn(count, 2048, width) * 0.02)
        self.count = count

    def forward(self, tokens):
        x = self.embedding(tokens).flatten(0, 1)
        room = len(x) // self.count * 5 // 4
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        marks = F.one_hot(chosen, self.count)
        place = ((marks.cumsum(0) - 1) * marks).sum(-1).clamp(max=room - 1)
        slots = torch.zeros(self.count, room, x.shape[1], device=x.device, dtype=x.dtype).index_put((chosen, place), x)
        out = torch.bmm(F.gelu(torch.bmm(slots, self.up)), self.down)
        return self.head(x + out[chosen, place] * weight[:, None]).view(*tokens.shape, -1)


class Latents(nn.Module):
    """Perceiver: a few latent vectors look at a long input."""

    def __init__(self, width=512):
        super().__init__()
        self.first, self.latents = nn.Linear(64, width), nn.Parameter(torch.randn(256, width) * 0.02)
        self.cross, self.norm = nn.MultiheadAttention(width, 8, batch_first=True), nn.LayerNorm(width)
        self.tower = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 8, 1024, activation="gelu", batch_first=True, norm_first=True), 4, enable_nested_tensor=False
        )
        self.head = nn.Linear(width, 100)

    def forward(self, x):
        memory = self.norm(self.first(x))
        latents = self.latents[None].expand(x.shape[0], -1, -1)
        for _ in range(3):
            latents = latents + self.cross(latents, memory, memory, need_weights=False)[0]
            latents = self.tower(latents)
        return self.head(latents.mean(1))


class Translator(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.embedding, self.head = nn.Embedding(16000, width), nn.Linear(width, 16000)
        self.transformer = nn.Transformer(width, 8, 4, 4, 2048, dropout=0.1, batch_first=True)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        padding = tokens == 0
        x = self.embedding(tokens)
        y = self.transformer(x, x, tgt_mask=mask, tgt_is_causal=True, src_key_padding_mask=padding, memory_key_padding_mask=padding)
        return self.head(y)


class Linear(nn.Module):
    """Linear attention: running sums instead of scores."""

    def __init__(self, width=256, layers=4):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10000, width), nn.Linear(width, 10000)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.qkv:
            q, k, v = layer(x).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
            q, k = F.elu(q) + 1, F.elu(k) + 1
            state = torch.cumsum(k[..., None] * v[..., None, :], 2)
            weight = (q * k.cumsum(2)).sum(-1, keepdim=True)
            x = x + (torch.einsum("bhtd,bhtde->bhte", q, state.to(q.dtype)) / (weight + 1e-6)).transpose(1, 2).flatten(2).to(x.dtype)
        return self.head(x)


class Windows(nn.Module):
    """Local attention: overlapping windows by unfold, and a mask."""

    def __init__(self, width=384, window=64):
        super().__init__()
        self.embedding, self.head, self.window = nn.Embedding(10000, width), nn.Linear(width, 10000), window
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(4))

    def forward(self, tokens):
        x = self.embedding(tokens)
        w = self.window
        place = torch.arange(3 * w, device=x.device)
        near = (place[None] - torch.arange(w, 2 * w, device=x.device)[:, None]).abs() <= w
        for layer in self.qkv:
            q, k, v = layer(x).unflatten(-1, (3, 6, -1)).permute(2, 0, 3, 1, 4)
            q = q.unflatten(2, (-1, w))
            k, v = (F.pad(part, (0, 0, w, w)).unfold(2, 3 * w, w).transpose(-1, -2) for part in (k, v))
            scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~near, -1e4)
            x = x + (scores.softmax(-1).to(v.dtype) @ v).flatten(2, 3).transpose(1, 2).flatten(2)
        return self.head(x)


class Buckets(nn.Module):
    """Reformer-like: tokens sorted by a random hash attend within their chunk."""

    def __init__(self, width=512, chunk=64):
        super().__init__()
        self.embedding, self.head, self.chunk = nn.Embedding(10000, width), nn.Linear(width, 10000), chunk
        self.qv = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(4))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.qv:
            q, v = layer(x).chunk(2, -1)
            turned = q @ torch.randn(q.shape[-1], 16, device=x.device, dtype=q.dtype)
            bucket = torch.cat([turned, -turned], -1).argmax(-1)
            order = torch.argsort(bucket * tokens.shape[1] + torch.arange(tokens.shape[1], device=x.device), dim=-1)
            back = torch.argsort(order, dim=-1)
            wide = order[..., None].expand_as(q)
            q, v = (part.gather(1, wide).unflatten(1, (-1, self.chunk)) for part in (q, v))
            k = F.normalize(q, dim=-1)
            y = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1).to(v.dtype) @ v
            x = x + y.flatten(1, 2).gather(1, back[..., None].expand_as(wide))
        return self.head(x)


class Flexible(nn.Module):
    """flex_attention as it runs without a compiler."""

    def __init__(self, width=256):
        super().__init__()
        self.embedding, self.head, self.qkv = nn.Embedding(10000, width), nn.Linear(width, 10000), nn.Linear(width, 3 * width)

    def forward(self, tokens):
        from torch.nn.attention.flex_attention import flex_attention

        q, k, v = self.qkv(self.embedding(tokens)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        y = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: torch.where(i >= j, score, -float("inf")))
        return self.head(y.transpose(1, 2).flatten(2))


class Jagged(nn.Module):
    """Sequences of many lengths as one nested tensor."""

    def __init__(self, width=512):
        super().__init__()
        self.embedding, self.qkv, self.out, self.norm = nn.Embedding(10000, width), nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens, lengths):
        parts = [row[: int(length)] for row, length in zip(tokens, lengths)]
        x = self.embedding(torch.nested.nested_tensor(parts, layout=torch.jagged))
        y = self.norm(x)
        q, k, v = (part.unflatten(-1, (8, -1)).transpose(1, 2) for part in self.qkv(y).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return x.values().float().square().mean()


def jagged_batch(device, dtype, size):
    return torch.randint(0, 10000, (size, 384), device=device), torch.linspace(384, 96, size).long()


class Towers(nn.Module):
    """Retrieval: bags of words on both sides, other rows of the batch as negatives."""

    def __init__(self, width=256):
        super().__init__()
        self.left, self.right = nn.EmbeddingBag(200000, width, mode="mean"), nn.EmbeddingBag(100000, width, mode="sum")
        self.a, self.b = (nn.Sequential(nn.Linear(width, 1024), nn.ReLU(), nn.Linear(1024, 256)) for _ in range(2))

    def forward(self, queries, documents, offsets):
        a, b = F.normalize(self.a(self.left(queries)).float(), dim=-1), F.normalize(self.b(self.right(documents, offsets)).float(), dim=-1)
        return F.cross_entropy(a @ b.T / 0.05, torch.arange(len(a), device=a.device))


def towers_batch(device, dtype, size):
    return (
        torch.randint(0, 200000, (size, 16), device=device),
        torch.randint(0, 100000, (size * 32,), device=device),
        torch.arange(0, size * 32, 32, device=device),
    )


class Clicks(nn.Module):
    """DLRM: tables of embeddings, products of every pair, a tower."""

    def __init__(self, width=64, tables=20):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(50000, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        rows = torch.stack([x, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        left, right = torch.tril_indices(rows.shape[1], rows.shape[1], -1, device=x.device)
        return self.top(torch.cat([x, products[:, left, right]], 1))


def clicks_batch(device, dtype, size):
    return torch.randn(size, 13, device=device, dtype=dtype), torch.randint(0, 50000, (size, 20, 4), device=device)


class Mixing(nn.Module):
    """MLP-Mixer over patches."""

    def __init__(self, width=512, patches=196, layers=8):
        super().__init__()
        self.first = nn.Conv2d(3, width, 16, 16)
        self.tokens = nn.ModuleList(nn.Sequential(nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches)) for _ in range(layers))
        self.channels = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width)) for _ in range(layers))
        self.head = nn.Linear(width, 100)

    def forward(self, x):
        x = self.first(x).flatten(2).transpose(1, 2)
        for tokens, channels in zip(self.tokens, self.channels):
            x = x + tokens(x.transpose(1, 2)).transpose(1, 2)
            x = x + channels(x)
        return self.head(x.mean(1))


class Selective(nn.Module):
    """A selective state space, scanned in log space."""

    def __init__(self, width=256, state=8):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10000, width), nn.Linear(width, 10000)
        self.short, self.step, self.bc = nn.Conv1d(width, width, 4, groups=width, padding=3), nn.Linear(width, width), nn.Linear(width, 2 * state)
        self.decay = nn.Parameter(torch.zeros(width, state))

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = F.silu(self.short(x.transpose(1, 2))[..., : tokens.shape[1]]).transpose(1, 2)
        step = F.softplus(self.step(x)).float()
        b, c = self.bc(x).float().chunk(2, -1)
        logs = torch.cumsum(-step[..., None] * self.decay.float().exp(), 1)
        inner = (step * x.float())[..., None] * b[:, :, None]
        state = torch.cumsum(inner * torch.exp(-logs.clamp(min=-20)), 1) * torch.exp(logs)
        return self.head((state * c[:, :, None]).sum(-1).to(x.dtype))


CASES = {
    "encoder_padded": (Padded, padded_batch, token_loss, 32),
    "grouped_queries": (Grouped, tokens_batch(512), token_loss, 8),
    "grouped_checkpointed": (lambda: Grouped(recompute=True), tokens_batch(512), token_loss, 16),
    "attention_biased": (Biased, tokens_batch(256), token_loss, 16),
    "attention_weights": (Weighted, tokens_batch(256), itself, 16),
    "experts": (Experts, tokens_batch(256), token_loss, 16),
    "experts_capacity": (Capacity, tokens_batch(256), token_loss, 32),
    "latents": (
        Latents,
        lambda d, t, b: (torch.randn(b, 4096, 64, device=d, dtype=t), torch.randint(0, 100, (b,), device=d)),
        lambda m, x: F.cross_entropy(m(x[0]).float(), x[1]),
        16,
    ),
    "translator": (Translator, tokens_batch(128, 16000), token_loss, 32),
    "attention_linear": (Linear, tokens_batch(256), token_loss, 8),
    "attention_windows": (Windows, tokens_batch(1024), token_loss, 8),
    "attention_buckets": (Buckets, tokens_batch(1024), token_loss, 8),
    "attention_flexible": (Flexible, tokens_batch(256), token_loss, 8),
    "jagged": (Jagged, jagged_batch, itself, 64),
    "towers": (Towers, towers_batch, itself, 2048),
    "clicks": (Clicks, clicks_batch, lambda m, x: F.binary_cross_entropy_with_logits(m(*x).float(), torch.ones(len(x[0]), 1, device=x[0].device)), 4096),
    "mixing": (
        Mixing,
        lambda d, t, b: (torch.randn(b, 3, 224, 224, device=d, dtype=t), torch.randint(0, 100, (b,), device=d)),
        lambda m, x: F.cross_entropy(m(x[0]).float(), x[1]),
        64,
    ),
    "selective": (Selective, tokens_batch(512), token_loss, 16),
}
