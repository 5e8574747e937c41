"""Megatron's and DeepSpeed's way: parameters are views of flat buffers, gradients are added into another flat buffer
by hooks, each bucket is sent on a stream of its own as soon as it is full, the optimizer works on slices of a copy in
32 bits, and buffers shrink to nothing and come back between the phases. Losses and weights are those of plain
training."""
import gc

from common import *

g = start(limit=2 * GIB)
torch.backends.cuda.matmul.allow_tf32 = False
torch.use_deterministic_algorithms(True, warn_only=True)
STEPS, problems = 12, []


def made():
    torch.manual_seed(176)
    layers = [torch.nn.Linear(384, 384) for _ in range(8)] + [torch.nn.Linear(384, 10)]
    return torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.Tanh())]).cuda()


def batch(step):
    made_by = torch.Generator(device="cuda").manual_seed(step)
    return torch.randn(256, 384, device="cuda", generator=made_by), torch.randn(256, 10, device="cuda", generator=made_by)


def plain():
    net, losses = made(), []
    moments = [torch.zeros_like(p) for p in net.parameters()]
    for step in range(STEPS):
        x, y = batch(step)
        loss = (net(x) - y).square().mean()
        loss.backward()
        with torch.no_grad():
            for p, m in zip(net.parameters(), moments):
                m.mul_(0.9).add_(p.grad)
                p.sub_(m * 0.05)
                p.grad = None
        losses.append(loss.detach())
    return torch.stack(losses).cpu(), [p.detach().cpu() for p in net.parameters()]


def flat(seed):
    r, net, losses = rng(seed), made(), []
    reduce, main = torch.cuda.Stream(), torch.cuda.current_stream()
    params = list(net.parameters())
    total = sum(p.numel() for p in params)
    weights, grads = torch.empty(total, device="cuda"), torch.empty(total, device="cuda")
    places, at = [], 0
    for p in params:
        weights[at : at + p.numel()].copy_(p.detach().view(-1))
        places.append((at, at + p.numel()))
        p.data = weights[at : at + p.numel()].view_as(p)
        at += p.numel()
    master, moments = weights.clone(), torch.zeros(total, device="cuda")
    buckets = [(lambda cut: (places[cut[0]][0], places[cut[-1]][1], set(cut)))(list(range(k, min(k + 4, len(params))))) for k in range(0, len(params), 4)]
    waiting, sent = {}, []

    def hook(k):
        def full(p):
            begin, end = places[k]
            grads[begin:end].copy_(p.grad.view(-1))
            p.grad = None  # its memory goes at once, in autograd's thread
            bucket = next(n for n, b in enumerate(buckets) if k in b[2])
            waiting[bucket].discard(k)
            if not waiting[bucket]:
                low, high, _ = buckets[bucket]
                reduce.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(reduce):
                    other = grads[low:high].clone()  # as an all-reduce of one rank, through a buffer
                    other.mul_(2)
                    grads[low:high].copy_(other / 2)
                    sent.append(reduce.record_event())
                    del other

        return full

    for k, p in enumerate(params):
        p.register_post_accumulate_grad_hook(hook(k))
    for step in range(STEPS):
        grads.untyped_storage().resize_(4 * total)
        x, y = batch(step)
        waiting.update({n: set(b[2]) for n, b in enumerate(buckets)})
        loss = (net(x) - y).square().mean()
        loss.backward()
        for event in sent:
            main.wait_event(event)
        sent.clear()
        with torch.no_grad():
            # Slices of the flat state, out of order.
            cuts = sorted({0, total, *(r.randrange(total) for _ in range(3))})
            parts = list(zip(cuts, cuts[1:]))
            r.shuffle(parts)
            for low, high in parts:
                m = moments[low:high]
                m.mul_(0.9).add_(grads[low:high])
                master[low:high].sub_(m * 0.05)
            weights.copy_(master)
        # Between steps: gradients go; weights go to the host and come back somewhere else.
        grads.untyped_storage().resize_(0)
        if step % 3 == 2:
            kept = weights.to("cpu")
            weights.untyped_storage().resize_(0)
            junk = [ints(log_uniform(r, 4096, 60 * MIB)).fill_(-1) for _ in range(8)]
            del junk
            with torch.cuda.stream(reduce):
                weights.untyped_storage().resize_(4 * total)
                weights.copy_(kept)
            main.wait_stream(reduce)
        if step % 5 == 4:
            torch.cuda.empty_cache()
        losses.append(loss.detach())
        del loss, x, y
    return torch.stack(losses).cpu(), [p.detach().cpu() for p in params]


want, weights = plain()
gc.collect()
for turn in range(4):
    got, found = flat(turn)
    if not torch.equal(got, want):
        problems.append(f"turn {turn}: losses differ by {float((got - want).abs().max())}")
    if not all(torch.equal(a, b) for a, b in zip(found, weights)):
        problems.append(f"turn {turn}: other weights")
    gc.collect()
    torch.cuda.synchronize()
problems += adds_up()
done(not problems, "; ".join(problems[:2]) or f"4 runs of {STEPS} steps over flat buffers")
