"""Memory fractions and limits that move while regions sleep, other memory that takes the place of what sleeps, and
wakings that fail for it: a region that cannot wake sleeps on whole, frees of its sleeping tensors count at once, graphs
of other regions go on, and statistics never count what sleeps. (Gapless only)"""
from common import *

if NATIVE:
    skip("regions are Gapless'")
g = start(limit=2 * GIB)
problems, mistakes = [], 0
total = torch.cuda.get_device_properties(0).total_memory


def says(ok, text):
    if not ok:
        problems.append(text)


with g.region("a"):
    a = [(fill(ints(64 * MIB), k), k) for k in range(6)]
with g.region("b"):
    source = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = source * 2 + 1
torch.cuda.synchronize()


def replays(value):
    source.fill_(value)
    graph.replay()
    says(int((result != 2 * value + 1).sum()) == 0, "a graph of the other region computes something else")


for turn in range(6):
    before = torch.cuda.memory_stats()
    g.sleep("a", guard=False)
    asleep = torch.cuda.memory_stats()
    says(before["allocated_bytes.all.current"] - asleep["allocated_bytes.all.current"] == 64 * MIB * len(a),
         "what sleeps is counted as allocated")
    replays(turn)
    # Free memory goes to other tensors, up to a fraction that leaves no room for the region.
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 350 * MIB) / total)
    other = [fill(ints(50 * MIB), 100 + k) for k in range(5)]
    for _ in range(2):
        try:
            g.wake("a")
            says(False, "a region woke beyond the fraction")
        except torch.OutOfMemoryError:
            pass
        says(g.is_asleep(a[0][0]), "a region that could not wake does not sleep")
        replays(turn + 10)
    mistakes += sum(int(wrong(x, 100 + k)) for k, x in enumerate(other))
    # One of the sleeping tensors is freed, asleep; the rest wakes.
    if turn % 2 and len(a) > 3:
        a.pop()
    x = None
    held = torch.cuda.memory_stats()
    says(held["allocated_bytes.all.current"] - asleep["allocated_bytes.all.current"] == 250 * MIB,
         "a tensor that was freed asleep changes what is allocated")
    del other
    torch.cuda.set_per_process_memory_fraction(1.0)
    g.wake("a")
    for x, mark in a:
        mistakes += int(wrong(x, mark))
    x = None
    replays(turn + 20)
    after = torch.cuda.memory_stats()
    says(after["allocated_bytes.all.current"] == asleep["allocated_bytes.all.current"] + 64 * MIB * len(a),
         "another amount is allocated after waking")
    # Both ways at once, and back.
    g.sleep("b", guard=False)
    g.switch(sleep="a", wake="b", guard=False) if turn % 3 == 0 else g.wake("b")
    if turn % 3 == 0:
        replays(turn + 30)
        g.wake("a")
    problems += adds_up()
for x, mark in a:
    mistakes += int(wrong(x, mark))
done(not problems and mistakes == 0, "; ".join(problems[:3]) or f"six turns, {mistakes} wrong elements")
