"""Hundreds of tensors are sent to another process and held there at once, by a process that may open few files, as many
may: every tensor arrives, files can still be opened, and when all are dropped the memory comes back."""
import gc
import resource
import tempfile

from common import *

COUNT, FILES = 420, 256


def reader(door):
    start(limit=4 * GIB)
    while True:
        got = door.recv()
        if got is None:
            return
        door.send(sum(int(wrong(x, mark)) for mark, x in got))
        got = None
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.ipc_collect()


def main():
    import torch.multiprocessing as mp

    start(limit=4 * GIB)
    context = mp.get_context("spawn")
    door, other = context.Pipe()
    child = context.Process(target=reader, args=(other,))
    child.start()
    problems, mistakes = [], 0
    base = torch.cuda.memory_allocated()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
    for turn in range(3):
        # Some turns in one message, some one by one.
        made = [(k, fill(ints(4 * MIB), k)) for k in range(COUNT)]
        torch.cuda.synchronize()
        step = COUNT if turn == 0 else 60
        try:
            for at in range(0, COUNT, step):
                door.send(made[at : at + step])
                if not door.poll(60):
                    raise RuntimeError("no answer within 60 s")
                mistakes += door.recv()
            with tempfile.TemporaryFile() as file:
                file.write(b"there is room for a file")
        except Exception as error:
            problems.append(f"turn {turn}: {type(error).__name__}: {str(error).strip().splitlines()[0][:140]}")
            break
        if sum(int(wrong(x, k)) for k, x in made):
            problems.append(f"turn {turn}: what was sent has changed here")
        made = None
        gc.collect()
    door.send(None)
    child.join(60)
    if child.exitcode != 0:
        problems.append(f"the reader ended with {child.exitcode}")
        child.kill()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    made = None
    gc.collect()
    torch.cuda.ipc_collect()
    gc.collect()
    torch.cuda.synchronize()
    if torch.cuda.memory_allocated() - base > 64 * MIB:
        problems.append(f"{(torch.cuda.memory_allocated() - base) // MIB} MiB stay")
    problems += adds_up()
    done(not problems and mistakes == 0, "; ".join(problems[:2]) or f"{3 * COUNT} tensors sent, {mistakes} wrong elements")


if __name__ == "__main__":
    main()
