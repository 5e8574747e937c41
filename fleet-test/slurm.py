"""A real Slurm with deploy/slurm: eight slurmd on this machine, 32 made-up GPUs, 200 jobs that ask for memory.

Each job writes down when it ran, where, on which GPU and as which tenant. Afterwards: every job ran, each on one GPU,
its tenant has the bytes that it asked for, and at no instant did a GPU have more than it holds. Needs root, because
slurmd does, and Debian's packages slurmctld, slurmd and slurm-client; nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

NODES = 8
GPUS = 4
GPU_GIB = 141
DEPLOY = Path(__file__).resolve().parent.parent / "deploy" / "slurm"
PROGRAMS = ["slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol"]

CONF = """\
ClusterName=gapless
SlurmctldHost=localhost
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool.%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
GresTypes=gpu,shard,gmem
JobSubmitPlugins=lua
CliFilterPlugins=cli_filter/lua
TaskProlog={deploy}/task_prolog.sh
NodeName=n[0-{last}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] CPUs=64 \
RealMemory=1000 Gres=gpu:h200:{gpus},shard:h200:{shards} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""

GRES = """\
NodeName=n[0-{last}] Name=gpu Type=h200 Flags=nvidia_gpu_env File={home}/gpu[0-{last_gpu}]
NodeName=n[0-{last}] Name=shard Type=h200 Flags=nvidia_gpu_env Count={shards}
"""

# What a job writes: when it began and ended, its node, GPU and tenant. The pause lets jobs overlap.
JOB = """\
#!/bin/sh
begin=$(date +%s.%N)
sleep 0.7
echo "$begin $(date +%s.%N) $SLURMD_NODENAME ${{CUDA_VISIBLE_DEVICES:-none}} ${{GAPLESS_TENANT:-none}}" > {ran}/$SLURM_JOB_ID
"""


class Cluster:
    """A Slurm of its own in `home`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ran = home / "ran"
        self.daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        shutil.rmtree(self.home, ignore_errors=True)
        self.ran.mkdir(parents=True)
        (self.home / "state").mkdir()
        for gpu in range(GPUS):
            # slurmd wants a device: a second /dev/null is one.
            os.mknod(self.home / f"gpu{gpu}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        ports = free_ports(NODES + 1)
        facts = {
            "home": self.home,
            "deploy": DEPLOY,
            "port": ports[0],
            "first_port": ports[1],
            "last_port": ports[-1],
            "last": NODES - 1,
            "last_gpu": GPUS - 1,
            "gpus": GPUS,
            "shards": GPUS * GPU_GIB,
        }
        (self.home / "slurm.conf").write_text(CONF.format(**facts))
        (self.home / "gres.conf").write_text(GRES.format(**facts))
        (self.home / "job.sh").write_text(JOB.format(ran=self.ran))
        for script in DEPLOY.glob("*.lua"):
            shutil.copy(script, self.home)
        self.start("slurmctld", "-D")
        for node in range(NODES):
            self.start("slurmd", "-D", "-N", f"n{node}")
        self.until(lambda: self.call("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() == str(NODES), "idle nodes")
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()

    def start(self, *words: str) -> None:
        log = (self.home / f"{words[0]}-{len(self.daemons)}.out").open("wb")
        self.daemons.append(subprocess.Popen(words, env=self.env(), stdout=log, stderr=log, start_new_session=True))

    def env(self) -> dict[str, str]:
        return os.environ | {"SLURM_CONF": str(self.home / "slurm.conf")}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=self.env(), capture_output=True, text=True, cwd=self.home)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Asks until it holds; gives up after two minutes, with what the controller said last."""
        for _ in range(600):
            if holds():
                return
            time.sleep(0.2)
        said = (self.home / "slurmctld.log").read_text().splitlines()[-8:]
        sys.exit(f"waited in vain for {what}; the controller says:\n" + "\n".join(said))

    def submit(self, request: str) -> subprocess.CompletedProcess[str]:
        return self.call("sbatch", "--parsable", f"--gres={request}", "-o", "/dev/null", "job.sh")


def free_ports(count: int) -> range:
    """Ports in a row without a listener."""
    for first in range(17000, 60000, 100):
        taken = False
        for port in range(first, first + count):
            with socket.socket() as probe:
                taken |= probe.connect_ex(("127.0.0.1", port)) == 0
        if not taken:
            return range(first, first + count)
    sys.exit("no free ports")


def refusals(cluster: Cluster) -> None:
    """What cannot be is refused at once, with a reason."""
    for request, reason in [
        ("gmem:18", "give a whole number and a unit"),
        ("gmem:0G", "invalid size"),
        ("gmem:1.5G", "invalid size"),
        ("gmem:999999999999999G", "invalid size"),
        ("gmem:142G", "more than the largest GPU has"),
        ("gmem:2G,gmem:3G", "asked for twice"),
        ("gmem:2G,gpu:1", "asked for together"),
    ]:
        answer = cluster.submit(request)
        if answer.returncode == 0 or reason not in answer.stderr:
            sys.exit(f"{request} should be refused ({reason}): {answer.returncode} {answer.stderr}")


def check(cluster: Cluster, wanted: dict[str, int]) -> float:
    """Every job ran on one GPU as it asked, and no GPU held too much. Returns the highest share of a GPU."""
    changes: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for job, gib in wanted.items():
        begin, end, node, gpu, tenant = (cluster.ran / job).read_text().split()
        if not gpu.isdigit():
            sys.exit(f"job {job} has the GPUs {gpu}, not one")
        if tenant != f"slurm-{job}:{gib * 1024}MiB":
            sys.exit(f"job {job} asked for {gib} GiB and is the tenant {tenant}")
        changes.setdefault((node, gpu), []).extend([(float(begin), gib), (float(end), -gib)])
    most = 0
    for (node, gpu), steps in changes.items():
        held = 0
        for _, change in sorted(steps):
            held += change
            if held > GPU_GIB:
                sys.exit(f"GPU {gpu} of {node} held {held} of {GPU_GIB} GiB")
            most = max(most, held)
    return most / GPU_GIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path, help="a folder for the cluster; it is emptied")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)} (Debian: slurmctld slurmd slurm-client)")
    chance = random.Random(asked.seed)
    with Cluster(asked.home.resolve()) as cluster:
        refusals(cluster)
        step = cluster.call("srun", "--gres=gmem:3G", "env")
        if "GAPLESS_TENANT=slurm-1:3072MiB" not in step.stdout:
            sys.exit(f"a step of srun has no tenant: {step.stdout[-300:]} {step.stderr}")
        wanted: dict[str, int] = {}
        for _ in range(asked.jobs):
            gib = chance.randint(1, GPU_GIB)
            # A size that is no whole number of shards takes the next one.
            request = chance.choice([f"gmem:{gib}G", f"gmem:h200:{gib}G", f"gmem:{gib * 1024 - 3}M"])
            answer = cluster.submit(request)
            if answer.returncode != 0:
                sys.exit(f"{request} was refused: {answer.stderr}")
            wanted[answer.stdout.strip()] = gib
        cluster.until(lambda: not cluster.call("squeue", "-h").stdout.strip(), "an empty queue")
        share = check(cluster, wanted)
    print(f"slurm: {len(wanted)} jobs, each on one GPU, none over; a GPU was at most {share:.0%} full")
    print(f"{len(wanted) + 8} passed, 0 failed")


if __name__ == "__main__":
    main()
