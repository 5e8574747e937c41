"""Programs that switch caching off around a part, in functions within each other, in threads and through exceptions,
find it as they left it; what they allocate in there keeps its bytes, outlives the part, and comes back."""
import threading

from common import *

start()
switch = torch.cuda.caching_allocator_enable
is_on = getattr(torch._C, "_cuda_cudaCachingAllocator_is_enabled", None)
off = getattr(torch.cuda.memory, "caching_allocator_disabled", None)
problems, kept = [], []


def expect(wanted, where):
    if is_on is not None and is_on() != wanted:
        problems.append(f"{where}: caching is {'on' if is_on() else 'off'}")


class Off:
    """torch 2.15's own, or the same with what older releases have."""

    def __enter__(self):
        self.scope = off() if off is not None else None
        self.scope.__enter__() if self.scope else switch(False)

    def __exit__(self, *how):
        self.scope.__exit__(*how) if self.scope else switch(True)


expect(True, "at first")
for turn in range(20):
    with Off():
        expect(False, "in the part")
        kept.append((fill(ints((1 + turn) * MIB), turn), turn))
        if off is not None:
            with Off():
                expect(False, "within it")
            expect(False, "after the one within")
        x = fill(ints(64 * KIB), turn)
        if int(wrong(x, turn)):
            problems.append("bytes in the part are wrong")
        del x
    expect(True, "after the part")
    try:
        with Off():
            raise KeyError("stop")
    except KeyError:
        pass
    expect(True, "after an exception")
    seen = []
    with Off():
        thread = threading.Thread(target=lambda: seen.append(None if is_on is None else is_on()))
        thread.start()
        thread.join()
    if seen not in ([None], [False]):
        problems.append(f"a thread sees {seen}")
    kept.append((fill(ints(3 * MIB), turn), turn))
bad = sum(int(wrong(x, seed)) for x, seed in kept)
kept.clear()
torch.cuda.synchronize()
torch.cuda.empty_cache()
if torch.cuda.memory_allocated() > 4096:
    problems.append(f"{torch.cuda.memory_allocated()} bytes are held")
done(not problems and bad == 0, f"{bad} wrong values, {len(problems)} problems: {problems[:3]}")
