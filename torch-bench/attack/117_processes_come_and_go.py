"""Tensors through pools of processes, queues and events of three ways to start a process, with producers that die after
they sent and consumers that end at once: every value arrives or an error says why, and memory comes back."""
from common import *


def open_here():
    if not NATIVE:
        import gapless

        gapless.enable(oom_dir="off")


def work(mark):
    """In a worker of a pool: a tensor comes back that the worker does not keep."""
    t = fill(ints((mark % 7 + 1) * 300 * KIB), mark)
    torch.cuda.synchronize()
    return t, mark


def give_cpu(mark):
    t = fill(ints(2 * MIB), mark)
    return t.cpu(), mark


def produce(queue, acks, marks, dies):
    open_here()
    for mark in marks:
        t = fill(ints(3 * MIB), mark)
        torch.cuda.synchronize()
        queue.put((t, mark))
        acks.get(timeout=40)  # torch's rule: a sender keeps a tensor until its reader has it
        del t
    if dies:
        queue.close()
        queue.join_thread()
        os._exit(3)  # without a word to CUDA


def consume(queue, answers):
    open_here()
    while True:
        item = queue.get(timeout=40)
        if item is None:
            break
        t, mark = item
        answers.put(int(wrong(t, mark)))
        if mark % 5 == 4:
            answers.close()
            answers.join_thread()
            os._exit(0)  # at once, in the middle


if __name__ == "__main__":
    import torch.multiprocessing as mp

    g = start(limit=2 * GIB)
    problems, mistakes, count = [], 0, 0
    base = torch.cuda.memory_allocated()
    # A pool of processes: results are read, and kept for a while.
    context = mp.get_context("spawn")
    with context.Pool(2, initializer=open_here) as pool:
        kept = []
        for t, mark in pool.imap_unordered(work, range(100, 124)):
            kept.append((t.clone(), mark))
            mistakes += int(wrong(t, mark))
            del t
            count += 1
        for t, mark in pool.imap(give_cpu, range(8)):
            mistakes += int((t != torch.arange(mark, mark + t.numel(), dtype=torch.int32)).sum())
        mistakes += sum(int(wrong(t, mark)) for t, mark in kept)
        del kept, t
    # Producers of two kinds, one of which dies behind its last tensor.
    for method, dies in (("spawn", True), ("forkserver", False)):
        context = mp.get_context(method)
        queue, acks = context.Queue(), context.Queue()
        marks = [200 + k for k in range(10)]
        process = context.Process(target=produce, args=(queue, acks, marks, dies))
        process.start()
        try:
            for _ in marks:
                t, mark = queue.get(timeout=40)
                copy = t.clone()
                torch.cuda.synchronize()
                mistakes += int(wrong(t, mark)) + int(wrong(copy, mark))
                del t
                acks.put(mark)
                count += 1
        except Exception as error:
            problems.append(f"{method}: {type(error).__name__}: {str(error)[:120]}")
        process.join(20)
        if process.exitcode != (3 if dies else 0):
            problems.append(f"{method}: a producer ended with {process.exitcode}")
            process.kill()
    # Consumers that end at once, with what they were sent.
    context = mp.get_context("spawn")
    for turn in range(2):
        queue, answers = context.Queue(), context.Queue()
        process = context.Process(target=consume, args=(queue, answers))
        process.start()
        sent = []
        for k in range(5):
            sent.append(fill(ints(5 * MIB), 10 * turn + k))
            torch.cuda.synchronize()
            queue.put((sent[-1], 10 * turn + k))
        try:
            mistakes += sum(answers.get(timeout=40) for _ in range(5))
        except Exception as error:
            problems.append(f"consumer: {type(error).__name__}")
        process.join(20)
        mistakes += sum(int(wrong(t, 10 * turn + k)) for k, t in enumerate(sent))
        count += len(sent)
        del sent
        # Memory that the dead one held is used again only after it is free, and then by all.
        torch.cuda.ipc_collect()
        junk = [fill(ints(20 * MIB), k) for k in range(10)]
        mistakes += sum(int(wrong(t, k)) for k, t in enumerate(junk))
        del junk
    copy = None
    torch.cuda.synchronize()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    problems += adds_up()
    done(mistakes == 0 and not problems, f"{count} tensors between processes, {mistakes} wrong; {problems[:3]}")
