"""Statistics pages: the facts that a running process gives `gapless top`, and when it gives none."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time

import pytest

MIB = 1 << 20


@pytest.fixture
def top(real, tmp_path):
    gapless = os.environ.get("STANDIN_GAPLESS")
    if not gapless:
        pytest.skip("STANDIN_GAPLESS is not set: run `cargo xtask test-torch`")
    return Top(real, gapless, tmp_path / "pages")


class Top:
    def __init__(self, bench, gapless, pages):
        self.bench, self.gapless, self.pages = bench, gapless, pages

    @contextlib.contextmanager
    def running(self, program, **environment):
        """A program that goes on after it printed a line, until it is told to end by a line."""
        code = textwrap.dedent(program) + "\nprint(line, flush=True)\ninput()\n"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=self.bench.environment(GAPLESS_RUN_DIR=str(self.pages), **environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            process.told = process.stdout.readline().strip()
            assert process.told, process.stderr.read()
            yield process
        finally:
            process.kill()
            process.communicate()

    def ask(self, *args, **environment):
        return subprocess.run(
            [self.gapless, *args],
            env={**os.environ, "GAPLESS_RUN_DIR": str(self.pages), "NO_COLOR": "1", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def once(self, **environment):
        done = self.ask("top", "--once", "--format", "json", **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def until(self, fits):
        """The rows of the processes with pages, once they are as they should be: a page is written four times a
        second."""
        for _ in range(200):
            shown = [process for process in self.once()["processes"] if process["gapless"]]
            if fits(shown):
                return shown
            time.sleep(0.1)
        raise AssertionError(f"never seen: {shown}")


def holders(shown):
    """The row of the only process on its only card; nothing while that has published nothing."""
    return shown[0]["gpus"][0]["memory"]["holders"] if shown and shown[0]["gpus"] else []


HOLDING = """
    import gapless
    gapless.enable()
    import torch
    held = [torch.empty(24 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
    more = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    del more
    line = f"{torch.cuda.memory_allocated()} {torch.cuda.memory_reserved()} {torch.cuda.max_memory_allocated()}"
"""


def test_a_running_process_is_seen_with_its_figures_until_it_is_killed(top):
    with top.running(HOLDING) as process:
        allocated, reserved, peak = map(int, process.told.split())
        assert allocated == 8 * 24 * MIB
        # Gapless walks over blocks once a second at most, so holders come last.
        [shown] = top.until(lambda all: [h["bytes"] for h in holders(all)] == [allocated] and all[0]["gpus"][0]["memory"]["allocated"] == allocated)
        assert shown["pid"] == process.pid
        assert "held = [torch.empty" in shown["command"].replace("??", "")
        memory = shown["gpus"][0]["memory"]
        assert (memory["allocated"], memory["reserved"], memory["peak_allocated"]) == (allocated, reserved, peak)
        assert memory["holders"][0] == {"what": "8 blocks of 24.0 MiB", "bytes": allocated, "blocks": 8}
        assert [stream["allocated"] for stream in memory["streams"]] == [allocated]
        assert memory["counters"]["allocations"] == 9 and memory["counters"]["frees"] == 1
        assert memory["samples"] and shown["gpus"][0]["uuid"].startswith("GPU-6a70c0de")
        [page] = top.pages.iterdir()
        assert page.stat().st_mode & 0o777 == 0o600 and top.pages.stat().st_mode & 0o777 == 0o700
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert page.exists(), "nobody could remove it"
        assert top.until(lambda all: not all) == []
        assert not page.exists()


def test_an_end_of_its_own_removes_the_page_and_does_not_hang(top):
    with top.running(HOLDING) as process:
        top.until(len)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(timeout=300) == 0
        assert list(top.pages.iterdir()) == []
        assert process.stderr.read() == ""


@pytest.mark.parametrize("how", ["keyword", "variable"])
def test_pages_can_be_switched_off(top, how):
    program = HOLDING.replace("enable()", "enable(visible=False)") if how == "keyword" else HOLDING
    with top.running(program, **({"GAPLESS_VISIBLE": "0"} if how == "variable" else {})):
        time.sleep(0.6)
        assert not top.pages.exists()
        assert top.once()["processes"] == []


def test_the_lines_that_hold_memory_are_named_where_they_are_recorded(top, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "def build():\n"
        "    return [torch.empty(24 << 20, dtype=torch.uint8, device='cuda') for _ in range(4)]\n"
        "def step():\n"
        "    return torch.empty(50 << 20, dtype=torch.uint8, device='cuda')\n"
    )
    program = f"""
        import sys
        import gapless
        gapless.enable(record={str(tmp_path / "run.gtrace")!r}, record_stacks="python")
        sys.path.insert(0, {str(tmp_path)!r})
        import train
        weights, activation = train.build(), train.step()
        line = "ready"
    """
    with top.running(program):
        wanted = [("train.py:3 build", 96 * MIB, 4), ("train.py:5 step", 50 * MIB, 1)]

        # A list comprehension has a frame of its own before Python 3.12.
        def told(h):
            return h["what"].replace(".<locals>.<listcomp>", ""), h["bytes"], h["blocks"]

        top.until(lambda all: [told(holder) for holder in holders(all)] == wanted)


def test_a_forked_child_leaves_its_parents_page_alone(top):
    program = (
        HOLDING
        + """
    import os
    child = os.fork()
    if child == 0:
        # With what a process does at its end.
        raise SystemExit(0)
    line = str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    with top.running(program) as process:
        assert process.told == "0"
        [shown] = top.until(len)
        assert shown["pid"] == process.pid


def test_a_folder_that_others_may_enter_gets_no_page_and_is_not_read(top):
    top.pages.mkdir(mode=0o755)
    top.pages.chmod(0o755)
    with top.running(HOLDING) as process:
        time.sleep(0.6)
        assert list(top.pages.iterdir()) == []
        done = top.ask("top", "--once")
        assert done.returncode == 2 and "open to others (mode 755" in done.stderr
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(timeout=60) == 0


def test_the_driver_tells_of_processes_that_do_not_use_gapless(top):
    with top.running(HOLDING) as process:
        top.until(len)
        others = f"{process.pid}:{400 * MIB},{os.getpid()}:{70 * MIB},4194300:?"
        machine = top.once(LD_LIBRARY_PATH=str(top.bench.standin), STANDIN_PROCESSES=others)
        assert machine["nvml"] == {"available": True, "reason": None}
        [gpu] = machine["gpus"]
        assert gpu["others"] == gpu["used"] - gpu["reserved"] == 470 * MIB - gpu["reserved"]
        by_pid = {shown["pid"]: shown for shown in machine["processes"]}
        assert by_pid[process.pid]["gapless"] and by_pid[process.pid]["gpus"][0]["used"] == 400 * MIB
        assert by_pid[os.getpid()]["gapless"] is None and by_pid[os.getpid()]["gpus"][0]["used"] == 70 * MIB
        assert by_pid[4194300]["gpus"][0] == {"index": 0, "uuid": gpu["uuid"], "used": None, "memory": None}
        silent = top.once(LD_LIBRARY_PATH=str(top.bench.standin), STANDIN_NVML="9")
        assert silent["nvml"]["available"] is False and "not loaded" in silent["nvml"]["reason"]


@pytest.mark.parametrize("keys", ["", "\r", "/pyt\r\r"])
@pytest.mark.parametrize("end", ["\x03", "SIGTERM"])
def test_the_terminal_is_drawn_on_and_put_back(top, keys, end):
    with top.running(HOLDING) as process:
        top.until(len)
        child, terminal = pty.fork()
        if child == 0:
            os.environ.update(GAPLESS_RUN_DIR=str(top.pages), TERM="xterm-256color")
            os.execv(top.gapless, [top.gapless, "top", "--interval", "0.1"])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        seen = b""

        def read_until(wanted):
            nonlocal seen
            until = time.monotonic() + 60
            while wanted not in seen and time.monotonic() < until:
                if select.select([terminal], [], [], 0.1)[0]:
                    try:
                        seen += os.read(terminal, 65536)
                    except OSError:
                        return

        try:
            read_until(b"192 MiB")
            os.write(terminal, keys.encode())
            if keys:
                read_until(b"HELD BY")
                assert b"HELD BY" in seen, "it was looked inside"
            if end.startswith("SIG"):
                os.kill(child, getattr(signal, end))
            else:
                os.write(terminal, end.encode())
            read_until(b"\x1b[?1049l")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            os.close(terminal)
        assert seen.count(b"\x1b[?1049h") == 1 and seen.count(b"\x1b[?1049l") == 1, seen
        assert b"\x1b[?25h" in seen, "the cursor is back"
        assert str(process.pid).encode() in seen


def test_a_card_without_memory_of_its_own_shows_the_hosts(top):
    with open("/proc/meminfo") as lines:
        total = int(next(lines).split()[1]) * 1024
    environment = {"STANDIN_UNIFIED": "1", "LD_LIBRARY_PATH": str(top.bench.standin)}
    shown = top.once(**environment)
    (gpu,) = shown["gpus"]
    assert (gpu["total"], gpu["unified"], gpu["instance"]) == (total, True, None)
    assert 0 < gpu["used"] <= total
    assert shown["notes"] == ["GPU 0 has no memory of its own: its figures are the host's"]
    done = top.ask("metrics", "--once", **environment)
    assert f'gapless_device_total_bytes{{gpu="0",UUID="{gpu["uuid"]}",device="nvidia0"' in done.stdout, done.stdout + done.stderr


def test_a_process_is_shown_on_its_instance_of_a_divided_card(top):
    divided = {"STANDIN_MIG": f"2:{5 << 30},9:{10 << 30}", "LD_LIBRARY_PATH": str(top.bench.standin)}
    program = """
import torch, gapless
gapless.enable()
x = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
line = "ready"
"""
    with top.running(program, STANDIN_INSTANCE="9", **{key: value for key, value in divided.items() if key == "STANDIN_MIG"}):
        for _ in range(200):
            shown = top.once(**divided)
            # The first figures of a process may be older than its first tensor.
            if any(gpu["allocated"] for gpu in shown["gpus"]):
                break
            time.sleep(0.05)
    identities = [(gpu["index"], gpu["instance"], gpu["uuid"][-2:], gpu["total"] >> 30) for gpu in shown["gpus"]]
    assert identities == [(0, 2, "02", 5), (0, 9, "09", 10)]
    assert [gpu["allocated"] for gpu in shown["gpus"]] == [0, 8 * MIB]
    (use,) = shown["processes"][0]["gpus"]
    assert use["uuid"] == shown["gpus"][1]["uuid"]
    text = top.ask("top", "--once", **divided).stdout
    assert "GPU 0/2 Stand-in card MIG 1g.5gb" in text and "GPU 0/9" in text
