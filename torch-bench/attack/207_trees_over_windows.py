"""States of a graph's pool, kept and brought back over a tree of captures of many sizes, where allocations lie in pages
that are mapped a second time: what is live is what the state says, at the same addresses, and every path replays to the
right values."""
import gc

from common import *

g = start(limit=3 * GIB)
needed = ("_cuda_getCheckpointState", "_cuda_setCheckpointPoolState", "_construct_storage_from_data_pointer")
if any(not hasattr(torch._C, name) for name in needed):
    skip("this torch has no such functions")
r, problems, mistakes, made_nodes = rng(207), [], 0, 0
side = torch.cuda.Stream()
x = torch.zeros(8, dtype=torch.int32, device="cuda")
torch.cat([x.expand(4, 8) + 1, x.expand(4, 8) * 2])
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
        global made_nodes
        self.parent, self.k = parent, Node.count % 50
        Node.count += 1
        made_nodes += 1
        n = (1 + r.randrange(8)) * 300_000
        source = parent.tensors[0] if parent else x
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=side):
            parts = [source[:1].expand(n) + (self.k + i) for i in range(6)]
            a, kept = parts[0], parts[2::2]
            del parts  # pieces of memory are free, and none has room for what comes
            b = torch.cat([a, *kept])
            c = torch.cat([b[:n], b[n : 2 * n]]) + 1
            del kept
        self.tensors = [a, b, c]
        self.about = [(t.data_ptr(), t.untyped_storage().nbytes(), t.numel()) for t in self.tensors]
        self.n = n
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
            value, n = value + node.k, node.n
            a, b, c = node.tensors
            bad += int((a != value).sum()) + int((b[:n] != value).sum())
            bad += int((b[n : 2 * n] != value + 2).sum()) + int((b[2 * n :] != value + 4).sum())
            bad += int((c[:n] != value + 1).sum()) + int((c[n:] != value + 3).sum())
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


for turn in range(4):
    pool = torch.cuda.graph_pool_handle()
    torch.cuda.synchronize()
    root = Node(None, pool)
    nodes, now = [root], root
    for step in range(36):
        if step % 2 == 0 and len(nodes) < 14:  # a branch from somewhere
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
            other = fill(ints(log_uniform(r, 512, 40 * MIB)), step)
        mine = fill(ints(log_uniform(r, 512, 40 * MIB)), step + 1)
        if step % 5 == 0:
            torch.cuda.empty_cache()
        mistakes += now.replay(10 * step + 1)
        torch.cuda.synchronize()
        mistakes += int(wrong(other, step)) + int(wrong(mine, step + 1))
        del other, mine
        if len(problems) > 3:
            break
    problems += adds_up()
    for node in nodes:
        node.tensors = []
    says(live(pool) == [], f"{len(live(pool))} blocks stay in the end")
    del nodes, node, now, root
    parent = then = None
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
says(torch.cuda.memory_reserved() < 96 * MIB, f"{torch.cuda.memory_reserved() >> 20} MiB stay reserved")
if g is not None:
    says(g.stats()["gapless.graph_windows_made"] > 0, "no window was made")
text = f"four trees of {made_nodes} captures, {mistakes} wrong elements"
done(mistakes == 0 and not problems, "; ".join(problems[:4]) or text)
