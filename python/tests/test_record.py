"""The flight recorder over the card: the recording has what torch counted, and it can be read however the process
ended."""

import json
import os
import signal
import subprocess
import sys
import textwrap

from gapless._record import file_of

START = """
import gapless, json, os, random, sys, threading, torch
gapless.enable(**json.loads(os.environ.get("OPTIONS", "{}")))
MIB = 1 << 20
def of(size, **more):
    return torch.empty(size, dtype=torch.uint8, device="cuda", **more)
def figures():
    stats = torch.cuda.memory_stats()
    print(json.dumps({name: stats[key] for name, key in {
        "allocations": "allocation.all.allocated", "peak_allocated": "allocated_bytes.all.peak", "peak_reserved": "reserved_bytes.all.peak",
        "peak_active": "active_bytes.all.peak", "peak_requested": "requested_bytes.all.peak"}.items()}))
"""

# Random sizes and streams, blocks that other streams use, memory given back and mapped again.
BUSY = """
random.seed(7)
side, kept = torch.cuda.Stream(), []
for i in range(3000):
    with torch.cuda.stream(side if i % 5 == 0 else torch.cuda.current_stream()):
        block = of(random.choice([100, 5000, 300_000, 3 * MIB, 9 * MIB + 512, 40 * MIB]))
    if i % 7 == 0:
        block.record_stream(side)
    kept.append(block)
    if len(kept) > 20:
        del kept[random.randrange(20)]
    if i % 1000 == 999:
        torch.cuda.empty_cache()
"""


def report(command, path):
    done = subprocess.run([command, "report", str(path), "--format", "json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def recorded(real, path, program, **environment):
    done = real.passes(START + textwrap.dedent(program), GAPLESS_RECORD=str(path), **environment)
    assert done.err == ""
    return done


def test_the_recording_says_what_torch_counted(real, command, tmp_path):
    path = tmp_path / "run.gtrace"
    counted = json.loads(recorded(real, path, BUSY + "figures()").out)
    told = report(command, path)
    device = told["devices"][0]
    assert {name: device[name] for name in counted} == counted
    assert told["source"]["producer"].startswith("gapless ") and told["source"]["notes"] == []


def test_a_step_that_is_served_from_a_plan_is_recorded_like_any_other(real, command, tmp_path):
    path = tmp_path / "run.gtrace"
    program = """
        weights = [torch.nn.Parameter(torch.empty(2 * MIB, device="cuda")) for _ in range(6)]
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
        more = 3
        for _ in range(1000):
            saved = [of((3 + i % 3) * MIB + 512 * i) for i in range(20)]
            for weight in weights:
                weight.grad = torch.empty_like(weight)
            del saved
            optimizer.step()
            optimizer.zero_grad()
            more -= gapless.stats()["gapless.plan.served"] > 0
            if not more:
                break
        assert not more
        figures()
    """
    counted = json.loads(recorded(real, path, program).out)
    device = report(command, path)["devices"][0]
    assert {name: device[name] for name in counted} == counted


def test_the_other_commands_open_it(real, command, tmp_path):
    path = tmp_path / "run.gtrace"
    program = """
        for _ in range(6):
            gapless.step()
            blocks = [of(size * MIB) for size in (3, 5, 7)]
            del blocks
    """
    recorded(real, path, program)
    words = [["diff", path, path], ["check", path, "--max-peak-reserved", "1GiB"], ["replay", path], ["advise", path], ["plan", path, "--step", "2"]]
    for line in words:
        done = subprocess.run([command, *map(str, line)], capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stdout, done.stderr)


def test_threads_record_what_they_did(real, command, tmp_path):
    path = tmp_path / "run.gtrace"
    program = """
        def work(seed):
            own, stream = random.Random(seed), torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(2000):
                    block = of(own.choice([512, 70_000, 2 * MIB]))
        threads = [threading.Thread(target=work, args=[seed]) for seed in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        figures()
    """
    counted = json.loads(recorded(real, path, program).out)
    device = report(command, path)["devices"][0]
    assert device["allocations"] == counted["allocations"] == 8000
    assert device["peak_reserved"] == counted["peak_reserved"]


def test_steps_are_those_that_the_program_marked(real, command, tmp_path):
    path = tmp_path / "run.gtrace"
    program = """
        for _ in range(9):
            gapless.step()
            kept = [of(MIB) for _ in range(3)]
    """
    recorded(real, path, program)
    steps = report(command, path)["devices"][0]["steps"]
    assert "gapless.step" in json.dumps(steps)


def test_an_optimizer_marks_its_steps(real, command, tmp_path):
    path = tmp_path / "run.gtrace"
    program = """
        weight = torch.nn.Parameter(torch.zeros(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(6):
            kept = [of(MIB) for _ in range(3)]
            weight.grad = torch.ones(4)
            optimizer.step()
    """
    recorded(real, path, program)
    assert "Optimizer.step" in json.dumps(report(command, path)["devices"][0]["steps"])


def test_the_lines_that_asked_are_there_when_wanted(real, command, tmp_path):
    program = """
        def who_asked():
            return of(7 * MIB)
        kept = who_asked()
        thread = threading.Thread(target=lambda: kept.add_(1) if False else of(3 * MIB))
        thread.start(); thread.join()
    """
    for stacks, there in (("python", True), ("off", False), (None, False)):
        path = tmp_path / f"{stacks}.gtrace"
        recorded(real, path, program, GAPLESS_RECORD_STACKS=stacks)
        assert ("who_asked" in json.dumps(report(command, path)["devices"][0])) == there


def test_a_failed_request_is_recorded(real, command, tmp_path):
    path = tmp_path / "run.gtrace"
    program = """
        kept = of(MIB)
        try:
            of(1 << 45)
        except torch.OutOfMemoryError:
            pass
    """
    recorded(real, path, program)
    done = subprocess.run([command, "oom", str(path)], capture_output=True, text=True)
    assert "32.0 TiB" in done.stdout, done.stdout + done.stderr


def test_a_killed_process_leaves_what_it_wrote(real, command, tmp_path):
    for moment in range(3):
        path = tmp_path / f"{moment}.gtrace"
        program = """
            kept = [of(5000) for _ in range(100)]
            print("going", flush=True)
            while True:
                of(2 * MIB)
        """
        words = [sys.executable, "-c", START + textwrap.dedent(program)]
        child = subprocess.Popen(words, env=real.environment(GAPLESS_RECORD=str(path)), stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "going\n"
        # A killed process must leave at least what could be read while it ran.
        before = 0
        while before <= 100:
            assert child.poll() is None
            before = allocations_so_far(command, path, tmp_path / "copy.gtrace")
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        told = report(command, path)
        assert [note["code"] for note in told["source"]["notes"]][0] in ("gtrace-unfinished", "gtrace-torn")
        assert told["devices"][0]["allocations"] >= before


def allocations_so_far(command, path, copy):
    """The allocations in a copy of a file that is being written; 0 if it has none yet."""
    if not path.exists():
        return 0
    copy.write_bytes(path.read_bytes())
    done = subprocess.run([command, "report", str(copy), "--format", "json"], capture_output=True, text=True)
    devices = json.loads(done.stdout)["devices"] if done.returncode == 0 else []
    return devices[0]["allocations"] if devices else 0


def test_a_forked_child_writes_nothing(real, command, tmp_path):
    path = tmp_path / "run.gtrace"
    program = """
        kept = of(MIB)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        more = [of(MIB) for _ in range(10)]
    """
    recorded(real, path, program)
    assert os.listdir(tmp_path) == ["run.gtrace"]
    assert report(command, path)["devices"][0]["allocations"] == 11


def test_processes_that_use_no_gpu_leave_no_file_and_the_others_one_each(real, command, tmp_path):
    path = tmp_path / "run.gtrace"
    program = """
        import subprocess
        words = [sys.executable, "-c", 'import gapless, torch; gapless.enable(); print(torch.empty(5, device="cuda").numel())']
        subprocess.run(words, check=True)
        subprocess.run([sys.executable, "-c", "import gapless; gapless.enable()"], check=True)
        kept = [of(5) for _ in range(3)]
    """
    recorded(real, path, program)
    assert len(os.listdir(tmp_path)) == 2
    assert report(command, path)["devices"][0]["allocations"] == 3


def test_a_limit_keeps_the_newest(real, command, tmp_path):
    path = tmp_path / "run.gtrace"
    program = """
        import time
        kept = [of(1000) for _ in range(50)]
        for i in range(40):
            for _ in range(1500):
                of(random.randrange(1, 1 << 22))
            time.sleep(0.02)
        figures()
    """
    counted = json.loads(recorded(real, path, program, GAPLESS_RECORD_LIMIT="256KiB").out)
    assert sorted(os.listdir(tmp_path)) == ["run.gtrace", "run.older.gtrace"]
    told = report(command, path)
    assert [note["code"] for note in told["source"]["notes"]] == ["recording-continued"]
    assert told["devices"][0]["peak_reserved"] <= counted["peak_reserved"]
    report(command, tmp_path / "run.older.gtrace")


def test_the_command_records(real, command, tmp_path):
    program = "import torch; x = torch.empty(10, device='cuda')"
    words = [command, "run", "--record", "run.gtrace", "--record-stacks", "python", "--record-limit", "1GiB", "--", sys.executable, "-c", program]
    done = real.start(words, folder=tmp_path, PYTHONWARNINGS="ignore")
    assert done.code == 0, done.err
    assert report(command, tmp_path / "run.gtrace")["devices"][0]["allocations"] == 1
    done = real.start([command, "run", "--record", "none/run.gtrace", "--", "true"], folder=tmp_path)
    assert done.code == 2 and "its folder does not exist" in done.err


def test_what_cannot_be_written_is_said_at_once(real, tmp_path):
    done = real.python(START, GAPLESS_RECORD=str(tmp_path / "none" / "run.gtrace"))
    assert done.code == 1 and "cannot be written" in done.err


def test_a_program_without_a_recording_can_mark_steps(real):
    real.passes(START + "\ngapless.step(); of(5); gapless.step()")


def test_every_process_has_a_file_of_its_own():
    assert file_of("run.gtrace", {}, 7) == "run.gtrace"
    assert file_of("a.b/run.gtrace", {"RANK": "3", "WORLD_SIZE": "8"}, 7) == "a.b/run.rank3.gtrace"
    assert file_of("run.gtrace", {"RANK": "0", "WORLD_SIZE": "1"}, 7) == "run.gtrace"
    assert file_of("run.gtrace", {"GAPLESS_RECORD_OWNER": "6"}, 7) == "run.7.gtrace"
    assert file_of("run", {"GAPLESS_RECORD_OWNER": "7"}, 7) == "run"
