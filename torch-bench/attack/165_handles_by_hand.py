"""Weights go to three engines at once by handles that the program passes itself, as text: views at odd places of one
storage, hundreds of small storages, other types over the same bytes, transposed, empty and repeated ones. They are
rebuilt by hand with another number for the card, twice by some, updated in place by the sender, held while the sender
frees, and dropped in any order. Every engine sees the sender's bytes of the turn; received tensors are not passed
on."""
import base64
import io
import subprocess
import sys

from common import *

TURNS = 4


def numbers(seed):
    """Sizes in elements, places, and marks of a turn's views."""
    r = rng(seed)
    return [(log_uniform(r, 1, 300_000), r.randrange(1 << 18)) for _ in range(48)]


if len(sys.argv) > 1:
    import pickle

    start(limit=2 * GIB)
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    me, held = int(sys.argv[1]), {}
    torch.cuda.synchronize()
    for line in sys.stdin:
        what, turn, *rest = line.split()
        bad, turn = 0, int(turn)
        try:
            if what == "take":
                payload = pickle.loads(base64.b64decode(rest[0]))
                tensors = []
                for function, args in payload:
                    args = list(args)
                    if function is rebuild_cuda_tensor:
                        args[6] = torch.cuda.current_device()
                    tensors.append(function(*args))
                held[turn] = tensors
            elif what == "check":
                add = int(rest[0])
                views, twice, small, bits, turned, none, wide = (held[turn][k] for k in range(7))
                for x, (size, mark) in zip(held[turn][7:], numbers(turn)):
                    bad += int(x.numel() != size) + int(wrong(x, mark + add))
                bad += int(views.data_ptr() != twice.data_ptr()) + int(none.numel() != 0)
                bad += int(wrong(small, 77 + add)) + int(bits.dtype != torch.bfloat16) + int(turned.stride() != (1, 64))
                bad += int((wide != 5 + add).sum())
                bad += int(wrong(turned.t().reshape(-1), 1 + add))
            elif what == "send":  # not allowed, in words
                try:
                    held[turn][0].untyped_storage()._share_cuda_()
                    bad = 1
                except RuntimeError as error:
                    bad = int("received" not in str(error))
            elif what == "drop":
                order = rng(turn + 100 * me)
                while held[turn]:
                    held[turn].pop(order.randrange(len(held[turn])))
                tensors = x = views = twice = small = bits = turned = none = wide = None
                if me == 0:
                    torch.cuda.empty_cache()
            print("did", bad, flush=True)
        except BaseException as error:
            print("failed", type(error).__name__, str(error).replace("\n", " ")[:300], flush=True)
            break
    held = tensors = x = None
    torch.cuda.synchronize()
    os._exit(0)

from multiprocessing.reduction import ForkingPickler

from torch.multiprocessing.reductions import reduce_tensor

g = start(limit=2 * GIB)
problems, mistakes, sent = [], 0, 0
engines = [
    subprocess.Popen([sys.executable, "-W", "ignore", os.path.abspath(__file__), str(k)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for k in range(3)
]


def ask(engine, *words):
    """The engine's answer comes later."""
    engine.stdin.write(" ".join(map(str, words)) + "\n")
    engine.stdin.flush()


def answers(what):
    global mistakes
    for number, engine in enumerate(engines):
        words = engine.stdout.readline().split(" ", 1)
        if words[0] != "did":
            problems.append(f"{what} of engine {number}: {words[-1].strip()[:200] or 'no answer'}")
            return
        mistakes += int(words[1])


kept = {}
for turn in range(TURNS):
    sizes = numbers(turn)
    flat = torch.zeros(sum(size for size, _ in sizes) + 1000, dtype=torch.int32, device="cuda")
    views, at = [], 333
    for size, mark in sizes:
        views.append(fill(flat[at : at + size], mark))
        at += size
    junk = [ints(log_uniform(rng(turn), 512, 40 * MIB)) for _ in range(6)]
    small = fill(ints(2000), 77)
    turned = fill(ints(64 * 64 * 4), 1).view(64, 64).t()
    wide = torch.full((1,), 5, dtype=torch.int32, device="cuda").expand(1000)
    tensors = [flat, flat, small, flat[:2000].view(torch.bfloat16), turned, flat[:0], wide, *views]
    many = [fill(ints(512 * (k % 9 + 1)), k) for k in range(100)]
    torch.cuda.synchronize()
    for engine in engines:  # each gets its own: a handle is counted when it is opened
        out = io.BytesIO()
        ForkingPickler(out).dump([reduce_tensor(x) for x in tensors + many])
        ask(engine, "take", turn, base64.b64encode(out.getvalue()).decode())
        sent += len(tensors) + len(many)
    answers("taking")
    kept[turn] = (flat, small, turned, wide, many)
    del junk, views
    for add in (0, 1):
        if add:  # in place, while they hold them
            flat.add_(1)
            small.add_(1)
            turned.add_(1)
            wide[:1].add_(1)
            torch.cuda.synchronize()
        for engine in engines:
            ask(engine, "check", turn, add)
        answers("checking")
    for engine in engines:
        ask(engine, "send", turn)
    answers("sending on")
    if turn % 2:  # the sender frees first, and uses other memory
        kept[turn] = flat = small = turned = wide = many = tensors = None
        junk = [fill(ints(log_uniform(rng(turn), 512, 60 * MIB)), -k) for k in range(12)]
        torch.cuda.synchronize()
        for engine in engines:
            ask(engine, "check", turn, 1)
        answers("checking what the sender freed")
        del junk
    if problems:
        break
    if turn:
        for engine in engines:
            ask(engine, "drop", turn - 1)
        answers("dropping")
        kept.pop(turn - 1, None)
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
for engine in engines:
    engine.stdin.close()
for number, engine in enumerate(engines):
    try:
        engine.wait(30)
    except subprocess.TimeoutExpired:
        engine.kill()
        problems.append(f"engine {number} does not end")
kept = flat = small = turned = wide = many = tensors = x = None
torch.cuda.ipc_collect()
problems += adds_up()
done(not problems and mistakes == 0, "; ".join(problems[:2]) or f"{sent} tensors to three engines, {mistakes} wrong elements")
