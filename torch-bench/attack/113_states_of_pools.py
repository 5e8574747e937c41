"""States of a graph's pool that are kept and brought back through torch's own functions, over a tree of captures, as
torch.compile does: what is live is what the state says, and replays along any path give the right values."""
from common import *
from trees import Node, walk

g = start(limit=2 * GIB)
r, problems, mistakes, n = rng(113), [], 0, 1 << 19
x = torch.zeros(n, dtype=torch.int32, device="cuda")
(x + 1) * 2
torch.cuda.synchronize()


class OneSize(Node):
    def capture(self, source):
        a = source + self.k
        junk = [a * i for i in range(2, 5)]  # lives in the capture alone
        return [a, torch.cat([a, junk[0][: 1000 * (self.k % 3)]]), a[:7] * 2]

    def wrong(self, value):
        value += self.k
        a, b, c = self.tensors
        bad = int((a != value).sum()) + int((c != 2 * value).sum())
        return value, bad + int((b[:n] != value).sum()) + int((b[n:] != 2 * value).sum())


for turn in range(3):
    found, bad = walk(OneSize, r, x, steps=24, branch_every=3, most_nodes=8, largest=24 * MIB)
    problems += found
    mistakes += bad
done(mistakes == 0 and not problems, "; ".join(problems[:4]) or f"three trees, {mistakes} wrong elements")
