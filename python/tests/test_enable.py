"""enable(): what it does, when it refuses, and that a refusal leaves torch as it was."""


def test_it_makes_gapless_torchs_allocator_and_twice_is_fine(bench):
    done = bench.passes(
        """
        import gapless, torch
        assert gapless.enable() is True and gapless.enabled() and gapless.disable_reason() is None
        assert not torch.cuda.is_initialized()
        assert gapless.enable() is True
        assert torch.cuda.get_allocator_backend() == "pluggable"
        x = torch.empty(1 << 20, device="cuda")
        assert gapless.stats()["requested_bytes.all.current"] == 4 << 20
        assert gapless.enable() is True
        """
    )
    assert done.err.count("GaplessWarning") <= 1


def test_options_reach_the_library(double):
    done = double.passes(
        """
        import gapless, torch
        gapless.enable(limit="1GiB", slack=7)
        print(gapless.stats()["double.options"])
        """,
        "-Wignore",
        GAPLESS_RESERVE="64MiB",
        GAPLESS_LIMIT="2GiB",
    )
    assert done.out == f"limit={1 << 30};reserve={64 << 20};slack=7\n"


def test_other_options_at_the_second_time_have_no_effect_and_that_is_said(bench):
    done = bench.passes("import gapless; gapless.enable(limit='1GiB'); gapless.enable(limit='1GiB'); gapless.enable(limit='2GiB', slack=1)")
    assert done.err.count("limit, slack cannot be changed any more") == 1


def test_after_cuda_has_started_it_says_what_to_do(bench):
    bench.passes(
        """
        import gapless, torch
        x = torch.empty(10, device="cuda")
        try:
            gapless.enable()
        except gapless.GaplessError as error:
            assert "CUDA has already started" in str(error) and "gapless run --" in str(error)
        else:
            raise SystemExit("no error")
        assert not gapless.enabled()
        y = torch.empty(10, device="cuda")
        assert torch.cuda.get_allocator_backend() == "native" and torch.cuda.memory_allocated() == 1024
        """
    )


def test_beside_another_allocator_it_says_so(bench):
    bench.passes(
        """
        import gapless, os, torch
        other = torch.cuda.memory.CUDAPluggableAllocator(os.environ["GAPLESS_LIBRARY"], "gapless_alloc", "gapless_free")
        torch.cuda.memory.change_current_allocator(other)
        try:
            gapless.enable()
        except gapless.GaplessError as error:
            assert "another allocator" in str(error)
        else:
            raise SystemExit("no error")
        assert not gapless.enabled()
        """
    )


def test_a_library_that_cannot_start_leaves_torch_as_it_was(double):
    done = double.passes(
        """
        import gapless, torch
        assert gapless.enable(limit=1) is False
        assert gapless.disable_reason() == "the double was told to fail"
        x = torch.empty(10, device="cuda")
        assert torch.cuda.get_allocator_backend() == "native" and torch.cuda.memory_allocated() == 512
        try:
            gapless.trim()
        except gapless.GaplessError as error:
            assert "gapless is off: the double was told to fail" in str(error)
        """
    )
    assert done.err.count("gapless is off, torch's own allocator is in place: the double was told to fail") == 1


def test_a_library_that_is_not_there_is_named(bench):
    for library, words in ((None, "pip install ."), ("/none.so", "unset it"), ("/etc/passwd", "cannot be loaded")):
        done = bench.python("import gapless; gapless.enable()", GAPLESS_LIBRARY=library)
        assert done.code == 1 and words in done.err.splitlines()[-1], done.err


def test_a_torch_without_cuda_is_a_reason_not_an_error(bench, tmp_path):
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("from . import version\n__version__ = '9.9'\n")
    (torch / "version.py").write_text("cuda = None\n")
    program = "import gapless; assert gapless.enable() is False; print(gapless.disable_reason())"
    done = bench.passes(program, "-Wignore", PYTHONPATH=f"{tmp_path}:{bench.environment()['PYTHONPATH']}")
    assert done.out == "torch 9.9 was built without CUDA\n"


def test_a_torch_without_a_hook_that_safety_needs_is_a_reason(bench, tmp_path):
    (tmp_path / "torch.py").write_text(
        "__version__ = '9.9'\n"
        "class version: cuda = '13.0'\n"
        "class cuda:\n"
        "    _is_in_bad_fork = is_initialized = staticmethod(lambda: False)\n"
        "class _C:\n"
        "    class _CUDAPluggableAllocator:\n"
        "        set_init_fn = set_begin_allocate_to_pool = set_end_allocate_to_pool_fn = set_release_pool = None\n"
    )
    program = "import gapless; assert gapless.enable() is False; print(gapless.disable_reason())"
    done = bench.passes(program, "-Wignore", PYTHONPATH=f"{tmp_path}:{bench.environment()['PYTHONPATH']}")
    assert done.out == "torch 9.9 lacks set_record_stream_fn, without which an allocator is not safe\n"


def test_a_typing_error_in_the_environment_stops_it(bench):
    done = bench.python("import gapless; gapless.enable()", GAPLESS_RESREVE="1GiB")
    assert done.code == 1 and "did you mean GAPLESS_RESERVE?" in done.err


def test_trim_and_reserve(bench):
    bench.passes(
        """
        import gapless, torch
        gapless.enable()
        gapless.reserve("64MiB")
        x = torch.empty(1 << 20, device="cuda")
        del x
        assert gapless.trim() >= 0
        for wrong in ("many", -1, "9000TiB"):
            try:
                gapless.reserve(wrong)
            except gapless.GaplessError:
                pass
            else:
                raise SystemExit(f"{wrong} was accepted")
        """
    )
