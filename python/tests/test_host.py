"""The host's memory from Python: gapless.host below numpy and torch, and the variables of `gapless run --host`."""

import os
import sys
from pathlib import Path

import pytest

import gapless
from gapless import _options, host


def library():
    """The library of this build: beside the command."""
    return str(Path(os.environ["STANDIN_GAPLESS"]).with_name("libgapless_malloc.so"))


def test_variables_of_the_hosts_allocator_are_no_options_of_enable():
    # `gapless run --host` sets GAPLESS_HOST_STATS: enable() refused it, and every program with torch ended.
    names = ("CHECK", "HUGE", "LIBRARY", "LIMIT", "LIMIT_FILE", "LIMIT_GPU", "RECORD", "RECORD_EVERY", "RECORD_PID", "STATS")
    assert _options.collect({}, {f"GAPLESS_HOST_{name}": "1" for name in names}) == {}
    with pytest.raises(gapless.OptionError, match="GAPLESS_HOST_LIMITS"):
        _options.collect({}, {"GAPLESS_HOST_LIMITS": "1"})


def test_what_cannot_be_served_is_said(monkeypatch):
    assert not host.enabled() and set(host.stats().values()) == {0} and host.trim() == 0
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(gapless.GaplessError, match="found neither numpy nor torch"):
        host.enable()
    monkeypatch.setenv("GAPLESS_HOST_LIBRARY", "/nowhere.so")
    monkeypatch.setattr(host.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(gapless.GaplessError, match="no such file"):
        host.enable(numpy=True)
    monkeypatch.setattr(host.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(gapless.GaplessError, match="numpy is not installed"):
        host.enable(numpy=True)


def test_arrays_and_tensors_of_all_threads_are_served_and_old_ones_stay(bench):
    program = """
        import os, threading
        import numpy as np, torch
        import gapless.host as host

        torch.set_num_threads(1)
        old, old_tensor = np.ones(1 << 20), torch.ones(1 << 20)
        assert not host.enabled() and host.stats()["allocations"] == 0
        assert host.enable() == ("numpy", "torch") and host.enabled()
        MiB = 1 << 20
        array = np.ones(4 * MiB)
        assert host.stats()["large_live"] >= 32 * MiB
        seen = []

        def work():
            seen.append((np.zeros(2 * MiB), host.stats()["large_live"]))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen[0][1] >= 48 * MiB
        del array, seen[:]
        assert host.stats()["large_live"] == 0 and host.stats()["kept"] > 0
        tensor = torch.ones(4 * MiB)
        assert host.stats()["large_live"] >= 16 * MiB
        torch.nn.Linear(256, 256)(torch.randn(2048, 256)).sum().backward()
        # A buffer that grows, one that two libraries share, and small ones.
        grows = np.arange(MiB)
        grows.resize(4 * MiB, refcheck=False)
        assert grows[-1] == 0 and grows[5] == 5
        shared = tensor.numpy()
        del tensor
        assert shared[77] == 1
        small = [np.arange(i) for i in range(1000)]
        assert all(int(one.sum()) == i * (i - 1) // 2 for i, one in enumerate(small))
        # Blocks from before go back to where they came from.
        del old, old_tensor, small
        pid = os.fork()
        if pid == 0:
            os._exit(0 if np.ones(4 * MiB).sum() == 4 * MiB else 1)
        assert os.waitpid(pid, 0)[1] == 0
        host.trim()
        assert host.stats()["kept"] == 0
        host.disable()
        before = host.stats()["allocations"]
        later = np.ones(4 * MiB)
        assert host.stats()["allocations"] == before and not host.enabled()
        del grows, shared, later
        assert host.enable() == ("numpy", "torch")
        print("end")
        """
    assert bench.passes(program, GAPLESS_HOST_LIBRARY=library(), cold=True).lines() == ["end"]


def test_a_preloaded_library_leaves_nothing_to_do(bench):
    program = "import gapless.host as host; print(host.preloaded(), host.enable(), host.stats()['large_live'] >= 0)"
    done = bench.passes(program, LD_PRELOAD=library(), cold=True)
    assert done.lines() == ["True ('everything',) True"]


def test_registered_memory_stays_where_it_is_and_is_counted(bench):
    program = """
        import torch
        import gapless.host as host

        MiB = 1 << 20
        runtime = torch.cuda.cudart()

        def register(tensor):
            return int(runtime.cudaHostRegister(tensor.data_ptr(), tensor.numel(), 0))

        def buffer():
            return torch.ones(8 * MiB, dtype=torch.uint8)

        tensor = buffer()
        at = tensor.data_ptr()
        assert register(tensor) == 0 and host.stats()["pinned"] == 8 * MiB
        # Freed while it is registered: no other request gets the addresses.
        del tensor
        assert host.stats()["large_live"] >= 8 * MiB and buffer().data_ptr() != at
        assert int(runtime.cudaHostUnregister(at)) == 0 and host.stats()["pinned"] == 0
        host.trim()
        # A registration is kept for the next buffer, and ends with its memory.
        tensor = buffer()
        at = tensor.data_ptr()
        assert register(tensor) == 0 and int(runtime.cudaHostUnregister(at)) == 0
        assert host.stats()["pinned_kept"] == 8 * MiB
        assert register(tensor) == 0 and host.stats()["pinned_reused"] == 1
        assert int(runtime.cudaHostUnregister(at)) == 0
        assert int(runtime.cudaHostUnregister(at)) == 713, "it is not registered"
        del tensor
        host.trim()
        assert host.stats()["pinned_kept"] == 0
        # What the runtime allocates itself.
        pinned = torch.ones(3 * MiB, dtype=torch.uint8).pin_memory()
        assert host.stats()["pinned"] >= 3 * MiB
        print("end")
        """
    card = f"{bench.standin / 'libcuda.so.1'}:{bench.standin / 'libgapless-card.so'}"
    assert bench.passes(program, LD_PRELOAD=f"{library()}:{card}", cold=True).lines() == ["end"]


SPANNED = """
    import os, signal, sys, time
    import torch, gapless
    MIB = 1 << 20
    gapless.enable()
    def card(mib): return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
    def fails(make, error):
        try:
            make()
        except error as raised:
            return str(raised)
        raise AssertionError("the budget was passed")
"""


def spanned(bench, text, limit="3GiB", **environment):
    """Runs a program whose host and GPU memory have one budget. Importing torch takes a part of it."""
    preload = f"{library()}:{bench.environment()['LD_PRELOAD']}"
    lines = [line[4:] if line.startswith("    ") else line for line in SPANNED.splitlines()]
    lines += [line[8:] for line in text.splitlines()]
    environment = {"GAPLESS_HOST_LIMIT": limit, "GAPLESS_HOST_LIMIT_GPU": "1", **environment}
    return bench.passes("\n".join(lines), LD_PRELOAD=preload, cold=True, **environment)


def test_one_budget_counts_the_host_and_the_card(real):
    spanned(
        real,
        """
        there = card(1600)
        # What the host asks for is refused while the card's memory is in use.
        fails(lambda: bytearray(1600 * MIB), MemoryError)
        del there
        # The pool keeps it free: it goes back when the host needs it.
        assert torch.cuda.memory_reserved() >= 1600 * MIB
        held = bytearray(1600 * MIB)
        assert torch.cuda.memory_reserved() == 0
        said = fails(lambda: card(1600), torch.cuda.OutOfMemoryError)
        assert "Host and GPU memory have one budget of 3072.00 MiB" in said, said
        small = card(64)
        del held
        there = card(1600)
        # Work that runs keeps its memory: nothing of it is given to the host.
        fails(lambda: bytearray(1600 * MIB), MemoryError)
        assert torch.cuda.memory_allocated() == 1664 * MIB
        """,
    )


def test_one_budget_spans_processes_and_forgets_the_killed(real, tmp_path):
    page = tmp_path / "budget"
    page.touch(mode=0o600)
    spanned(
        real,
        """
        import subprocess
        one = "import gapless, torch; gapless.enable(); x = torch.empty(1500 << 20, dtype=torch.uint8, device='cuda'); print('held', flush=True); input()"
        other = subprocess.Popen([sys.executable, "-c", one], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert other.stdout.readline() == "held\\n"
        said = fails(lambda: card(1500), torch.cuda.OutOfMemoryError)
        fails(lambda: bytearray(1500 * MIB), MemoryError)
        other.kill()
        other.wait()
        there = card(1500)
        """,
        GAPLESS_HOST_LIMIT_FILE=str(page),
    )


def test_a_budget_of_the_card_alone_is_said_to_be_none(real):
    done = real.passes("import gapless, torch\ngapless.enable()\ntorch.empty(1 << 20, device='cuda')", GAPLESS_HOST_LIMIT_GPU="1", cold=True)
    assert "GAPLESS_HOST_LIMIT_GPU=1 has no effect" in done.err and "--host-limit-gpu" in done.err
