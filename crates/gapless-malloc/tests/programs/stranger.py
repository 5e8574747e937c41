"""What Python programs do with processes, threads and limits. One case a run; prints "ok"."""

import ctypes
import faulthandler
import gc
import mmap
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time


def churn(rounds: int = 30) -> int:
    total = 0
    for number in range(rounds):
        blocks = [bytes(number * 997 % 4000 + 1) for _ in range(300)]
        blocks.append(bytearray(2 << 20))
        total += sum(map(len, blocks))
    return total


def forks() -> None:
    """Forks while threads allocate; each child allocates and starts a thread."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            churn(2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            churn(3)
            inner = threading.Thread(target=churn, args=(3,))
            inner.start()
            inner.join()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    for thread in threads:
        thread.join()


def pools() -> None:
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert len(set(pool.map(churn, [5] * 6))) == 1


def commands() -> None:
    def prepare() -> None:
        churn(2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    for _ in range(5):
        assert subprocess.run(["true"], preexec_fn=prepare).returncode == 0
        assert subprocess.check_output([sys.executable, "-c", "print(len(bytes(3 << 20)))"]).strip() == b"3145728"


def limits() -> None:
    """A limit of addresses ends in a MemoryError, and the program goes on."""
    churn()
    now = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
    glibc = 600 << 20
    resource.setrlimit(resource.RLIMIT_AS, (min(now, 1 << 30) + glibc, resource.RLIM_INFINITY))
    try:
        bytearray(4 << 30)
        raise AssertionError("4 GiB were given")
    except MemoryError:
        pass
    blocks = []
    try:
        while True:
            blocks.append(bytearray(16 << 20))
    except MemoryError:
        assert len(blocks) > 10, len(blocks)
    del blocks
    churn()
    threads = [threading.Thread(target=churn, args=(3,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def killed() -> None:
    """Children that are killed while they allocate, again and again."""
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            while True:
                churn()
        time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        churn(3)


def signals() -> None:
    """Handlers of Python that allocate, while C code allocates."""
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append(churn(1)))
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    while len(seen) < 60:
        churn(2)
    signal.setitimer(signal.ITIMER_REAL, 0)


def foreign() -> None:
    """Blocks that C functions allocate and Python frees, and a traceback of all threads by a signal."""
    libc = ctypes.CDLL(None)
    for name in ("malloc", "calloc", "realloc", "strdup", "getline"):
        getattr(libc, name).restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    for size in (1, 100, 5000, 200_000, 3 << 20):
        block = libc.malloc(ctypes.c_size_t(size))
        ctypes.memset(block, 7, size)
        block = libc.realloc(ctypes.c_void_p(block), ctypes.c_size_t(size * 3))
        assert ctypes.string_at(block, size) == b"\7" * size
        libc.free(block)
        libc.free(libc.strdup(b"x" * size))
    with open(os.devnull, "w") as nothing:
        faulthandler.register(signal.SIGUSR1, file=nothing, all_threads=True)
        for _ in range(50):
            os.kill(os.getpid(), signal.SIGUSR1)
            churn(1)
        faulthandler.unregister(signal.SIGUSR1)
    gc.collect()


if __name__ == "__main__":
    {f.__name__: f for f in (forks, pools, commands, limits, killed, signals, foreign)}[sys.argv[1]]()
    print("ok")
