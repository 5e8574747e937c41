"""CUDA IPC on a card: pairs that read each other's memory, 8 GiB without a copy, and processes killed at any moment.

    python torch-bench/live/sharing.py [--kills 100] [--beside 6]

Every line names a trial and says whether it held. Bytes are compared by kernels on the card.
"""

import argparse
import concurrent.futures
import os
import random
import signal
import subprocess
import sys
import time

GIB = 1 << 30
MIB = 1 << 20


def enable(kind):
    """Native, native with expandable segments, or Gapless."""
    if kind == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    import torch
    import torch.multiprocessing  # noqa: F401

    if kind == "gapless":
        import gapless

        gapless.enable(oom_dir="off")
    return torch


def used():
    """Bytes in use on the card, all processes."""
    said = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
    )
    return int(said.stdout.split()[0]) * MIB


def pattern(torch, tensor, seed):
    index = torch.arange(tensor.numel(), device="cuda", dtype=torch.int32)
    return index.mul_(seed * 2 + 1).add_(seed)


def fill(torch, tensor, seed):
    tensor.copy_(pattern(torch, tensor, seed))


def same(torch, tensor, seed):
    return bool(torch.equal(tensor, pattern(torch, tensor, seed)))


def reader(kind, pipe):
    try:
        torch = enable(kind)
        import pickle

        torch.cuda.init()
        pipe.send("ready")
        while True:
            what, value = pipe.recv()
            if what == "open":
                begin = time.perf_counter()
                got = [pickle.loads(one) for one in value]
                torch.cuda.synchronize()
                pipe.send(time.perf_counter() - begin)
            elif what == "same":
                pipe.send([same(torch, tensor, seed) for tensor, seed in zip(got, value, strict=True)])
            elif what == "fill":
                for tensor in got:
                    fill(torch, tensor, value)
                torch.cuda.synchronize()
                pipe.send(None)
            elif what == "drop":
                del got
                torch.cuda.synchronize()
                pipe.send(torch.cuda.memory_reserved())
    except EOFError:
        pass
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {str(error).splitlines()[0]}")


def start(context, kind):
    ours, theirs = context.Pipe()
    process = context.Process(target=reader, args=(kind, theirs), daemon=True)
    process.start()
    theirs.close()
    answer = ours.recv()
    if answer != "ready":
        raise RuntimeError(answer)
    return process, ours


def ask(pipe, what, value=None):
    pipe.send((what, value))
    if not pipe.poll(120):
        raise TimeoutError(f"{what}: no answer")
    answer = pipe.recv()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def pair(sender, kind, sizes):
    """This process sends, another one reads; what held."""
    torch = enable(sender)
    import torch.multiprocessing as mp
    from multiprocessing.reduction import ForkingPickler

    context = mp.get_context("spawn")
    process, pipe = start(context, kind)
    tensors = [torch.empty(size // 4, dtype=torch.int32, device="cuda") for size in sizes]
    for seed, tensor in enumerate(tensors):
        fill(torch, tensor, seed)
    torch.cuda.synchronize()
    try:
        seconds = ask(pipe, "open", [bytes(ForkingPickler.dumps(tensor)) for tensor in tensors])
        is_same = all(ask(pipe, "same", range(len(sizes))))
        ask(pipe, "fill", 50)
        is_seen = all(same(torch, tensor, 50) for tensor in tensors)
        held = ask(pipe, "drop")
        print(f"{sender} to {kind}: same {is_same}, changes seen {is_seen}, opened in {seconds * 1e3:.1f} ms, reader holds {held / MIB:.0f} MiB", flush=True)
        ok = is_same and is_seen
    except (RuntimeError, TimeoutError) as error:
        print(f"{sender} to {kind}: {error}", flush=True)
        ok = False
    process.kill()
    return ok


def large():
    """8 GiB that two processes have, and the card once."""
    torch = enable("gapless")
    import torch.multiprocessing as mp
    from multiprocessing.reduction import ForkingPickler

    process, pipe = start(mp.get_context("spawn"), "gapless")
    ask(pipe, "open", [])
    # Made of what small pages and large ones left, as in a long run.
    held = [torch.empty(n * 7 * MIB // 4, dtype=torch.int32, device="cuda") for n in range(1, 60)]
    del held[::2]
    x = torch.empty(8 * GIB // 4, dtype=torch.int32, device="cuda")
    x.fill_(123)
    torch.cuda.synchronize()
    before = used()
    seconds = ask(pipe, "open", [bytes(ForkingPickler.dumps(x))])
    more = used() - before
    print(f"8 GiB opened in {seconds * 1e3:.1f} ms, {more / MIB:.0f} MiB more in use on the card", flush=True)
    process.kill()
    return more < 64 * MIB


def kill_one(number, pause, victim):
    """Kills one of a pair that exchanges tensors, the sender (0) or the reader (1), `pause` seconds after both are
    ready. Whether the other one works on."""
    child = subprocess.Popen([sys.executable, __file__, "--exchange"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in child.stdout.readline().split()]
    time.sleep(pause)
    os.kill(pids[victim], signal.SIGKILL)
    wrong = None
    try:
        if victim == 0:
            child.wait(60)
        else:
            out, _ = child.communicate("go\n", timeout=60)
            if "survived" not in out:
                wrong = f"the sender said {out!r}"
    except subprocess.TimeoutExpired:
        wrong = "somebody hangs"
        child.kill()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    child.wait()
    if wrong:
        print(f"kill {number}: {wrong}", flush=True)
    return wrong is None


def kills(count, beside, seed=1):
    """Sender or reader killed at random moments: the other one works on, and the card is empty in the end. `beside`
    pairs use the card at once."""
    dice = random.Random(seed)
    before = used()
    moments = [(number, dice.random() * 0.4, dice.randrange(2)) for number in range(count)]
    with concurrent.futures.ThreadPoolExecutor(beside) as pool:
        bad = sum(not held for held in pool.map(lambda moment: kill_one(*moment), moments))
    for _ in range(100):
        if used() <= before + 8 * MIB:
            break
        time.sleep(0.1)
    leaked = used() - before
    print(f"{count} kills: {bad} wrong, {leaked / MIB:.0f} MiB left on the card", flush=True)
    return bad == 0 and leaked <= 8 * MIB


def exchange():
    """A sender that never ends by itself, with a reader that is its child."""
    torch = enable("gapless")
    import torch.multiprocessing as mp
    from multiprocessing.reduction import ForkingPickler

    context = mp.get_context("spawn")
    process, pipe = start(context, "gapless")
    print(os.getpid(), process.pid, flush=True)
    dice = random.Random(os.getpid())
    try:
        while True:
            tensors = [torch.full((dice.randrange(1, 40 * MIB) // 4,), 3, dtype=torch.int32, device="cuda") for _ in range(dice.randrange(1, 6))]
            ask(pipe, "open", [bytes(ForkingPickler.dumps(tensor)) for tensor in tensors])
            ask(pipe, "fill", 4)
            ask(pipe, "drop")
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    # The reader is gone. This process goes on.
    x = torch.arange(10 * MIB, device="cuda")
    assert int(x[-1]) == 10 * MIB - 1
    torch.cuda.synchronize()
    print("survived", flush=True)
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--beside", type=int, default=6, help="pairs that use the card at once while one of each is killed")
    parser.add_argument("--exchange", action="store_true")
    parser.add_argument("--pair", nargs=2)
    parser.add_argument("--large", action="store_true")
    args = parser.parse_args()
    if args.exchange:
        return exchange()
    small = [4096, 2 * MIB, 300 * 1024]
    if args.pair:
        sender, kind = args.pair
        # Pages of one size, which a reader without Gapless can open.
        sizes = small if "gapless" in (sender, kind) and sender != kind else [*small, 37 * MIB, 700 * MIB]
        sys.exit(not pair(sender, kind, sizes))
    if args.large:
        sys.exit(not large())
    failed = 0
    for sender, kind in [
        ("native", "native"), ("expandable", "expandable"), ("gapless", "gapless"), ("gapless", "native"),
        ("gapless", "expandable"), ("native", "gapless"), ("expandable", "gapless"),
    ]:
        failed += subprocess.run([sys.executable, __file__, "--pair", sender, kind], timeout=200).returncode != 0
    failed += subprocess.run([sys.executable, __file__, "--large"], timeout=200).returncode != 0
    failed += not kills(args.kills, args.beside)
    print(f"{failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
