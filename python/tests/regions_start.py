"""The beginning of the programs in the tests of regions. Bytes are those of the stand-in card, which are gone with the
pages that held them.
"""

START = """
import ctypes, os, sys
import torch, gapless
gapless.enable()
card = ctypes.CDLL("libcuda.so.1")
card.card_poke.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
card.cuMemcpyDtoHAsync_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
card.device_used.restype = ctypes.c_uint64
card.card_pinned.restype = ctypes.c_size_t
MIB = 1 << 20

def pattern(seed, size):
    return (bytes((seed * 37 + i * 11) % 251 for i in range(251)) * (size // 251 + 1))[:size]

def make(size, seed):
    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
    assert card.card_poke(tensor.data_ptr(), pattern(seed, size), size) == 0
    return tensor

def holds(tensor, seed):
    size = tensor.numel()
    room = ctypes.create_string_buffer(size)
    code = card.cuMemcpyDtoHAsync_v2(room, tensor.data_ptr(), size, None)
    return code == 0 and room.raw[:size] == pattern(seed, size)

def one(name):
    return next(found for found in gapless.regions() if found.name == name)

def places():
    # Addresses and sizes of what is awake.
    blocks = (block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"])
    return {(block["address"], block["size"]) for block in blocks if block["state"] == "active_allocated"}
"""
