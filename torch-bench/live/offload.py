"""Offload on a GPU: a language model that needs 1.5 times a cap, without the cap and under it with gapless.offload.
Losses have to be the same bits.

usage: python torch-bench/live/offload.py [--steps 6] [--batch 8] [--length 4096] [--layers 16] [--width 2048]
[--compare] [--json FILE] [--dry]

Needs torch, and Gapless: installed, or with GAPLESS_LIBRARY naming the library and PYTHONPATH the folder python/. One
process a run: twice without a cap (whether the run repeats itself), once under two thirds of its peak. What PCIe alone
would need for the bytes that were moved is measured in the same process as the run that moved them. --compare adds
torch's own save_on_cpu. --dry is for a card that holds nothing (torch-bench/python): small, and with matrix products
that only take memory. Exit 1 where losses differ or the cap was exceeded. Under 120 seconds on an H200.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

GIB = 1 << 30


# ---- the model ----


def model_of(torch, args):
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
            x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(args.vocabulary, args.width)
            self.places = nn.Embedding(args.length, args.width)
            self.blocks = nn.ModuleList(Block(args.width, args.width // 128) for _ in range(args.layers))
            self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, args.vocabulary, bias=False)

        def forward(self, tokens):
            x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x)).flatten(0, 1)
            return F.cross_entropy(logits.float(), tokens.roll(-1, 1).flatten())

    with torch.device("cuda"):
        return Model().to(torch.bfloat16)


def without_products(torch):
    """Matrix products and attention that take the memory of the real ones and compute nothing."""
    F = torch.nn.functional

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight)
            ctx.has_bias = bias is not None
            return x.new_empty(*x.shape[:-1], weight.shape[0])

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return torch.empty_like(x), torch.empty_like(weight), weight.new_empty(weight.shape[0]) if ctx.has_bias else None

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            out = torch.empty_like(q)
            ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
            return out

        @staticmethod
        def backward(ctx, grad):
            return tuple(torch.empty_like(part) for part in ctx.saved_tensors[:3])

    F.linear = lambda x, weight, bias=None: Linear.apply(x, weight, bias)
    F.scaled_dot_product_attention = lambda q, k, v, is_causal=False: Attention.apply(q, k, v)


# ---- one run ----


def train(torch, args, scope):
    torch.manual_seed(0)
    model = model_of(torch, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = torch.Generator("cpu").manual_seed(1)
    losses, times, moved = [], [], []
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(args.steps):
        tokens = torch.randint(0, args.vocabulary, (args.batch, args.length), generator=batches).cuda()
        began = time.perf_counter()
        with scope:
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        del loss
        if hasattr(scope, "stats"):
            moved.append(scope.stats())
    # Every bit of every weight counts; integer sums do not depend on their order.
    weights = sum(int(p.detach().view(torch.int16).long().sum()) for p in model.parameters()) if not args.dry else 0
    stats = torch.cuda.memory_stats()
    return {
        "losses": losses,
        "weights": weights,
        "times": times,
        "moved": moved,
        "allocated": stats["allocated_bytes.all.peak"],
        "reserved": stats["reserved_bytes.all.peak"],
    }


def pcie(torch, size):
    """Bytes a second between the device and pinned memory: out, back, and each of them while the other runs."""
    device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def rate(ways, repeats=4):
        times = {}
        for _ in range(2):
            marks = {}
            torch.cuda.synchronize()
            began = time.perf_counter()
            for way in ways:
                with torch.cuda.stream(streams[way]):
                    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    first.record()
                    for _ in range(repeats):
                        to, source = (host[0], device[0]) if way == 0 else (device[1], host[1])
                        to.copy_(source, non_blocking=True)
                    last.record()
                    marks[way] = (first, last)
            torch.cuda.synchronize()
            whole = time.perf_counter() - began
            times = {way: max(first.elapsed_time(last) / 1e3, 0) or whole for way, (first, last) in marks.items()}
        return [repeats * size / times[way] for way in ways]

    (out,), (back,) = rate([0]), rate([1])
    both_out, both_back = rate([0, 1])
    return {"out": out, "back": back, "both_out": both_out, "both_back": both_back}


def run(args):
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    import gapless

    if not gapless.enable(**({"limit": args.cap} if args.cap else {})):
        raise SystemExit(f"gapless is off: {gapless.disable_reason()}")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    if args.dry:
        without_products(torch)
    result = {"pcie": None}
    if args.run == "offload":
        result["pcie"] = pcie(torch, 64 << 20 if args.dry else GIB)
        torch.cuda.empty_cache()
        scope = gapless.offload(activations=True, min_size="1MiB")
    elif args.run == "save_on_cpu":
        scope = torch.autograd.graph.save_on_cpu(pin_memory=True)
    else:
        scope = contextlib.nullcontext()
    try:
        result.update(train(torch, args, scope))
    except torch.OutOfMemoryError as error:
        result["failed"] = str(error)
    result["device"] = torch.cuda.get_device_name()
    result["torch"] = torch.__version__
    print("RESULT " + json.dumps(result), flush=True)


# ---- all runs ----


def start(args, kind, cap=0):
    names = ("steps", "batch", "length", "layers", "width", "vocabulary")
    command = [sys.executable, os.path.abspath(__file__), "--run", kind, "--cap", str(cap)]
    command += [word for name in names for word in (f"--{name}", str(getattr(args, name)))] + ["--dry"] * args.dry
    began = time.time()
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"the run {kind} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return json.loads(lines[-1][len("RESULT ") :]) | {"whole_s": time.time() - began}


def median_step(result):
    """After the first two: the first is looked after as it comes, and pins."""
    return statistics.median(result["times"][2:] or result["times"])


def a_step(result, name):
    """The part of a count that the last step added."""
    moved = result["moved"]
    return moved[-1][name] - (moved[-2][name] if len(moved) > 1 else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("steps", 6), ("batch", 8), ("length", 4096), ("layers", 16), ("width", 2048), ("vocabulary", 8192)):
        parser.add_argument(f"--{name}", type=int)
        parser.set_defaults(**{name: value})
    parser.add_argument("--compare", action="store_true", help="also with torch.autograd.graph.save_on_cpu, without a cap")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--run", choices=["free", "offload", "save_on_cpu"], help=argparse.SUPPRESS)
    parser.add_argument("--cap", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        return run(args)
    if args.dry:
        for name, value in (("steps", 4), ("batch", 4), ("length", 512), ("layers", 16), ("width", 512), ("vocabulary", 2048)):
            if getattr(args, name) == parser.get_default(name):
                setattr(args, name, value)

    free = start(args, "free")
    if "failed" in free:
        raise SystemExit(f"the model does not fit without a cap: {free['failed'][:300]}")
    results = {"free": free, "free, again": start(args, "free")}
    cap = free["reserved"] * 2 // 3
    results["offload"] = off = start(args, "offload", cap)
    if args.compare:
        results["save_on_cpu"] = start(args, "save_on_cpu")

    print(f"{free['device']}, torch {free['torch']}; cap {cap / GIB:.2f} GiB, two thirds of what the run without it reserves")
    print(f"{'run':14} {'allocated GiB':>13} {'reserved GiB':>13} {'of the cap':>10} {'first step s':>12} {'step ms':>9} {'losses, weights':>16}")
    repeats = (free["losses"], free["weights"]) == (results["free, again"]["losses"], results["free, again"]["weights"])
    for name, result in results.items():
        if "failed" in result:
            print(f"{name:14} out of memory: {result['failed'][:200]}")
            continue
        same = "equal" if (result["losses"], result["weights"]) == (free["losses"], free["weights"]) else "DIFFER"
        print(
            f"{name:14} {result['allocated'] / GIB:13.3f} {result['reserved'] / GIB:13.3f} {result['reserved'] / cap:10.3f} {result['times'][0]:12.2f} "
            f"{median_step(result) * 1e3:9.1f} {same:>16}"
        )
    if not repeats:
        print("the run without offload does not repeat itself: no losses can be compared")
    good = "failed" not in off
    if good:
        rates = off["pcie"]
        out, back = a_step(off, "bytes_out"), a_step(off, "bytes_back")
        alone = out / rates["out"] + back / rates["back"]
        print(
            f"a step moves {out / GIB:.2f} GiB out ({a_step(off, 'tensors_out')} tensors) and {back / GIB:.2f} GiB back; the host waits {a_step(off, 'waits')} times; "
            f"{a_step(off, 'late')} came back late; {off['moved'][-1]['host_peak'] / GIB:.2f} GiB of the host in use at most, {off['moved'][-1]['host_reserved'] / GIB:.2f} pinned"
        )
        print(
            f"PCIe, 1 GiB pinned: out {rates['out'] / 1e9:.1f} GB/s, back {rates['back'] / 1e9:.1f} GB/s; both at once {rates['both_out'] / 1e9:.1f} and {rates['both_back'] / 1e9:.1f}"
        )
        print(
            f"a step under the cap: {median_step(off) * 1e3:.1f} ms; without it: {median_step(free) * 1e3:.1f} ms; "
            f"PCIe alone needs {alone * 1e3:.1f} ms for what is moved ({out / rates['out'] * 1e3:.1f} out, {back / rates['back'] * 1e3:.1f} back)"
        )
        good = off["reserved"] <= cap and (not repeats or (off["losses"], off["weights"]) == (free["losses"], free["weights"]))
        off["transfer_alone_s"] = alone
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"cap": cap, "repeats": repeats, "runs": results}, file)
    print("PASS" if good else "FAIL")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
