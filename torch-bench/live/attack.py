"""Attack programs of a folder, many times and several at once, on native and on Gapless, as a table. Needs a GPU.

usage: python torch-bench/live/attack.py [pattern ...] [--folder torch-bench/attack] [--runs 10] [--beside 5] [--limit
90]

A program passes with exit code 0 and does not apply with 77. Everything else is a failure, also a run that is not over
after --limit seconds. Such a run is asked for its stacks (faulthandler, by SIGABRT) and then killed; its output is
kept. Up to --beside programs use the card at once, so that they disturb each other and use little device time.
Runs of native and Gapless alternate. Exit code 1: a program failed on Gapless.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
MODES = {"native": "0", "gapless": "1"}
SKIPPED = 77
# How long a process has to write its stacks.
STACKS_S = 5


class Run:
    """One program in a process and folder of its own."""

    def __init__(self, script, mode, number, logs):
        self.script, self.mode = script, mode
        self.log = logs / f"{script.stem}.{mode}.{number}.log"
        self.folder = tempfile.mkdtemp(prefix="attack-")
        path = os.pathsep.join([str(script.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = os.environ | {"GAPLESS": MODES[mode], "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        self.began, self.asked = time.monotonic(), None
        with open(self.log, "wb") as output:
            command = [sys.executable, str(script)]
            # A session of its own: children of the program end with it.
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def is_over(self, limit):
        """True if it has ended, by itself or because it took too long."""
        if self.process.poll() is not None:
            self.took = time.monotonic() - self.began
            self.kill()
            return True
        now = time.monotonic()
        if self.asked is None and now - self.began > limit:
            self.asked = now
            self.process.send_signal(signal.SIGABRT)
        elif self.asked is not None and now - self.asked > STACKS_S:
            self.kill()
        return False

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        shutil.rmtree(self.folder, ignore_errors=True)

    def outcome(self):
        """pass, skip, fail or hang; and the line that says why."""
        text = self.log.read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        summary = next((line for line in reversed(lines) if line.startswith(("PASS ", "FAIL ", "SKIP "))), lines[-1] if lines else "(no output)")
        code = self.process.returncode
        if self.asked is not None:
            return "hang", f"not over after {self.took:.0f} s, stacks in {self.log}"
        if code == 0:
            return "pass", summary
        if code == SKIPPED:
            return "skip", summary
        ended = f"signal {-code}: " if code < 0 else ""
        return "fail", ended + summary


def rank(row):
    return ["pass", "skip", "fail", "hang"].index(row["outcome"])


def table(rows, scripts):
    print(f"{'program':30} {'native':>8} {'gapless':>8}  worst run of gapless")
    failed = 0
    for script in scripts:
        cells = []
        for mode in MODES:
            runs = [row for row in rows if (row["script"], row["mode"]) == (script.stem, mode)]
            counted = [row for row in runs if row["outcome"] != "skip"]
            passes = sum(row["outcome"] == "pass" for row in counted)
            cells.append(f"{passes}/{len(counted)}" if counted else "skipped" if runs else "-")
        ours = [row for row in rows if (row["script"], row["mode"]) == (script.stem, "gapless")]
        worst = max(ours, key=rank, default=None)
        failed += worst is not None and rank(worst) >= 2
        print(f"{script.stem:30} {cells[0]:>8} {cells[1]:>8}  {worst['line'][:150] if worst else ''}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", help="parts of names; all programs where none is given")
    parser.add_argument("--folder", type=pathlib.Path, default=HERE.parent / "attack")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--beside", type=int, default=5, help="programs that run at once")
    parser.add_argument("--limit", type=float, default=90, help="seconds that a program may take")
    parser.add_argument("--modes", default="native,gapless", help="native, gapless or both")
    parser.add_argument("--logs", type=pathlib.Path, help="keep all output here (a new folder)")
    parser.add_argument("--json", type=pathlib.Path, help="write every run as a line of JSON")
    args = parser.parse_args()
    scripts = sorted(args.folder.resolve().glob("[0-9]*.py"))
    scripts = [s for s in scripts if not args.patterns or any(p in s.stem for p in args.patterns)]
    if not scripts:
        sys.exit(f"{args.folder} has no program that fits: names begin with a digit and end with .py")
    logs = args.logs or pathlib.Path(tempfile.mkdtemp(prefix="attack-logs-"))
    logs.mkdir(parents=True, exist_ok=True)
    # Round by round, so that a comparison that is cut short has something of every program.
    waiting = [(script, mode, n) for n in range(args.runs) for script in scripts for mode in args.modes.split(",")]
    rows, running, broken = [], [], set()
    began = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < args.beside:
                script, mode, number = waiting.pop(0)
                # Natively a program that does not apply will not apply the next time.
                if (script.stem, mode) not in broken:
                    running.append(Run(script, mode, number, logs))
            over = [run for run in running if run.is_over(args.limit)]
            for run in over:
                running.remove(run)
                outcome, line = run.outcome()
                row = {"script": run.script.stem, "mode": run.mode, "outcome": outcome, "s": round(run.took, 1), "line": line}
                rows.append(row)
                if outcome == "skip":
                    broken.add((run.script.stem, run.mode))
                if outcome in ("fail", "hang"):
                    print(f"{outcome} {run.script.stem} {run.mode}: {line[:300]} ({run.log})", flush=True)
            if not over:
                time.sleep(0.05)
    except KeyboardInterrupt:
        print("cut short")
    finally:
        for run in running:
            run.kill()
    failed = table(rows, scripts)
    took = time.monotonic() - began
    print(f"{len(rows)} runs, {args.beside} at once, {took:.0f} s; {failed} programs failed on gapless; logs in {logs}")
    if args.json:
        args.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
