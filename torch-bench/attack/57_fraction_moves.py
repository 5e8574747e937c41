"""A memory fraction that goes up and down during a run refuses just what goes beyond it, and never touches what is
held."""
from common import *

g = start()
total = torch.cuda.get_device_properties(0).total_memory
piece, r, problems = 64 * MIB, rng(57), []
kept = []


def allow(size):
    """So much, and a little for what is rounded."""
    fraction = (size + 512 * KIB) / total
    torch.cuda.set_per_process_memory_fraction(fraction)
    if abs(torch.cuda.get_per_process_memory_fraction() - fraction) > 1e-9:
        problems.append("the fraction is not what was set")


def grow():
    """Pieces until there are no more."""
    while len(kept) < 40:
        try:
            kept.append((ints(piece), len(kept)))
        except torch.OutOfMemoryError:
            return
        fill(*kept[-1])
    problems.append("no limit at all")


for turn in range(24):
    most = r.randrange(2, 26)
    torch.cuda.empty_cache()
    # The small tensors of this program have a segment of 2 MiB.
    allow(most * piece + 2 * MIB)
    before = len(kept)
    if before > most:
        # Below what is held: nothing new, though all that is there can be used, freed and had again.
        try:
            torch.empty(piece, dtype=torch.uint8, device="cuda")
            problems.append(f"turn {turn}: {before} pieces held, {most} allowed, one more served")
        except torch.OutOfMemoryError:
            pass
        kept.pop()
        kept.append((ints(piece), before - 1))
        fill(*kept[-1])
    else:
        grow()
        if len(kept) != most:
            problems.append(f"turn {turn}: {len(kept)} pieces fit where {most} are allowed")
        if torch.cuda.memory_reserved() > most * piece + 3 * MIB:
            problems.append(f"turn {turn}: {torch.cuda.memory_reserved()} bytes reserved")
    allow(40 * piece)
    bad = sum(int(wrong(x, k)) for x, k in kept)
    x = None
    if bad:
        problems.append(f"turn {turn}: {bad} wrong elements")
    while len(kept) > r.randrange(1, 30):
        kept.pop()
for bad in (-0.1, 1.1, "1"):
    try:
        torch.cuda.set_per_process_memory_fraction(bad)
        problems.append(f"a fraction of {bad!r} was taken")
    except (ValueError, TypeError):
        pass
done(not problems, "; ".join(problems[:4]) or "24 turns, each with its own limit, kept to the piece")
