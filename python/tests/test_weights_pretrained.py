"""from_pretrained of the real transformers and diffusers, with Gapless in the place of safetensors' reader: the same
tensors, tied weights, shards, packed files and types."""

import os
import sys

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from gapless import OptionError, weights  # noqa: E402
from gapless.weights import _native, _pretrained  # noqa: E402

pytestmark = pytest.mark.usefixtures("loader")


def small(tied=True):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def pack(folder, to):
    to.mkdir()
    for file in folder.iterdir():
        if file.suffix == ".safetensors":
            _native.pack(file, to / file.name, 2)
        else:
            (to / file.name).write_bytes(file.read_bytes())
    return to


def same(a, b):
    first, second = a.state_dict(), b.state_dict()
    assert set(first) == set(second)
    return all(first[name].dtype == second[name].dtype and torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def opened(monkeypatch):
    """Files that Gapless opened."""
    seen = []
    plain = _pretrained.Opened.__init__

    def counted(self, filename, *rest):
        seen.append(os.path.basename(filename))
        plain(self, filename, *rest)

    monkeypatch.setattr(_pretrained.Opened, "__init__", counted)
    return seen


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", ["10GB", "100KB"])
def test_transformers_loads_the_same_model(tmp_path, opened, packed, size):
    model = small()
    model.save_pretrained(tmp_path / "model", max_shard_size=size)
    folder = pack(tmp_path / "model", tmp_path / "packed") if packed else tmp_path / "model"
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    assert (len(files) > 2) == (size == "100KB")
    with weights.from_pretrained():
        found = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert sorted(set(opened)) == files, "every file was read by Gapless"
    assert same(model, found)
    assert found.lm_head.weight is found.model.embed_tokens.weight, "tied weights stay tied"
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    ids = torch.arange(7)[None]
    assert torch.equal(plain(ids).logits, found(ids).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, "auto"])
def test_types_are_converted_as_without_gapless(tmp_path, dtype):
    small(tied=False).save_pretrained(tmp_path / "model")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=dtype)
    folder = pack(tmp_path / "model", tmp_path / "packed")
    with weights.from_pretrained(threads=1):
        found = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    assert same(plain, found)
    assert found.lm_head.weight is not found.model.embed_tokens.weight


def test_bytes_that_were_read_whole_may_be_packed_too(tmp_path):
    model = small()
    model.save_pretrained(tmp_path / "model")
    folder = pack(tmp_path / "model", tmp_path / "packed")
    with weights.from_pretrained():
        found = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, disable_mmap=True)
    assert same(model, found)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", ["10GB", "100KB"])
def test_diffusers_loads_the_same_model(tmp_path, opened, packed, size):
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    torch.manual_seed(1)
    blocks = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",), "block_out_channels": (32,)}
    model = diffusers.AutoencoderKL(**blocks, layers_per_block=1, norm_num_groups=8)
    model.save_pretrained(tmp_path / "model", max_shard_size=size)
    folder = pack(tmp_path / "model", tmp_path / "packed") if packed else tmp_path / "model"
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    assert (len(files) > 1) == (size == "100KB")
    with weights.from_pretrained():
        found = diffusers.AutoencoderKL.from_pretrained(folder)
        half = diffusers.AutoencoderKL.from_pretrained(folder, torch_dtype=torch.float16)
    assert set(opened) == set(files) and same(model, found) and same(model.half(), half)


def test_what_is_read_of_a_slice_is_its_rows(tmp_path, monkeypatch):
    tensors = {"a": torch.arange(4000.0).reshape(100, 40), "b": torch.arange(30, dtype=torch.int32), "c": torch.tensor(2.0)}
    weights.save(tensors, tmp_path / "m.safetensors", pack=False, metadata={"said": "so"})
    reads = []
    load = _native.Catalogue.load

    def counted(self, pieces, *rest):
        reads.append(sum(end - begin for _, begin, end, _ in pieces))
        return load(self, pieces, *rest)

    monkeypatch.setattr(_native.Catalogue, "load", counted)
    from safetensors import safe_open

    indices = [slice(10, 20), (slice(5, 7), slice(3, 9)), 4, -1, (2, slice(None, None, 3)), slice(90, None), slice(3, 3), slice(None), ..., (slice(None), 1)]
    with safe_open(tmp_path / "m.safetensors", framework="pt") as theirs:
        wanted = [theirs.get_slice("a")[index] for index in indices]
        keys, metadata, shape, dtype = theirs.keys(), theirs.metadata(), theirs.get_slice("a").get_shape(), theirs.get_slice("a").get_dtype()
    with weights.from_pretrained(), safetensors.safe_open(tmp_path / "m.safetensors", framework="pt") as ours:
        assert isinstance(ours, _pretrained.Opened)
        assert sorted(ours.keys()) == sorted(keys) and ours.metadata() == metadata
        of = ours.get_slice("a")
        assert (of.get_shape(), of.get_dtype()) == (shape, dtype)
        for index, tensor in zip(indices, wanted):
            assert torch.equal(of[index], tensor), index
        assert torch.equal(ours.get_slice("c")[...], tensors["c"]) and torch.equal(ours.get_tensor("b"), tensors["b"])
        with pytest.raises(safetensors.SafetensorError, match="absent"):
            ours.get_tensor("absent")
    assert reads[0] == 10 * 160 and reads[1] == 2 * 160 and reads[2] == 160


def test_neighbours_are_read_at_once_and_given_once(tmp_path, monkeypatch):
    tensors = {f"t{n:03}": torch.full((50,), float(n)) for n in range(200)}
    weights.save(tensors, tmp_path / "m.safetensors")
    calls = []
    load = _native.Catalogue.load
    monkeypatch.setattr(_native.Catalogue, "load", lambda self, pieces, *rest: calls.append(len(pieces)) or load(self, pieces, *rest))
    with weights.from_pretrained(), safetensors.safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        for name, tensor in tensors.items():
            assert torch.equal(file.get_slice(name)[...], tensor)
        assert calls == [200]
        first, again = file.get_tensor("t000"), file.get_tensor("t000")
        assert torch.equal(first, again) and first.data_ptr() != again.data_ptr(), "each caller owns what it gets"


def test_everything_is_as_before_after_the_block(tmp_path):
    from transformers import modeling_utils

    before = (safetensors.safe_open, sys.modules["safetensors.torch"].safe_open, modeling_utils.safe_open, modeling_utils._safe_load_bytes)
    with pytest.raises(RuntimeError, match="on purpose"), weights.from_pretrained():
        assert modeling_utils.safe_open is not before[2]
        with weights.from_pretrained(threads=2):
            assert modeling_utils.safe_open is not before[2]
        assert modeling_utils.safe_open is not before[2], "the outer block goes on"
        raise RuntimeError("on purpose")
    after = (safetensors.safe_open, sys.modules["safetensors.torch"].safe_open, modeling_utils.safe_open, modeling_utils._safe_load_bytes)
    assert all(a is b for a, b in zip(before, after))
    for arguments in ({"device": "meta"}, {"threads": 0}):
        with pytest.raises(OptionError, match="invalid"), weights.from_pretrained(**arguments):
            pass


def test_other_frameworks_are_left_to_safetensors(tmp_path):
    import numpy
    from safetensors.numpy import load_file, save_file

    save_file({"a": numpy.ones(3)}, tmp_path / "n.safetensors")
    with weights.from_pretrained():
        assert load_file(tmp_path / "n.safetensors")["a"].tolist() == [1.0, 1.0, 1.0]


def test_a_damaged_file_is_an_error_with_its_tensor(tmp_path):
    model = small()
    model.save_pretrained(tmp_path / "model")
    folder = pack(tmp_path / "model", tmp_path / "packed")
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-300] ^= 1
    path.write_bytes(data)
    with pytest.raises(weights.DamagedError, match="model."), weights.from_pretrained():
        transformers.AutoModelForCausalLM.from_pretrained(folder)
