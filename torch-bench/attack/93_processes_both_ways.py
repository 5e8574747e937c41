"""Tensors and events between processes in both directions: views, tensors in place, tensors made by the other, a
consumer that dies while it holds one. Every byte is right, and memory comes back."""
from common import *

import torch.multiprocessing as mp


def open_here():
    if not NATIVE:
        import gapless

        gapless.enable(oom_dir="off")
    torch.cuda.init()


def helper(inbox, outbox):
    """Adds one to what it gets, in place; sends tensors of its own back."""
    try:
        open_here()
        mine = []
        while True:
            message = inbox.get(timeout=60)
            if message is None:
                break
            kind, x, mark, event = message
            if event is not None:
                torch.cuda.Event.from_ipc_handle(0, event).wait()
            bad = int(wrong(x, mark))
            if kind == "add":
                x.add_(1)
                torch.cuda.synchronize()
                outbox.put(("added", None, bad))
            elif kind == "die":
                outbox.put(("dying", None, bad))
                outbox.close()
                outbox.join_thread()
                os._exit(3)
            else:
                y = fill(ints(x.numel() * 4), mark + 7)
                torch.cuda.synchronize()
                outbox.put(("made", y, bad))
                mine = (mine + [y])[-6:]  # the sender keeps what it sent until it was used
                del y
            del x, message
        del mine
    except BaseException as error:
        outbox.put((f"{type(error).__name__}: {str(error)[:160]}", None, 0))


if __name__ == "__main__":
    g = start(limit=2 * GIB)
    context = mp.get_context("spawn")
    r, problems, mistakes, sent = rng(93), [], 0, 0
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=helper, args=(inbox, outbox))
    child.start()
    base = torch.cuda.memory_allocated()

    def ask(kind, x, mark, event=None):
        global mistakes, sent
        inbox.put((kind, x, mark, event))
        what, y, bad = outbox.get(timeout=60)
        mistakes += bad
        sent += 1
        if what not in ("added", "made", "dying"):
            problems.append(what)
        return y

    try:
        for step in range(36):
            mark = 1000 * (step + 1)
            x = fill(ints(log_uniform(r, 4096, 24 * MIB)), mark)
            if step % 3 == 0:
                event = torch.cuda.Event(interprocess=True)
                event.record()
                ask("add", x, mark, event.ipc_handle())
                torch.cuda.synchronize()
                mistakes += int(wrong(x, mark + 1))
            elif step % 3 == 1:
                torch.cuda.synchronize()
                y = ask("make", x, mark)
                if y is not None:
                    mistakes += int(wrong(y, mark + 7))
                    torch.cuda.synchronize()
                del y
            else:
                cut = r.randrange(x.numel())
                torch.cuda.synchronize()
                ask("add", x[cut:], mark + cut)
                mistakes += int(wrong(x[:cut], mark)) if cut else 0
                mistakes += int(wrong(x[cut:], mark + cut + 1))
            del x
            if problems:
                break
            if step % 9 == 8:
                torch.cuda.ipc_collect()
                torch.cuda.empty_cache()
        if not problems:
            x = fill(ints(12 * MIB), 5)
            torch.cuda.synchronize()
            ask("die", x, 5)
            child.join(30)
            mistakes += int(wrong(x, 5))
            del x
            torch.cuda.ipc_collect()
            many = [fill(ints(30 * MIB), k) for k in range(20)]
            mistakes += sum(int(wrong(m, k)) for k, m in enumerate(many))
            del many
            if child.exitcode != 3:
                problems.append(f"the child ended with {child.exitcode}")
    finally:
        if child.is_alive():
            inbox.put(None)
            child.join(20)
        if child.is_alive():
            child.kill()
    torch.cuda.synchronize()
    torch.cuda.ipc_collect()
    left = torch.cuda.memory_allocated() - base
    # Memory that the dead consumer held is lost in torch's own books too: one tensor of 12 MiB, and no more.
    if left > 12 * MIB + 64 * KIB:
        problems.append(f"{left} bytes are left")
    problems += adds_up()
    done(not problems and mistakes == 0, f"{sent} tensors sent, {mistakes} wrong elements, {left} bytes left {problems[:2]}")
