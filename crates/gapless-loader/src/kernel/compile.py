"""Compiles decode.cu to decode.ptx with NVRTC, which needs no GPU.

    pip download --no-deps nvidia-cuda-nvrtc-cu12==12.1.105      # and unpack the wheel
    python compile.py PATH/libnvrtc.so.12

PTX for compute capability 7.5 runs on that and on every later one: the driver compiles it for the card that it finds.
The old release of NVRTC is on purpose: drivers refuse PTX that is newer than they are. The first line of the result is
a checksum of the source, which a test compares.
"""

import ctypes
import hashlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    source = (HERE / "decode.cu").read_bytes()
    nvrtc = ctypes.CDLL(sys.argv[1])
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"decode.cu", 0, None, None):
        raise SystemExit("nvrtcCreateProgram failed")
    options = (ctypes.c_char_p * 2)(b"--gpu-architecture=compute_75", b"--std=c++17")
    failed = nvrtc.nvrtcCompileProgram(program, len(options), options)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if failed:
        raise SystemExit(log.value.decode())
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, text)
    head = f"// decode.cu, sha256 {hashlib.sha256(source).hexdigest()}\n"
    # The compiler also lists the architectures that it knows: nothing uses that list.
    lines = [line for line in text.value.decode().splitlines() if "nv6target" not in line]
    (HERE / "decode.ptx").write_text(head + "\n".join(lines) + "\n")


main()
