"""A card as XLA wants it described: the text of a GpuTargetConfigProto, made from the card's file in `cards/`.

Only fields that every release since jax 0.6 reads are written: XLA refuses a text with a field that it does not know.
"""

from pathlib import Path

from .._estimate.cards import Card

# Units of 32 bits a multiprocessor, by compute capability; the last row is for newer ones.
_UNITS = {(8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128}


def attributes(card: Card) -> "dict[int, int]":
    """The answers of cuDeviceGetAttribute, by number."""
    rows = (line.split() for line in card.file.read_text(encoding="utf-8").splitlines() if line.startswith("attribute "))
    return {int(number): int(value) for _, number, value in rows}


def describe(card: Card, cuda: str, cudnn: str) -> str:
    """The card for a compiler built for these releases of CUDA and cuDNN."""
    of = attributes(card)
    capability = (of.get(75, 0), of.get(76, 0))
    # Kernels for exactly this architecture: XLA asks for them from Hopper on.
    accelerated = "feature_extension: ACCELERATED_FEATURES" if capability >= (9, 0) else ""
    bandwidth = 2 * of.get(36, 0) * 1000 * of.get(37, 0) // 8
    clock = of.get(13, 0) / 1e6
    rows = {
        "threads_per_block_limit": of.get(1, 1024),
        "threads_per_warp": of.get(10, 32),
        "shared_memory_per_block": of.get(8, 49152),
        "shared_memory_per_core": of.get(81, 0),
        "threads_per_core_limit": of.get(39, 2048),
        "core_count": of.get(16, 0),
        "fpus_per_core": _UNITS.get(capability, 128),
        "block_dim_limit_x": of.get(5, 2147483647),
        "block_dim_limit_y": of.get(6, 65535),
        "block_dim_limit_z": of.get(7, 65535),
        "memory_bandwidth": bandwidth,
        "l2_cache_size": of.get(38, 0),
        "clock_rate_ghz": clock,
        "device_memory_size": card.memory,
        "shared_memory_per_block_optin": of.get(97, 0),
        "registers_per_core_limit": of.get(82, 65536),
        "registers_per_block_limit": of.get(12, 65536),
        "thread_dim_limit_x": of.get(2, 1024),
        "thread_dim_limit_y": of.get(3, 1024),
        "thread_dim_limit_z": of.get(4, 64),
        "device_address_bits": 64,
    }
    words = {
        "device_vendor": "NVIDIA Corporation",
        "platform_version": f"Compute Capability {capability[0]}.{capability[1]}",
        "name": card.title,
        "driver_version": cuda,
        "runtime_version": cuda,
        "compile_time_toolkit_version": cuda,
        "dnn_version": cudnn,
    }
    lines = [f"  {key}: {value}" for key, value in rows.items()] + [f'  {key}: "{value}"' for key, value in words.items()]
    lines.append(f"  cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]} {accelerated} }}")
    body = "\n".join(lines)
    return f'gpu_device_info {{\n{body}\n}}\nplatform_name: "CUDA"\ndevice_description_str: "{card.title}"\n'


def releases() -> "tuple[str, str]":
    """The CUDA and the cuDNN that the installed plug-in of jax brings, as XLA writes them."""
    from importlib.metadata import PackageNotFoundError, version

    def first(names: "tuple[str, ...]", otherwise: str) -> str:
        for name in names:
            try:
                return ".".join((version(name).split(".") + ["0", "0"])[:3])
            except PackageNotFoundError:
                continue
        return otherwise

    cuda = first(("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"), "12.9.0")
    return cuda, first(("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"), "9.10.0")


def own(path: Path) -> str:
    """A description that the user wrote, or that XLA dumped on a card (`*.gpu_target_config.pbtxt`)."""
    return path.read_text(encoding="utf-8")
