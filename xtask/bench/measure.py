"""Times the report beside pickle.load on one file, interleaved: measure.py BINARY FILE ROUNDS. Prints JSON.

Times are CPU seconds of all threads, which other work on the machine changes little, and seconds on the wall.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

LOAD = """
import pickle, sys, time
file = open(sys.argv[1], "rb")
wall, cpu = time.perf_counter(), time.process_time()
snapshot = pickle.load(file)
print(time.process_time() - cpu, time.perf_counter() - wall, sum(map(len, snapshot["device_traces"])))
"""


def run(args):
    """CPU seconds, wall seconds, peak resident bytes and output of a child."""
    start = time.perf_counter()
    child = subprocess.Popen(args, stdout=subprocess.PIPE)
    text = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{args} failed with {child.returncode}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss * 1024, text


def main():
    binary, path, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rows = {"pickle_load": [], "json": [], "html": []}
    events = 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            _, _, rss, text = run([sys.executable, "-c", LOAD, path])
            cpu, wall, events = text.split()
            rows["pickle_load"].append((float(cpu), float(wall), rss))  # the load alone, without Python's own start
            for name in ("json", "html"):
                out = os.path.join(folder, name)
                rows[name].append(run([binary, "report", path, "--format", name, "-o", out])[:3])
    figures = {"events": int(events), "file_bytes": os.path.getsize(path)}
    for name, measured in rows.items():
        for i, what in enumerate(("cpu_s", "wall_s", "rss")):
            figures[f"{name}_{what}"] = statistics.median(row[i] for row in measured)
    print(json.dumps(figures))


main()
