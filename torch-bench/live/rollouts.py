"""Roll-outs and training in one process by turns, on a card: the peak, the steps, and the bytes.

    python torch-bench/live/rollouts.py [--layers 24] [--turns 6]

A trainer (float32 weights, gradients, AdamW) and a decoder (bfloat16 weights, a cache, one CUDA graph) take turns:
one sleeps while the other works. Each is first measured alone, awake for good, in a process of its own. Wanted: the
peak of both is that of the larger one; a turn takes as long as the two alone and the copies of what is kept, within
2 %; every weight and state wakes as it fell asleep, bit for bit (attention itself does not give the same bits twice).
Then the same weights fall asleep with keep="compressed". Every line of JSON is one figure.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MIB, GIB = 1 << 20, 1 << 30
WIDTH, HEADS, VOCABULARY, BATCH, LENGTH, TOKENS, STEPS = 2048, 16, 32000, 4, 1024, 128, 4
ROWS, CACHED = 64, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x, cache=None, at=None, mask=None):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        if cache is None:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            cache[0].index_copy_(2, at, k)
            cache[1].index_copy_(2, at, v)
            attended = F.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.down(F.silu(self.up(self.second(x))))


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, caches=None, at=None, mask=None):
        x = self.embedding(ids)
        for number, block in enumerate(self.blocks):
            x = block(x, caches and caches[number], at, mask)
        return self.head(self.norm(x))


def made(layers, dtype):
    torch.manual_seed(5)
    with torch.device("cuda"):
        return Model(layers).to(dtype)


class Trainer:
    def __init__(self, layers):
        self.model = made(layers, torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.generator = torch.Generator("cuda").manual_seed(11)

    def step(self):
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), device="cuda", generator=self.generator)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(self.model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def work(self):
        for _ in range(STEPS):
            self.step()


class Decoder:
    """Weights, and apart from them what need not be kept: the cache and the graph's memory."""

    def __init__(self, layers):
        self.model = made(layers, torch.bfloat16)

    @torch.no_grad()
    def prepare(self, layers):
        shape = (ROWS, HEADS, CACHED, WIDTH // HEADS)
        self.caches = [tuple(torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)) for _ in range(layers)]
        self.ids = torch.zeros(ROWS, 1, device="cuda", dtype=torch.long)
        self.at = torch.zeros(1, device="cuda", dtype=torch.long)
        self.positions = torch.arange(CACHED, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._decode()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._decode()

    def _decode(self):
        mask = (self.positions <= self.at).view(1, 1, 1, CACHED)
        self.ids.copy_(self.model(self.ids, self.caches, self.at, mask)[:, -1].argmax(-1, keepdim=True))
        self.at.add_(1)

    @torch.no_grad()
    def work(self):
        for keys, values in self.caches:
            keys.zero_()
            values.zero_()
        self.positions.copy_(torch.arange(CACHED, device="cuda"))
        self.ids.copy_(torch.arange(ROWS, device="cuda").view(-1, 1))
        self.at.zero_()
        for _ in range(TOKENS):
            self.graph.replay()


def timed(call):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = call()
    torch.cuda.synchronize()
    return result, time.perf_counter() - begin


def digest(tensors):
    """A sum of all bits, by place."""
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    for at, tensor in enumerate(tensors):
        words = tensor.detach().reshape(-1).view(torch.int16)
        total = total * 31 + words.sum(dtype=torch.int64) + (words[::97].long() * (at + 1)).sum()
    return int(total)


def used():
    free, total = torch.cuda.mem_get_info()
    return total - free


def alone(who, layers, turns):
    worker = Trainer(layers) if who == "trainer" else Decoder(layers)
    if who == "decoder":
        worker.prepare(layers)
    seconds, peak = [], 0
    for _ in range(turns):
        seconds.append(timed(worker.work)[1])
        peak = max(peak, used())
    return {"seconds": seconds, "peak": peak}


def together(layers, turns):
    import gapless

    with gapless.region("trainer"):
        trainer = Trainer(layers)
        # The states are there from the first step on.
        trainer.work()
    gapless.prepare_host(gapless.regions()[0].held + 2 * GIB)
    gapless.sleep("trainer")
    with gapless.region("decoder"):
        decoder = Decoder(layers)
    with gapless.region("cache", keep="discard"):
        decoder.prepare(layers)
    states = [value for state in trainer.optimizer.state.values() for value in state.values() if value.is_cuda]
    of_trainer, of_decoder = [*trainer.model.parameters(), *states], list(decoder.model.parameters())
    decoding, training, switching, peak, wrong, trained = [], [], [], 0, 0, None
    kept = digest(of_decoder)
    for turn in range(turns):
        _, took = timed(decoder.work)
        decoding.append(took)
        peak = max(peak, used())
        wrong += digest(of_decoder) != kept
        gapless.sleep("cache")
        _, took = timed(lambda: gapless.switch(sleep="decoder", wake="trainer"))
        switching.append(took)
        wrong += turn > 0 and digest(of_trainer) != trained
        _, took = timed(trainer.work)
        training.append(took)
        peak = max(peak, used())
        trained = digest(of_trainer)
        _, took = timed(lambda: gapless.switch(sleep="trainer", wake="decoder"))
        switching.append(took)
        gapless.wake("cache")
    kept_bytes = sum(tensor.nbytes for tensor in of_trainer + of_decoder)
    return {"wrong": wrong, "decoding": decoding, "training": training, "switching": switching, "peak": peak, "bytes": kept_bytes}


def compressed(layers):
    import gapless

    total = 0
    with gapless.region("weights", keep="compressed"):
        model = made(layers, torch.bfloat16)
    total = sum(parameter.nbytes for parameter in model.parameters())
    sums = [parameter.view(torch.int16).sum(dtype=torch.int64) for parameter in model.parameters()]
    down, up = [], []
    for _ in range(4):
        down.append(timed(lambda: gapless.sleep("weights"))[1])
        host = gapless.regions()[0].host
        up.append(timed(lambda: gapless.wake("weights"))[1])
    equal = all(bool(a == b.view(torch.int16).sum(dtype=torch.int64)) for a, b in zip(sums, model.parameters(), strict=True))
    return {"bytes": total, "host": host, "sleep": [total / 1e9 / one for one in down], "wake": [total / 1e9 / one for one in up], "equal": equal}


def child(who, args, gapless):
    environment = dict(os.environ)
    program = [sys.executable, __file__, "--child", who, "--layers", str(args.layers), "--turns", str(args.turns)]
    if not gapless:
        environment["GAPLESS"] = "0"
    done = subprocess.run(program, capture_output=True, text=True, env=environment, timeout=300)
    if done.returncode:
        print(json.dumps({"what": who, "failed": done.stderr[-1500:]}), flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def say(what, value, wanted=None, ok=None):
    print(json.dumps({"what": what, "value": value, "wanted": wanted, "ok": ok}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--child", choices=("trainer", "decoder", "together", "compressed"))
    args = parser.parse_args()
    if args.child:
        import gapless

        gapless.enable()
        torch.backends.cuda.matmul.allow_tf32 = True
        if args.child == "compressed":
            answer = compressed(args.layers)
        elif args.child == "together":
            answer = together(args.layers, args.turns)
        else:
            answer = alone(args.child, args.layers, args.turns)
        print(json.dumps(answer))
        return
    trainer, decoder, both = (child(who, args, True) for who in ("trainer", "decoder", "together"))
    if trainer and decoder and both:
        larger = max(trainer["peak"], decoder["peak"])
        say("peak of the card: trainer, decoder, both, GiB", [round(one / GIB, 2) for one in (trainer["peak"], decoder["peak"], both["peak"])])
        say("peak of both / the larger", round(both["peak"] / larger, 4), 1.02, both["peak"] <= 1.02 * larger)
        for name, alone_seconds, seconds in (("training", trainer["seconds"], both["training"]), ("decoding", decoder["seconds"], both["decoding"])):
            expected, seen = statistics.median(alone_seconds[1:]), statistics.median(seconds[1:])
            say(f"{name}: a turn beside the same alone", round(seen / expected, 4), 1.02, seen <= 1.02 * expected)
        say("wakings with other bits than before", both["wrong"], 0, both["wrong"] == 0)
        say("switching, s", [round(one, 3) for one in both["switching"]])
        say("switching, GB/s out and in together", round(both["bytes"] / 1e9 / statistics.median(both["switching"]), 1))
    packed = child("compressed", args, True)
    if packed:
        say("compressed: host bytes / bytes", round(packed["host"] / packed["bytes"], 4), 0.69, packed["host"] <= 0.69 * packed["bytes"])
        say("compressed: sleep, GB/s", [round(one, 2) for one in packed["sleep"]])
        say("compressed: wake, GB/s", [round(one, 2) for one in packed["wake"]])
        say("compressed: bytes after waking", packed["equal"], True, packed["equal"])


if __name__ == "__main__":
    main()
