"""Weights for `cargo xtask bench weights`, and what peers do with them. One thread each.

make FOLDER              Gaussian tensors with the usual scales, as bf16
real FOLDER WHEEL...     trained weights inside wheels (ONNX, safetensors, torch.save), cast to bf16
peers ROUNDS FILE...     ZipNN and zstd: ratio, and GB/s of encode and decode, as JSON
"""

from __future__ import annotations

import io
import json
import os
import statistics
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from unittest.mock import MagicMock

import numpy as np

SCALES = [0.006, 0.01, 0.014, 0.02, 0.028, 0.04, 0.06, 0.1]


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounds to nearest even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").astype(np.uint64)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    rounded[nan] = ((bits[nan] >> 16) | 0x40).astype("<u2")
    return rounded


def make(folder: str) -> None:
    rng = np.random.default_rng(1)
    for k, scale in enumerate(SCALES):
        values = rng.standard_normal(8 << 20, dtype=np.float32) * np.float32(scale)
        bf16(values).tofile(f"{folder}/gauss_{k}.bf16")


def from_onnx(content: bytes) -> Iterator[np.ndarray]:
    import onnx
    from onnx import numpy_helper

    def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
        yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR:
                    yield attribute.t
                if attribute.type == onnx.AttributeProto.GRAPH:
                    yield from tensors(attribute.g)

    for tensor in tensors(onnx.load_model_from_string(content).graph):
        if tensor.data_type == onnx.TensorProto.FLOAT and not tensor.external_data:
            yield numpy_helper.to_array(tensor).ravel()


def from_safetensors(content: bytes) -> Iterator[np.ndarray]:
    length = int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            yield np.frombuffer(content[8 + length + begin : 8 + length + end], "<f4")


def from_torch(content: bytes) -> Iterator[np.ndarray]:
    """Storages are scanned, not unpickled: what does not look like fp32 weights is left out."""
    archive = zipfile.ZipFile(io.BytesIO(content))
    for member in archive.infolist():
        parts = member.filename.split("/")
        if len(parts) < 2 or parts[-2] not in ("data", "constants") or member.file_size % 4 or member.file_size < 1024:
            continue
        values = np.frombuffer(archive.read(member), "<f4")
        if np.isfinite(values).all() and np.abs(values).max() < 1e4 and (np.abs(values) > 1e-20).mean() > 0.5:
            yield values


KINDS: dict[str, Callable[[bytes], Iterator[np.ndarray]]] = {
    "onnx": from_onnx,
    "safetensors": from_safetensors,
    "pt": from_torch,
    "pth": from_torch,
    "jit": from_torch,
}


def real(folder: str, wheels: list[str]) -> None:
    seen = set()
    for wheel in sorted(wheels):
        archive = zipfile.ZipFile(wheel)
        for member in archive.infolist():
            extension = member.filename.rsplit(".", 1)[-1]
            if member.file_size < 1_000_000 or extension not in KINDS:
                continue
            try:
                tensors = [tensor for tensor in KINDS[extension](archive.read(member)) if tensor.size >= 256]
                values = bf16(np.concatenate(tensors))
            except Exception as error:  # a wheel may hold anything
                print("left out", member.filename, repr(error)[:80], file=sys.stderr)
                continue
            key = values.tobytes()[:65536]
            if key in seen or values.nbytes < 500_000:
                continue
            seen.add(key)
            name = os.path.basename(wheel).split("-")[0] + "_" + os.path.basename(member.filename)
            values.tofile(f"{folder}/{name}.bf16")


def zipnn() -> tuple[Callable[[np.ndarray], bytes], Callable[[bytes], object]]:
    # ZipNN imports torch at its top, but never calls it for plain bytes: stand-ins are enough.
    for module in ("torch", "safetensors", "safetensors.torch", "packaging", "packaging.version"):
        try:
            __import__(module)
        except ImportError:
            sys.modules[module] = MagicMock()
    from zipnn import ZipNN

    codec = ZipNN(input_format="byte", bytearray_dtype="bfloat16", threads=1)
    return codec.compress, codec.decompress


def zstd(level: int) -> tuple[Callable[[bytes], bytes], Callable[[bytes], object]]:
    import zstandard

    return zstandard.ZstdCompressor(level=level).compress, zstandard.ZstdDecompressor().decompress


def peers(rounds: int, names: list[str]) -> None:
    data = [np.fromfile(name, "<u2").tobytes() for name in names]
    total = sum(len(values) for values in data)
    codecs = {"ZipNN": zipnn(), "zstd -3": zstd(3)}
    out = {}
    for name, (encode, decode) in codecs.items():
        encoded, decoded, sizes = [], [], []
        for _ in range(rounds):
            sizes = []
            encode_s = decode_s = 0.0
            for values in data:
                # ZipNN may change its input: each gets a copy, which is not timed.
                given = bytearray(values) if name == "ZipNN" else values
                start = time.perf_counter()
                packed = encode(given)
                encode_s += time.perf_counter() - start
                start = time.perf_counter()
                back = decode(packed)
                decode_s += time.perf_counter() - start
                if bytes(memoryview(back).cast("B")) != values:  # type: ignore[arg-type]
                    raise SystemExit(f"{name} is not exact")
                sizes.append(len(packed))
            encoded.append(total / 1e9 / encode_s)
            decoded.append(total / 1e9 / decode_s)
        out[name] = {
            "ratio": sum(sizes) / total,
            "encode": statistics.median(encoded),
            "decode": statistics.median(decoded),
            "files": [size / len(values) for size, values in zip(sizes, data, strict=True)],
        }
    print(json.dumps(out))


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "make":
        make(rest[0])
    elif verb == "real":
        real(rest[0], rest[1:])
    else:
        peers(int(rest[0]), rest[1:])
