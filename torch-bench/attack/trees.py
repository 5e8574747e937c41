"""Trees of captures in one pool, whose states are kept and brought back through torch's own functions, as torch.compile
does: what programs of such trees share."""
import gc

from common import *

NEEDED = ("_cuda_getCheckpointState", "_cuda_setCheckpointPoolState", "_construct_storage_from_data_pointer")


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
    """A capture behind that of its parent, in one pool, and the state of the pool after it. A program says what is
    captured (`capture`: the tensors that stay, the first of which its children read) and how many elements are wrong
    after a replay (`wrong`, with the value that it was replayed for; gives that of its children too)."""

    count = 0

    def __init__(self, parent, pool, side, x):
        if any(not hasattr(torch._C, name) for name in NEEDED):
            skip("this torch has no such functions")
        self.parent, self.k, self.x = parent, Node.count % 50, x
        Node.count += 1
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=side):
            self.tensors = self.capture(parent.tensors[0] if parent else x)
        self.about = [(t.data_ptr(), t.untyped_storage().nbytes(), t.numel()) for t in self.tensors]
        self.state = torch._C._cuda_getCheckpointState(0, pool)

    def path(self):
        return (self.parent.path() if self.parent else []) + [self]

    def pointers(self):
        return sorted(p for node in self.path() for p, _, _ in node.about)

    def replay(self, value):
        """The whole path; how many elements are wrong."""
        self.x.fill_(value)
        for node in self.path():
            node.graph.replay()
        bad = 0
        for node in self.path():
            value, wrong_here = node.wrong(value)
            bad += wrong_here
        return bad


def go(now, then):
    """From the state after one node to that after another."""
    stale = [t for node in now.path() if node not in then.path() for t in node.tensors]
    made = []
    for node in then.path():
        if node not in now.path():
            node.tensors = []
            for pointer, size, count in node.about:
                storage = torch._C._construct_storage_from_data_pointer(pointer, node.x.device, size)
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


def walk(kind, r, x, steps, branch_every, most_nodes, largest):
    """One tree of nodes of a kind: branches, and jumps between states, with requests of up to `largest` bytes beside
    it. Gives the problems, and how many elements were wrong."""
    problems, mistakes, side = [], 0, torch.cuda.Stream()
    pool = torch.cuda.graph_pool_handle()
    torch.cuda.synchronize()
    nodes = [kind(None, pool, side, x)]
    now = nodes[0]
    for step in range(steps):
        then = nodes[r.randrange(len(nodes))]
        go(now, then)
        now = then
        if step % branch_every == 0 and len(nodes) < most_nodes:
            now = kind(then, pool, side, x)
            nodes.append(now)
        if live(pool) != now.pointers():
            problems.append(f"step {step}: {len(live(pool))} blocks are live, not {len(now.pointers())}")
        mistakes += now.replay(10 * step)
        # Beside it, on another stream and the same: no request gets memory that the graphs write to.
        with torch.cuda.stream(side):
            other = fill(ints(log_uniform(r, 512, largest)), step)
        mine = fill(ints(log_uniform(r, 512, largest)), step + 1)
        if step % 5 == 0:
            torch.cuda.empty_cache()
        mistakes += now.replay(10 * step + 1)
        torch.cuda.synchronize()
        mistakes += int(wrong(other, step)) + int(wrong(mine, step + 1))
        del other, mine
        if len(problems) > 3:
            break
    problems += adds_up()
    # Tensors of the last path go as any others.
    for node in nodes:
        node.tensors = []
    if live(pool):
        problems.append(f"{len(live(pool))} blocks stay in the end")
    del nodes, node, now, then
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return problems, mistakes
