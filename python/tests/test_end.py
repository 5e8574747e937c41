"""How processes end and fork: quietly, with nothing of the parent's touched."""

import pytest


def test_the_end_is_quiet_with_tensors_alive(bench):
    program = """
        import gapless, torch
        gapless.enable(overlay=False)
        keep = [torch.empty(1 << 20, device="cuda") for _ in range(3)]
        class Late:
            def __del__(self): self.tensor = None
        late = Late()
        late.tensor = torch.empty(5, device="cuda")
        late.itself = late
        keep.append(keep)
    """
    done = bench.passes(program)
    assert (done.out, done.err) == ("", "")


def test_the_line_at_exit_is_one_line(bench):
    program = "import gapless, torch; gapless.enable(overlay=False, stats=True); x = torch.empty(1 << 20, device='cuda')"
    done = bench.passes(program)
    assert done.err.startswith("gapless: cuda:0 peak allocated 4.00 MiB, peak reserved ") and done.err.count("\n") == 1
    done = bench.passes("import gapless, torch; gapless.enable(overlay=False, stats=True)")
    assert done.err == "gapless: the GPU was not used\n"


def test_an_exception_ends_as_it_would_without_us(bench):
    done = bench.python("import gapless, torch; gapless.enable(overlay=False); x = torch.empty(5, device='cuda'); 1 / 0")
    assert done.code == 1 and done.err.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_a_forked_child_touches_nothing_of_its_parents(bench):
    bench.passes(
        """
        import gapless, os, torch
        gapless.enable(overlay=False)
        x = torch.empty(1 << 20, device="cuda")
        child = os.fork()
        if child == 0:
            del x
            torch.cuda.empty_cache()
            try:
                gapless.enable()
                torch.empty(5, device="cuda")
            except RuntimeError as error:
                os._exit(0 if "spawn" in str(error) else 3)
            os._exit(4)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.cuda.memory_allocated() == 4 << 20
        """
    )


def test_a_forked_child_may_leave_through_the_front_door(bench):
    done = bench.passes(
        """
        import gapless, os, sys, torch
        gapless.enable(overlay=False, stats=True)
        x = torch.empty(1 << 20, device="cuda")
        if os.fork() == 0:
            sys.exit(0)
        assert os.wait()[1] == 0
        """
    )
    assert done.err.count("gapless: ") == 1


def test_a_forked_child_that_asks_waits_for_nobody(bench):
    """Threads of the parent have the card's lock most of the time: a child that waited for it would wait for ever."""
    if bench.double:
        pytest.skip("the double has no snapshots")
    done = bench.passes(
        """
        import gapless, os, signal, torch, threading
        gapless.enable(oom_dir="off")
        pool = torch.cuda.MemPool()
        cache = gapless.elastic((64, 1 << 20), torch.uint8, page="2MiB")
        cache.grow(3)
        with gapless.region("kept"):
            kept = torch.empty(1 << 20, device="cuda")
        over = threading.Event()

        def worker():
            while not over.is_set():
                gapless.stats()

        threads = [threading.Thread(target=worker) for _ in range(3)]
        for thread in threads:
            thread.start()
        questions = [
            lambda: torch.cuda.memory_snapshot(),
            lambda: torch.cuda.memory._snapshot(),
            lambda: pool.use_count(),
            lambda: torch._C._cuda_resetPeakMemoryStats(0),
            lambda: torch._C._cuda_memoryStats(0),
            lambda: torch._C._cuda_getMemoryFraction(0),
            lambda: torch.cuda.memory._record_memory_history(None),
            lambda: gapless.is_asleep(kept),
            lambda: gapless.regions(),
            lambda: cache.pool.stats(),
            lambda: globals().pop("cache"),
            lambda: globals().pop("pool"),
        ]
        for turn in range(6):
            for at, ask in enumerate(questions):
                child = os.fork()
                if child == 0:
                    signal.alarm(60)
                    try:
                        ask()
                    except Exception:
                        pass
                    os._exit(0)
                status = os.waitpid(child, 0)[1]
                if status:
                    over.set()
                    raise SystemExit(f"question {at} ended with {status}")
        over.set()
        print("answered")
        """
    )
    assert done.lines()[-1] == "answered"


def test_data_loader_workers_run_beside_it(bench):
    bench.passes(
        """
        import gapless, torch
        gapless.enable(overlay=False)
        x = torch.empty(1 << 20, device="cuda")
        loader = torch.utils.data.DataLoader(torch.arange(64), batch_size=8, num_workers=2)
        assert sum(len(batch.cuda()) for batch in loader) == 64
        assert torch.cuda.memory_allocated() == 4 << 20
        """
    )


def test_a_process_forked_before_cuda_has_its_own_memory(bench):
    bench.passes(
        """
        import gapless, multiprocessing, torch
        gapless.enable(overlay=False)
        def child():
            y = torch.empty(1 << 10, device="cuda")
            assert torch.cuda.memory_allocated() == 4 << 10
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
        x = torch.empty(1 << 20, device="cuda")
        assert torch.cuda.memory_allocated() == 4 << 20
        """
    )


def test_our_threads_get_no_signals(real, tmp_path):
    """A signal that a program waits for, in a handler or with sigwait, must reach one of its own threads."""
    real.passes(
        f"""
        import gapless, os, signal, time, torch
        gapless.enable(process_limit="1GiB", record={str(tmp_path / "run.glt")!r}, record_stacks="python")
        x = torch.empty(5, device="cuda")
        def ours():
            found = {{}}
            for task in os.listdir("/proc/self/task"):
                lines = dict(line.split(":", 1) for line in open(f"/proc/self/task/{{task}}/status") if ":" in line)
                if lines["Name"].strip().startswith("gapless"):
                    found[lines["Name"].strip()] = int(lines["SigBlk"], 16)
            return found
        deadline = time.monotonic() + 10
        while ("gapless-ledger" not in ours() or len(ours()) < 2) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(ours()) >= 2, ours()
        for name, blocked in ours().items():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
                assert blocked >> (number - 1) & 1, (name, number)
        """
    )


def test_a_thread_that_asks_when_python_goes_is_served_without_it(real, tmp_path):
    """A thread that asks for Python's lock while the interpreter is torn down is ended inside of the call, and the
    process with it."""
    done = real.passes(
        f"""
        import atexit, ctypes, gapless, threading, time, torch
        gapless.enable(record={str(tmp_path / "run.glt")!r}, record_stacks="python")
        from gapless import _record, _session
        # The recording stays open, so that lines of Python are still wanted.
        atexit.unregister(_record._end)
        x = torch.empty(5, device="cuda")
        alloc = ctypes.cast(ctypes.CDLL(_session._library.file).gapless_alloc, ctypes.c_void_p)
        card = ctypes.CDLL("libcuda.so.1")
        threading.Thread(target=card.card_alloc_at_the_end, args=(alloc,), daemon=True).start()
        class Late:
            def __del__(self, sleep=time.sleep): sleep(1)
        late = Late()
        late.itself = late
        """
    )
    assert done.out == "served\n", done.out + done.err


def test_daemon_threads_that_allocate_do_not_hold_up_the_end(real, tmp_path):
    done = real.passes(
        f"""
        import ctypes, gapless, threading, time, torch
        gapless.enable(record={str(tmp_path / "run.glt")!r}, record_stacks="python")
        from gapless import _session
        x = torch.empty(5, device="cuda")
        library = ctypes.CDLL(_session._library.file)
        library.gapless_alloc.restype = ctypes.c_void_p
        rounds = [0] * 4
        def work(i):
            while True:
                rounds[i] += 1
                at = library.gapless_alloc(ctypes.c_size_t(5000), 0, None)
                library.gapless_free(ctypes.c_void_p(at), ctypes.c_size_t(5000), 0, None)
        for i in range(4):
            threading.Thread(target=work, args=(i,), daemon=True).start()
        # The end comes while all of them are at it.
        while min(rounds) < 100:
            time.sleep(0.001)
        """
    )
    assert done.err == "", done.err
