"""A trainer with accumulated gradients, averaged weights on a side stream, evaluation between steps and checkpoints
that a thread writes computes, averages and saves the bits of a trainer that does one thing after the other."""
import copy
import io
import os
import threading

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
from common import *

g = start(limit=4 * GIB)
torch.use_deterministic_algorithms(True)
torch.backends.cuda.matmul.allow_tf32 = False
torch.manual_seed(78)
width = 1024
base = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(6)]).cuda()
errors = []


def data(k, rows):
    return torch.randn(rows, width, generator=torch.Generator("cuda").manual_seed(k), device="cuda")


def save(copies, ready, out):
    """In a thread of its own, on a stream of its own."""
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_event(ready)
            file = io.BytesIO()
            torch.save(dict(copies), file)
            out.append(file.getvalue())
            torch.cuda.current_stream().synchronize()
    except BaseException as error:
        errors.append(repr(error)[:160])


def train(apart):
    """With `apart`: averages, evaluation and checkpoints beside the training."""
    model = copy.deepcopy(base)
    average = [p.detach().clone() for p in model.parameters()]
    way = torch.optim.AdamW(model.parameters(), lr=1e-3)
    main, side, third = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
    if not apart:
        side = third = main
    side.wait_stream(main)  # the averages are made
    scores, saved, threads = [], [], []
    for step in range(24):
        for part in range(2):
            (model(data(100 * step + part, 384 + 64 * (step % 3))).square().mean() / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        way.step()
        way.zero_grad()
        # New tensors of the main stream, used on the other and dropped here at once.
        copies = [p.detach().clone() for p in model.parameters()]
        if apart:
            side.wait_stream(main)
        with torch.cuda.stream(side):
            for a, c in zip(average, copies):
                a.lerp_(c, 0.1)
        if apart:
            for c in copies:
                c.record_stream(side)
        del copies, c
        if step % 4 == 3:
            third.wait_stream(main)
            with torch.inference_mode(), torch.cuda.stream(third):
                scores.append(model(data(7, 900)).square().mean())
            main.wait_stream(third)  # the next step writes the weights
        if step % 6 == 5:
            copies = {name: x.detach().clone() for name, x in model.state_dict().items()}
            thread = threading.Thread(target=save, args=(copies, main.record_event(), saved))
            del copies
            thread.start()
            threads.append(thread)
            if not apart:
                thread.join()
    for thread in threads:
        thread.join(60)
    torch.cuda.synchronize()
    files = [torch.load(io.BytesIO(s), map_location="cpu") for s in saved]
    files.sort(key=lambda f: float(f["0.weight"].double().abs().sum()))  # threads end in any order
    tensors = [p.detach().cpu() for p in model.parameters()] + [a.cpu() for a in average] + [s.cpu() for s in scores]
    return tensors, files


one, other = train(False), train(True)
differ = sum(int(not torch.equal(a, b)) for a, b in zip(one[0], other[0]))
files = sum(int(not torch.equal(a[key], b[key])) for a, b in zip(one[1], other[1]) for key in a)
ok = not errors and differ == 0 and files == 0 and len(one[1]) == len(other[1]) == 4 and not adds_up()
done(ok, f"{differ} of {len(one[0])} tensors differ, {files} in {len(other[1])} checkpoints; {errors[:1]}")
