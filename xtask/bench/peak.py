"""Runs a command without its output: peak.py PROGRAM ARGS... Prints JSON: wall seconds and peak resident bytes."""

import json
import os
import subprocess
import sys
import time


def main():
    start = time.perf_counter()
    child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{sys.argv[1:]} failed with {child.returncode}")
    cpu = usage.ru_utime + usage.ru_stime
    print(json.dumps({"seconds": time.perf_counter() - start, "cpu": cpu, "rss": usage.ru_maxrss * 1024}))


main()
