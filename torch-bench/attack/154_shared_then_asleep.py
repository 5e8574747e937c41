"""Tensors of a region are sent to another process, which reads them and drops them. While it has them, the region is
not put to sleep; once it has dropped them, or has ended, the region sleeps and wakes with its bytes, turn after turn.
(Gapless only)"""
import gc

from common import *


def reader(door):
    start(limit=2 * GIB)
    while True:
        got = door.recv()
        if got is None:
            return
        door.send(sum(int(wrong(x, mark)) for mark, x in got))
        door.recv()
        got = None
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.ipc_collect()
        door.send("dropped")


def main():
    import torch.multiprocessing as mp

    if NATIVE:
        skip("regions are Gapless'")
    g = start(limit=2 * GIB)
    context, problems, mistakes = mp.get_context("spawn"), [], 0
    with g.region("sent"):
        tensors = [(k, fill(ints(size), k)) for k, size in enumerate((700, 3 * MIB, 40 * MIB))]
    torch.cuda.synchronize()

    def answer(door):
        if not door.poll(60):
            raise RuntimeError("no answer within 60 s")
        return door.recv()

    for turn in range(2):
        door, other = context.Pipe()
        child = context.Process(target=reader, args=(other,))
        child.start()
        door.send(tensors)
        mistakes += answer(door)
        try:
            g.sleep("sent")
            problems.append("a region fell asleep whose memory another process has")
            g.wake("sent")
        except Exception as error:
            if "other processes" not in str(error):
                problems.append(f"{type(error).__name__}: {str(error)[:120]}")
        door.send("go on")
        answer(door)
        if turn == 0:  # it lives on without them
            gc.collect()
            torch.cuda.ipc_collect()
        else:
            door.send(None)
            child.join(60)
        try:
            g.sleep("sent")
            if not g.is_asleep(tensors[1][1]):
                problems.append("the region does not sleep")
            g.wake("sent")
        except Exception as error:
            problems.append(f"turn {turn}, after the other process has dropped all: {str(error)[:140]}")
        mistakes += sum(int(wrong(x, mark)) for mark, x in tensors)
        if turn == 0:
            door.send(None)
            child.join(60)
        if child.exitcode != 0:
            problems.append(f"the reader ended with {child.exitcode}")
            child.kill()
    problems += adds_up()
    done(not problems and mistakes == 0, "; ".join(problems[:2]) or f"two readers, {mistakes} wrong elements")


if __name__ == "__main__":
    main()
