"""Compilation for a card that is not there: XLA's compiler, and a topology made from the card's description.

A program is traced and lowered with the devices that there are, and compiled for those of the topology, so meshes and
shardings over the CPU's devices stand for the same ones over cards. Relies on `jax.experimental.topologies`, and on the
fields of a lowering that say for which devices it will be compiled; if a release of jax has others, `compile` says so.
"""

import atexit
import glob
import hashlib
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from .._errors import GaplessError
from .._estimate.cards import Card
from .target import describe, releases

TRANSFORMS = "Fourier transforms"
# Instructions whose kernels are chosen on the card, as they stand in dumps: the opcode, or the target of a custom call.
CHOSEN = {
    "convolutions": (b"__cudnn$conv",),
    TRANSFORMS: (b"\x12\x03fft",),
    "sorts": (b"\x12\x04sort", b"__cub$"),
    "top-k": (b"\x12\x04topk",),
}


@dataclass
class Program:
    """A compiled program. Sizes are of one device, in bytes."""

    name: str
    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    peak: int
    host: int
    code: int
    seconds: float
    # XLA's count of the operations of a call; 0: it gave none.
    flops: float = 0.0
    # The dump of its buffers, for `gapless report`.
    dump: "Optional[str]" = None
    # Bytes of each allocation that a call takes, in the order in which XLA takes them; None: not known.
    takes: "list[tuple[str, int]]" = field(default_factory=list)
    # Names the optimized program, whatever its instructions are called; "": XLA gave no text.
    digest: str = ""

    @property
    def chosen(self) -> "set[str]":
        """The program's work with kernels that only a card chooses."""
        if not self.dump:
            return set()
        data = Path(self.dump).read_bytes()
        return {name for name, marks in CHOSEN.items() if any(mark in data for mark in marks)}


# Where XLA writes the dumps of this process; "": jax started before Gapless could say so.
_folder = ""


def folder_of_dumps() -> str:
    return _folder


def prepare(count: int = 1) -> str:
    """Sets what must be set before jax starts: the CPU as the platform, its number of devices, and dumps of every
    compilation. Returns the folder of the dumps."""
    global _folder
    _folder = folder = tempfile.mkdtemp(prefix="gapless-jax-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    # A cache would answer without a dump.
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    # On a card XLA times products and mostly takes cuBLAS's; without one it would take its own kernels, which are fused
    # with more and so need less memory. The program's own flags come later, and win.
    # Kernels that are never run need no optimization: XLA has planned the memory before it makes them.
    flags = ["--xla_gpu_enable_triton_gemm=false", "--xla_backend_optimization_level=1", "--xla_gpu_disable_gpuasm_optimizations=true"]
    flags.append(os.environ.get("XLA_FLAGS", ""))
    # Names of modules end with the card's architecture; programs of the CPU are small and left out by the reader.
    flags += [f"--xla_dump_to={folder}", "--xla_dump_hlo_as_proto"]
    if count > 1:
        flags.append(f"--xla_force_host_platform_device_count={count}")
    os.environ["XLA_FLAGS"] = " ".join(filter(None, flags))
    return folder


def forget(program: Program) -> None:
    """Removes the files that XLA wrote of a program."""
    if program.dump:
        folder, name = os.path.split(program.dump)
        for file in glob.glob(os.path.join(glob.escape(folder), name.split(".")[0] + ".*")):
            os.remove(file)
        program.dump = None


class Compiler:
    """The compiler for `count` cards of one kind."""

    def __init__(self, card: Card, count: int, dumps: str, description: "Optional[str]" = None) -> None:
        self.card, self.dumps = card, dumps
        self._seen: set[str] = set()
        try:
            from jax.experimental import topologies
        except ImportError as error:
            raise GaplessError(
                f"jax is not installed for this Python ({error}): `pip install 'jax[cuda13]'` installs it with XLA's compiler for CUDA"
            ) from None
        text = description if description is not None else describe(card, *releases())
        try:
            topology = topologies.get_topology_desc(platform="cuda", target_config=text, topology=f"1x1x{count}")
        except Exception as error:
            if "not implemented" in str(error) and not dumps:
                # jax registers the compiler's plug-in once, when it starts.
                raise GaplessError(
                    "jax started before Gapless could ask for XLA's compiler for CUDA: start the program with "
                    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1, or call gapless.jax before the first array is made"
                ) from None
            raise GaplessError(
                f"XLA's compiler for CUDA cannot be used: {str(error).splitlines()[0]}; `pip install 'jax[cuda13]'` installs it, and needs no card"
            ) from None
        self.devices = tuple(topology.devices)

    def compile(self, lowered: Any, name: str) -> Program:
        """Compiles what `jit(f).trace(...).lower(lowering_platforms=("cuda",))` gave."""
        from jax._src.lib import xla_client

        started = time.monotonic()
        try:
            lowering = lowered._lowering
            wanted = len(lowering._device_list) if lowering._device_list is not None else 1
            if wanted > len(self.devices):
                raise GaplessError(f"{name} runs on {wanted} devices, and the estimate has {len(self.devices)}: give --nproc {wanted}")
            chosen = self.devices[:wanted]
            lowering._device_list = xla_client.DeviceList(chosen)
            lowering.compile_args["backend"] = chosen[0].client
        except AttributeError as error:
            import jax

            raise GaplessError(f"jax {jax.__version__} keeps its devices elsewhere ({error}): estimates are known to work with jax 0.10 and 0.11") from None
        compiled = lowered.compile()
        stats = compiled.memory_analysis()
        seconds = time.monotonic() - started
        if stats is None:
            raise GaplessError(f"{name}: XLA gave no sizes for it")
        host = stats.host_argument_size_in_bytes + stats.host_output_size_in_bytes - stats.host_alias_size_in_bytes + stats.host_temp_size_in_bytes
        return Program(
            name=name,
            arguments=stats.argument_size_in_bytes,
            outputs=stats.output_size_in_bytes,
            aliased=stats.alias_size_in_bytes,
            temporaries=stats.temp_size_in_bytes,
            peak=getattr(stats, "peak_memory_in_bytes", 0),
            host=host,
            code=stats.generated_code_size_in_bytes,
            seconds=seconds,
            flops=_flops(compiled),
            dump=self._newest(),
            digest=_digest(compiled),
        )

    def _newest(self) -> "Optional[str]":
        """The dump of the last compilation: the one that was not there before."""
        if not self.dumps:
            return None
        found = set(glob.glob(os.path.join(self.dumps, "*gpu_after_optimizations.hlo.pb")))
        new = sorted(found - self._seen, key=os.path.getmtime)
        self._seen = found
        return new[-1] if new else None


# What an instruction is called, and where it came from, says nothing about what it does.
_ORIGIN = re.compile(r', (?:metadata|frontend_attributes)=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_NAME = re.compile(r"%[\w.\-]+")
# Parameters, in the first line of a computation.
_PARAMETER = re.compile(r"[\w.\-]+: ")


def digest(text: str) -> str:
    """A digest of a module's text that is the same for programs that differ in names, scopes and lines alone."""
    rows = text.splitlines()
    # Before the first computation stand the module's name and the tables of files.
    first = next((i for i, row in enumerate(rows) if row.startswith(("%", "ENTRY"))), 0)
    names: dict[str, str] = {}
    kept = (_PARAMETER.sub(": ", row) if row.startswith(("%", "ENTRY")) else row for row in rows[first:])
    body = _NAME.sub(lambda found: names.setdefault(found[0], f"%{len(names)}"), _ORIGIN.sub("", "\n".join(kept)))
    return hashlib.sha256(body.encode()).hexdigest()


def _digest(compiled: Any) -> str:
    try:
        text = compiled.as_text()
    except Exception:
        return ""
    return digest(text) if text else ""


def _flops(compiled: Any) -> float:
    try:
        costs = compiled.cost_analysis()
        return float((costs[0] if isinstance(costs, list) else costs or {}).get("flops", 0.0))
    except Exception:
        # Not every release counts for a card that is not there.
        return 0.0
