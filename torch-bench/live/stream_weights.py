"""Streamed weights on a GPU: a language model of the shape of Llama 3 8B and a diffusion transformer of 2 B, within
budgets in steps, beside the resident model, a plain loop with one block ahead, and accelerate's cpu_offload.

usage: python torch-bench/live/stream_weights.py [--json FILE] [--only NAME] [--budgets 2,4,8,12] [--layers 32] [--dry]

Needs torch, and Gapless: installed, or with GAPLESS_LIBRARY naming the library and PYTHONPATH the folder python/. Each
pass is timed beside the least that it could take: its work, or the link's time for what is beyond the budget. Outputs
have to be the resident model's, bit for bit, and weights within their budget at each moment; exit 1 where they are not.
--dry is for a card that holds nothing: small. About 90 seconds on an H200.
"""

import argparse
import gc
import json
import os
import resource
import statistics
import sys
import time

GIB = 1 << 30


# ---- models ----


def language_model(torch, args):
    """Llama 3 8B's shapes, random weights."""
    nn, F = torch.nn, torch.nn.functional
    width, inner, heads, pairs, vocabulary = (512, 1024, 8, 2, 4096) if args.dry else (4096, 14336, 32, 8, 128256)
    head = width // heads

    def rotate(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
            self.k, self.v = nn.Linear(width, pairs * head, bias=False), nn.Linear(width, pairs * head, bias=False)
            self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x, cos, sin):
            y = self.norm1(x)
            q, k, v = (part.unflatten(-1, (-1, head)).transpose(1, 2) for part in (self.q(y), self.k(y), self.v(y)))
            y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
            x = x + self.o(y.transpose(1, 2).flatten(2))
            y = self.norm2(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
            self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
            self.register_buffer("rates", 1.0 / 500000 ** (torch.arange(0, head, 2) / head), persistent=False)

        def forward(self, tokens):
            angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * self.rates.float()
            cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
            x = self.tokens(tokens)
            for block in self.blocks:
                x = block(x, cos, sin)
            # As when text is generated: logits of the last token.
            return self.head(self.norm(x[:, -1:]))

    lengths = (1, 64) if args.dry else (1, 2048, 16384)
    return Model, {f"{length} tokens": (lambda length=length: torch.randint(0, vocabulary, (1, length), device="cuda")) for length in lengths}


def diffusion_model(torch, args):
    """A transformer of 2 B with modulated norms, over 4,096 places of an image."""
    nn, F = torch.nn, torch.nn.functional
    width, depth = (256, 4) if args.dry else (2048, 28)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
            self.qkv, self.out, self.change = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 6 * width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, time_):
            a, b, c, d, e, f = self.change(F.silu(time_))[:, None].chunk(6, -1)
            q, k, v = (part.unflatten(-1, (-1, 128)).transpose(1, 2) for part in self.qkv(self.norm1(x) * (1 + a) + b).chunk(3, -1))
            x = x + c * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return x + f * self.down(F.gelu(self.up(self.norm2(x) * (1 + d) + e)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.begin, self.time, self.end = nn.Linear(64, width), nn.Linear(256, width), nn.Linear(width, 64)
            self.blocks = nn.ModuleList(Block() for _ in range(depth))

        def forward(self, x):
            time_ = self.time(x[:, 0].repeat(1, 4))
            x = self.begin(x)
            for block in self.blocks:
                x = block(x, time_)
            return self.end(x)

    places = 64 if args.dry else 4096
    return Model, {f"{places} places": lambda: torch.randn(1, places, 64, device="cuda", dtype=torch.bfloat16)}


def make(torch, kind):
    """On the card, filled there: it is fast, and the same each time."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = kind().to(torch.bfloat16)
    model = model.to_empty(device="cuda").eval().requires_grad_(False)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith("rates"):
            tensor.copy_(1.0 / 500000 ** (torch.arange(tensor.numel(), device="cuda") / tensor.numel()))
        else:
            tensor.normal_(1.0 if "norm" in name else 0.0, 0.02)
    return model


# ---- passes ----


def timed(torch, model, inputs, passes, warm=2):
    """The median of passes that follow each other, in seconds, and the last output."""
    out = None
    times = []
    with torch.inference_mode():
        torch.cuda.synchronize()
        for number in range(warm + passes):
            began = time.perf_counter()
            out = model(inputs)
            # Copies for the next pass may go on.
            torch.cuda.current_stream().synchronize()
            if number >= warm:
                times.append(time.perf_counter() - began)
    return statistics.median(times), out


class OneAhead:
    """The loop that many write by hand: all blocks in pinned memory, the next one is copied while this one works."""

    def __init__(self, torch, model, gapless):
        from gapless import _memory
        from gapless._pin import pinned_bytes

        self.torch, self.stream = torch, torch.cuda.Stream()
        self.blocks, self.handles = list(model.blocks), []
        self.hosts, self.events = [], [None] * len(self.blocks)
        for block in self.blocks:
            hosts = []
            for parameter in block.parameters():
                flat = pinned_bytes(torch, _memory._started(), 0, parameter.nbytes).view(parameter.dtype).view(parameter.shape)
                flat.copy_(parameter)
                parameter.data = torch.empty(0, device="cuda", dtype=parameter.dtype)
                hosts.append(flat)
            self.hosts.append(hosts)
        for number, block in enumerate(self.blocks):
            self.handles.append(block.register_forward_pre_hook(lambda module, args, number=number: self.before(number)))
            self.handles.append(block.register_forward_hook(lambda module, args, out, number=number: self.after(number)))

    def bring(self, number):
        torch = self.torch
        made = [torch.empty_like(host, device="cuda") for host in self.hosts[number]]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for to, host in zip(made, self.hosts[number]):
                to.copy_(host, non_blocking=True)
        self.events[number] = (self.stream.record_event(), made)

    def before(self, number):
        if self.events[number] is None:
            self.bring(number)
        event, made = self.events[number]
        if number + 1 < len(self.blocks):
            self.bring(number + 1)
        self.torch.cuda.current_stream().wait_event(event)
        for parameter, tensor in zip(self.blocks[number].parameters(), made):
            parameter.data = tensor

    def after(self, number):
        self.events[number] = None
        for parameter in self.blocks[number].parameters():
            parameter.data = self.torch.empty(0, device="cuda", dtype=parameter.dtype)

    def end(self):
        for handle in self.handles:
            handle.remove()
        for block, hosts in zip(self.blocks, self.hosts):
            for parameter, host in zip(block.parameters(), hosts):
                parameter.data = host.cuda()


def link_speed(torch):
    from gapless import _memory
    from gapless._pin import pinned_bytes

    size = 8 << 20 if not torch.cuda.get_device_properties(0).total_memory > 64 * GIB else 256 << 20
    host = pinned_bytes(torch, _memory._started(), 0, size)
    card = torch.empty(size, dtype=torch.uint8, device="cuda")
    card.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(8):
        card.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    return 8 * size / (time.perf_counter() - began)


def pool_bytes(gapless):
    import ctypes

    figures = (ctypes.c_uint64 * 6)()
    gapless._memory._started().optional("gapless_host_stats", figures)
    return {"live": figures[0], "reserved": figures[2]}


# ---- one model ----


def measure(torch, gapless, name, kind, inputs, args, found):
    def say(**row):
        row = {"model": name, **row}
        found["rows"].append(row)
        print(json.dumps(row), flush=True)
        if args.json:
            with open(args.json, "w") as file:
                json.dump(found, file, indent=1)

    began = time.perf_counter()
    model = make(torch, kind)
    torch.cuda.synchronize()
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    say(what="made", seconds=round(time.perf_counter() - began, 2), weights=weights)
    given = {case: one() for case, one in inputs.items()}
    wanted, work = {}, {}
    for case, x in given.items():
        work[case], wanted[case] = timed(torch, model, x, args.passes)
        say(what="resident", case=case, ms=round(1e3 * work[case], 2))
    table = sum(tensor.nbytes for part, tensor in model.named_parameters() if part == "tokens.weight")
    link = found["link"]
    bad = 0
    for budget in (part * weights // 16 for part in (4, 8)) if args.dry else (int(float(part) * GIB) for part in args.budgets.split(",")):
        if budget >= weights:
            continue
        for between in (False, True):
            began = time.perf_counter()
            stream = gapless.stream(model, budget, between=between)
            start = time.perf_counter() - began
            for case, x in given.items():
                torch.cuda.reset_peak_memory_stats()
                seconds, out = timed(torch, model, x, args.passes, warm=4)
                same = args.dry or torch.equal(out, wanted[case])
                stats = stream.stats()
                # The table of tokens is read in place: only the rows of a pass cross the link.
                least = max(work[case], (weights - table - budget) / link)
                within = stats["peak"] <= budget
                bad += not (same and within)
                figures = {key: round(1e3 * stats[key], 2) for key in ("compute_seconds", "waited_seconds", "least_seconds", "pass_seconds") if key in stats}
                say(
                    what="streamed", case=case, budget=budget, between=between, ms=round(1e3 * seconds, 2), least_ms=round(1e3 * least, 2), times=round(seconds / least, 3),
                    same=same, peak=stats["peak"], resident=stats["resident"], start_seconds=round(start, 2), host=pool_bytes(gapless),
                    counts={key: stats[key] for key in ("late", "in_place", "cancelled", "written_back", "copies", "copied_bytes")}, **figures,
                )
            stream.stop()
            del stream
            gc.collect()
    if not args.dry:
        same = all(torch.equal(timed(torch, model, x, 1, 0)[1], wanted[case]) for case, x in given.items())
        say(what="stopped", same=same)
        bad += not same
    gapless.trim()
    if args.streams:
        return bad
    loop = OneAhead(torch, model, gapless)
    for case, x in given.items():
        seconds, out = timed(torch, model, x, max(1, args.passes - 1), warm=1)
        block = sum(host.nbytes for host in loop.hosts[0])
        say(what="one ahead", case=case, ms=round(1e3 * seconds, 2), same=args.dry or torch.equal(out, wanted[case]), peak=2 * block + table)
    loop.end()
    del loop
    gc.collect()
    gapless.trim()
    try:
        import accelerate
    except ImportError:
        say(what="accelerate", missing=True)
    else:
        began = time.perf_counter()
        model = model.to("cpu")
        accelerate.cpu_offload(model, execution_device=torch.device("cuda", 0))
        start = time.perf_counter() - began
        for case, x in given.items():
            seconds, out = timed(torch, model, x, 1, warm=1)
            same = args.dry or torch.equal(out, wanted[case])
            say(what="accelerate", case=case, ms=round(1e3 * seconds, 2), same=same, start_seconds=round(start, 2), version=accelerate.__version__)
    del model
    gc.collect()
    torch.cuda.empty_cache()
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--only")
    parser.add_argument("--budgets", default="2,4,8,12")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--streams", action="store_true", help="without the others")
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args()
    if args.dry:
        args.layers = min(args.layers, 4)
    import torch

    import gapless

    if not gapless.enable():
        sys.exit(f"gapless is off: {gapless.disable_reason()}")
    torch.zeros(1, device="cuda")
    found = {"torch": torch.__version__, "card": torch.cuda.get_device_name(), "pid": os.getpid(), "rows": []}
    found["link"] = link_speed(torch) if not args.dry else 55e9
    print(json.dumps({"link_gb_s": round(found["link"] / 1e9, 2), "card": found["card"]}), flush=True)
    bad = 0
    for name, of in (("llama-8b", language_model), ("diffusion-2b", diffusion_model)):
        if args.only in (None, name):
            kind, inputs = of(torch, args)
            if name == "diffusion-2b" and not args.dry:
                args.budgets = "0.5,1,2,3"
            bad += measure(torch, gapless, name, kind, inputs, args, found)
    print(json.dumps({"peak_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), 1), "bad": bad}), flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
