"""Regions behind the interfaces of torch_memory_saver and vLLM, and of libraries that give memory back."""

import pytest

from regions_start import START


@pytest.mark.parametrize("target", ["saver", "_Below(saver)"], ids=["own", "below_the_package"])
def test_torch_memory_savers_interface(bench, target):
    """Gapless's own object, and the object to which the package's object passes its calls."""
    bench.passes(
        START
        + f"""
from gapless.integrations.torch_memory_saver import _Below, torch_memory_saver as saver
saver = {target}
"""
        + """
with saver.region(tag="kv cache"):
    cache = make(40 * MIB, 1)
with saver.region(tag="weights", enable_cpu_backup=True):
    weights = make(30 * MIB, 2)
    with saver.disable():
        outside = make(3 * MIB, 3)
    graph = torch.cuda.CUDAGraph()
with saver.cuda_graph(graph, tag="weights", enable_cpu_backup=True):
    inside = torch.empty(6 * MIB, dtype=torch.uint8, device="cuda")
card.card_poke(inside.data_ptr(), pattern(4, 6 * MIB), 6 * MIB)
places, used = [tensor.data_ptr() for tensor in (cache, weights, inside)], card.device_used()
assert saver.get_cpu_backup(weights) is None
saver.pause("kv cache")
assert used - 44 * MIB <= card.device_used() <= used - 40 * MIB and holds(weights, 2)
saver.pause("kv cache")
saver.pause()
assert card.device_used() <= used - 76 * MIB and holds(outside, 3)
backup = saver.get_cpu_backup(weights[MIB:])
assert bytes(backup.numpy().tobytes()) == pattern(2, 30 * MIB)[MIB:]
assert saver.get_cpu_backup(cache) is None
saver.resume("weights")
assert holds(weights, 2) and holds(inside, 4) and gapless.is_asleep(cache)
saver.resume()
assert places == [tensor.data_ptr() for tensor in (cache, weights, inside)] and not gapless.is_asleep(cache)
"""
    )


def test_vllms_interface(bench):
    bench.passes(
        START
        + """
from gapless.integrations.vllm import CuMemAllocator
pool = CuMemAllocator.get_instance()
assert pool is CuMemAllocator.get_instance()
with pool.use_memory_pool(tag="weights"):
    weights = make(30 * MIB, 1)
with pool.use_memory_pool("kv_cache"):
    cache = make(40 * MIB, 2)
assert 70 * MIB <= pool.get_current_usage() <= 74 * MIB
pool.sleep(offload_tags=("weights",))
assert pool.get_current_usage() == 0
pool.wake_up(["weights"])
assert holds(weights, 1) and gapless.is_asleep(cache)
pool.wake_up()
assert not holds(cache, 2) and cache.data_ptr()
pool.sleep(offload_tags=tuple())
pool.wake_up()
assert not holds(weights, 1)
"""
    )


def test_what_torch_memory_savers_examples_demand(bench, tmp_path):
    """The steps of its cpu_backup.py and disk_backup.py, with bytes that the stand-in card can have."""
    bench.passes(
        START
        + f"""
folder = {str(tmp_path)!r}
from gapless.integrations.torch_memory_saver import Saver, _Below
from gapless.integrations import torch_memory_saver as module
saver = module.torch_memory_saver
below = _Below(saver)
assert saver.retain_cpu_backup is False and below.tms_get_cpu_backup_backend() == b"pinned"
# Retained: one place on the host over many pauses, with new bytes each time.
with saver.region(tag="retained", enable_cpu_backup=True, cpu_backup_backend="mmap"):
    assert below.tms_get_cpu_backup_backend() == b"mmap"
    tensor = make(4096, 1)
saver.pause("retained")
first = saver.get_cpu_backup(tensor, zero_copy=True).data_ptr()
saver.retain_cpu_backup = True
saver.resume("retained")
for seed in (2, 3):
    assert saver.get_cpu_backup(tensor, zero_copy=True).data_ptr() == first
    card.card_poke(tensor.data_ptr(), pattern(seed, 4096), 4096)
    saver.pause("retained")
    backup = saver.get_cpu_backup(tensor, zero_copy=True)
    assert backup.data_ptr() == first and bytes(backup.numpy()) == pattern(seed, 4096)
    saver.retain_cpu_backup = seed == 2
    del backup
    saver.resume("retained")
    assert holds(tensor, seed)
assert saver.get_cpu_backup(tensor) is None
# A backup goes with its allocation, awake or paused: its memory is not pinned any more.
for paused in (False, True):
    tag = "free_" + str(paused)
    with saver.region(tag=tag, enable_cpu_backup=True):
        tensor = make(4096, 5)
    saver.retain_cpu_backup = True
    saver.pause(tag)
    if not paused:
        saver.resume(tag)
    backup = saver.get_cpu_backup(tensor, zero_copy=True)
    assert bytes(backup.numpy()) == pattern(5, 4096)
    pool = below._mem_pools.pop((tag, True, False, "pinned", 0))
    del backup
    with below._with_region_config(tag=tag, enable_cpu_backup=True, cpu_backup_backend="pinned"):
        del tensor, pool
    assert card.card_pinned() == 0, card.card_pinned()
    saver.retain_cpu_backup = False
# On disk: files with names, as many bytes each time, gone when resumed.
below.tms_set_disk_backup_dir(folder.encode())
with saver.region(enable_disk_backup=True):
    big, small = make(13 * MIB + 12345, 6), make(7, 7)
sizes = set()
for _ in range(3):
    saver.pause()
    files = os.listdir(folder)
    total = sum(os.path.getsize(os.path.join(folder, name)) for name in files)
    assert len(files) >= 2 and total >= 13 * MIB + 12345, files
    sizes.add(total)
    saver.resume()
    assert holds(big, 6) and holds(small, 7) and os.listdir(folder) == []
assert len(sizes) == 1
"""
    )


def test_others_give_their_memory_back(bench):
    bench.passes(
        START
        + """
from gapless import _others
class Group: pass
class Nccl:
    calls = []
    def ncclCommSuspend(self, comm, flags):
        Nccl.calls.append(("suspend", comm.value, flags.value))
        return 0 if comm.value != 7 else 5
    def ncclCommResume(self, comm):
        Nccl.calls.append(("resume", comm.value))
        return 0
found = gapless.suspend_others()
assert (found.communicators, found.nccl_bytes, found.notes) == (0, 0, ()), found
_others._communicators = lambda torch, device: [(5, Group()), (7, Group())]
_others._nccl = lambda: Nccl()
found = gapless.suspend_others()
assert found.communicators == 1 and "failed with 5" in found.notes[0] and "1 communicators" in str(found), found
assert Nccl.calls == [("suspend", 5, 1), ("suspend", 7, 1)]
assert gapless.resume_others() == 1 and Nccl.calls[-1] == ("resume", 5) and gapless.resume_others() == 0
# A library without the function is told, and nothing is changed.
_others._nccl = lambda: object()
found = gapless.suspend_others()
assert found.communicators == 0 and "ncclCommSuspend" in found.notes[0], found
# Workspaces are torch's tensors: they go, and their memory is the card's.
left, right = torch.empty(8, 8, device="cuda"), torch.empty(8, 8, device="cuda")
left @ right
before = torch.cuda.memory_allocated()
found = gapless.suspend_others()
assert found.cublas_bytes == before - torch.cuda.memory_allocated() and found.cublas_bytes >= 0
"""
    )
