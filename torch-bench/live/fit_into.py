"""gapless.fit_into beside checkpointing by blocks, on a card: each model trains in turns, in one process, with
everything kept, with every block and every second block checkpointed, and by plans for the peaks of both.

    python fit_into.py OUT.jsonl [llama1b gpt2m vit_l] [--rounds 3] [--steps 6] [--small]

A line of JSON for each model and way: peak allocated and median milliseconds; for plans also the prediction and the
bound; and whether gradients and loss are equal, bit for bit, to those with everything kept. `--small` runs small
models, also on the CPU: it tests the program, its times mean nothing.
"""

import argparse
import gc
import json
import statistics
import sys
import time

import torch
from torch.utils.checkpoint import checkpoint

CARD = torch.cuda.is_available()
DEVICE = "cuda" if CARD else "cpu"


def sync():
    if CARD:
        torch.cuda.synchronize()


def build(name, small):
    """The model, its blocks, and a function that gives the loss."""
    torch.manual_seed(0)
    if name == "llama1b":
        from transformers import LlamaConfig, LlamaForCausalLM

        hidden, layers, heads, inner, batch, length = (64, 3, 4, 256, 2, 64) if small else (2048, 16, 32, 8192, 4, 2048)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(DEVICE):
            config = LlamaConfig(
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=heads // 4,
                intermediate_size=inner,
                vocab_size=32000 if not small else 320,
                use_cache=False,
                attn_implementation="sdpa",
            )
            model = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
        tokens = torch.randint(0, config.vocab_size, (batch, length), device=DEVICE)
        return model, model.model.layers, lambda: model(tokens, labels=tokens).loss
    if name == "gpt2m":
        from transformers import GPT2Config, GPT2LMHeadModel

        hidden, layers, heads, batch, length = (64, 3, 4, 2, 64) if small else (1024, 24, 16, 8, 1024)
        config = GPT2Config(n_embd=hidden, n_layer=layers, n_head=heads, attn_implementation="sdpa", use_cache=False)
        if small:
            config.vocab_size = 500
            config.bos_token_id = config.eos_token_id = 1
        with torch.device(DEVICE):
            model = GPT2LMHeadModel(config)
        tokens = torch.randint(0, config.vocab_size, (batch, length), device=DEVICE)

        def language():
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                return model(tokens, labels=tokens).loss

        return model, model.transformer.h, language
    import torchvision

    if small:
        model = torchvision.models.VisionTransformer(32, 8, 3, 4, 64, 256).to(DEVICE)
    else:
        model = torchvision.models.vit_l_16().to(DEVICE)
    pictures = torch.randn(2 if small else 64, 3, *(2 * [32 if small else 224]), device=DEVICE)
    labels = torch.randint(0, 1000, (len(pictures),), device=DEVICE)

    def vision():
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            return torch.nn.functional.cross_entropy(model(pictures), labels)

    return model, model.encoder.layers, vision


class Ways:
    """One model that is trained in several ways by turns: the same weights, the same optimizer."""

    def __init__(self, name, small):
        self.model, blocks, self.loss = build(name, small)
        self.model.train()
        self.blocks = list(blocks)
        self.forwards = [block.forward for block in self.blocks]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-5, fused=CARD)
        self.every = 0
        self.plan = None

    def choose(self, every=0, budget=None):
        """Checkpoints every n-th block, or follows a plan, or neither."""
        for number, (block, forward) in enumerate(zip(self.blocks, self.forwards)):
            if every and number % every == 0:
                block.forward = lambda *a, forward=forward, **k: checkpoint(forward, *a, use_reentrant=False, **k)
            else:
                block.__dict__.pop("forward", None)
        if self.plan is not None:
            if budget is None:
                self.plan.pause()
            else:
                self.plan.resume()
                self.plan.change(budget)

    def backward(self):
        loss = self.loss()
        loss.backward()
        return loss.detach()

    def step(self):
        loss = self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def gradients(self):
        torch.manual_seed(7)
        loss = self.backward()
        found = [loss] + [parameter.grad.clone() for parameter in self.model.parameters() if parameter.grad is not None]
        self.optimizer.zero_grad(set_to_none=True)
        return found

    def measure(self, steps):
        self.step()
        sync()
        if CARD:
            torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            self.step()
            sync()
            times.append((time.perf_counter() - begin) * 1e3)
        stats = torch.cuda.memory_stats() if CARD else {}
        return times, stats.get("allocated_bytes.all.peak", 0), stats.get("reserved_bytes.all.peak", 0)


def run(name, options, emit):
    import gapless

    ways = Ways(name, options.small)
    ways.step()
    kinds = {"nothing": {}, "every block": {"every": 1}, "every second block": {"every": 2}}
    peaks, steady = {}, {}
    for way, how in kinds.items():
        ways.choose(**how)
        times, peaks[way], _ = ways.measure(2)
    ways.choose()
    plans = {}
    # The last is far above: its plan drops nothing, and shows what the hooks cost.
    budgets = {"plan at every block": peaks["every block"], "plan at every second block": peaks["every second block"], "plan of nothing": 1 << 40}
    if not CARD:
        budgets = {"plan at every block": options.low, "plan at every second block": options.low * 2, "plan of nothing": 1 << 40}
    ways.plan = gapless.fit_into(ways.model, max(budgets.values()), min_size=options.min_size, wait=True)
    for way, budget in sorted(budgets.items(), key=lambda item: -item[1]):
        begin = time.perf_counter()
        ways.choose(budget=budget)
        for _ in range(4):
            ways.step()
        kind = next(iter(ways.plan.kinds.values()))
        answer = kind.answers.get(budget)
        if answer is None:
            emit(model=name, way=way, budget=budget, problem=kind.problem)
            continue
        plans[way] = (kind, answer, time.perf_counter() - begin)
        kinds[way] = {"budget": budget}
    if options.keep and kind.asked is not None:
        with open(f"{options.keep}/{name}.step.json", "w", encoding="utf-8") as file:
            json.dump(kind.asked, file)
    results = {way: [] for way in kinds}
    for _ in range(options.rounds):
        for way, how in kinds.items():
            ways.choose(**how)
            results[way].append(ways.measure(options.steps))
    for way, found in results.items():
        times = [one for times, _, _ in found for one in times]
        line = {
            "model": name,
            "way": way,
            "peak_gib": round(max(peak for _, peak, _ in found) / 2**30, 4),
            "reserved_gib": round(max(reserved for _, _, reserved in found) / 2**30, 3),
            "ms": round(statistics.median(times), 2),
            "least_ms": round(min(times), 2),
            "rounds_ms": [round(statistics.median(one), 2) for one, _, _ in found],
        }
        if way in plans:
            kind, answer, took = plans[way]
            executor = kind.executors[answer["budget"]]
            line.update(
                budget_gib=round(answer["budget"] / 2**30, 4),
                fits=answer["fits"],
                predicted_gib=round(answer["peak"] / 2**30, 4),
                predicted_ms=round(answer["time_us"] / 1e3, 2),
                kept_ms=round(answer["kept"]["time_us"] / 1e3, 2),
                kept_gib=round(answer["kept"]["peak"] / 2**30, 4),
                bound_ms=answer["bound_us"] and round(answer["bound_us"] / 1e3, 2),
                least_gib=round(answer["least"] / 2**30, 4),
                dropped_gib=round(answer["dropped_bytes"] / 2**30, 3),
                replays=len(answer["replays"]),
                prepared_s=round(took, 1),
                times={name: round(us / 1e3, 2) for name, us in kind.times.items()},
                costs_ms=round(sum(op["cost"] for op in kind.asked["ops"]) / 1e3, 2),
                missed=executor.missed,
            )
        emit(**line)
    ways.choose()
    ways.plan.remove()
    emit(model=name, way="gradients", **compare(ways, budgets, options))


def compare(ways, budgets, options):
    """Gradients and loss of plans beside those with everything kept, bit for bit, with deterministic kernels."""
    import gapless

    torch.use_deterministic_algorithms(True, warn_only=True)
    # cuDNN's attention has no deterministic backward under warn_only.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        found = {}
        ways.plan = gapless.fit_into(ways.model, max(budgets.values()), min_size=options.min_size, wait=True)
        ways.plan.pause()
        reference = ways.gradients()
        again = ways.gradients()
        found["null"] = all(torch.equal(a, b) for a, b in zip(reference, again))
        del again
        for way, budget in budgets.items():
            ways.choose(budget=budget)
            for _ in range(4):
                ours = ways.gradients()
            found[way] = len(ours) == len(reference) and all(torch.equal(a, b) for a, b in zip(ours, reference))
            del ours
        stats = ways.plan.stats()
        ways.plan.remove()
        return {"equal": found, **stats}
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.enable_cudnn_sdp(True)


def main():
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("out")
    reader.add_argument("models", nargs="*", default=["llama1b", "gpt2m", "vit_l"])
    reader.add_argument("--rounds", type=int, default=3)
    reader.add_argument("--steps", type=int, default=6)
    reader.add_argument("--small", action="store_true")
    reader.add_argument("--keep", help="a folder for the recorded steps")
    options = reader.parse_args()
    options.min_size, options.low = ("4KiB", 3 << 20) if options.small else ("1MiB", 0)
    with open(options.out, "a", encoding="utf-8") as file:

        def emit(**line):
            text = json.dumps(line)
            print(text, flush=True)
            file.write(text + "\n")
            file.flush()

        for name in options.models or ["llama1b", "gpt2m", "vit_l"]:
            begin = time.perf_counter()
            try:
                run(name, options, emit)
            except Exception as error:
                import traceback

                traceback.print_exc()
                emit(model=name, error=repr(error)[:300])
            gc.collect()
            if CARD:
                torch.cuda.empty_cache()
            print(f"{name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
