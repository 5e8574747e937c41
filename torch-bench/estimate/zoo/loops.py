"""More whole loops: optimizers by hand, reinforcement, caches that are written in place, samplers, checkpoints, hooks.
PROGRAMS[name]() runs three steps.

`python torch-bench/estimate/zoo/loops.py NAME` runs one, on a card or under `gapless estimate`.
"""

import copy
import io
import sys

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Words(nn.Module):
    def __init__(self, width=512, depth=4, words=16000):
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.blocks = nn.ModuleList(Block(width, 8) for _ in range(depth))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def tokens(size=16, length=256):
    return torch.randint(0, 16000, (size, length), device="cuda")


def words_loss(model, x):
    return F.cross_entropy(model(x).flatten(0, 1), x.flatten())


def adafactor():
    model = Words().cuda().bfloat16()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)
    for _ in range(3):
        words_loss(model, tokens()).backward()
        optimizer.step()
        optimizer.zero_grad()


def muon():
    model = Words().cuda()
    inner = [p for p in model.blocks.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if all(p is not q for q in inner)]
    optimizers = torch.optim.Muon(inner, lr=1e-3), torch.optim.AdamW(rest, fused=True)
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = words_loss(model, tokens())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


class Sign(torch.optim.Optimizer):
    """Lion with its average kept in bfloat16."""

    def __init__(self, parameters, lr=1e-4):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p, dtype=torch.bfloat16)
                update = state["mean"].float().mul(0.9).add(p.grad, alpha=0.1).sign_()
                p.mul_(1 - 0.01 * group["lr"]).add_(update, alpha=-group["lr"])
                state["mean"].mul_(0.99).add_(p.grad.to(torch.bfloat16), alpha=0.01)


def lion_scaled():
    model = Words().cuda()
    optimizer, scaler = Sign(model.parameters()), torch.amp.GradScaler("cuda", init_scale=2.0**14)
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = words_loss(model, tokens())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


class Bytes(torch.optim.Optimizer):
    """Adam whose states are bytes with a scale for each block of 256."""

    def __init__(self, parameters, lr=1e-4):
        super().__init__(parameters, {"lr": lr})

    @staticmethod
    def packed(x):
        blocks = F.pad(x.flatten(), (0, -x.numel() % 256)).view(-1, 256)
        scale = blocks.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        return (blocks / scale).round().to(torch.int8), scale

    @staticmethod
    def whole(kept, like):
        return (kept[0].float() * kept[1]).flatten()[: like.numel()].view_as(like)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = self.packed(torch.zeros_like(p)), self.packed(torch.zeros_like(p))
                m = self.whole(state["m"], p).lerp_(p.grad, 0.1)
                v = self.whole(state["v"], p).mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                p.addcdiv_(m, v.clamp(min=0).sqrt().add_(1e-8), value=-group["lr"])
                state["m"], state["v"] = self.packed(m), self.packed(v)


def byte_states():
    model = Words().cuda()
    optimizer = Bytes(model.parameters())
    for _ in range(3):
        words_loss(model, tokens()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()


def projected():
    """Gradients projected to a low rank, by singular vectors that are computed again from time to time."""
    model = Words(depth=2).cuda()
    kept, states = {}, {}
    for step in range(3):
        words_loss(model, tokens()).backward()
        with torch.no_grad():
            for name, p in model.blocks.named_parameters():
                if p.dim() == 2:
                    if step % 2 == 0:
                        kept[name] = torch.linalg.svd(p.grad, full_matrices=False)[0][:, :64].contiguous()
                    low = kept[name].t() @ p.grad
                    state = states.setdefault(name, torch.zeros_like(low)).lerp_(low, 0.1)
                    p.add_(kept[name] @ state, alpha=-1e-3)
                p.grad = None
            for p in model.parameters():
                if p.grad is not None:
                    p.add_(p.grad, alpha=-1e-3)
                    p.grad = None


def preconditioned():
    """Shampoo: roots of the gradients' second moments, by eigenvectors."""
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 100)).cuda()
    states = {}
    for _ in range(3):
        x, y = torch.randn(4096, 1024, device="cuda"), torch.randint(0, 100, (4096,), device="cuda")
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() == 2:
                    left, right = states.setdefault(p, [1e-4 * torch.eye(n, device="cuda") for n in p.shape])
                    left.addmm_(p.grad, p.grad.t())
                    right.addmm_(p.grad.t(), p.grad)
                    roots = []
                    for moment in (left, right):
                        values, vectors = torch.linalg.eigh(moment)
                        roots.append((vectors * values.clamp(min=1e-8).pow(-0.25)) @ vectors.t())
                    p.add_(roots[0] @ p.grad @ roots[1], alpha=-1e-3)
                p.grad = None


def sharpness():
    """Two passes a step: the second from the worst place nearby."""
    model = Words().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        x = tokens()
        words_loss(model, x).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moves = [p.grad * (0.05 / (norm + 1e-12)) for p in model.parameters()]
            torch._foreach_add_(list(model.parameters()), moves)
        optimizer.zero_grad()
        words_loss(model, x).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moves)
        optimizer.step()
        optimizer.zero_grad()


def private():
    """Gradients of each sample, clipped, summed, with noise."""
    model = nn.Sequential(nn.Conv2d(3, 16, 8, 2, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights, x, y):
        return F.cross_entropy(torch.func.functional_call(model, weights, (x[None],)), y[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), chunk_size=256)
    for _ in range(3):
        x, y = torch.randn(1024, 3, 32, 32, device="cuda"), torch.randint(0, 10, (1024,), device="cuda")
        gradients = each(weights, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        share = (1.0 / norms).clamp(max=1.0)
        for name, p in model.named_parameters():
            p.grad = torch.einsum("b...,b->...", gradients[name], share) + 0.1 * torch.randn_like(p)
        optimizer.step()
        optimizer.zero_grad()


def policy():
    """PPO: a rollout by the policy, advantages backwards through time, epochs of minibatches."""
    agent = nn.ModuleDict({"body": nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh()), "act": nn.Linear(1024, 18), "value": nn.Linear(1024, 1)}).cuda()
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
    steps, crowd = 64, 256
    kept = {name: torch.zeros(steps, crowd, *shape, device="cuda") for name, shape in {"seen": (64,), "acted": (), "chance": (), "value": (), "reward": ()}.items()}
    for _ in range(3):
        seen = torch.randn(crowd, 64, device="cuda")
        for t in range(steps):
            with torch.no_grad():
                body = agent["body"](seen)
                chances = torch.distributions.Categorical(logits=agent["act"](body))
                act = chances.sample()
            kept["seen"][t], kept["acted"][t], kept["chance"][t], kept["value"][t] = seen, act, chances.log_prob(act), agent["value"](body).squeeze(-1).detach()
            outcome = torch.randn(crowd, 65)
            seen, kept["reward"][t] = outcome[:, :64].to("cuda", non_blocking=True), outcome[:, 64].to("cuda")
        gain, running = torch.zeros_like(kept["reward"]), 0
        for t in reversed(range(steps)):
            after = kept["value"][t + 1] if t + 1 < steps else torch.zeros(crowd, device="cuda")
            running = kept["reward"][t] + 0.99 * after - kept["value"][t] + 0.99 * 0.95 * running
            gain[t] = running
        flat = {name: x.flatten(0, 1) for name, x in {**kept, "gain": gain}.items()}
        for part in torch.randperm(steps * crowd, device="cuda").split(4096):
            body = agent["body"](flat["seen"][part])
            chances = torch.distributions.Categorical(logits=agent["act"](body))
            ratio = (chances.log_prob(flat["acted"][part]) - flat["chance"][part]).exp()
            gains = flat["gain"][part]
            gains = (gains - gains.mean()) / (gains.std() + 1e-8)
            loss = -torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean() - 0.01 * chances.entropy().mean()
            loss = loss + 0.5 * (agent["value"](body).squeeze(-1) - flat["gain"][part] - flat["value"][part]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()


def replayed():
    """Q-learning from a ring of bytes on the card, with a second network that follows."""
    net = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6)).cuda()
    slow = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2.5e-4, alpha=0.95, eps=0.01)
    ring = torch.empty(20000, 4, 84, 84, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        places = torch.randint(0, 19999, (512,), device="cuda")
        seen, after = ring[places].float() / 255, ring[places + 1].float() / 255
        with torch.no_grad():
            best = net(after).argmax(1, keepdim=True)
            wanted = torch.randn(512, 1, device="cuda") + 0.99 * slow(after).gather(1, best)
        F.smooth_l1_loss(net(seen).gather(1, torch.randint(0, 6, (512, 1), device="cuda")), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
        for p, q in zip(net.parameters(), slow.parameters()):
            q.lerp_(p, 0.005)


def static_cache():
    """Inference into a cache of a fixed size, written in place, with sampling by the largest logits."""
    model, length, size = Words(768, 6).cuda().bfloat16().eval(), 512, 16
    cache = [torch.zeros(2, size, 8, length, 96, device="cuda", dtype=torch.bfloat16) for _ in model.blocks]
    now, place = tokens(size, 128), torch.arange(128, device="cuda")
    with torch.inference_mode():
        for _ in range(24):
            x = model.embedding(now)
            for block, kept in zip(model.blocks, cache):
                q, k, v = block.qkv(block.n1(x)).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
                kept[0].index_copy_(2, place, k)
                kept[1].index_copy_(2, place, v)
                mask = torch.arange(length, device="cuda")[None] <= place[:, None]
                y = F.scaled_dot_product_attention(q, kept[0], kept[1], attn_mask=mask[None, None])
                x = x + block.out(y.transpose(1, 2).flatten(2))
                x = x + block.down(F.gelu(block.up(block.n2(x))))
            scores = model.head(x[:, -1]).float()
            top, which = (scores / 0.8).topk(50)
            now = which.gather(1, torch.multinomial(top.softmax(-1), 1))
            place = place[-1:] + 1


def beams():
    """Beam search: rows of the cache are chosen again in each step."""
    model, beam, size = Words(512, 4).cuda().half().eval(), 4, 8
    with torch.no_grad():
        now = tokens(size * beam, 64)
        score = torch.zeros(size, beam, device="cuda")
        for _ in range(12):
            chances = model(now)[:, -1].float().log_softmax(-1)
            total = (score[..., None] + chances.view(size, beam, -1)).flatten(1)
            score, which = total.topk(beam)
            rows = (which // 16000 + torch.arange(size, device="cuda")[:, None] * beam).flatten()
            now = torch.cat([now[rows], (which % 16000).flatten()[:, None]], 1)


def sampler():
    """A diffusion model that draws pictures, with and without a condition, and an average of weights beside it."""

    class Net(nn.Module):
        def __init__(self, width=96):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
            self.label, self.first, self.last = nn.Embedding(11, width), nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
            self.down, self.up = nn.Conv2d(width, width, 4, 2, 1), nn.ConvTranspose2d(width, width, 4, 2, 1)
            self.mid = nn.ModuleList(nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(4))

        def forward(self, x, t, label):
            angles = t[:, None].float() * torch.exp(-torch.arange(32, device=x.device) / 4)
            told = (self.time(torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype)) + self.label(label))[..., None, None]
            first = self.first(x)
            y = self.down(first)
            for part in self.mid:
                y = y + part(y + told)
            return self.last(self.up(y) + first)

    net = Net().cuda()
    mean = copy.deepcopy(net).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    share = torch.linspace(1, 0.01, 1000, device="cuda")
    for _ in range(3):
        x, t = torch.randn(32, 3, 64, 64, device="cuda"), torch.randint(0, 1000, (32,), device="cuda")
        noise, a = torch.randn_like(x), share[t][:, None, None, None]
        F.mse_loss(net(a.sqrt() * x + (1 - a).sqrt() * noise, t, torch.randint(0, 11, (32,), device="cuda")), noise).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch._foreach_lerp_(list(mean.parameters()), list(net.parameters()), 0.01)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        x, label = torch.randn(48, 3, 64, 64, device="cuda"), torch.randint(0, 10, (48,), device="cuda")
        for t in range(999, 0, -100):
            both = mean(torch.cat([x, x]), torch.full((96,), t, device="cuda"), torch.cat([label, torch.full_like(label, 10)]))
            with_label, without = both.float().chunk(2)
            noise = without + 4.0 * (with_label - without)
            a, before = share[t], share[max(t - 100, 0)]
            clean = ((x - (1 - a).sqrt() * noise) / a.sqrt()).clamp(-1, 1)
            x = before.sqrt() * clean + (1 - before).sqrt() * noise


def resumed():
    """A checkpoint is written, read back onto the card and loaded, in the middle of training."""
    model = Words().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        words_loss(model, tokens()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.seek(0)
            found = torch.load(file, map_location="cuda")
            model.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])


def validated():
    """Training, then a validation that keeps every output, larger than the batch."""
    model = Words().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(3):
        model.train()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = words_loss(model, tokens(8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        found = []
        with torch.no_grad():
            for _ in range(2):
                found.append(model(tokens(24)).argmax(-1))
                right = F.cross_entropy(model(tokens(24)).flatten(0, 1), tokens(24).flatten(), reduction="none")
        print("right", torch.cat(found).float().mean().item(), right.mean().item(), file=sys.stderr)


def kept_on_host():
    """Keeps tensors for the backward pass in the host's memory."""
    model = Words().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = words_loss(model, tokens())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def recomputed_in_parts():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 2048), nn.Dropout(0.1), nn.ReLU()) for _ in range(12))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        x = torch.randn(8192, 2048, device="cuda", requires_grad=True)
        torch.utils.checkpoint.checkpoint_sequential(model, 4, x, use_reentrant=True).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def in_backward():
    """Each parameter is updated in the backward pass, and its gradient let go at once."""
    model = Words().cuda()
    steppers = {p: torch.optim.AdamW([p], foreach=False) for p in model.parameters()}

    def update(p):
        steppers[p].step()
        steppers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    for _ in range(3):
        words_loss(model, tokens()).backward()


def side_streams():
    """Batches that come on a stream of their own, and are recorded on the one that uses them."""
    model, side = Words(512, 2).cuda(), torch.cuda.Stream()
    optimizer = torch.optim.AdamW(model.parameters())
    ahead = None
    for _ in range(4):
        with torch.cuda.stream(side):
            coming = torch.randint(0, 16000, (16, 256)).pin_memory().to("cuda", non_blocking=True)
            wide = torch.randn(16, 256, 512).pin_memory().to("cuda", non_blocking=True)
        if ahead is not None:
            x, more = ahead
            x.record_stream(torch.cuda.current_stream())
            more.record_stream(torch.cuda.current_stream())
            y = model.blocks[0](model.embedding(x) + more)
            F.cross_entropy(model.head(model.blocks[1](y)).flatten(0, 1), x.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.current_stream().wait_stream(side)
        ahead = (coming, wide)


def compiled_block():
    model = Words(512, 2).cuda()
    model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = words_loss(model, tokens())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


PROGRAMS = {
    function.__name__: function
    for function in (
        adafactor, muon, lion_scaled, byte_states, projected, preconditioned, sharpness, private, policy, replayed, static_cache, beams, sampler, resumed,
        validated, kept_on_host, recomputed_in_parts, in_backward, side_streams, compiled_block,
    )
}  # fmt: skip


def peaks():
    stats = torch.cuda.memory_stats()
    return {"peak_allocated": stats["allocated_bytes.all.peak"], "peak_reserved": stats["reserved_bytes.all.peak"]}


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
    print(peaks())
