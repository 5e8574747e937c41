"""Eight processes open the same sender's tensors at once, again and again, while it allocates, frees, empties its
cache and shares more; some are killed in the middle of it, some stop for a while, and some end without a word. The
living read the right bytes, the sender goes on, and it has its memory again in the end."""
import pickle
import signal
import subprocess
import sys

from common import *

COUNT, TURNS = 8, 6

if len(sys.argv) > 1:
    start(limit=1 * GIB)
    mode, held = sys.argv[1], []
    int(wrong(fill(ints(MIB), 1), 1))
    torch.cuda.synchronize()
    out = sys.stdout.buffer
    out.write(b"ready\n")
    out.flush()
    for turn, line in enumerate(sys.stdin.buffer):
        try:
            bad = 0
            told = pickle.loads(bytes.fromhex(line.decode().strip()))
            if mode == "killed" and turn == 2:
                print("0", flush=True)  # it is killed while it opens
                while True:
                    [function(*args) for (function, args), _ in told]
            for (function, args), mark in told:
                x = function(*args)
                bad += int(wrong(x, mark))
                if mode != "drops":
                    held.append((x, mark))
            bad += sum(int(wrong(x, mark)) for x, mark in held)
            if mode != "keeps":
                held = held[-3:]
            x = None
            print(bad, flush=True)
            if mode == "ends" and turn == 3:
                os._exit(5)
        except BaseException as error:
            print(f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " "), flush=True)
    held = None
    torch.cuda.synchronize()
    os._exit(0)

from multiprocessing.reduction import ForkingPickler

from torch.multiprocessing.reductions import reduce_tensor

g = start(limit=2 * GIB)
modes = ["keeps", "drops", "killed", "plain", "stops", "ends", "drops", "killed"]
readers = [
    subprocess.Popen([sys.executable, "-W", "ignore", os.path.abspath(__file__), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for mode in modes
]
for reader in readers:
    reader.stdout.readline()
r, problems, mistakes, kept = rng(179), [], 0, []
living = dict(enumerate(readers))
for turn in range(TURNS):
    tensors = [(fill(ints(log_uniform(r, 512, 12 * MIB)), 100 * turn + k), 100 * turn + k) for k in range(10)]
    kept.append(tensors)
    torch.cuda.synchronize()
    for k, reader in living.items():
        told = [(reduce_tensor(x), mark) for x, mark in tensors]
        reader.stdin.write(bytes(ForkingPickler.dumps(told)).hex().encode() + b"\n")
        reader.stdin.flush()
        if modes[k] == "stops" and turn % 2:
            reader.send_signal(signal.SIGSTOP)
    # It allocates and frees memory of its own while they open.
    for _ in range(30):
        junk = [ints(log_uniform(r, 512, 30 * MIB)) for _ in range(5)]
        del junk
    torch.cuda.empty_cache()
    for k, reader in list(living.items()):
        if modes[k] == "stops" and turn % 2:
            reader.send_signal(signal.SIGCONT)
        text = reader.stdout.readline().decode().strip()
        if text.isdigit():
            mistakes += int(text)
        else:
            problems.append(f"{modes[k]} in turn {turn}: {text[:160] or 'no answer'}")
        if modes[k] == "killed" and turn == 2:
            time.sleep(0.01 * k)
            reader.kill()
            reader.wait()
            del living[k]
        elif modes[k] == "ends" and turn == 3:
            reader.wait(20)
            del living[k]
    mistakes += sum(int(wrong(x, mark)) for some in kept for x, mark in some)
    if problems:
        break
for reader in living.values():
    reader.stdin.close()
for k, reader in living.items():
    try:
        reader.wait(30)
    except subprocess.TimeoutExpired:
        reader.kill()
        problems.append(f"{modes[k]} does not end")
kept = tensors = x = some = None
torch.cuda.ipc_collect()
torch.cuda.synchronize()
# Memory that dead readers held is lost in torch's own books; the rest can be had.
big = fill(ints(1 * GIB), 7)
mistakes += int(wrong(big, 7))
problems += adds_up()
done(not problems and mistakes == 0, "; ".join(problems[:2]) or f"{COUNT} readers, {TURNS} turns, {mistakes} wrong elements")
