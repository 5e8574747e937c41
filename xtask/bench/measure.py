"""Times the report beside pickle.load on one file, interleaved: measure.py BINARY FILE ROUNDS. Prints JSON."""

import json
import os
import statistics
import subprocess
import sys
import tempfile

LOAD = """
import pickle, sys, time
file = open(sys.argv[1], "rb")
start = time.perf_counter()
snapshot = pickle.load(file)
print(time.perf_counter() - start, sum(map(len, snapshot["device_traces"])))
"""


def run(args):
    """Wall seconds, peak resident bytes and output of a child."""
    import time

    start = time.perf_counter()
    child = subprocess.Popen(args, stdout=subprocess.PIPE)
    text = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{args} failed with {child.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss * 1024, text


def main():
    binary, path, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rows = {"pickle_load": [], "json": [], "html": []}
    events = 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            _, rss, text = run([sys.executable, "-c", LOAD, path])
            seconds, events = text.split()
            rows["pickle_load"].append((float(seconds), rss))  # the load alone, without Python's own start
            for name in ("json", "html"):
                out = os.path.join(folder, name)
                seconds, rss, _ = run([binary, "report", path, "--format", name, "-o", out])
                rows[name].append((seconds, rss))

    def median(name, i):
        return statistics.median(row[i] for row in rows[name])

    print(
        json.dumps(
            {
                "events": int(events),
                "file_bytes": os.path.getsize(path),
                "pickle_load_s": median("pickle_load", 0),
                "pickle_rss": median("pickle_load", 1),
                "json_s": median("json", 0),
                "json_rss": median("json", 1),
                "html_s": median("html", 0),
                "html_rss": median("html", 1),
            }
        )
    )


main()
