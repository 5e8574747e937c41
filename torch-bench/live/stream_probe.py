"""The assumptions of streamed weights, tried on a card: its tensors over pinned host memory behave like any others.
Prints a line a check; exit 1 if one fails. Ten seconds.

usage: python torch-bench/live/stream_probe.py
"""

import copy
import io
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import gapless

bad = []


def check(name, what):
    began = time.perf_counter()
    try:
        found = what()
        torch.cuda.synchronize()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    is_good = found is True or isinstance(found, (float, dict))
    if not is_good:
        bad.append(name)
    print(f"{'ok ' if is_good else 'BAD'} {name}: {found} ({1e3 * (time.perf_counter() - began):.1f} ms)", flush=True)


def main():
    gapless.enable()
    torch.manual_seed(0)
    from gapless import _memory
    from gapless._stream.card import Card

    card = Card(torch, _memory._started(), 0)
    size = 4096 * 4096
    wanted = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    host = card.host(2 * size)
    host.view(torch.bfloat16).copy_(wanted.flatten())
    there = torch.empty(0, dtype=torch.bfloat16, device="cuda").set_(card.view(host), 0, (4096, 4096), (4096, 1))
    x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    ids = torch.randint(0, 4096, (2048,), device="cuda")
    check("equal", lambda: torch.equal(there, wanted))
    check("cpu", lambda: torch.equal(there.cpu(), wanted.cpu()))
    check("clone", lambda: torch.equal(there.clone(), wanted))
    check("storage copied to the cpu", lambda: torch.equal(torch.empty(0, dtype=torch.bfloat16).set_(there.untyped_storage().cpu()), wanted.flatten().cpu()))
    check("linear", lambda: torch.equal(F.linear(x, there), F.linear(x, wanted)))
    check("linear, one row", lambda: torch.equal(F.linear(x[:1], there), F.linear(x[:1], wanted)))
    check("linear again", lambda: torch.equal(F.linear(x[:1], there), F.linear(x[:1], wanted)))
    check("embedding", lambda: torch.equal(F.embedding(ids, there), F.embedding(ids, wanted)))
    check("saved", lambda: torch.equal(_saved(there), wanted))
    check("written", lambda: bool((there[5].fill_(3), torch.cuda.synchronize(), (host.view(torch.bfloat16)[5 * 4096 : 6 * 4096] == 3).all())[2]))
    check("copied into", lambda: bool((there.copy_(wanted), torch.cuda.synchronize(), torch.equal(host.view(torch.bfloat16).view(4096, 4096), wanted.cpu()))[2]))
    check("pinned to the card, non blocking", lambda: torch.equal(there.to("cuda", copy=True, non_blocking=True), wanted))
    for rows in (1, 16, 256, 2048):
        y = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)
        for name, weight in (("card", wanted), ("host", there)):
            F.linear(y, weight)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(3):
                F.linear(y, weight)
            torch.cuda.synchronize()
            print(f"    {rows} rows, weight on the {name}: {1e3 * (time.perf_counter() - began) / 3:.3f} ms", flush=True)

    model = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)) for _ in range(8))).bfloat16()
    resident = copy.deepcopy(model).cuda()
    stream = gapless.stream(model, "160MiB")
    z = torch.randn(32, 2048, device="cuda", dtype=torch.bfloat16)

    def run(grad):
        with torch.set_grad_enabled(grad):
            return all(torch.equal(model(z), resident(z)) for _ in range(6))

    check("streamed", lambda: run(False))
    check("streamed, inference mode", lambda: torch.inference_mode()(lambda: run(False))())
    check("streamed with gradients", lambda: run(True))

    def backward():
        for one in (model, resident):
            one.zero_grad()
            one(z).square().mean().backward()
        return all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), resident.parameters()))

    check("backward", backward)

    def side():
        other = torch.cuda.Stream()
        other.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(other):
            found = model(z)
        torch.cuda.current_stream().wait_stream(other)
        with torch.no_grad():
            return torch.equal(found, resident(z))

    check("another stream", side)

    def compiled():
        for block in model:
            block.compile()
        with torch.no_grad():
            first = [model(z) for _ in range(3)]
            for block in resident:
                block.compile()
            return torch.equal(first[2], resident(z)) and torch.equal(first[0], first[2])

    check("compiled blocks", compiled)
    check("copied whole", lambda: torch.equal(copy.deepcopy(model[0][0]).weight, resident[0][0].weight))
    check("state dict", lambda: all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), resident.state_dict().values())))
    check("stats", stream.stats)
    print(stream, flush=True)
    stream.stop()
    check("stopped", lambda: all(torch.equal(a, b.cpu()) for a, b in zip(model.parameters(), resident.parameters())))
    print(f"{len(bad)} bad: {bad}")
    sys.exit(1 if bad else 0)


def _saved(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


if __name__ == "__main__":
    main()
