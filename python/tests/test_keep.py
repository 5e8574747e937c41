"""`gapless keep`: a process that holds weights for others, over the stand-in card, whose bytes are real."""

import json
import signal
import subprocess
import sys

import pytest

from conftest import ROOT
from test_sharing import START


def write_file(path, tensors, header=None):
    """A safetensors file: name -> (dtype, shape, bytes)."""
    about, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, content) in tensors.items():
        about[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(about if header is None else header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


TENSORS = {"a.weight": ("F32", [3, 1000], bytes(range(240)) * 50), "b": ("BF16", [7], b"0123456789abcd"), "none": ("I64", [0], b"")}


def start(real, tmp_path, *arguments):
    command = [sys.executable, "-m", "gapless.keep", *map(str, arguments)]
    variables = real.environment(GAPLESS_RUN_DIR=str(tmp_path / "run"))
    (tmp_path / "run").mkdir(mode=0o700, exist_ok=True)
    return subprocess.Popen(command, env=variables, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


READER = """
import gapless
got = gapless.attach("kept")
room = ctypes.create_string_buffer(12000)
assert card.cuMemcpyDtoHAsync_v2(room, got["a.weight"].data_ptr(), 12000, None) == 0
print(room.raw == bytes(range(240)) * 50, list(got["a.weight"].shape), got["a.weight"].dtype)
assert card.cuMemcpyDtoHAsync_v2(room, got["b"].data_ptr(), 14, None) == 0
print(room.raw[:14], got["b"].dtype, list(got["none"].shape), "torch" in sys.modules)
model = torch.nn.Linear(1000, 3, bias=False, device="meta")
model.load = gapless.attach("kept", torch.nn.ModuleDict({"a": model}), strict=False)
print(model.weight.shape, model.weight.is_cuda)
"""


def test_weights_are_kept_until_sigterm(real, tmp_path):
    (tmp_path / "model").mkdir()
    write_file(tmp_path / "model" / "one.safetensors", dict(list(TENSORS.items())[:1]))
    write_file(tmp_path / "model" / "two.safetensors", dict(list(TENSORS.items())[1:]))
    keeper = start(real, tmp_path, tmp_path / "model", "--name", "kept")
    try:
        assert keeper.stdout.readline() == "kept\n", keeper.stderr.read()
        lines = real.passes(START + READER, GAPLESS_RUN_DIR=str(tmp_path / "run")).lines()
        assert lines == [
            "True [3, 1000] torch.float32",
            "b'0123456789abcd' torch.bfloat16 [0] True",
            "torch.Size([3, 1000]) True",
        ]
        keeper.send_signal(signal.SIGTERM)
        out, err = keeper.communicate(timeout=60)
        assert keeper.returncode == 0 and "3 tensors" in err and "ended" in err
        assert not list((tmp_path / "run").glob("*.share"))
    finally:
        keeper.kill()


@pytest.mark.parametrize(
    "header, why",
    [
        (None, None),
        ([], "its header is not an object"),
        ({"a": 5}, "tensor 'a' is not an object"),
        ({"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}}, "has the dtype 'F4'"),
        ({"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}}, "has no shape"),
        ({"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}, "has the bytes 0 to 9 of 3"),
        ({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 3]}}, "and needs 2"),
        ({}, "there are no tensors"),
    ],
)
def test_bad_files_are_refused(real, tmp_path, header, why):
    path = tmp_path / "bad.safetensors"
    write_file(path, {"x": ("U8", [3], b"abc")}, header=header)
    if header is None:
        path.write_bytes(b"\xff" * 9)
        why = "its header of 18446744073709551615 bytes is larger"
    keeper = start(real, tmp_path, path)
    out, err = keeper.communicate(timeout=100)
    assert (keeper.returncode, out) == (2, "") and err.startswith("error: ") and why in err, err


def test_a_file_that_is_missing(real, tmp_path):
    keeper = start(real, tmp_path, tmp_path / "no.safetensors")
    out, err = keeper.communicate(timeout=100)
    assert keeper.returncode == 2 and "no such file" in err
