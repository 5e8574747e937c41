"""Uses of streamed weights on a GPU: adapters trained over a frozen base of the shape of Llama 3 8B, a mixture of 64
experts that makes one token at a time, and transformers' generate() in a program that knows nothing of streams. Bits
are compared with the resident model's.

usage: python torch-bench/live/stream_uses.py [adapters] [experts] [generate] [--dry]

Needs torch, and Gapless as stream_weights.py does; generate also transformers. About 60 seconds on an H200.
"""

import gc
import json
import os
import statistics
import subprocess
import sys
import time
import types

import stream_weights as shapes

# Read by cuBLAS when it starts: deterministic products.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
GIB = 1 << 30
DRY = "--dry" in sys.argv
bad = 0


def say(**row):
    print(json.dumps(row), flush=True)


def same(a, b):
    global bad
    import torch

    equal = DRY or torch.equal(a, b)
    bad += not equal
    return equal


def adapters(torch, gapless):
    nn, F = torch.nn, torch.nn.functional
    args = types.SimpleNamespace(dry=DRY, layers=4 if DRY else 32)
    kind, _ = shapes.language_model(torch, args)
    base = shapes.make(torch, kind)
    link = shapes.link_speed(torch)
    weights = sum(tensor.nbytes for tensor in base.parameters())

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.down, self.up = base, nn.ModuleList(), nn.ModuleList()
            width = base.norm.weight.numel()
            for block in base.blocks:
                self.down.append(nn.Linear(width, 16, bias=False, device="cuda", dtype=torch.bfloat16))
                self.up.append(nn.Linear(16, width, bias=False, device="cuda", dtype=torch.bfloat16))
                nn.init.zeros_(self.up[-1].weight)

        def forward(self, tokens):
            angles = torch.arange(tokens.shape[1], device="cuda")[:, None] * base.rates.float()
            x = base.tokens(tokens)
            for block, down, up in zip(base.blocks, self.down, self.up):
                x = block(x, angles.cos().bfloat16(), angles.sin().bfloat16()) + up(down(x))
            return F.cross_entropy(base.head(base.norm(x[:, -256:])).flatten(0, 1).float(), tokens[:, -256:].flatten())

    torch.manual_seed(1)
    model = Adapted()
    start = [tensor.detach().clone() for tensor in (*model.down.parameters(), *model.up.parameters())]

    def train(steps):
        trained = [*model.down.parameters(), *model.up.parameters()]
        with torch.no_grad():
            for tensor, value in zip(trained, start):
                tensor.copy_(value)
        optimizer = torch.optim.AdamW(trained, lr=1e-3)
        batches = torch.Generator("cuda").manual_seed(2)
        losses, times = [], []
        for _ in range(steps):
            tokens = torch.randint(0, 4096, (1, 64 if DRY else 2048), generator=batches, device="cuda")
            torch.cuda.synchronize()
            began = time.perf_counter()
            loss = model(tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            del loss
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return torch.stack(losses), statistics.median(times[-3:]), torch.cat([tensor.detach().flatten() for tensor in trained])

    # Attention's backward adds in any order otherwise, and no two runs are alike.
    torch.use_deterministic_algorithms(True, warn_only=True)
    null = train(7)
    torch.cuda.reset_peak_memory_stats()
    losses, seconds, result = train(7)
    say(what="adapters, the null line", same=same(null[0], losses) and same(null[2], result))
    say(what="adapters, resident", ms=round(1e3 * seconds, 1), peak=torch.cuda.max_memory_allocated(), losses=[round(float(x), 4) for x in losses])
    for budget in (weights // 4, weights // 2) if DRY else (4 * GIB, 6 * GIB):
        # The outermost module: its calls are the passes.
        stream = gapless.stream(model, budget)
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        mine, now, found = train(7)
        stats = stream.stats()
        least = max(seconds, 2 * (weights - base.tokens.weight.nbytes - budget) / link)
        say(
            what="adapters, streamed", budget=budget, ms=round(1e3 * now, 1), least_ms=round(1e3 * least, 1), times=round(now / least, 3),
            same=same(mine, losses) and same(found, result), peak=stats["peak"], all_peak=torch.cuda.max_memory_allocated(), escaped=stats["escaped"],
            counts={key: stats[key] for key in ("late", "in_place", "cancelled", "written_back", "copies", "left_order")},
        )
        stream.stop()
    torch.use_deterministic_algorithms(False)
    del model, base
    gc.collect()
    torch.cuda.empty_cache()


def experts(torch, gapless):
    nn, F = torch.nn, torch.nn.functional
    width, inner, layers, count = (128, 64, 3, 8) if DRY else (2048, 1024, 16, 64)

    class Expert(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

        def forward(self, x):
            a, b = self.up(x).chunk(2, -1)
            return self.down(F.silu(a) * b)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mix, self.router = nn.RMSNorm(width), nn.Linear(width, width, bias=False), nn.Linear(width, count, bias=False)
            self.experts = nn.ModuleList(Expert() for _ in range(count))

        def forward(self, x):
            x = x + self.mix(x)
            y = self.norm(x)
            chosen = range(2) if DRY else self.router(y).float().mean(0).topk(8).indices.tolist()
            return x + sum(self.experts[number](y) for number in chosen)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(layers))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    model = shapes.make(torch, Model)
    weights = sum(tensor.nbytes for tensor in model.parameters())
    torch.manual_seed(3)
    # Texts whose tokens are alike: what was routed before is likely again.
    base = torch.randn(1, width, device="cuda", dtype=torch.bfloat16)
    given = [base + 0.3 * torch.randn_like(base) for _ in range(40)]

    def run():
        times, outs = [], []
        with torch.inference_mode():
            for x in given:
                torch.cuda.synchronize()
                began = time.perf_counter()
                outs.append(model(x))
                torch.cuda.current_stream().synchronize()
                times.append(time.perf_counter() - began)
        return torch.cat(outs), statistics.mean(times[10:])

    wanted, seconds = run()
    say(what="experts, resident", weights=weights, ms=round(1e3 * seconds, 2))
    for budget in (weights // 8, weights // 3) if DRY else (GIB, 4 * GIB):
        for between in (False, True):
            stream = gapless.stream(model, budget, between=between)
            out, now = run()
            stats = stream.stats()
            say(
                what="experts, streamed", budget=budget, between=between, ms=round(1e3 * now, 2), same=same(out, wanted), peak=stats["peak"],
                bytes_a_pass=stats["copied_bytes"] // len(given), counts={key: stats[key] for key in ("late", "in_place", "cancelled", "left_order")},
            )
            stream.stop()
    del model
    gc.collect()
    torch.cuda.empty_cache()


PROGRAM = """
import faulthandler, json, sys, time, torch
# A run that does not end says where it was; each phase says when it began.
faulthandler.dump_traceback_later(100, exit=True)
started = time.perf_counter()
def phase(name):
    print(f"{time.perf_counter() - started:.1f} s: {name}", file=sys.stderr, flush=True)
phase("imports")
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
small = len(sys.argv) > 1
if small:
    # The stand-in card computes nothing, and generate() reads from the card whether it is done: count on the host.
    from transformers.generation import GenerationMixin
    left, cumsum = [24], torch.Tensor.cumsum
    def unfinished(self, *args, **kwargs):
        left[0] -= 1
        return left[0] >= 0
    GenerationMixin._has_unfinished_sequences = unfinished
    torch.Tensor.cumsum = lambda self, *args, **kwargs: cumsum(self.cpu(), *args, **kwargs).to(self.device)
phase("the model")
config = LlamaConfig(hidden_size=512 if small else 2048, intermediate_size=8192, num_hidden_layers=2 if small else 16, num_attention_heads=32, num_key_value_heads=8, vocab_size=32000)
with torch.device("meta"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
model = model.to_empty(device="cpu").eval().requires_grad_(False)
for name, tensor in (*model.named_parameters(), *model.named_buffers()):
    if "inv_freq" in name:
        tensor.copy_(1.0 / 10000 ** (torch.arange(tensor.numel()) / tensor.numel()))
    elif "norm" in name:
        tensor.fill_(1)
    else:
        tensor.copy_(torch.empty(tensor.shape, device="cuda", dtype=tensor.dtype).normal_(0, 0.02))
phase("to the card")
model.to("cuda")
phase("generate")
tokens = torch.arange(64, device=model.device)[None]
began = time.perf_counter()
out = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=24, do_sample=False, pad_token_id=0)
took = time.perf_counter() - began
print(json.dumps({"tokens": out[0, 64:].tolist(), "seconds": round(took, 2), "allocated": torch.cuda.memory_allocated()}))
if "gapless" in sys.modules:
    import gapless
    stream = gapless._stream.auto.stream_of(0)
    print(stream, file=sys.stderr)
phase("the end of the interpreter")
"""


def generate(torch, gapless):
    folder = os.path.dirname(gapless.__file__)
    found = []
    for budget in (None, "24MiB" if DRY else "512MiB"):
        environment = dict(os.environ)
        if budget is not None:
            environment.update(GAPLESS_RUN="1", GAPLESS_STREAM_WEIGHTS=budget, PYTHONPATH=os.path.join(folder, "_run"))
        words = [sys.executable, "-c", PROGRAM, *(["small"] if DRY else [])]
        try:
            done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=110)
        except subprocess.TimeoutExpired as error:
            say(what="generate", budget=budget, error="no end in 110 seconds", err=str(error.stderr)[-900:])
            continue
        say(what="generate", budget=budget, rc=done.returncode, out=done.stdout.strip()[-400:], err=done.stderr.strip()[-900:])
        found.append(done.stdout)
    global bad
    if len(found) == 2 and all(found):
        bad += json.loads(found[0])["tokens"] != json.loads(found[1])["tokens"]


def main():
    import torch

    import gapless

    if not gapless.enable():
        sys.exit(f"gapless is off: {gapless.disable_reason()}")
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or ["adapters", "experts", "generate"]
    for name in chosen:
        {"adapters": adapters, "experts": experts, "generate": generate}[name](torch, gapless)
    say(bad=bad)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
