"""States of a graph's pool, kept and brought back over a tree of captures of many sizes, with allocations in pages that
are mapped a second time: the allocations that are live are those of the state, at the same addresses, and every path
replays to the right values."""
from common import *
from trees import Node, walk

g = start(limit=3 * GIB)
r, problems, mistakes = rng(207), [], 0
x = torch.zeros(8, dtype=torch.int32, device="cuda")
torch.cat([x.expand(4, 8) + 1, x.expand(4, 8) * 2])
torch.cuda.synchronize()


class ManySizes(Node):
    def capture(self, source):
        self.n = n = (1 + r.randrange(8)) * 300_000
        parts = [source[:1].expand(n) + (self.k + i) for i in range(6)]
        a, kept = parts[0], parts[2::2]
        del parts  # pieces of memory are free, and none has room for what comes
        b = torch.cat([a, *kept])
        return [a, b, torch.cat([b[:n], b[n : 2 * n]]) + 1]

    def wrong(self, value):
        value, n = value + self.k, self.n
        a, b, c = self.tensors
        bad = int((a != value).sum()) + int((b[:n] != value).sum())
        bad += int((b[n : 2 * n] != value + 2).sum()) + int((b[2 * n :] != value + 4).sum())
        return value, bad + int((c[:n] != value + 1).sum()) + int((c[n:] != value + 3).sum())


for turn in range(4):
    found, bad = walk(ManySizes, r, x, steps=36, branch_every=2, most_nodes=14, largest=40 * MIB)
    problems += found
    mistakes += bad
left = torch.cuda.memory_reserved()
if left >= 96 * MIB:
    problems.append(f"{left >> 20} MiB stay reserved")
if g is not None and not g.stats()["gapless.graph_windows_made"]:
    problems.append("no window was made")
done(mistakes == 0 and not problems, "; ".join(problems[:4]) or f"four trees of {Node.count} captures, {mistakes} wrong elements")
