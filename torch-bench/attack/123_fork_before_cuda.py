"""A process that has torch and enable() but no CUDA yet forks: its children may use CUDA, by torch's rules, and so may
it afterwards. Children of children, workers of a DataLoader that use the card, and spawned ones with other settings."""
import signal
import subprocess
import sys

from common import *

if not NATIVE:
    import gapless

    if not gapless.enable(limit=1 * GIB, oom_dir="off"):
        done(False, f"enable: {gapless.disable_reason()}")
problems, count = [], 0


def life(seed):
    """The work of a child on the card; returns how many elements are wrong."""
    r, kept, bad = rng(seed), [], 0
    side = torch.cuda.Stream()
    for step in range(40):
        mark = r.randrange(1 << 18)
        with torch.cuda.stream(side if step % 2 else torch.cuda.current_stream()):
            kept.append((fill(ints(log_uniform(r, 512, 24 * MIB)), mark), mark))
        if len(kept) > 6:
            torch.cuda.synchronize()
            t, mark = kept.pop(r.randrange(6))
            bad += int(wrong(t, mark))
        if step == 20:
            torch.cuda.empty_cache()
    x = torch.zeros(1 << 16, dtype=torch.int32, device="cuda")
    x + 1
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + seed
    graph.replay()
    bad += int((y != seed).sum())
    try:
        torch.empty(1 << 42, device="cuda", dtype=torch.uint8)
        bad += 1
    except torch.OutOfMemoryError:
        pass
    if not NATIVE:
        bad += 0 if gapless.enabled() and gapless.stats()["gapless.peak_reserved"] > 0 else 1000
    bad += len(adds_up())
    torch.cuda.synchronize()
    return min(bad, 99)


def forked(work):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 111
        try:
            signal.alarm(40)
            code = work()
        except BaseException as error:
            print(f"child: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return child


def grandchild():
    """A child that forks before it uses the card itself."""
    _, status = os.waitpid(forked(lambda: life(50)), 0)
    return (os.waitstatus_to_exitcode(status) & 255) or life(51)


if torch.cuda.is_initialized() or getattr(torch.cuda, "_is_in_bad_fork", lambda: False)():
    problems.append("CUDA has begun before it was asked for")
children = [(forked(lambda seed=seed: life(seed)), f"child {seed}") for seed in range(3)]
children.append((forked(grandchild), "a child with a child"))
for child, name in children:
    _, status = os.waitpid(child, 0)
    count += 1
    code = os.waitstatus_to_exitcode(status)
    if code:
        problems.append(f"{name} ended with {code}")
# Now this process: its own CUDA begins, and a child from here on is told that it cannot use it.
bad = life(9)
if bad:
    problems.append(f"{bad} wrong in the parent")
mine = fill(ints(8 * MIB), 4)


def too_late():
    try:
        torch.zeros(1, device="cuda")
        return 5
    except RuntimeError as error:
        return 0 if "fork" in str(error).lower() else 6


_, status = os.waitpid(forked(too_late), 0)
if os.waitstatus_to_exitcode(status):
    problems.append(f"a late child ended with {os.waitstatus_to_exitcode(status)}")
if int(wrong(mine, 4)):
    problems.append("a late child spoiled its parent's bytes")
# A program of its own, which asks the card something before enable(): it works on one allocator or the other.
late = """
import torch, os
torch.cuda.device_count(); torch.cuda.get_arch_list()
native = os.environ.get("GAPLESS") == "0"
if not native:
    import gapless
    print(gapless.enable(limit="1GiB", oom_dir="off"), gapless.enable(limit="1GiB", oom_dir="off"))
x = torch.arange(1000, device="cuda")
print("sum", int(x.sum()))
"""
child = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True, timeout=60)
if child.returncode or not child.stdout.strip().splitlines()[-1:] or not child.stdout.strip().splitlines()[-1].startswith("sum"):
    problems.append(f"questions first: {(child.stderr.strip().splitlines() or ['silent'])[-1][:120]}")
done(not problems, "; ".join(problems[:4]) or f"{count} children before CUDA, one after it")
