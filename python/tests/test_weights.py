"""gapless.weights on the CPU: the same bits, in slices, in other types; models with tied weights; errors with types."""

import gc
import json
import mmap
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gapless import GaplessError, OptionError, weights  # noqa: E402
from gapless.weights import _native  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("loader")


def same(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8)) if a.numel() else True


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    wide = (torch.randn(700, 130) * 0.02).to(torch.bfloat16)
    wide.view(torch.int16)[0, :4] = torch.tensor([0x7FC1, -1, 1, -32768], dtype=torch.int16)  # NaNs, a denormal, -0
    return {
        "wide": wide,
        "full": torch.randn(65, 1001),
        "was_bf16": torch.randn(300, 300).to(torch.bfloat16).float(),
        "half": torch.randn(3, 5000).half(),
        "fp8": torch.randn(64, 512).to(torch.float8_e4m3fn),
        "ints": torch.arange(10_000).reshape(100, 100),
        "mask": torch.tensor([True, False, True]),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 7),
        "zeros": torch.zeros(1000, 100, dtype=torch.bfloat16),
    }


@pytest.mark.parametrize("pack", [False, True])
def test_what_was_saved_is_loaded_bit_for_bit(tmp_path, tensors, pack):
    path = tmp_path / "model.safetensors"
    assert weights.save(tensors, path, pack=pack) == [str(path)]
    found = weights.load(path, device="cpu")
    assert set(found) == set(tensors)
    assert all(same(found[name], tensors[name]) for name in tensors)
    plain = sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors.values())
    assert (path.stat().st_size < 0.75 * plain) == pack


def test_an_unpacked_file_is_what_safetensors_reads_and_its_files_are_read_here(tmp_path, tensors):
    safetensors = pytest.importorskip("safetensors.torch")
    weights.save(tensors, tmp_path / "ours.safetensors", pack=False)
    theirs = safetensors.load_file(tmp_path / "ours.safetensors")
    assert set(theirs) == set(tensors) and all(same(theirs[name], tensors[name]) for name in tensors)
    safetensors.save_file(tensors, tmp_path / "theirs.safetensors")
    ours = weights.load(tmp_path / "theirs.safetensors", device="cpu")
    assert set(ours) == set(tensors) and all(same(ours[name], tensors[name]) for name in tensors)


def test_large_tensors_stand_in_their_page_as_in_the_file_and_own_their_memory(tmp_path):
    tensors = {
        "a": torch.randint(-9, 9, (7,), dtype=torch.int8),
        "large": torch.randn(1301, 997),
        "odd": torch.randn(701_003).half(),
        "rows": torch.randn(3, 800_000).to(torch.bfloat16),
    }
    path = tmp_path / "model.safetensors"
    weights.save(tensors, path, pack=False)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with _native.Catalogue(path) as catalogue:
        places = {tensor["name"]: tensor["at"] for tensor in catalogue.tensors}
    found = weights.load(path, device="cpu")
    assert all(same(found[name], tensors[name]) for name in tensors)
    for name in ("large", "odd", "rows"):
        tensor = found[name]
        assert (tensor.data_ptr() - places[name]) % mmap.PAGESIZE == 0
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.dtype.itemsize
        assert tensor.storage_offset() == 0 and tensor.is_contiguous()
    kept = found.pop("rows")
    del found
    gc.collect()
    kept += 1
    assert same(kept, tensors["rows"] + 1)
    parts = [weights.load(path, device="cpu", rank=rank, world=3)["rows"] for rank in range(3)]
    assert same(torch.cat(parts), tensors["rows"])


def test_a_folder_has_shards_and_an_index(tmp_path, tensors):
    files = weights.save(tensors, tmp_path / "model", shard_size=150_000)
    assert len(files) > 2 and all(os.path.isfile(file) for file in files)
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(tensors)
    found = weights.load(tmp_path / "model", device="cpu")
    assert all(same(found[name], tensors[name]) for name in tensors)
    os.remove(files[1])
    with pytest.raises(weights.FormatError, match="missing"):
        weights.load(tmp_path / "model", device="cpu")


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("world", [2, 3, 8])
def test_ranks_get_their_rows_and_read_little_more(tmp_path, tensors, world, pack):
    path = tmp_path / "model.safetensors"
    weights.save(tensors, path, pack=pack)
    parts = [weights.load(path, device="cpu", rank=rank, world=world) for rank in range(world)]
    for name, tensor in tensors.items():
        if tensor.dim() == 0:
            assert all(same(part[name], tensor) for part in parts)
        else:
            wanted = tensor.chunk(world) if tensor.numel() else [tensor]
            assert all(same(part[name], piece) for part, piece in zip(parts, wanted))
            assert same(torch.cat([part[name].contiguous().view(torch.uint8) for part in parts]), tensor.contiguous().view(torch.uint8))


def test_eight_ranks_read_each_byte_of_a_file_about_once(tmp_path):
    tensors = {f"layer.{n}": (torch.randn(4096, 1024) * 0.02).to(torch.bfloat16) for n in range(2)}
    for pack in (False, True):
        path = tmp_path / f"{pack}.safetensors"
        weights.save(tensors, path, pack=pack)
        read = 0
        for rank in range(8):
            with _native.Catalogue(path) as catalogue:
                pieces, targets = [], []
                for at, tensor in enumerate(catalogue.tensors):
                    length = tensor["bytes"] // 8
                    targets.append(torch.empty(length, dtype=torch.uint8))
                    pieces.append((at, rank * length, (rank + 1) * length, targets[-1].data_ptr()))
                read += catalogue.load(pieces, _native.Settings(device=-1, threads=2)).read
        assert read <= 1.02 * path.stat().st_size


def test_types_are_converted_as_torch_does(tmp_path, tensors):
    path = tmp_path / "model.safetensors"
    weights.save(tensors, path)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = weights.load(path, device="cpu", dtype=dtype)
        for name, tensor in tensors.items():
            assert same(found[name], tensor.to(dtype) if tensor.is_floating_point() else tensor), (name, dtype)
    part = weights.load(path, device="cpu", dtype=torch.float32, rank=1, world=4, names="wide")
    assert same(part["wide"], tensors["wide"].chunk(4)[1].float())


def test_an_interrupt_while_a_load_begins_ends_it(tmp_path):
    weights.save({"a": torch.randn(1000)}, tmp_path / "m.safetensors", pack=False)
    target, ended = torch.empty(1000), []
    with _native.Catalogue(tmp_path / "m.safetensors") as catalogue:
        real = catalogue._functions

        def start(*arguments):
            assert real["start"](*arguments) == 0
            raise KeyboardInterrupt

        def end(handle):
            ended.append(handle.value)
            real["end"](handle)

        catalogue._functions = {**real, "start": start, "end": end}
        with pytest.raises(KeyboardInterrupt):
            catalogue.load([(0, 0, 4000, target.data_ptr())], _native.Settings(device=-1, threads=1))
    assert len(ended) == 1 and ended[0]


@pytest.mark.parametrize("room", [256, 1000, 70_001, 1 << 20])
def test_conversions_go_through_a_buffer_of_any_size(tmp_path, monkeypatch, room):
    from gapless.weights import _load

    monkeypatch.setattr(_load, "CONVERTED", room)
    generator = torch.Generator().manual_seed(room)
    shapes = [(), (0,), (1,), (3,), (127,), (128,), (129,), (1000,), (300, 117), (5, 1)]
    tensors = {f"t{n}": torch.randn(shape, generator=generator).to((torch.bfloat16, torch.float32, torch.float16)[n % 3]) for n, shape in enumerate(shapes)}
    weights.save(tensors, tmp_path / "m.safetensors", pack=False)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        found = weights.load(tmp_path / "m.safetensors", device="cpu", dtype=dtype)
        for name, tensor in tensors.items():
            assert found[name].dtype == dtype and torch.equal(found[name], tensor.to(dtype)), name


def test_names_choose_and_missing_ones_are_told(tmp_path, tensors):
    path = tmp_path / "model.safetensors"
    weights.save(tensors, path)
    assert set(weights.load(path, device="cpu", names=["half", "f*"])) == {"half", "full", "fp8"}
    assert set(weights.load(path, device="cpu", names=...)) == set(tensors)
    with pytest.raises(weights.NamesError, match="'absent'") as caught:
        weights.load(path, device="cpu", names=["wide", "absent", "x*y"])
    assert caught.value.missing == ("absent", "x*y")


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path):
    torch.manual_seed(1)
    model = Tied()
    path = tmp_path / "tied.safetensors"
    weights.save(model, path, pack=False)
    stored = _header(path)
    assert "embed.weight" in stored and "head.weight" not in stored
    assert stored["__metadata__"]["head.weight"] == "embed.weight"
    found = weights.load(path, device="cpu")
    assert found["head.weight"] is found["embed.weight"]
    for device in ("cpu", "meta"):
        with torch.device(device):
            other = Tied()
        done = weights.load_into(other, path, device="cpu")
        assert done.missing == () and done.unexpected == ()
        assert other.head.weight is other.embed.weight
        assert all(same(other.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_load_into_says_what_does_not_match_and_changes_nothing(tmp_path):
    model, path = Tied(), tmp_path / "m.safetensors"
    state = dict(model.state_dict())
    del state["norm.bias"]
    state["extra"] = torch.ones(3)
    weights.save(state, path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(weights.NamesError, match=r"1 of the model are in no file \(norm.bias\).*1 of the files are not in the model \(extra\)") as caught:
        weights.load_into(model, path)
    assert (caught.value.missing, caught.value.unexpected) == (("norm.bias",), ("extra",))
    assert all(same(before[name], tensor) for name, tensor in model.state_dict().items())
    done = weights.load_into(model, path, strict=False)
    assert (done.missing, done.unexpected) == (("norm.bias",), ("extra",))
    state["norm.weight"] = torch.ones(17)
    weights.save(state, path)
    with pytest.raises(weights.NamesError, match=r"norm.weight: \[16\] in the model, \[17\] in the file"):
        weights.load_into(model, path, strict=False)


def test_load_into_keeps_a_models_own_types(tmp_path):
    model, path = torch.nn.Linear(40, 30), tmp_path / "m.safetensors"
    weights.save(model, path)
    half = torch.nn.Linear(40, 30).to(torch.bfloat16)
    weights.load_into(half, path)
    assert same(half.weight.detach(), model.weight.detach().to(torch.bfloat16))


def _header(path):
    with open(path, "rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def test_damage_is_told_with_its_tensor_and_its_bytes(tmp_path, tensors):
    path = tmp_path / "model.safetensors"
    weights.save(tensors, path)
    header = _header(path)
    data = bytearray(path.read_bytes())
    base = 8 + struct.unpack("<Q", data[:8])[0]
    data[base + header["wide"]["data_offsets"][1] - 100] ^= 4
    path.write_bytes(data)
    with pytest.raises(weights.DamagedError, match="wide") as caught:
        weights.load(path, device="cpu")
    first, last = caught.value.bytes
    assert caught.value.tensor == "wide" and 0 <= first < last <= 700 * 130 * 2
    assert set(weights.load(path, device="cpu", names=["full", "half"])) == {"full", "half"}


def test_bad_files_are_errors_with_a_type(tmp_path, tensors):
    path = tmp_path / "model.safetensors"
    weights.save(tensors, path, pack=False)
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    bad = {
        "cut": whole[: len(whole) // 2],
        "no header": whole[:4],
        "not JSON": struct.pack("<Q", 4) + b"nope",
        "long header": struct.pack("<Q", 1 << 62) + whole[8:],
        "overlap": whole.replace(b'"data_offsets":[0,', b'"data_offsets":[8,', 1),
        "longer": whole + b"x",
        "empty": b"",
    }
    assert length < len(whole)
    for name, content in bad.items():
        path.write_bytes(content)
        with pytest.raises(weights.FormatError) as caught:
            weights.load(path, device="cpu")
        assert str(path) in str(caught.value), name
    with pytest.raises(weights.ReadError):
        weights.load(tmp_path / "absent.safetensors", device="cpu")
    os.remove(path)
    with pytest.raises(weights.FormatError, match="no .safetensors file"):
        weights.load(tmp_path, device="cpu")


def test_wrong_arguments_are_named(tmp_path, tensors):
    path = tmp_path / "model.safetensors"
    weights.save(tensors, path)
    for arguments in ({"rank": 2, "world": 2}, {"rank": -1}, {"world": 0}, {"dtype": torch.int8}, {"threads": 0}, {"device": "meta"}):
        with pytest.raises(OptionError, match="invalid"):
            weights.load(path, **{"device": "cpu", **arguments})
    with pytest.raises(GaplessError, match="meta"):
        weights.save({"a": torch.empty(3, device="meta")}, tmp_path / "x.safetensors")
    with pytest.raises(GaplessError, match="not a tensor"):
        weights.save({"a": 3}, tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()


def test_views_are_saved_as_what_they_show(tmp_path):
    whole = torch.arange(24.0).reshape(4, 6)
    views = {"t": whole.t(), "column": whole[:, 2], "rows": whole[1:3]}
    weights.save(views, tmp_path / "v.safetensors")
    found = weights.load(tmp_path / "v.safetensors", device="cpu")
    assert all(torch.equal(found[name], view) for name, view in views.items())


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "m.safetensors"
    old, new = torch.ones(5), torch.arange(1_000_000)
    weights.save({"a": old}, path)
    program = """
        import sys, torch
        from gapless import weights
        print("begun", flush=True)
        while True:
            weights.save({"a": torch.arange(1_000_000)}, sys.argv[1])
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    for _ in range(3):
        words = [sys.executable, "-c", textwrap.dedent(program), str(path)]
        writer = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
        assert writer.stdout.readline() == "begun\n"
        writer.kill()
        writer.wait()
        found = weights.load(path, device="cpu")["a"]
        assert same(found, old) or same(found, new)


def test_a_limit_and_a_time_out_are_numbers_and_the_ways_are_known(tmp_path, tensors, monkeypatch):
    path = tmp_path / "model.safetensors"
    weights.save(tensors, path)
    for limit in (10**9, "1GB", "900 MiB", 5e8):
        assert same(weights.load(path, device="cpu", limit_rate=limit, timeout=5, shared=True)["wide"], tensors["wide"])
    for arguments in ({"limit_rate": 0}, {"limit_rate": "fast"}, {"limit_rate": "5XB"}, {"timeout": 0}, {"timeout": -1}):
        with pytest.raises(OptionError, match="invalid"):
            weights.load(path, device="cpu", **arguments)
    for ways in (("CACHED=map", "WINDOW=1MiB"), ("CACHED=copy",), ("RING=driver", "KEEP=no", "PIECE=256KiB"), ("DIRECT=threads",), ("DIRECT=no",)):
        with monkeypatch.context() as chosen:
            for way in ways:
                name, _, value = way.partition("=")
                chosen.setenv("GAPLESS_WEIGHTS_" + name, value)
            assert same(weights.load(path, device="cpu")["full"], tensors["full"])
    monkeypatch.setenv("GAPLESS_WEIGHTS_CACHED", "fast")
    with pytest.raises(OptionError, match="invalid GAPLESS_WEIGHTS_CACHED"):
        weights.load(path, device="cpu")


def test_processes_that_share_read_each_byte_from_the_disk_once(tmp_path):
    """Four processes that want a whole file: `read_bytes` of the kernel counts what came from the disk for each."""
    path = tmp_path / "model.safetensors"
    weights.save({"a": torch.randint(0, 255, (24 << 20,), dtype=torch.uint8)}, path, pack=False)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    program = """
        import os, sys, torch
        from gapless import weights
        def disk():
            return int(open("/proc/self/io").read().split("read_bytes: ")[1].split()[0])
        # Pages of libraries are read from the disk too: this load finds them all.
        weights.load(sys.argv[2], device="cpu", shared=True, threads=2)
        sys.stdin.readline()
        before = disk()
        weights.load(sys.argv[1], device="cpu", shared=True, threads=2)
        print(disk() - before)
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    weights.save({"a": torch.randint(0, 255, (6 << 20,), dtype=torch.uint8)}, tmp_path / "small.safetensors", pack=False)
    words = [sys.executable, "-c", textwrap.dedent(program), str(path), str(tmp_path / "small.safetensors")]
    ranks = [subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for rank in ranks:
        rank.stdin.write("go\n")
        rank.stdin.flush()
    read = sum(int(rank.communicate(timeout=300)[0]) for rank in ranks)
    assert read <= 1.02 * path.stat().st_size


def test_importing_the_package_does_not_load_torch_or_the_library():
    program = "import sys, gapless.weights; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    assert subprocess.run([sys.executable, "-c", program], env=environment, timeout=60).returncode == 0
