"""Processes of two tenants that share a card, fill it, and are killed at random moments, also while they
capture, sleep and give back: what the dead held can be had again, and the living keep their bytes. (Gapless only)"""
import json
import signal
import subprocess
import sys
import tempfile

from common import *

if NATIVE:
    skip("tenants are Gapless'")

CHILD = r"""
import sys, json
from common import *
name, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
g = start(tenant=f"{name}:4GiB")
r, kept, mistakes, refused, steps = rng(seed), [], 0, 0, 0
x = torch.zeros(1 << 18, dtype=torch.int32, device="cuda")
x + 1
with g.region("nap"):
    nap = fill(ints(24 * MIB), 3)
end = time.monotonic() + seconds
print("ready", flush=True)
while time.monotonic() < end:
    steps += 1
    try:
        mark = r.randrange(1 << 18)
        kept.append((fill(ints(log_uniform(r, 64 * KIB, 300 * MIB)), mark), mark))
    except torch.OutOfMemoryError:
        refused += 1
        del kept[: len(kept) // 2]
        torch.cuda.synchronize()
        if r.random() < 0.5:
            torch.cuda.empty_cache()
    way = r.random()
    if way < 0.1:
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = x + steps
            graph.replay()
            mistakes += int((y != steps).sum())
            del graph, y
        except torch.OutOfMemoryError:
            refused += 1
    elif way < 0.2:
        try:
            g.sleep("nap", guard=False)
            g.wake("nap")
            mistakes += int(wrong(nap, 3))
        except torch.OutOfMemoryError:
            refused += 1
            kept.clear()
            torch.cuda.empty_cache()
            for _ in range(200):
                try:
                    g.wake("nap")
                    break
                except torch.OutOfMemoryError:
                    time.sleep(0.05)
    if len(kept) > 30:
        t, mark = kept.pop(r.randrange(30))
        try:
            mistakes += int(wrong(t, mark))
        except torch.OutOfMemoryError:
            refused += 1
        del t
kept.clear()
torch.cuda.synchronize()
print(json.dumps({"mistakes": mistakes, "refused": refused, "steps": steps, "held": torch.cuda.memory_reserved()}), flush=True)
"""
r, problems, reports, killed = rng(), [], [], 0
with tempfile.TemporaryDirectory() as folder:
    # A ledger of this program's own.
    environment = dict(os.environ, GAPLESS_RUN_DIR=folder)

    def begin(name, seed, seconds):
        command = [sys.executable, "-c", CHILD, name, str(seed), str(seconds)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(child, who):
        try:
            out, err = child.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            child.kill()
            problems.append(f"{who} does not end")
            return
        last = out.strip().splitlines()[-1:]
        if child.returncode or not last or not last[0].startswith("{"):
            problems.append(f"{who}: rc {child.returncode}, {(err.strip().splitlines() or ['silent'])[-1][:160]}")
            return
        reports.append(json.loads(last[0]))

    steady = begin("a", 1, 7)
    steady.stdout.readline()
    doomed = [begin("b", 10 + k, 60) for k in range(2)]
    for child in doomed:
        child.stdout.readline()
    for k in range(3):  # at random moments, one after another, with a new one in its place
        time.sleep(r.uniform(0.2, 0.9))
        child = doomed.pop(0)
        child.send_signal(r.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)))
        child.communicate(timeout=30)
        killed += 1
        doomed.append(begin("b", 20 + k, 60))
        doomed[-1].stdout.readline()
    for child in doomed:
        child.kill()
        child.communicate(timeout=30)
        killed += 1
    finish(steady, "the living one")
    # All tenants have ended: a new process of one gets its whole share at once.
    last = """
from common import *
g = start(tenant="b:4GiB")
for _ in range(40):
    try:
        x = fill(ints(2500 * MIB), 4)
        break
    except torch.OutOfMemoryError as error:
        why, x = str(error)[:200], None
        time.sleep(0.1)
print("whole" if x is not None and int(wrong(x, 4)) == 0 else why, flush=True)
"""
    child = subprocess.run([sys.executable, "-c", last], env=environment, capture_output=True, text=True, timeout=60)
    found = child.stdout.strip().splitlines()[-1:] or child.stderr.strip().splitlines()[-1:]
    if found != ["whole"]:
        problems.append(f"after all died: {found}")
mistakes = sum(report["mistakes"] for report in reports)
done(mistakes == 0 and not problems, f"{killed} killed, {reports}; {problems[:3]}")
