"""torch's own memory tools on Gapless: each gives its answer, as the native allocator would."""

# Questions of the measurements (and more), with the answers for one live tensor of 4 MiB.
ASKED = """
import gapless, torch
gapless.enable()
assert torch.cuda.memory_stats() == {} and torch.cuda.memory_allocated() == 0
x = torch.empty(1 << 20, device="cuda")
"""


def test_memory_stats_has_every_key_of_the_native_allocator(bench):
    keys = "import torch; x = torch.empty(1, device='cuda'); print(*torch.cuda.memory_stats(), sep='\\n')"
    native = set(bench.passes(keys).lines())
    ours = set(bench.passes("import gapless; gapless.enable();" + keys, "-Wignore").lines())
    # Kept by torch's own device allocator alone.
    assert native - ours == set(), native - ours


def test_amounts_are_live_bytes(bench):
    bench.passes(
        ASKED
        + """
        stats = torch.cuda.memory_stats()
        assert stats["allocated_bytes.all.current"] == stats["allocated_bytes.all.peak"] == 4 << 20
        assert stats["requested_bytes.all.peak"] == stats["active_bytes.all.peak"] == 4 << 20
        assert stats["reserved_bytes.all.peak"] >= 4 << 20 and stats["allocation.all.allocated"] == 1
        assert stats["num_ooms"] == stats["num_alloc_retries"] == 0 and stats["num_device_alloc"] >= 1
        for key in ("inactive_split_bytes.all.peak", "segment.all.peak", "num_device_free"):
            assert stats[key] >= 0
        assert torch.cuda.memory_allocated() == torch.cuda.memory_allocated("cuda:0") == torch.cuda.max_memory_allocated(0) == 4 << 20
        assert torch.cuda.memory_reserved() == torch.cuda.max_memory_reserved() == stats["reserved_bytes.all.peak"]
        del x
        assert torch.cuda.memory_allocated() == 0 and torch.cuda.max_memory_allocated() == 4 << 20
        """.replace("\n        ", "\n"),
        "-Wignore",
    )


def test_peaks_can_be_reset(bench):
    bench.passes(
        ASKED
        + """
del x
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == 0
y = torch.empty(1 << 10, device="cuda")
assert torch.cuda.max_memory_allocated() == 4 << 10
torch.cuda.reset_max_memory_allocated()
""",
        "-Wignore",
    )


def test_totals_can_be_reset(bench):
    bench.passes(
        ASKED
        + """
torch.cuda.reset_accumulated_memory_stats()
stats = torch.cuda.memory_stats()
assert stats["allocation.all.allocated"] == 0 and stats["allocated_bytes.all.current"] == 4 << 20
y = torch.empty(1 << 10, device="cuda")
assert torch.cuda.memory_stats()["allocation.all.allocated"] == 1
""",
        "-Wignore",
    )


def test_summary_and_information(bench):
    bench.passes(
        ASKED
        + """
assert "4096 KiB" in torch.cuda.memory_summary() and "4096 KiB" in torch.cuda.memory_summary(abbreviated=True)
free, total = torch.cuda.mem_get_info()
assert total - free >= 4 << 20
""",
        "-Wignore",
    )


def test_names_taken_before_enable_answer_too(bench):
    bench.passes(
        """
        from torch.cuda import memory_allocated, max_memory_allocated, memory_reserved, memory_stats
        import gapless, torch
        gapless.enable()
        x = torch.empty(1 << 20, device="cuda")
        assert memory_allocated() == max_memory_allocated() == memory_stats()["allocated_bytes.all.current"] == 4 << 20
        assert memory_reserved() >= 4 << 20
        """,
        "-Wignore",
    )


def test_the_memory_fraction_is_set_and_told(bench):
    bench.passes(
        """
        import gapless, torch
        gapless.enable()
        assert torch.cuda.get_per_process_memory_fraction() == 1.0
        torch.cuda.set_per_process_memory_fraction(0.25)
        assert torch.cuda.get_per_process_memory_fraction() == 0.25
        for wrong in (-1.0, 2.0):
            try:
                torch.cuda.set_per_process_memory_fraction(wrong)
            except ValueError:
                pass
        assert torch.cuda.get_per_process_memory_fraction(0) == 0.25
        """,
        "-Wignore",
    )


def test_torch_accelerator_speaks_of_the_same_memory(bench):
    bench.passes(
        ASKED
        + """
accelerator = torch.accelerator
assert accelerator.memory_allocated() == accelerator.max_memory_allocated() == 4 << 20
assert accelerator.memory_reserved() == accelerator.max_memory_reserved() == torch.cuda.memory_reserved()
stats = torch.cuda.memory_stats()
assert {key: stats[key] for key in accelerator.memory_stats()} == accelerator.memory_stats()
del x
accelerator.reset_peak_memory_stats()
assert accelerator.max_memory_allocated() == 0
accelerator.empty_cache()
""",
        "-Wignore",
    )


def test_what_is_off_is_said_once(double):
    done = double.passes("import gapless; gapless.enable(); gapless.enable()")
    assert done.err.count("so these tools are off: torch.cuda.memory_snapshot") == 1


def test_nothing_is_said_where_it_was_asked_for(double):
    assert double.passes("import gapless; gapless.enable(overlay=False)").err == ""


def test_a_snapshot_that_cannot_be_made_says_why(double):
    done = double.python("import gapless; gapless.enable(overlay=False); gapless.snapshot('x.pickle')")
    assert done.code == 1 and "a snapshot needs a build of torch" in done.err


def test_out_of_memory_is_torchs_own_error_and_goes_away(real):
    real.passes(
        """
        import gapless, torch
        gapless.enable()
        x = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
        for _ in range(3):
            try:
                torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error:
                assert "256" in str(error), error
            else:
                raise SystemExit("no error")
        assert torch.cuda.memory_stats()["num_ooms"] == 3
        del x
        y = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
        """,
        "-Wignore",
        STANDIN_CAPACITY=str(128 << 20),
    )


def test_a_memory_fraction_is_a_limit(real):
    real.passes(
        """
        import gapless, torch
        gapless.enable()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((64 << 20) / total)
        try:
            torch.empty(96 << 20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
        else:
            raise SystemExit("no error")
        x = torch.empty(48 << 20, dtype=torch.uint8, device="cuda")
        """,
        "-Wignore",
    )
