"""Statistics through torch's own table: the same program gives the same figures as on torch's own allocator."""

import json

PROGRAM = """
import json, sys, torch
if "gapless" in sys.argv:
    import gapless
    gapless.enable()
shown = []

def show():
    stats = torch.cuda.memory_stats()
    amounts = ("allocation", "allocated_bytes", "active", "active_bytes", "requested_bytes")
    chosen = {key: value for key, value in stats.items() if key.split(".")[0] in amounts}
    # Not the retries: nothing is flushed here before a request fails.
    for key in ("num_ooms", "max_split_size", "oversize_allocations.current", "oversize_segments.peak"):
        chosen[key] = stats[key]
    shown.append(chosen)

MIB = 1 << 20
def of(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
kept = [of(100), of(3000), of(5 * MIB)]
show()
kept += [of(20 * MIB), of(30 * MIB), of(700)]
del kept[1]
show()
torch.cuda.reset_peak_memory_stats()
del kept[2]
show()
torch.cuda.reset_accumulated_memory_stats()
show()
kept.append(of(12 * MIB))
del kept[0]
show()
try:
    of(1 << 45)
except torch.OutOfMemoryError:
    pass
show()
torch.cuda.reset_accumulated_memory_stats()
show()
print(json.dumps(shown))
"""


def shown(bench, program, *words):
    done = bench.start([__import__("sys").executable, "-c", program, *words])
    assert done.code == 0 and done.err == "", done.out + done.err
    return json.loads(done.out)


def test_the_same_program_gives_the_same_figures(real):
    native, ours = shown(real, PROGRAM), shown(real, PROGRAM, "gapless")
    assert len(native) == len(ours) == 7
    for step, (expected, got) in enumerate(zip(native, ours)):
        assert got == expected, (step, {key: (expected[key], got[key]) for key in expected if got.get(key) != expected[key]})


def test_every_key_is_there_and_gapless_stats_agree(real):
    keys = "import json, sys, torch\nif 'gapless' in sys.argv:\n    import gapless; gapless.enable()\nx = torch.empty(1 << 22, device='cuda')\n"
    keys += "print(json.dumps(torch.cuda.memory_stats()))"
    assert shown(real, keys).keys() == shown(real, keys, "gapless").keys()
    real.passes(
        """
        import gapless, torch
        gapless.enable()
        kept = [torch.empty(size, device="cuda") for size in (10, 1 << 20, 7 << 20, 100)]
        del kept[1]
        ours, torchs = gapless.stats(), torch.cuda.memory_stats()
        differ = {key for key in torchs if ours.get(key) != torchs[key]}
        assert differ <= {"max_split_size", "num_oom_rejections"}, differ
        assert torchs["segment.all.current"] == torchs["segment.small_pool.current"] + torchs["segment.large_pool.current"] > 0
        assert torchs["reserved_bytes.all.current"] == torch.cuda.memory_reserved()
        """
    )


def test_torch_accelerator_asks_the_same_allocator_without_patches(real):
    real.passes(
        """
        import gapless, torch
        before = torch.accelerator.memory_stats, torch.cuda.memory_stats, torch.cuda.memory.memory_stats_as_nested_dict
        gapless.enable()
        assert before == (torch.accelerator.memory_stats, torch.cuda.memory_stats, torch.cuda.memory.memory_stats_as_nested_dict)
        x = torch.empty(1 << 20, device="cuda")
        accelerator = torch.accelerator
        assert accelerator.memory_allocated() == accelerator.max_memory_allocated() == 4 << 20
        ours, torchs = accelerator.memory_stats(), torch.cuda.memory_stats()
        assert all(torchs[key] == value for key, value in ours.items()) and len(ours) > 100
        free, total = accelerator.get_memory_info()
        assert 0 < free < total
        del x
        accelerator.reset_peak_memory_stats()
        assert accelerator.max_memory_allocated() == 0
        accelerator.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        """
    )


def test_the_memory_fraction_is_checked(real):
    real.passes(
        """
        import gapless, torch
        gapless.enable()
        torch.cuda.init()
        assert torch.cuda.get_per_process_memory_fraction() == 1.0
        torch.cuda.set_per_process_memory_fraction(0.5)
        assert torch.cuda.get_per_process_memory_fraction() == 0.5
        try:
            torch._C._cuda_setMemoryFraction(1.5, 0)
        except RuntimeError as error:
            assert "invalid fraction" in str(error), error
        else:
            raise SystemExit("no error")
        assert torch.cuda.get_allocator_backend() == "pluggable"
        """
    )


def test_pointers_that_are_not_ours_are_refused(real):
    real.passes(
        """
        import gapless, torch
        gapless.enable()
        good = torch.cuda.caching_allocator_alloc(1000)
        torch.cuda.caching_allocator_delete(good)
        for wrong in (good, 4096, good + 512):
            try:
                torch.cuda.caching_allocator_delete(wrong)
            except RuntimeError as error:
                assert "invalid device pointer" in str(error), error
            else:
                raise SystemExit("no error")
        assert torch.cuda.memory_allocated() == 0
        """
    )


def test_the_profiler_sees_memory(real):
    program = """
import json, sys, torch
if "gapless" in sys.argv:
    import gapless
    gapless.enable()
torch.cuda.init()
with torch.autograd.profiler.profile(profile_memory=True, use_kineto=True) as profile:
    x = torch.empty(1 << 20, device="cuda")
    y = torch.empty(3 << 20, device="cuda")
    del x
print(json.dumps(sorted(event.nbytes() for event in profile.kineto_results.events() if event.name() == "[memory]")))
"""
    run = lambda *words: json.loads(real.start([__import__("sys").executable, "-c", program, *words]).out)  # noqa: E731
    assert run() == run("gapless") == [-4 << 20, 4 << 20, 12 << 20]


def test_the_memory_fraction_does_not_lift_a_limit(real):
    real.passes(
        """
        import gapless, torch
        gapless.enable(limit="64MiB")
        of = lambda size: torch.empty(size << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.init()
        def most():
            return max(size for size in (8, 16, 32, 48, 60, 80, 1000) if fits(size))
        def fits(size):
            try:
                return of(size) is not None
            except torch.OutOfMemoryError as error:
                said.append(str(error))
            finally:
                torch.cuda.empty_cache()
        said = []
        total = torch.cuda.get_device_properties(0).total_memory
        for fraction, allowed in ((1.0, 60), (0.9, 60), ((20 << 20) / total, 16), (0.9, 60), (1.0, 60)):
            torch.cuda.set_per_process_memory_fraction(fraction)
            assert torch.cuda.get_per_process_memory_fraction() == fraction
            assert most() == allowed, (fraction, most())
        assert "64.0 MiB" in said[0], said[0]
        """
    )


def test_statistics_agree_with_the_snapshot(real):
    """As torch's own test_memory_stats compares them: in all, and for small and large."""
    real.passes(
        """
        import collections, gapless, random, torch
        gapless.enable()
        of = lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
        chance, kept, side = random.Random(1), [], torch.cuda.Stream()
        totals = {}
        def check():
            expected = collections.Counter()
            for segment in torch.cuda.memory_snapshot():
                several = len(segment["blocks"]) > 1
                for of in ("all", segment["segment_type"] + "_pool"):
                    expected[f"segment.{of}.current"] += 1
                    for kind, size in (("allocated", "allocated_size"), ("reserved", "total_size"), ("active", "active_size"), ("requested", "requested_size")):
                        expected[f"{kind}_bytes.{of}.current"] += segment[size]
                    for block in segment["blocks"]:
                        expected[f"allocation.{of}.current"] += block["state"] == "active_allocated"
                        expected[f"active.{of}.current"] += block["state"].startswith("active_")
                        if several and block["state"] == "inactive":
                            expected[f"inactive_split.{of}.current"] += 1
                            expected[f"inactive_split_bytes.{of}.current"] += block["size"]
            stats = torch.cuda.memory_stats()
            differ = {key: (value, stats[key]) for key, value in expected.items() if stats[key] != value}
            assert not differ, differ
            for name in ("segment", "inactive_split", "inactive_split_bytes"):
                for of in ("all", "small_pool", "large_pool"):
                    current, peak, allocated, freed = (stats[f"{name}.{of}.{part}"] for part in ("current", "peak", "allocated", "freed"))
                    assert current == allocated - freed and peak >= current, (name, of, current, peak, allocated, freed)
                    before = totals.get((name, of), (0, 0))
                    assert allocated >= before[0] and freed >= before[1], (name, of)
                    totals[name, of] = allocated, freed
        for step in range(300):
            what = chance.randrange(8)
            if what < 4 or not kept:
                with torch.cuda.stream(side if chance.randrange(4) == 0 else torch.cuda.default_stream()):
                    kept.append(of(chance.choice((500, 70000, 900000, 2 << 20, chance.randrange(1 << 20, 40 << 20)))))
            elif what < 7:
                kept.pop(chance.randrange(len(kept)))
            elif step % 5 == 0:
                torch.cuda.empty_cache()
            if step % 3 == 0:
                check()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x, y = of(30 << 20), of(100)
        check()
        del kept, x, y, pool
        torch.cuda.empty_cache()
        check()
        assert torch.cuda.memory_stats()["segment.all.current"] == 0
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        stats = torch.cuda.memory_stats()
        assert all(stats[f"segment.all.{part}"] == 0 for part in ("peak", "allocated", "freed")), stats
        """,
        "-Wignore",
        STANDIN_CAPACITY=str(3 << 30),
    )
