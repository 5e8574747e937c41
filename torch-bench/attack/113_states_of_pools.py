"""States of a graph's pool that are kept and brought back through torch's own functions, over a tree of captures, as
torch.compile does: what is live is what the state says, and replays along any path give the right values."""
import gc

from common import *

g = start(limit=2 * GIB)
needed = ("_cuda_getCheckpointState", "_cuda_setCheckpointPoolState", "_construct_storage_from_data_pointer")
if any(not hasattr(torch._C, name) for name in needed):
    skip("this torch has no such functions")
r, problems, mistakes, n = rng(113), [], 0, 1 << 19
side = torch.cuda.Stream()
x = torch.zeros(n, dtype=torch.int32, device="cuda")
(x + 1) * 2
torch.cuda.synchronize()


def says(ok, text):
    if not ok:
        problems.append(text)


def live(pool):
    """Addresses of the blocks in callers' hands, in one pool."""
    found = []
    for s in torch.cuda.memory_snapshot():
        if tuple(s["segment_pool_id"]) == tuple(pool):
            at = s["address"]
            for b in s["blocks"]:
                if b["state"] == "active_allocated":
                    found.append(b.get("address", at))
                at += b["size"]
    return sorted(found)


class Node:
    """A capture behind that of its parent, in one pool, and the state of the pool after it."""

    count = 0

    def __init__(self, parent, pool):
        self.parent, self.k = parent, Node.count
        Node.count += 1
        source = parent.tensors[0] if parent else x
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=side):
            a = source + self.k
            junk = [a * i for i in range(2, 5)]  # lives in the capture alone
            b = torch.cat([a, junk[0][: 1000 * (self.k % 3)]])
            c = a[:7] * 2
            del junk
        self.tensors = [a, b, c]
        self.about = [(t.data_ptr(), t.untyped_storage().nbytes(), t.numel()) for t in self.tensors]
        self.state = torch._C._cuda_getCheckpointState(0, pool)
        del a, b, c

    def path(self):
        return (self.parent.path() if self.parent else []) + [self]

    def pointers(self):
        return sorted(p for node in self.path() for p, _, _ in node.about)

    def replay(self, value):
        """The whole path; how many elements are wrong."""
        x.fill_(value)
        bad = 0
        for node in self.path():
            node.graph.replay()
        for node in self.path():
            value += node.k
            a, b, c = node.tensors
            bad += int((a != value).sum()) + int((c != 2 * value).sum())
            bad += int((b[:n] != value).sum()) + int((b[n:] != 2 * value).sum())
        return bad


def go(now, then, pool):
    """From the state after one node to that after another."""
    stale = [t for node in now.path() if node not in then.path() for t in node.tensors]
    made = []
    for node in then.path():
        if node not in now.path():
            node.tensors = []
            for pointer, size, count in node.about:
                storage = torch._C._construct_storage_from_data_pointer(pointer, x.device, size)
                t = torch.empty(0, dtype=torch.int32, device="cuda")
                t.set_(storage, 0, (count,), (1,))
                node.tensors.append(t)
                made.append(t)
    pointers = [t.untyped_storage()._cdata for t in stale]
    owners = [t.untyped_storage()._cdata for t in made]
    torch._C._cuda_setCheckpointPoolState(0, then.state, pointers, owners)
    del stale
    for node in now.path():
        if node not in then.path():
            node.tensors = []


for turn in range(3):
    pool = torch.cuda.graph_pool_handle()
    torch.cuda.synchronize()
    root = Node(None, pool)
    nodes, now = [root], root
    for step in range(24):
        if step % 3 == 0 and len(nodes) < 8:  # a branch from somewhere
            parent = nodes[r.randrange(len(nodes))]
            go(now, parent, pool)
            now = Node(parent, pool)
            nodes.append(now)
        else:
            then = nodes[r.randrange(len(nodes))]
            go(now, then, pool)
            now = then
        says(live(pool) == now.pointers(), f"step {step}: {len(live(pool))} blocks are live, not {len(now.pointers())}")
        mistakes += now.replay(10 * step)
        # Beside it, on another stream and the same: nobody gets what the graphs write to.
        with torch.cuda.stream(side):
            other = fill(ints(log_uniform(r, 512, 24 * MIB)), step)
        mine = fill(ints(log_uniform(r, 512, 24 * MIB)), step + 1)
        if step % 5 == 0:
            torch.cuda.empty_cache()
        mistakes += now.replay(10 * step + 1)
        torch.cuda.synchronize()
        mistakes += int(wrong(other, step)) + int(wrong(mine, step + 1))
        del other, mine
        if len(problems) > 3:
            break
    # Tensors of the last path go as any others.
    for node in nodes:
        node.tensors = []
    says(live(pool) == [], f"{len(live(pool))} blocks stay in the end")
    del nodes, node, now, root
    parent = then = None
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
problems += adds_up()
done(mistakes == 0 and not problems, "; ".join(problems[:4]) or f"three trees, {mistakes} wrong elements")
