"""A trainer whose steps repeat, and between any two of its lines something else happens: captures, empty caches,
snapshots, histories that begin and end, fractions that move, regions that sleep, budgets, threads with streams. It
reaches the same bits as in calm."""
import threading

from common import *

g = start(limit=3 * GIB)
total = torch.cuda.get_device_properties(0).total_memory
torch.backends.cuda.matmul.allow_tf32 = False
problems, mistakes, counts = [], 0, {}
width = 1536


def says(ok, text):
    if not ok:
        problems.append(text)


class Storm:
    def __init__(self, seed):
        self.r, self.kept, self.stream = rng(seed), [], torch.cuda.Stream()
        self.graphs, self.asleep, self.history = [], False, False
        self.x = torch.zeros(1 << 18, dtype=torch.int32, device="cuda")
        if g is not None:
            with g.region("storm"):
                self.sleeper = fill(ints(40 * MIB), 11)

    def strike(self):
        global mistakes
        r = self.r
        what = r.choice(["capture", "empty", "snapshot", "history", "fraction", "region", "budget", "thread", "stream", "replay", "oom"])
        counts[what] = counts.get(what, 0) + 1
        if what == "capture":
            graph, k = torch.cuda.CUDAGraph(), len(self.graphs)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=self.graphs[0][0].pool() if self.graphs and r.random() < 0.5 else None):
                y = self.x + k
                z = torch.cat([y] * 8) * 2
            self.graphs.append((graph, z, k))
            if len(self.graphs) > 5:
                self.graphs.pop(r.randrange(1, 5))
        elif what == "replay" and self.graphs:
            value = r.randrange(1000)
            graph, z, k = self.graphs[-1]
            self.x.fill_(value)
            graph.replay()
            mistakes += int((z != 2 * (value + k)).sum())
        elif what == "empty":
            torch.cuda.empty_cache()
        elif what == "snapshot":
            problems.extend(adds_up())
        elif what == "history":
            self.history = not self.history
            torch.cuda.memory._record_memory_history(enabled="all" if self.history else None, stacks="python", max_entries=500)
        elif what == "fraction":
            torch.cuda.set_per_process_memory_fraction(min(1.0, r.choice((2.6, 3.0, 8.0)) * GIB / total))
        elif what == "region" and g is not None:
            if self.asleep:
                g.wake("storm")
                mistakes += int(wrong(self.sleeper, 11))
            else:
                g.sleep("storm", guard=False)
            self.asleep = not self.asleep
        elif what == "budget" and g is not None:
            with g.budget("1GiB", tag="storm", soft="64MiB"):
                self.keep(fill(ints(log_uniform(r, 512, 80 * MIB)), 1), 1)
        elif what == "thread":

            def beside():
                with torch.cuda.stream(torch.cuda.Stream()):
                    t = fill(ints(30 * MIB), 5)
                    if int(wrong(t, 5)):
                        problems.append("wrong bytes beside")

            thread = threading.Thread(target=beside)
            thread.start()
            thread.join(30)
        elif what == "stream":
            mark = r.randrange(1 << 18)
            with torch.cuda.stream(self.stream):
                t = fill(ints(log_uniform(r, 512, 60 * MIB)), mark)
            torch.cuda.current_stream().wait_stream(self.stream)
            t.record_stream(torch.cuda.current_stream())
            self.keep(t, mark)
        elif what == "oom":
            try:
                ints(9 * GIB)
                problems.append("nine gigabytes fit in three")
            except torch.OutOfMemoryError:
                pass

    def keep(self, t, mark):
        global mistakes
        self.kept.append((t, mark))
        if len(self.kept) > 5:
            t, mark = self.kept.pop(self.r.randrange(5))
            mistakes += int(wrong(t, mark))

    def end(self):
        global mistakes
        if self.asleep:
            g.wake("storm")
            mistakes += int(wrong(self.sleeper, 11))
        torch.cuda.memory._record_memory_history(enabled=None)
        mistakes += sum(int(wrong(t, mark)) for t, mark in self.kept)


def train(storm):
    torch.manual_seed(106)
    layers = [torch.nn.Linear(width, width) for _ in range(6)]
    model = torch.nn.Sequential(*[m for l in layers for m in (l, torch.nn.ReLU())]).cuda()
    way = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = torch.Generator("cuda").manual_seed(6)
    chance, losses = rng(7), []

    def maybe():
        if storm is not None and chance.random() < 0.25:
            storm.strike()

    for step in range(36):
        rows = 2048 if step % 12 < 9 else 1111
        x = torch.randn(rows, width, generator=seen, device="cuda")
        maybe()
        h = x
        for at, part in enumerate(model):
            h = part(h)
            if at % 3 == 0:
                maybe()
        loss = h.square().mean()
        maybe()
        loss.backward()
        maybe()
        way.step()
        maybe()
        way.zero_grad()
        losses.append(loss.detach())
        del h, loss, x
        maybe()
    return [float(l) for l in losses], [p.detach().clone() for p in model.parameters()]


calm = train(None)
storm = Storm(106)
wild = train(storm)
storm.end()
torch.cuda.synchronize()
says(calm[0] == wild[0], f"losses differ from step {next((k for k, (a, b) in enumerate(zip(*[calm[0], wild[0]])) if a != b), -1)} on")
differ = sum(int((a != b).sum()) for a, b in zip(calm[1], wild[1]))
plans = counters(g).get("gapless.plan.served", "-")
problems += adds_up()
ok = mistakes == 0 and not problems and differ == 0
done(ok, f"{sum(counts.values())} strikes {counts}, {differ} parameters differ, {mistakes} wrong, {plans} planned; {problems[:3]}")
