"""Two processes on one card with shares of 60 and 40 %, both asking for more: whether either ever exceeds its share,
and how soon the share of one that is killed is back.

usage: python torch-bench/live/tenants.py [--seconds 15] [--shares 60,40] [--patience 40] [--json FILE]

Needs torch with a GPU (or the stand-in card), and Gapless: installed, or with GAPLESS_LIBRARY naming the library and
PYTHONPATH the folder python/. Takes less than a minute. This process uses neither torch nor CUDA: it samples NVIDIA's
management library (by ctypes) and the tenants' ledger 100 times a second. Where the library does not know the processes
by their numbers (in containers), what the whole card has in use is held against the sum of the shares, and what each
process says of itself against its own. Exit code: 0 both promises were kept, 1 one was not, 2 it could not be measured.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

MIB = 1 << 20
RATE = 100
# A tenant's program: takes all that it can get, in pieces of many sizes, uses it, and frees some when refused.
GREEDY = r"""
import json, os, random, sys, threading, time
import torch, gapless
gapless.enable()
share = os.environ["SHARE"]
name, limit = share.split(":")[:2]
gapless.tenant(name, limit=limit, borrow=False)
random.seed(os.getpid())
held, ooms, most = [], 0, 0
print(json.dumps({"ready": os.getpid()}), flush=True)
piece = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
capacity = torch.cuda.get_device_properties(0).total_memory
# Libraries take memory of their own: they are made to early, and again while memory is short.
def use_libraries():
    global ooms
    try:
        x = torch.ones(256, 256, device="cuda")
        (x @ x).sum()
    except torch.OutOfMemoryError:
        ooms += 1
    except RuntimeError as error:
        print(json.dumps({"libraries": str(error)[:200]}), flush=True)
use_libraries()
def report():
    while True:
        s = gapless.stats()
        print(json.dumps({"reserved": s["reserved_bytes.all.current"], "peak": s["reserved_bytes.all.peak"], "ooms": ooms,
                          "outside": s.get("gapless.budget.outside", 0), "limit": s.get("gapless.tenant.limit", 0)}), flush=True)
        time.sleep(0.05)
threading.Thread(target=report, daemon=True).start()
turn = 0
while True:
    turn += 1
    try:
        held.append(torch.empty(random.randrange(capacity // 2000, capacity // 100), dtype=torch.uint8, device="cuda"))
        held[-1][:4096].fill_(1)
    except torch.OutOfMemoryError:
        ooms += 1
        random.shuffle(held)
        del held[: len(held) // 4]
        if ooms % 3 == 0:
            torch.cuda.empty_cache()
        if ooms % 7 == 0:
            use_libraries()
    if turn % 16 == 0:
        torch.cuda.synchronize()
"""
# Another process of the tenant that is killed: it waits with torch loaded, and takes most of the share when it is told
# to.
HEIR = r"""
import json, os, sys, time
import torch, gapless
gapless.enable()
name, limit = os.environ["SHARE"].split(":")[:2]
print(json.dumps({"ready": os.getpid()}), flush=True)
sys.stdin.readline()
began = time.monotonic()
gapless.tenant(name, limit=limit)
part = float(limit.rstrip("%")) / 100 * 0.8
tries = 0
while True:
    tries += 1
    try:
        capacity = torch.cuda.get_device_properties(0).total_memory
        x = torch.empty(int(capacity * part), dtype=torch.uint8, device="cuda")
        break
    except torch.OutOfMemoryError:
        time.sleep(0.01)
print(json.dumps({"took": time.monotonic() - began, "tries": tries, "bytes": x.numel()}), flush=True)
sys.stdin.readline()
"""


class Nvml:
    """The figures of the card's management library; none if there is no such library."""

    class Process(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute", ctypes.c_uint)]

    def __init__(self):
        self.library = self.device = self.lister = None
        device = ctypes.c_void_p()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            status = library.nvmlInit_v2()
            if status == 0 and visible.startswith(("GPU-", "MIG-")):
                status = library.nvmlDeviceGetHandleByUUID(visible.encode(), ctypes.byref(device))
            elif status == 0:
                status = library.nvmlDeviceGetHandleByIndex_v2(int(visible) if visible.isdigit() else 0, ctypes.byref(device))
        except (OSError, AttributeError) as error:
            print(f"no NVML: {error}")
            return
        if status != 0:
            print(f"NVML refuses: error {status}")
            return
        self.library, self.device = library, device
        self.lister = getattr(library, "nvmlDeviceGetComputeRunningProcesses_v3", None) or getattr(
            library, "nvmlDeviceGetComputeRunningProcesses_v2", None
        )

    def processes(self):
        """Bytes by process number; None if the library does not say."""
        if self.device is None or self.lister is None:
            return None
        room = ctypes.c_uint(256)
        rows = (self.Process * 256)()
        if self.lister(self.device, ctypes.byref(room), rows) != 0:
            return None
        return {row.pid: row.used for row in rows[: room.value] if row.used != 2**64 - 1}

    def used(self):
        """Bytes of the whole card in use, the driver's own included; None if the library does not say."""
        if self.device is None:
            return None
        memory = (ctypes.c_ulonglong * 3)()
        if self.library.nvmlDeviceGetMemoryInfo(self.device, memory) != 0:
            return None
        return memory[0] - memory[1]


def ledger(folder):
    """Entries by process number: tenant, limit, held (crates/gapless-ledger/src/record.rs)."""
    found = {}
    for name in os.listdir(folder):
        if not name.endswith(".ledger"):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        for at in range(128, len(data) - 127, 128):
            _, pid, flags, _, _, limit, held, _, outside = struct.unpack_from("<QIIQQQQQQ", data, at)
            if flags & 1:
                tenant = data[at + 65 : at + 65 + data[at + 64]].decode("ascii", "replace")
                found[pid] = {"tenant": tenant, "limit": limit, "held": held, "outside": outside}
    return found


class Child:
    """A process that prints JSON lines; the newest of each key is kept, and the most of each number."""

    def __init__(self, program, share, folder):
        environment = {**os.environ, "SHARE": share, "GAPLESS_RUN_DIR": folder}
        for name in ("GAPLESS_TENANT", "GAPLESS_PROCESS_LIMIT", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            environment.pop(name, None)
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        self.pid, self.last, self.most = self.process.pid, {}, {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            self.last.update(said)
            if "reserved" in said:
                said["own"] = said["reserved"] + said["outside"]
            for key, value in said.items():
                if isinstance(value, (int, float)):
                    self.most[key] = max(value, self.most.get(key, 0))

    def waits_for(self, key, until):
        while key not in self.last and time.monotonic() < until and self.process.poll() is None:
            time.sleep(0.002)
        return key in self.last

    def why(self):
        self.errors.seek(0)
        return self.errors.read()[-1500:].decode("utf-8", "replace")


def sample(nvml, folder, children, seconds, deadline, seen):
    """Samples for so long, at the rate; counts, most of each process and of all."""
    began = last = time.monotonic()
    number = 0
    while time.monotonic() - began < seconds and time.monotonic() < deadline:
        number += 1
        time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        now = time.monotonic()
        seen["gap"] = max(seen["gap"], now - last)
        last = now
        by_pid, used, book = nvml.processes(), nvml.used(), ledger(folder)
        seen["samples"] += 1
        if used is not None:
            seen["card"] = max(seen["card"], used)
        for child in children:
            if by_pid and child.pid in by_pid:
                seen["known"] += 1
                seen["nvml"][child.pid] = max(seen["nvml"].get(child.pid, 0), by_pid[child.pid])
            if child.pid in book:
                seen["ledger"][child.pid] = max(seen["ledger"].get(child.pid, 0), book[child.pid]["held"])
                seen["limit"][child.pid] = book[child.pid]["limit"]
        if any(child.process.poll() is not None for child in children):
            break


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15, help="how long both ask for more (15)")
    parser.add_argument("--shares", default="60,40", help="of the card, in per cent (60,40)")
    parser.add_argument("--patience", type=float, default=40, help="what everything else may take together, in seconds (40)")
    parser.add_argument("--json", help="write all figures to this file")
    args = parser.parse_args()
    first, second = (int(part) for part in args.shares.split(","))
    deadline = time.monotonic() + args.seconds + args.patience
    folder = tempfile.mkdtemp(prefix="gapless-tenants-")
    nvml = Nvml()
    baseline = nvml.used() or 0
    children = []
    try:
        a, b = Child(GREEDY, f"a:{first}%", folder), Child(GREEDY, f"b:{second}%", folder)
        heir = Child(HEIR, f"a:{first}%", folder)
        children = [a, b, heir]
        for child in children:
            if not child.waits_for("ready", deadline):
                print(f"a process did not start:\n{child.why()}")
                return 2
        seen = {"samples": 0, "gap": 0.0, "card": 0, "known": 0, "nvml": {}, "ledger": {}, "limit": {}}
        # From before their contexts on: these count too.
        sample(nvml, folder, [a, b], args.seconds, deadline, seen)
        for child in (a, b):
            if child.process.poll() is not None:
                print(f"a process ended by itself:\n{child.why()}")
                return 2
            if child.pid not in seen["limit"] or not child.last.get("ooms"):
                print(f"a process never reached its share: {child.last}\n{child.why()}")
                return 2
        before = nvml.used() or 0
        held_by_a = (nvml.processes() or {}).get(a.pid) or a.last.get("reserved", 0)
        killed = time.monotonic()
        a.process.send_signal(signal.SIGKILL)
        heir.process.stdin.write("go\n")
        heir.process.stdin.flush()
        back = {"ledger": None, "nvml": None}
        can_see = nvml.device is not None and before > baseline
        while time.monotonic() - killed < 10 and time.monotonic() < deadline:
            now = time.monotonic() - killed
            if back["ledger"] is None and a.pid not in ledger(folder):
                back["ledger"] = now
            if back["nvml"] is None and can_see:
                by_pid = nvml.processes()
                # The heir grows meanwhile: most of what was held is gone, or the process is.
                gone = a.pid not in by_pid if seen["known"] and by_pid is not None else (nvml.used() or 0) <= before - held_by_a // 2
                back["nvml"] = now if gone else None
            if back["ledger"] is not None and (back["nvml"] is not None or not can_see):
                break
            time.sleep(1 / RATE)
        inherited = heir.waits_for("took", deadline)
        taken = time.monotonic() - killed
        # The neighbour still runs.
        neighbour = b.process.poll() is None

        is_known = seen["known"] > seen["samples"]
        print(f"{seen['samples']} samples, {seen['samples'] / args.seconds:.0f} a second, at most {seen['gap'] * 1e3:.0f} ms apart")
        print("NVML knows the processes" if is_known else "NVML does not know the processes: the whole card, and what each says of itself")
        fine, rows = True, {}
        print(f"{'tenant':8} {'share MiB':>12} {'NVML most':>12} {'ledger most':>12} {'own most':>12} {'pool peak':>12} {'refused':>8}")
        for name, child in (("a", a), ("b", b)):
            limit = seen["limit"][child.pid]
            row = {
                "share": limit,
                "nvml": seen["nvml"].get(child.pid),
                "ledger": seen["ledger"].get(child.pid, 0),
                "own": child.most.get("own", 0),
                "peak": child.most.get("peak", 0),
                "refused": child.last.get("ooms", 0),
            }
            rows[name] = row
            shown = [f"{row[key] / MIB:12.0f}" if row[key] is not None else f"{'unknown':>12}" for key in ("share", "nvml", "ledger", "own", "peak")]
            print(f"{name:8} {' '.join(shown)} {row['refused']:8}")
            measured = row["nvml"] if is_known else max(row["peak"], row["own"] if row["own"] <= limit else row["peak"])
            fine &= measured is not None and measured <= limit
        total = sum(row["share"] for row in rows.values())
        if nvml.device is not None and seen["card"]:
            print(f"the card: {baseline / MIB:.0f} MiB in use before, at most {seen['card'] / MIB:.0f} MiB, shares {total / MIB:.0f} MiB")
            fine &= is_known or seen["card"] - baseline <= total
        print("neither exceeded its share" if fine else "A SHARE WAS EXCEEDED")
        said = {key: "not seen" if value is None else f"{value * 1e3:.0f} ms" for key, value in back.items()}
        print(f"killed: its share is back in the ledger after {said['ledger']}, in NVML after {said['nvml']}")
        if inherited:
            print(f"another process of the tenant had {heir.last['bytes'] / MIB:.0f} MiB after {taken * 1e3:.0f} ms, its own start of CUDA included")
        else:
            print(f"ANOTHER PROCESS OF THE TENANT GOT NOTHING: {heir.why()}")
        in_time = back["ledger"] is not None and back["ledger"] <= 1.0 and (not can_see or (back["nvml"] is not None and back["nvml"] <= 1.0))
        print("the share came back within a second" if in_time else "THE SHARE DID NOT COME BACK IN TIME")
        print("the neighbour runs on" if neighbour else f"THE NEIGHBOUR ENDED: {b.why()}")
        if args.json:
            with open(args.json, "w") as file:
                json.dump({"tenants": rows, "seen": {k: v for k, v in seen.items() if not isinstance(v, dict)}, "back": back, "heir": heir.last}, file)
        return 0 if fine and in_time and inherited and neighbour else 1
    finally:
        for child in children:
            child.process.kill()
            child.process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
