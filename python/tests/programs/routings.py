"""Random routings of three threads: pools that are opened for a thread or a stream, captures into them that end, are
broken or joined by other streams, captures through the driver, ends and releases in any order. Prints one list a seed:
the answer of each step, and the pool of each tensor.

    routings.py FIRST LAST [gapless]
"""

import ctypes
import gc
import json
import os
import queue
import random
import sys
import threading

import torch

MIB = 1 << 20
STEPS = 80
OPERATIONS = """handle mempool open_thread open_stream close close release stream capture end break raw join alloc alloc
alloc small small free free empty count""".split()

if "gapless" in sys.argv:
    import gapless

    gapless.enable()
card = ctypes.CDLL("libcuda.so.1")
for function in (card.card_begin_capture, card.card_end_capture):
    function.argtypes = [ctypes.c_uint64]
torch.cuda.init()
# A MemPool may not end while a scope has it open, so all of them are kept.
STREAMS, KEPT = [torch.cuda.default_stream()] + [torch.cuda.Stream() for _ in range(4)], []


def of(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


class Worker(threading.Thread):
    """Does one thing after the other in a thread of its own."""

    def __init__(self):
        super().__init__(daemon=True)
        self.asked, self.answers = queue.Queue(), queue.Queue()
        self.start()

    def run(self):
        while (work := self.asked.get()) is not None:
            try:
                self.answers.put((True, work()))
            except RuntimeError as error:
                self.answers.put((False, str(error).splitlines()[0][:70]))
            del work

    def do(self, work):
        self.asked.put(work)
        return self.answers.get()


class Story:
    def __init__(self, seed):
        self.random, self.workers, self.current = random.Random(seed), [Worker() for _ in range(3)], [0, 1, 2]
        self.log, self.live, self.captures, self.count = [], {}, {}, 0
        self.names, self.uses, self.mempools = {(0, 0): "common"}, {}, set()
        for k, worker in enumerate(self.workers):
            worker.do(lambda k=k: torch.cuda.set_stream(STREAMS[k]))

    def place(self, x):
        for s in torch.cuda.memory_snapshot():
            if s["address"] <= x.data_ptr() < s["address"] + s["total_size"]:
                return self.names.get(tuple(s["segment_pool_id"]), "a graph's")
        return "nowhere"

    def keep(self, worker, work):
        """The pool of a new tensor, or why there is none."""
        made, x = worker.do(work)
        self.count += 1
        if made:
            self.live[self.count] = x
        return self.place(x) if made else x

    def end_capture(self, s):
        worker, graph = self.captures.pop(s)

        def end():
            with torch.cuda.stream(STREAMS[s]):
                graph.capture_end()
            graph.replay()

        return worker.do(end)

    def step(self):
        r = self.random
        k, what, pools = r.randrange(3), r.choice(OPERATIONS), sorted(self.uses)
        worker, pool = self.workers[k], r.choice(pools) if pools else None
        if what in ("handle", "mempool"):
            if len(pools) <= 5:
                if what == "mempool":
                    KEPT.append(torch.cuda.MemPool())
                    self.mempools.add(tuple(KEPT[-1].id))
                new = tuple(KEPT[-1].id if what == "mempool" else torch.cuda.graph_pool_handle())
                self.names[new], self.uses[new] = f"pool {len(self.names)}", 0
        elif what in ("open_thread", "open_stream") and pool:
            name = "_cuda_beginAllocateCurrentThreadToPool" if what == "open_thread" else "_cuda_beginAllocateToPool"
            opened = worker.do(lambda: getattr(torch._C, name)(0, pool))
            self.uses[pool] += opened[0]
            return what, self.names[pool], opened
        elif what == "close" and pool:
            return what, self.names[pool], worker.do(lambda: torch._C._cuda_endAllocateToPool(0, pool))
        elif what == "release" and pool and self.uses[pool] and pool not in self.mempools:
            self.uses[pool] -= 1
            if not self.uses[pool]:
                del self.uses[pool]
            return what, self.names[pool], worker.do(lambda: torch._C._cuda_releasePool(0, pool))
        elif what == "stream":
            s = self.current[k] = r.randrange(len(STREAMS))
            worker.do(lambda: torch.cuda.set_stream(STREAMS[s]))
        elif what == "capture":
            s, mode = self.current[k], r.choice(["global", "thread_local", "relaxed"])
            chosen = pool if r.random() < 0.7 else None
            if s and s not in self.captures and len(self.captures) < 2:
                graph = torch.cuda.CUDAGraph()
                # torch's own table keeps a pointer to a graph whose capture failed: it stays for good.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph))
                began = worker.do(lambda: graph.capture_begin(chosen or (0, 0), mode))
                if began[0]:
                    self.captures[s] = worker, graph
                if chosen:
                    self.uses[chosen] += began[0]
                return what, s, chosen and self.names[chosen], began
        elif what == "end" and self.captures:
            return what, self.end_capture(r.choice(sorted(self.captures)))
        elif what == "break" and self.captures and r.random() < 0.3:
            card.card_break_captures()
        elif what == "raw" and not self.captures:
            s = r.randrange(1, len(STREAMS))
            said = [card.card_begin_capture(STREAMS[s].cuda_stream)]
            for other in r.sample(range(3), 2):
                if self.current[other] != s:
                    said.append(self.keep(self.workers[other], lambda: of(3 * MIB)))
            return what, *said, card.card_end_capture(STREAMS[s].cuda_stream)
        elif what == "join" and self.captures:
            s, t, size = r.choice(sorted(self.captures)), r.randrange(1, len(STREAMS)), r.randrange(1, 9) * MIB

            def join():
                STREAMS[t].wait_stream(STREAMS[s])
                with torch.cuda.stream(STREAMS[t]):
                    x = of(size)
                STREAMS[s].wait_stream(STREAMS[t])
                return x

            if t not in self.captures:
                return what, self.keep(self.captures[s][0], join)
        elif what in ("alloc", "small"):
            size = r.randrange(1, 30) * MIB if what == "alloc" else r.randrange(1, 100_000)
            return what, k, self.keep(worker, lambda: of(size))
        elif what == "free" and self.live:
            x = self.live.pop(r.choice(sorted(self.live)))
            if r.random() < 0.3 and not self.captures:
                x.record_stream(r.choice(STREAMS))
        elif what == "empty":
            return what, worker.do(torch.cuda.empty_cache)
        elif what == "count":
            return what, torch.cuda.memory_stats()["allocation.all.current"]
        return what, None

    def told(self):
        for _ in range(STEPS):
            self.log.append(self.step())
        self.log += [("end", self.end_capture(s)) for s in list(self.captures)]
        for pool, name in self.names.items():
            try:
                torch._C._cuda_endAllocateToPool(0, pool)
                self.log.append(("was open", name))
            except RuntimeError:
                pass
        self.live.clear()
        gc.collect()
        for worker in self.workers:
            worker.asked.put(None)
            worker.join()
        return self.log


print(json.dumps([Story(seed).told() for seed in range(int(sys.argv[1]), int(sys.argv[2]))]), flush=True)
# This test does not compare pools that stay open for good.
os._exit(0)
