"""What gapless.name_modules() costs a training step, and how much of a snapshot it names. Needs a GPU.

usage: python torch-bench/live/name_modules.py [--turns 12] [--steps 10] [--parts off,native,stacks,gapless]
           [--json FILE]

A step of GPT-2 small, batch 8 x 1024, bfloat16 autocast, AdamW: transformers' model, or the one below without it. Each
part is a process of its own, in which three lines take turns of some steps: `plain` without names, `null` the same
again, `named` with them. A ratio is between medians over the turns; null / plain is the noise. CPU is the processor
time of the process a step.

  off      no recorder
  native   torch.cuda.memory._record_memory_history() without stacks
  stacks   the same with Python stacks
  gapless  the flight recorder on the Gapless allocator, which names all models by itself

Then `named`, of the bytes that are allocated at the peak of a native recording: all, and those that the forward pass
made. At least 95 % of the latter must be named, else the exit code is 1.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PARTS = ["off", "native", "stacks", "gapless"]
LINES = ["plain", "null", "named"]
LAYERS, WIDTH, HEADS, WORDS, BATCH, LENGTH = 12, 768, 12, 50257, 8, 1024


# ---- in the process that is measured ----


def gpt2(torch):
    """The model, and a function that gives the loss of a batch."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        pass
    else:
        with torch.device("cuda"):
            model = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa"))
        return model, lambda x: model(x, labels=x).loss
    nn, functional = torch.nn, torch.nn.functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.resid_dropout = nn.Dropout(0.1)

        def forward(self, x):
            size = (x.shape[0], x.shape[1], HEADS, WIDTH // HEADS)
            q, k, v = (part.view(size).transpose(1, 2) for part in self.c_attn(x).split(WIDTH, dim=2))
            found = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
            return self.resid_dropout(self.c_proj(found.transpose(1, 2).reshape(x.shape)))

    class Gelu(nn.Module):
        def forward(self, x):
            return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_fc, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.act, self.dropout = Gelu(), nn.Dropout(0.1)

        def forward(self, x):
            return self.dropout(self.c_proj(self.act(self.c_fc(x))))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH), Mlp()

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe, self.drop = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH), nn.Dropout(0.1)
            self.h, self.ln_f = nn.ModuleList([Block() for _ in range(LAYERS)]), nn.LayerNorm(WIDTH)

        def forward(self, x):
            found = self.drop(self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device)))
            for block in self.h:
                found = block(found)
            return self.ln_f(found)

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer, self.lm_head = Transformer(), nn.Linear(WIDTH, WORDS, bias=False)
            self.lm_head.weight = self.transformer.wte.weight

        def forward(self, x):
            logits = self.lm_head(self.transformer(x))
            return functional.cross_entropy(logits[:, :-1].float().reshape(-1, WORDS), x[:, 1:].reshape(-1))

    with torch.device("cuda"):
        model = Gpt2()
    return model, model


def make_step(torch):
    torch.manual_seed(0)
    model, loss_of = gpt2(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, step


def measure(part, turns, steps):
    import torch

    import gapless
    from gapless import _modules

    if part == "gapless" and not gapless.enable(record=os.environ["NAMES_RECORD"], oom_dir="off"):
        sys.exit(f"gapless is off: {gapless.disable_reason()}")
    if part in ("native", "stacks"):
        torch.cuda.memory._record_memory_history(max_entries=100_000, context="alloc" if part == "stacks" else None, stacks="python")
    model, step = make_step(torch)
    names = None

    def turn(line):
        nonlocal names
        if part == "gapless":
            # The recorder's names cannot be taken off: the call without them is put back instead.
            torch.nn.Module.__call__ = _modules._wrapper if line == "named" else _modules._original
        elif (names is not None) != (line == "named"):
            if names is None:
                names = gapless.name_modules(model)
            else:
                names.remove()
                names = None
        step()
        torch.cuda.synchronize()
        began, worked = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps, (time.process_time() - worked) / steps

    for line in LINES:
        turn(line)
    found = {line: [] for line in LINES}
    for at in range(turns):
        for line in LINES[at % 3 :] + LINES[: at % 3]:
            found[line].append(turn(line))
    print(json.dumps({line: [statistics.median(each) for each in zip(*rows)] for line, rows in found.items()}))


def named_share():
    """The part that has a name: of the bytes at the peak, and of those that a forward pass asked for."""
    import torch

    import gapless

    torch.cuda.memory._record_memory_history(max_entries=1_000_000, context="alloc", stacks="python")
    model, step = make_step(torch)
    gapless.name_modules(model)
    for _ in range(3):
        step()
    snapshot = torch.cuda.memory._snapshot()
    owned = {note["addr"] for note in snapshot["external_annotations"] if note["stage"] == "BLOCK"}
    live, held, most, peak = {}, 0, 0, {}
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            live[event["addr"]] = event
            held += event["size"]
        elif event["action"] == "free_completed" and event["addr"] in live:
            held -= live.pop(event["addr"])["size"]
        if held > most:
            most, peak = held, dict(live)
    ends = {event["addr"] for event in live.values()}
    is_named = {addr: event.get("user_metadata", "").startswith("module: ") or (addr in owned and addr in ends) for addr, event in peak.items()}

    def share(wanted):
        chosen = [event for event in peak.values() if wanted(event)]
        return sum(event["size"] for event in chosen if is_named[event["addr"]]) / max(1, sum(event["size"] for event in chosen))

    def in_forward(event):
        return any(frame["name"] in ("forward", "_call_impl") for frame in event.get("frames", ()))

    print(json.dumps({"all": share(lambda event: True), "forward": share(in_forward), "peak": most}))


# ---- the processes ----


def run(arguments, **environment):
    words = [sys.executable, __file__, *map(str, arguments)]
    path = os.pathsep.join(filter(None, [str(pathlib.Path(__file__).resolve().parents[2] / "python"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path, **environment}, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} failed")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--json")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure == "share":
        return named_share()
    if args.measure:
        return measure(args.measure, args.turns, args.steps)
    results = {}
    print(f"{'part':8} {'plain':>10} {'null':>8} {'named':>8}   {'CPU plain':>10} {'null':>8} {'named':>8}   names, CPU")
    with tempfile.TemporaryDirectory() as folder:
        for part in args.parts.split(","):
            given = ["--measure", part, "--turns", args.turns, "--steps", args.steps]
            found = results[part] = run(given, NAMES_RECORD=os.path.join(folder, "run.gtrace"))
            (wall, cpu), (null, null_cpu), (named, named_cpu) = (found[line] for line in LINES)
            figures = f"{wall * 1e3:7.2f} ms {null / wall:8.4f} {named / wall:8.4f}   {cpu * 1e3:7.2f} ms {null_cpu / cpu:8.4f} {named_cpu / cpu:8.4f}"
            print(f"{part:8} {figures}   {(named_cpu - cpu) * 1e3:.2f} ms", flush=True)
        share = results["named"] = run(["--measure", "share"])
    print(f"named: {share['all']:.1%} of {share['peak'] / 2**30:.2f} GiB at the peak, {share['forward']:.1%} of what forward passes made")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0 if share["forward"] >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
