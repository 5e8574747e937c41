"""Saving in the background and by rank: the file has the values of the moment of the call, failures are raised, and
torch.distributed.checkpoint reads the files of several ranks."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gapless import GaplessError, OptionError, weights  # noqa: E402
from gapless.weights import _native, _save  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("loader")


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return {
        "wide": (torch.randn(701, 130) * 0.02).to(torch.bfloat16),
        "full": torch.randn(65, 101),
        "cube": torch.randn(3, 4, 5),
        "ints": torch.arange(1000),
        "one": torch.tensor([7.0]),
        "scalar": torch.tensor(2.5),
    }


def same(found, wanted):
    return set(found) == set(wanted) and all(found[n].dtype == t.dtype and torch.equal(found[n], t) for n, t in wanted.items())


def held(monkeypatch):
    """Native saves that wait until they are let go."""
    gate, plain = threading.Event(), _native.save

    def waiting(*arguments):
        assert gate.wait(60)
        plain(*arguments)

    monkeypatch.setattr(_native, "save", waiting)
    return gate


@pytest.mark.parametrize("pack", [False, True])
def test_a_save_in_the_background_has_the_values_of_the_call(tmp_path, tensors, pack, monkeypatch):
    gate = held(monkeypatch)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    saving = weights.save(tensors, tmp_path / "m.safetensors", pack=pack, asynchronous=True)
    for tensor in tensors.values():
        tensor.add_(1)  # training goes on
    assert not saving.done() and not (tmp_path / "m.safetensors").exists()
    with pytest.raises(TimeoutError, match="is not written"):
        saving.wait(0.01)
    gate.set()
    assert saving.wait() == [str(tmp_path / "m.safetensors")] and saving.done()
    assert same(weights.load(tmp_path / "m.safetensors", device="cpu"), before)


def test_a_failure_in_the_background_is_raised_by_wait_or_by_the_next_save(tmp_path, tensors):
    (tmp_path / "file").write_text("")
    saving = weights.save(tensors, tmp_path / "file" / "m.safetensors", asynchronous=True)
    with pytest.raises(weights.ReadError, match="cannot write"):
        saving.wait()
    weights.save(tensors, tmp_path / "fine.safetensors")  # told once
    weights.save(tensors, tmp_path / "file" / "m.safetensors", asynchronous=True)
    with pytest.raises(weights.ReadError, match="cannot write"):
        weights.save(tensors, tmp_path / "fine.safetensors", asynchronous=True)
    weights.save(tensors, tmp_path / "fine.safetensors", asynchronous=True).wait()


def test_the_next_save_comes_after_the_one_before(tmp_path, tensors):
    for step in range(4):
        tensors["one"].fill_(step)
        last = weights.save(tensors, tmp_path / "m.safetensors", asynchronous=True)
    last.wait()
    assert weights.load(tmp_path / "m.safetensors", device="cpu")["one"].item() == 3


def test_a_folder_in_the_background_gets_its_index_last(tmp_path, tensors, monkeypatch):
    order, plain = [], _native.save
    monkeypatch.setattr(
        _native, "save", lambda path, *rest: (order.append((os.path.basename(path), (tmp_path / "m" / _save.INDEX).exists())), plain(path, *rest))[1]
    )
    files = weights.save(tensors, tmp_path / "m", shard_size=50_000, asynchronous=True).wait()
    assert len(files) > 1 and not any(there for _, there in order)
    assert (tmp_path / "m" / _save.INDEX).exists() and same(weights.load(tmp_path / "m", device="cpu"), tensors)


def test_a_process_that_ends_waits_for_its_save_and_tells_a_failure(tmp_path):
    program = """
        import sys, torch
        from gapless import weights
        weights.save({"a": torch.arange(300_000)}, sys.argv[1], asynchronous=True)
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    words = [sys.executable, "-c", textwrap.dedent(program)]
    subprocess.run([*words, str(tmp_path / "a.safetensors")], env=environment, check=True, timeout=300)
    assert torch.equal(weights.load(tmp_path / "a.safetensors", device="cpu")["a"], torch.arange(300_000))
    done = subprocess.run([*words, str(tmp_path / "no" / "a.safetensors")], env=environment, capture_output=True, text=True, timeout=300)
    assert "was not saved: cannot write" in done.stderr


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("world", [1, 3, 8])
def test_ranks_write_their_rows_and_all_of_it_is_loaded(tmp_path, tensors, world, pack):
    for rank in range(world):
        files = weights.save(tensors, tmp_path / "c", pack=pack, rank=rank, world=world)
        assert [os.path.basename(file) for file in files] == [f"shard-{rank + 1:05}-model-00001-of-00001.safetensors"]
    stored = sum(os.path.getsize(tmp_path / "c" / file) for file in os.listdir(tmp_path / "c"))
    assert stored < sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) + 8000 * world
    assert same(weights.load(tmp_path / "c", device="cpu"), tensors)
    # Loads with other ranks than those that wrote it, and as another type.
    for rank in range(2):
        found = weights.load(tmp_path / "c", device="cpu", rank=rank, world=2, dtype=torch.float32)
        assert torch.equal(found["wide"], tensors["wide"].chunk(2)[rank].float()) and torch.equal(found["scalar"], tensors["scalar"])


def reader(folder, wanted):
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    state = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
    return state


@pytest.mark.parametrize("world", [1, 3])
def test_torchs_reader_reads_what_the_ranks_wrote(tmp_path, tensors, world):
    for rank in range(world):
        weights.save(tensors, tmp_path / "plain", pack=False, rank=rank, world=world, asynchronous=rank % 2 == 0)
        weights.save(tensors, tmp_path / "packed", pack=True, rank=rank, world=world)
    assert same(reader(tmp_path / "plain", tensors), tensors)
    with weights.from_pretrained():
        assert same(reader(tmp_path / "packed", tensors), tensors)


def test_what_torchs_writer_wrote_is_read_here(tmp_path, tensors):
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    writer = dcp.HuggingFaceStorageWriter(path=str(tmp_path / "c"), save_distributed=True)
    dcp.save(dict(tensors), storage_writer=writer)
    assert same(weights.load(tmp_path / "c", device="cpu"), tensors)


def test_dtensors_of_two_processes_are_saved_by_their_parts(tmp_path, two_ranks):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    program = """
        import os, sys, torch
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        from gapless import weights

        rank, folder = int(sys.argv[1]), sys.argv[2]
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        whole = torch.arange(77.0 * 6).reshape(77, 6)
        state = {
            "rows": distribute_tensor(whole, mesh, [Shard(0)]),
            "columns": distribute_tensor(whole.clone(), mesh, [Shard(1)]),
            "copies": distribute_tensor(whole[:3].clone(), mesh, [Replicate()]),
            "plain": whole[:5].clone(),
        }
        weights.save(state, folder + "/c", pack=False, rank=rank, world=2, asynchronous=True).wait()
        dist.barrier()
        again = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        dcp.load(again, storage_reader=dcp.HuggingFaceStorageReader(folder + "/c"))
        for name, tensor in state.items():
            local = lambda t: t.to_local() if hasattr(t, "to_local") else t
            assert torch.equal(local(again[name]), local(tensor)), name
        found = weights.load(folder + "/c", device="cpu")
        assert torch.equal(found["rows"], whole) and torch.equal(found["columns"], whole)
        assert torch.equal(found["copies"], whole[:3]) and torch.equal(found["plain"], whole[:5])
        dist.barrier()
        dist.destroy_process_group()
    """
    two_ranks(program, tmp_path)


def test_checkpoints_that_are_not_whole_are_refused(tmp_path, tensors):
    for rank in range(3):
        weights.save(tensors, tmp_path / "c", pack=False, rank=rank, world=3)
    files = sorted((tmp_path / "c").iterdir())
    for missing in files:
        kept = missing.read_bytes()
        missing.unlink()
        with pytest.raises(weights.FormatError, match="3 ranks wrote this checkpoint, and the folder has 2 files"):
            weights.load(tmp_path / "c", device="cpu")
        missing.write_bytes(kept)
    data = files[1].read_bytes()
    text = data[8 : 8 + int.from_bytes(data[:8], "little")]
    header = json.loads(text)
    for wrong, match in (
        ('{"wide": {"saved_offsets": [0]}}', "offsets of tensor 'wide'"),
        ('{"wide": {"saved_offsets": [-1, 0]}}', "offsets of tensor 'wide'"),
        ('{"wide": {"saved_offsets": [0, 0]}}', "do not add up to tensor"),
        ('{"wide": 3}', "is not what torch.distributed.checkpoint writes"),
        ("[]", "is not what torch.distributed.checkpoint writes"),
    ):
        header["__metadata__"]["DCP_SHARDING_INFO"] = wrong
        changed = json.dumps(header).encode()
        files[1].write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + len(text) :])
        with pytest.raises(weights.FormatError, match=match):
            weights.load(tmp_path / "c", device="cpu")


def test_wrong_arguments_are_named_at_the_call(tmp_path, tensors):
    for arguments in ({"rank": 0}, {"world": 2}, {"rank": 2, "world": 2}, {"rank": -1, "world": 2}, {"shard_size": 0}):
        with pytest.raises(OptionError, match="invalid"):
            weights.save(tensors, tmp_path / "c", **arguments)
    with pytest.raises(OptionError, match="ranks write to a folder"):
        weights.save(tensors, tmp_path / "c.safetensors", rank=0, world=2)
    with pytest.raises(GaplessError, match="not a tensor"):
        weights.save({"a": 3}, tmp_path / "c", rank=0, world=2, asynchronous=True)
    assert not (tmp_path / "c").exists()
