"""A trainer sends weights to an engine by buckets over CUDA IPC, one buffer used again and again; the engine copies
them into weights that sleep and wake between updates (on Gapless). Every weight arrives, turn after turn."""
from common import *

TURNS, COUNT, BUCKET = 6, 40, 12 * MIB


def shapes():
    r = rng(114)
    return [log_uniform(r, 100, 2 << 20) for _ in range(COUNT)]


def value(turn, k):
    return 1000 * turn + 17 * k


def engine(commands, answers, limit):
    try:
        g = start(limit=limit)
        scope = g.region("weights") if g else None
        if scope:
            scope.__enter__()
        weights = [torch.empty(n, dtype=torch.int32, device="cuda") for n in shapes()]
        if scope:
            scope.__exit__(None, None, None)
        at = torch.arange(max(shapes()), dtype=torch.int32, device="cuda")
        while True:
            what, body = commands.get(timeout=40)
            if what == "bucket":
                make, arguments, parts = body
                buffer = make(*arguments)  # as torch.multiprocessing.reductions has it
                for k, start_at, length, into in parts:
                    weights[k][into : into + length].copy_(buffer[start_at : start_at + length])
                torch.cuda.synchronize()
                del buffer
                answers.put(("copied", 0))
            elif what == "check":
                bad = sum(int((w != at[: w.numel()] + value(body, k)).sum()) for k, w in enumerate(weights))
                answers.put(("wrong", bad))
            elif what == "sleep":
                if g:
                    torch.cuda.ipc_collect()
                    g.sleep("weights", guard=False)
                    torch.cuda.empty_cache()
                answers.put(("slept", 0))
            elif what == "wake":
                if g:
                    g.wake("weights")
                answers.put(("woke", 0))
            else:
                break
        answers.put(("end", 0))
    except BaseException as error:
        answers.put((f"{type(error).__name__}: {str(error)[:200]}", -1))


if __name__ == "__main__":
    import torch.multiprocessing as mp
    from torch.multiprocessing.reductions import reduce_tensor

    g = start(limit=2 * GIB)
    context = mp.get_context("spawn")
    commands, answers = context.Queue(), context.Queue()
    process = context.Process(target=engine, args=(commands, answers, 2 * GIB), daemon=True)
    process.start()
    problems, mistakes, buckets = [], 0, 0

    def ask(what, body=None):
        commands.put((what, body))
        try:
            answer, number = answers.get(timeout=40)
        except Exception as error:
            process.kill()
            done(False, f"{what}: no answer ({type(error).__name__})")
        if number < 0:
            process.join(5)
            done(False, f"{what}: {answer}")
        return number

    sizes, at = shapes(), torch.arange(max(shapes()), dtype=torch.int32, device="cuda")
    buffer = torch.empty(BUCKET // 4, dtype=torch.int32, device="cuda")
    room = buffer.numel()
    for turn in range(TURNS):
        # The trainer allocates and frees memory of its own between updates.
        junk = [fill(ints(log_uniform(rng(turn), 4096, 60 * MIB)), k) for k in range(8)]
        mistakes += sum(int(wrong(t, k)) for k, t in enumerate(junk))
        del junk
        if turn % 2:
            torch.cuda.empty_cache()
        if turn == 3:  # another buffer, once: the old one may still be known to the engine
            del buffer
            buffer = torch.empty(room, dtype=torch.int32, device="cuda")
        parts, used = [], 0

        def send():
            global buckets
            torch.cuda.synchronize()
            ask("bucket", (*reduce_tensor(buffer), parts))
            buckets += 1

        if turn:
            ask("wake")
        for k, n in enumerate(sizes):
            done_of = 0
            while done_of < n:
                length = min(n - done_of, room - used)
                buffer[used : used + length].copy_(at[done_of : done_of + length] + value(turn, k))
                parts.append((k, used, length, done_of))
                used, done_of = used + length, done_of + length
                if used == room:
                    send()
                    parts, used = [], 0
        if parts:
            send()
            parts = []
        mistakes += ask("check", turn)
        ask("sleep")
        ask("wake")
        mistakes += ask("check", turn)
        ask("sleep")
    ask("end")
    process.join(20)
    del buffer
    torch.cuda.ipc_collect()
    problems += adds_up()
    done(mistakes == 0 and not problems, f"{TURNS} updates of {COUNT} weights, {buckets} buckets, {mistakes} wrong; {problems[:2]}")
