"""Others than torch share the pool: C and C++ programs with include/gapless.h, CuPy, Numba.

STANDIN_OTHERS is an interpreter with CuPy and Numba (`cargo xtask test-torch` makes it and sets this). Nothing runs on
the card: arrays are allocated and freed. CuPy's wheel has a CUDA runtime in it that does not accept the stand-in card,
so that its current device and stream are given to it; on a GPU torch-bench/live/others.py has no such help.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import sysconfig
import textwrap
import time
from pathlib import Path

import pytest

from conftest import ROOT

HEADER = ROOT / "include" / "gapless.h"
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def others(real):
    interpreter = os.environ.get("STANDIN_OTHERS")
    if not interpreter:
        pytest.skip("STANDIN_OTHERS is not set: CuPy and Numba cannot be had")
    return Others(real, interpreter)


class Others:
    """Runs programs with CuPy and Numba; with `torch` in the interpreter of the tests, which has it."""

    def __init__(self, bench, interpreter):
        self.bench, self.interpreter = bench, interpreter

    def passes(self, program, torch=False, **environment):
        code = textwrap.dedent(program)
        if torch:
            # Without the .pth files of that environment, so that Numba is the one without NVIDIA's package.
            packages = Path(self.interpreter).parents[1] / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
            done = self.bench.start([sys.executable, "-c", code], PYTHONPATH=f"{ROOT / 'python'}:{packages}", **environment)
        else:
            done = self.bench.start([self.interpreter, "-c", code], **environment)
        assert done.code == 0, done.out + done.err
        return done


# ---- the header ----


def declared():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    return set(re.findall(r"\b(gapless_\w+)\(", text))


def test_the_library_has_every_function_of_the_header(real):
    library = ctypes.CDLL(real.library)
    assert len(declared()) == 13
    assert not [name for name in declared() if not hasattr(library, name)]


def test_every_function_for_other_programs_is_in_the_header():
    source = (ROOT / "crates/gapless-torch/src/abi/programs.rs").read_text()
    # Functions of debug builds are for tests, and need no line in the header.
    source = re.sub(r"#\[cfg\(debug_assertions\)\]\n.*?\n}\n", "", source, flags=re.S)
    exported = set(re.findall(r"extern \"C\" fn (gapless_\w+)", source))
    assert exported == {name for name in declared() if name.startswith("gapless_mem_")}


COMPILERS = {
    "memory.c": [["gcc", "-std=c11"], ["g++", "-xc++", "-std=c++17"]],
    "memory.cpp": [["g++", "-std=c++11"], ["g++", "-std=c++20"]],
}


@pytest.mark.parametrize(("program", "compiler"), [(name, words) for name, each in COMPILERS.items() for words in each], ids=lambda value: str(value))
def test_a_program_builds_without_warnings_and_runs(real, tmp_path, program, compiler):
    source, folder, built = tmp_path / program, os.path.dirname(real.library), tmp_path / "program"
    text = (PROGRAMS / program).read_text()
    if program == "memory.c" and compiler[0] == "g++":
        # The card's own functions have C linkage.
        text = text.replace("void card_hold", 'extern "C" void card_hold').replace("void device_sync", 'extern "C" void device_sync')
    source.write_text(text)
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-pthread", "-I", str(ROOT / "include")]
    libraries = ["-L", folder, "-lgapless_torch", "-L", str(real.standin), "-l:libcuda.so.1", f"-Wl,-rpath,{folder}"]
    subprocess.run([*compiler, *strict, str(source), "-o", str(built), *libraries], check=True)
    done = real.start([built], folder=tmp_path, LD_PRELOAD=None)
    assert (done.code, done.out) == (0, "passed\n"), done.out + done.err
    # The program in C switched these files off.
    assert bool(list(tmp_path.glob("gapless-oom.*"))) == (program == "memory.cpp")


def test_the_example_of_the_documentation_runs(real, tmp_path):
    example = re.search(r"```c\n(.*?)```", (ROOT / "docs/others.md").read_text(), re.S).group(1)
    (tmp_path / "program.c").write_text(example)
    folder = os.path.dirname(real.library)
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "program.c", "-I", str(ROOT / "include"), "-L", folder, "-lgapless_torch", f"-Wl,-rpath,{folder}"]
    subprocess.run([*command, "-o", "program"], cwd=tmp_path, check=True)
    done = real.start([tmp_path / "program"], LD_PRELOAD=None)
    assert (done.code, done.out) == (0, "1048576 bytes allocated\n"), done.err


# ---- one account ----

C_CALLS = """
    import ctypes, os, torch, gapless
    gapless.enable()
    c = ctypes.CDLL(os.environ["GAPLESS_LIBRARY"])
    c.gapless_mem_alloc.restype = ctypes.c_void_p
    c.gapless_mem_alloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    c.gapless_mem_free.argtypes = [ctypes.c_void_p]
    c.gapless_last_error.restype = ctypes.c_char_p
    MIB = 1 << 20
    def take(mib, stream=0): return c.gapless_mem_alloc(mib * MIB, 0, stream)
    def tensor(mib): return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
"""


def with_torch(body):
    return textwrap.dedent(C_CALLS) + textwrap.dedent(body)


def test_what_others_take_is_in_torchs_figures_snapshots_and_budgets(real):
    real.passes(
        with_torch("""
        x, a = tensor(4), take(6)
        assert a and torch.cuda.memory_allocated() == gapless.stats()["allocated_bytes.all.current"] == 10 * MIB
        blocks = [(b["address"], b["size"]) for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["state"] == "active_allocated"]
        assert (a, 6 * MIB) in blocks and (x.data_ptr(), 4 * MIB) in blocks
        # Memory that one gave back serves the other.
        del x
        assert c.gapless_mem_free(a) == 0 and torch.cuda.memory_allocated() == 0
        held = torch.cuda.memory_reserved()
        b = take(4)
        y = tensor(6)
        assert torch.cuda.memory_reserved() == held
        with gapless.budget("8MiB", tag="part"):
            d = take(5)
            assert d and take(5) is None and c.gapless_mem_last_code() == 1
            assert "part" in c.gapless_last_error().decode()
        assert gapless.stats()["gapless.budgets.part.live"] == 5 * MIB
        torch.cuda.set_per_process_memory_fraction(0.01)
        assert take(100) is None
        """)
    )


def test_a_failure_throws_nothing_even_where_torch_is_there_and_watches(real):
    done = real.passes(
        with_torch("""
        torch.cuda.memory._record_memory_history()
        seen = []
        torch._C._cuda_attach_out_of_memory_observer(lambda *told: seen.append(told))
        asked = []
        gapless.on_pressure(lambda pressure: asked.append(pressure.requested) or 0)
        a = take(2)
        assert take(3000) and take(3000) is None and c.gapless_mem_last_code() == 1
        assert "Tried to allocate 2.93 GiB" in c.gapless_last_error().decode(), c.gapless_last_error()
        assert asked == [3000 * MIB] and not seen and gapless.stats()["num_ooms"] == 1
        # torch's own requests still raise.
        try:
            tensor(3000)
        except torch.OutOfMemoryError:
            print("raised", len(seen))
        assert c.gapless_mem_free(a) == 0
        actions = [(e["action"], e["size"]) for e in torch.cuda.memory._snapshot()["device_traces"][0]]
        assert ("alloc", 2 * MIB) in actions and ("free_completed", 2 * MIB) in actions, actions
        """)
    )
    assert done.lines() == ["raised 1"]


def test_a_handler_that_frees_serves_the_request_of_another(real):
    real.passes(
        with_torch("""
        kept = [tensor(2500)]
        gapless.on_pressure(lambda pressure: kept.clear())
        assert take(3000) and not kept and gapless.stats()["gapless.ladder.handlers"] == 1
        """)
    )


def test_a_request_on_a_captured_stream_goes_to_the_pool_of_the_capture(real):
    real.passes(
        with_torch("""
        def pool_of(address):
            return next(s["segment_pool_id"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["address"] == address)
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        outside = take(2, side.cuda_stream)
        with torch.cuda.graph(graph, stream=side):
            x = tensor(2)
            inside, elsewhere = take(2, side.cuda_stream), take(2, torch.cuda.default_stream().cuda_stream or 0x7700)
        assert pool_of(inside) == pool_of(x.data_ptr()) != (0, 0)
        assert pool_of(outside) == pool_of(elsewhere) == (0, 0)
        # A memory pool of torch's is torch's alone.
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            y, free = tensor(2), take(2)
        assert pool_of(y.data_ptr()) != (0, 0) and pool_of(free) == (0, 0)
        """)
    )


def test_checked_mode_tells_callers_by_a_code(real):
    real.passes(
        with_torch("""
        a = take(2)
        assert c.gapless_mem_free(a) == 0 and c.gapless_mem_free(a) == 2
        assert take(2) is None and c.gapless_mem_last_code() == 3 and "free" in c.gapless_last_error().decode()
        assert take(2)
        """),
        GAPLESS_CHECK="1",
    )


# ---- the package without torch ----

ALONE = """
    import json, sys
    import gapless
    from gapless import _memory
    MIB = 1 << 20
"""


def alone(body):
    return textwrap.dedent(ALONE) + textwrap.dedent(body)


def without_torch(bench, program, **environment):
    return bench.start([sys.executable, "-c", program], cold=True, **environment)


def test_statistics_trim_limits_and_budgets_work_without_torch(real):
    done = without_torch(
        real,
        alone("""
        a = _memory.allocate(6 * MIB, 0, 0)
        assert gapless.stats()["allocated_bytes.all.current"] == 6 * MIB and not gapless.enabled()
        _memory.free(a)
        assert gapless.trim() > 0 and gapless.stats(0)["reserved_bytes.all.current"] == 0
        gapless.reserve("16MiB")
        assert gapless.stats()["reserved_bytes.all.current"] == 16 * MIB
        for size, stream, kind in ((100 * MIB, 0, MemoryError), (1, 2, gapless.GaplessError)):
            try:
                _memory.allocate(size, 0, stream)
            except kind as error:
                print(str(error).splitlines()[0])
        with gapless.budget("4MiB", tag="part"):
            _memory.allocate(2 * MIB, 0, 0)
        assert gapless.stats()["gapless.budgets.part.live"] == 2 * MIB
        try:
            gapless.snapshot("x.pickle")
        except gapless.GaplessError as error:
            print(error)
        assert "torch" not in sys.modules
        """),
        GAPLESS_LIMIT="64MiB",
        GAPLESS_STATS="1",
    )
    assert done.code == 0, done.out + done.err
    first, second, third = done.lines()
    assert "out of memory" in first and "100.00 MiB" in first, first
    assert second.startswith("the per-thread default stream") and "GAPLESS_RECORD" in third
    assert done.err.startswith("gapless: cuda:0 peak allocated 6.00 MiB")


def test_torch_can_follow_with_the_same_options_and_with_no_others(real):
    program = """
        import gapless, torch
        from gapless import _memory
        a = _memory.allocate(1 << 20, 0, 0)
        try:
            assert gapless.enable(stats=True, OPTIONS)
        except gapless.GaplessError as error:
            print(error)
        else:
            x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
            assert gapless.stats()["allocated_bytes.all.current"] == 2 << 20
    """
    assert real.passes(program.replace("OPTIONS", "limit='64MiB'"), GAPLESS_LIMIT="64MiB").out == ""
    assert "call gapless.enable() before CuPy or Numba" in real.passes(program.replace("OPTIONS", "limit='65MiB'"), GAPLESS_LIMIT="64MiB").out


def test_gapless_top_shows_a_process_without_torch(real, command, tmp_path):
    program = alone("""
        a = _memory.allocate(6 * MIB, 0, 0)
        print("ready", flush=True)
        input()
    """)
    environment = real.environment(GAPLESS_RUN_DIR=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        words, there = [command, "top", "--once", "--format", "json"], {**os.environ, "GAPLESS_RUN_DIR": str(tmp_path)}
        until = time.monotonic() + 60
        text = ""
        # The process writes its statistics a few times a second.
        while not (str(process.pid) in text and str(6 << 20) in text):
            assert time.monotonic() < until, text
            shown = subprocess.run(words, env=there, capture_output=True, text=True)
            text = json.dumps(json.loads(shown.stdout))
    finally:
        process.communicate("\n")


# ---- CuPy ----

CUPY = """
    import cupy, sys
    import gapless, gapless.cupy
    MIB = 1 << 20
    place = [0, 0]
    gapless.cupy._place = lambda: tuple(place)
    cupy.cuda.set_allocator(gapless.cupy.allocator)
    def live(): return gapless.stats()["allocated_bytes.all.current"]
    def array(mib): return cupy.empty(mib * MIB, dtype="u1")
"""


def with_cupy(body):
    return textwrap.dedent(CUPY) + textwrap.dedent(body)


def test_cupys_arrays_are_of_the_pool_and_go_back_when_they_die(others):
    done = others.passes(
        with_cupy("""
        a = array(6)
        assert live() == 6 * MIB and a.data.mem.size == 6 * MIB
        part, address = a[MIB : 2 * MIB], a.data.ptr
        del a
        assert live() == 6 * MIB
        del part
        assert live() == 0
        assert array(6).data.ptr == address
        assert cupy.empty(0).size == 0 and cupy.empty((3, 0)).nbytes == 0
        place[1] = 0x5000
        b = array(6)
        assert b.data.ptr != address
        assert "torch" not in sys.modules
        kept = array(2)
        """),
        GAPLESS_STATS="1",
    )
    assert "peak allocated 8.00 MiB" in done.err, done.err


def test_a_failed_request_is_cupys_own_error(others):
    done = others.passes(
        with_cupy("""
        import pickle
        try:
            array(100)
        except cupy.cuda.memory.OutOfMemoryError as error:
            assert isinstance(error, MemoryError)
            assert str(pickle.loads(pickle.dumps(error))) == str(error)
            print(error)
        place[1] = 2
        try:
            array(1)
        except gapless.GaplessError as error:
            print(error)
        """),
        GAPLESS_LIMIT="64MiB",
    )
    assert "out of memory" in done.lines()[0] and "asked by:     <string>:9 array" in done.out, done.out
    assert "the per-thread default stream" in done.lines()[-1]


def test_cupys_record_stream_keeps_memory_until_the_work_is_done(others):
    others.passes(
        with_cupy("""
        import ctypes
        card = ctypes.CDLL("libcuda.so.1")
        class Stream: ptr = 0x5000
        a = array(6)
        address = a.data.ptr
        gapless.cupy.record_stream(a[5:], Stream)
        card.card_hold(1)
        del a
        b = array(6)
        assert b.data.ptr != address
        card.device_sync()
        card.card_hold(0)
        assert array(6).data.ptr == address
        try:
            gapless.cupy.record_stream(cupy.ndarray(3, memptr=cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(4096, 64, None, 0), 0)), Stream)
        except gapless.GaplessError as error:
            assert "no allocation at 0x1000" in str(error)
        """)
    )


def test_cupys_requests_are_recorded_with_their_lines(others, command, tmp_path):
    file = tmp_path / "run.gtrace"
    others.passes(
        with_cupy("""
        a = array(6)
        """),
        GAPLESS_RECORD=str(file),
        GAPLESS_RECORD_STACKS="python",
    )
    shown = subprocess.run([command, "report", "--tree", file], env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True)
    assert shown.returncode == 0 and "6.00 MiB" in shown.stdout and "<string>:" in shown.stdout, shown.stdout + shown.stderr


# ---- Numba ----

NUMBA = """
    import sys
    import numpy as np
    from numba import cuda
    import gapless
    MIB = 1 << 20
    def live(): return gapless.stats()["allocated_bytes.all.current"]
    def array(mib): return cuda.device_array(mib * MIB, np.uint8)
    def address(of): return of.device_ctypes_pointer.value
"""


def with_numba(body):
    return textwrap.dedent(NUMBA) + textwrap.dedent(body)


SET = "import gapless.numba; cuda.set_memory_manager(gapless.numba.GaplessMemoryManager)\n"


@pytest.mark.parametrize("how", ["variable", "call"])
def test_numbas_arrays_are_of_the_pool_and_go_back_when_they_die(others, how):
    variables = {"NUMBA_CUDA_MEMORY_MANAGER": "gapless.numba"} if how == "variable" else {}
    others.passes(
        with_numba(SET if how == "call" else "")
        + textwrap.dedent("""
        assert "numba_cuda" in cuda.__file__
        a = array(6)
        assert live() == 6 * MIB
        part = a[MIB : 2 * MIB]
        del a
        assert live() == 6 * MIB
        del part
        assert live() == 0
        assert cuda.device_array(0).size == 0
        free, total = cuda.current_context().get_memory_info()
        b = array(64)
        assert cuda.current_context().get_memory_info() == (free - 64 * MIB, total)
        with cuda.defer_cleanup():
            del b
            assert live() == 0
        assert "torch" not in sys.modules
        """),
        **variables,
    )


def test_numbas_memory_waits_for_the_default_stream(others):
    others.passes(
        with_numba(SET)
        + textwrap.dedent("""
        import ctypes
        card = ctypes.CDLL("libcuda.so.1")
        a = array(6)
        first = address(a)
        card.card_hold(1)
        del a
        b = array(6)
        assert address(b) != first and live() == 6 * MIB
        assert gapless.stats()["active_bytes.all.current"] == 12 * MIB
        card.device_sync()
        card.card_hold(0)
        """)
    )


def test_numba_gets_clear_errors(others):
    done = others.passes(
        with_numba(SET)
        + textwrap.dedent("""
        def ask():
            return array(100)
        a = array(1)
        for call, kind in ((ask, MemoryError), (lambda: cuda.current_context().get_ipc_handle(a.gpu_data), gapless.GaplessError)):
            try:
                call()
            except kind as error:
                print(error)
        info = cuda.current_context().get_memory_info()
        assert info.free == 63 * MIB < info.total
        # All that Numba holds goes, once.
        cuda.current_context().memory_manager.reset()
        assert live() == 0
        del a
        assert live() == 0
        """),
        GAPLESS_LIMIT="64MiB",
    )
    assert "out of memory" in done.lines()[0] and "asked by:     <string>:" in done.out, done.out
    assert "no CUDA IPC handle" in done.lines()[-1]


# ---- all of them ----


def test_torch_cupy_and_numba_in_one_process_have_one_account(others):
    others.passes(
        textwrap.dedent("""
        import torch, gapless
        gapless.enable(limit="128MiB")
        """)
        + with_cupy("")
        + textwrap.dedent("""
        from numba import cuda
        import numpy as np
        assert "numba_cuda" not in cuda.__file__
        t = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
        c = array(4)
        n = cuda.device_array(8 * MIB, np.uint8)
        assert torch.cuda.memory_allocated() == live() == 14 * MIB
        sizes = sorted(b["size"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["state"] == "active_allocated")
        assert sizes == [2 * MIB, 4 * MIB, 8 * MIB], sizes
        # One limit for all: what two of them hold is missing for the third.
        keep = [array(32), cuda.device_array(32 * MIB, np.uint8)]
        try:
            torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            assert "at most 128 MiB (limit)" in str(error)
        else:
            raise AssertionError("the limit holds for all")
        del t, c, n, keep
        assert torch.cuda.memory_allocated() == 0
        """),
        torch=True,
        NUMBA_CUDA_MEMORY_MANAGER="gapless.numba",
    )
