"""Models and tensors as libraries make them: every type, views, classes without memory, hooks, wrappers, variants."""

import copy
import gc
import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")

from gapless import OptionError, weights  # noqa: E402
from gapless.weights import _native, _save  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("loader")


def bits(tensor):
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and (not a.numel() or torch.equal(bits(a), bits(b)))


def of_type(name, *shape):
    dtype = getattr(torch, name)
    length = dtype.itemsize
    for size in shape:
        length *= size
    values = torch.randint(0, 2 if name == "bool" else 256, (length,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return values.view(dtype).reshape(shape) if length else torch.empty(shape, dtype=dtype)


@pytest.mark.parametrize("name", sorted(_save.NAMES))
def test_every_type_goes_to_a_file_and_comes_back_as_safetensors_has_it(tmp_path, name):
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    import safetensors.torch as theirs

    # A small tensor, one with a mapping of its own, and one without values.
    tensors = {"small": of_type(name, 24, 10), "large": of_type(name, 2100, 1000), "none": of_type(name, 0, 4)}
    for pack in (False, True):
        weights.save(tensors, tmp_path / "ours", pack=pack)
        found = weights.load(tmp_path / "ours", device="cpu")
        assert all(same(found[key], tensor) for key, tensor in tensors.items())
        parts = [weights.load(tmp_path / "ours", device="cpu", rank=rank, world=5)["large"] for rank in range(5)]
        assert torch.equal(torch.cat([bits(part) for part in parts]), bits(tensors["large"]))
        with weights.from_pretrained():
            found = theirs.load_file(tmp_path / "ours" / "model.safetensors")
        assert all(same(found[key], tensor) for key, tensor in tensors.items())
    try:
        theirs.save_file(tensors, tmp_path / "theirs.safetensors")
    except Exception:
        pytest.skip(f"this safetensors does not write {name}")
    found = weights.load(tmp_path / "theirs.safetensors", device="cpu")
    assert all(same(found[key], tensor) for key, tensor in tensors.items())
    weights.save(tensors, tmp_path / "plain.safetensors", pack=False)
    found = theirs.load_file(tmp_path / "plain.safetensors")
    assert all(same(found[key], tensor) for key, tensor in tensors.items())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_view_is_saved_as_what_it_shows(tmp_path, asynchronous):
    base = torch.randn(30, 40, dtype=torch.complex64)
    views = {
        "base": base,
        "conjugate": base.conj(),
        "imaginary": base.conj().imag,
        "negative": torch._neg_view(torch.ones(50)),
        "turned": base.T,
        "both": base.T.conj(),
        "expanded": torch.ones(1, 7).expand(5, 7),
        "strided": torch.arange(60).as_strided((5, 3), (3, 2)),
        "pairs": torch.arange(64, dtype=torch.uint8).reshape(8, 8)[:, ::2].view(getattr(torch, "float4_e2m1fn_x2", torch.uint8)),
    }
    saving = weights.save(views, tmp_path / "v.safetensors", asynchronous=asynchronous)
    if asynchronous:
        saving.wait()
    found = weights.load(tmp_path / "v.safetensors", device="cpu")
    for name, view in views.items():
        shown = view.view(torch.uint8) if name == "pairs" else view.clone().resolve_conj().resolve_neg()
        assert torch.equal(found[name].view(torch.uint8) if name == "pairs" else found[name], shown), name


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(30, 30)


def wrapper():
    two = pytest.importorskip("torch.testing._internal.two_tensor")
    return two.TwoTensor(torch.ones(30, 30), torch.ones(30, 30))


STRANGE = {
    "fake": fake,
    "wrapper": wrapper,
    "zero": lambda: torch._efficientzerotensor(30, 30),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged),
    "lazy": lambda: torch.nn.UninitializedParameter(),
    "meta": lambda: torch.ones(30, 30, device="meta"),
    "sparse": lambda: torch.eye(30).to_sparse(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "wide": lambda: torch.ones(3, dtype=torch.complex128),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", STRANGE)
def test_what_has_no_bytes_of_its_own_is_refused_by_name(tmp_path, kind):
    strange = STRANGE[kind]()
    for asynchronous in (False, True):
        with pytest.raises(OptionError, match="'strange'"):
            weights.save({"good": torch.ones(3), "strange": strange}, tmp_path / "s.safetensors", asynchronous=asynchronous)
    assert os.listdir(tmp_path) == []


def test_targets_without_memory_are_refused(tmp_path):
    from torch._subclasses.fake_tensor import FakeTensorMode

    path = tmp_path / "m.safetensors"
    weights.save(torch.nn.Linear(30, 40), path)
    with FakeTensorMode():
        model = torch.nn.Linear(30, 40)
        with pytest.raises(OptionError, match="FakeTensor"):
            weights.load(path, device="cpu")
    with pytest.raises(OptionError, match="FakeTensor"):
        weights.load_into(model, path)
    with pytest.raises(OptionError, match="lazy"):
        weights.load_into(torch.nn.LazyLinear(40), path)

    def within(batch):
        weights.save({"batch": batch}, tmp_path / "b.safetensors")
        return batch

    with pytest.raises(OptionError, match="'batch'"):
        torch.func.vmap(within)(torch.ones(3, 4))


class Cloning(torch.nn.Module):
    """Its state_dict has copies, as hooks of quantisers and of sharded models make them."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self._register_state_dict_hook(lambda module, state, prefix, _: state.update({key: value.detach().clone() for key, value in state.items()}))


class Extra(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.extra = torch.randn(3)

    def get_extra_state(self):
        return self.extra.clone()

    def set_extra_state(self, state):
        self.extra = state.clone()


class Parts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.many = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(3)) for _ in range(3))
        self.named = torch.nn.ParameterDict({"a": torch.nn.Parameter(torch.randn(2, dtype=torch.complex64))})
        self.frozen = torch.nn.Parameter(torch.randn(5), requires_grad=False)
        self.turned = torch.nn.Parameter(torch.randn(6, 5).T)
        self.register_buffer("kept", torch.randn(3))
        self.register_buffer("left", torch.randn(3), persistent=False)
        self.register_buffer("none", None)


MODELS = {
    "cloning": Cloning,
    "extra": Extra,
    "parts": Parts,
    "convolution": lambda: torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last),
    "normalised": lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)),
    "parametrised": lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(5, 5)),
    "spectral": lambda: torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(5, 5)),
    "recurrent": lambda: torch.nn.LSTM(3, 4, num_layers=2),
    "attention": lambda: torch.nn.MultiheadAttention(8, 2),
    "wrapped": lambda: torch.nn.DataParallel(torch.nn.Linear(3, 3)),
    "averaged": lambda: torch.optim.swa_utils.AveragedModel(torch.nn.Linear(3, 3)),
    "half": lambda: torch.nn.Linear(3, 3).half(),
}


@pytest.mark.parametrize("kind", MODELS)
def test_load_into_gives_what_load_state_dict_gives(tmp_path, kind):
    torch.manual_seed(0)
    source, path = MODELS[kind](), tmp_path / "m.safetensors"
    weights.save(source, path)
    target = MODELS[kind]()
    wanted = copy.deepcopy(target)
    wanted.load_state_dict(weights.load(path, device="cpu"))
    versions = {name: tensor._version for name, tensor in target.named_parameters()}
    done = weights.load_into(target, path)
    assert done.missing == done.unexpected == done.on_meta == ()
    for one in (source, wanted):
        assert all(same(tensor, target.state_dict()[name]) for name, tensor in one.state_dict().items())
    for (name, tensor), (_, other) in zip(target.named_parameters(), wanted.named_parameters()):
        assert (tensor.requires_grad, tensor.stride()) == (other.requires_grad, other.stride()), name
        # A backward pass that saved the old values must notice.
        assert tensor._version > versions[name], name


def test_a_gradient_of_values_that_were_replaced_is_an_error(tmp_path):
    model, path = torch.nn.Linear(4, 4), tmp_path / "m.safetensors"
    weights.save(model, path)
    out = model(torch.ones(4, requires_grad=True)).sum()
    weights.load_into(model, path)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_what_is_still_on_the_meta_device_is_told(tmp_path):
    path = tmp_path / "m.safetensors"
    weights.save(Parts(), path)
    with torch.device("meta"):
        model = Parts()
    assert weights.load_into(model, path, device="cpu").on_meta == ("left",)


def test_wrappers_names_are_explained(tmp_path):
    path, wrapped = tmp_path / "m.safetensors", tmp_path / "w.safetensors"
    weights.save(torch.nn.Linear(3, 3), path)
    weights.save(torch.nn.DataParallel(torch.nn.Linear(3, 3)), wrapped)
    with pytest.raises(weights.NamesError, match=r"model's names begin with 'module\.'.*model\.module"):
        weights.load_into(torch.nn.DataParallel(torch.nn.Linear(3, 3)), path)
    with pytest.raises(weights.NamesError, match=r"model's names begin with '_orig_mod\.'"):
        weights.load_into(torch.compile(torch.nn.Linear(3, 3)), path)
    with pytest.raises(weights.NamesError, match=r"files' names begin with 'module\.'"):
        weights.load_into(torch.nn.Linear(3, 3), wrapped)
    with pytest.raises(weights.NamesError) as caught:
        weights.load_into(torch.nn.BatchNorm1d(3), path)
    assert "begin with" not in str(caught.value)


def test_each_rank_loads_its_part_of_a_dtensor(tmp_path, two_ranks):
    program = """
        import sys, torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        from gapless import OptionError, weights

        rank, folder = int(sys.argv[1]), sys.argv[2]
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        torch.manual_seed(0)
        source = {f"{name}{k}": torch.randn(7, 6) for name in ("rows", "columns", "copies") for k in range(2)}
        source["few"] = torch.randn(1, 3)
        path = folder + "/m.safetensors"
        if rank == 0:
            weights.save(source, path)
        dist.barrier()
        places = {"rows": Shard(0), "columns": Shard(1), "copies": Replicate(), "few": Shard(0)}
        model = torch.nn.Module()
        for name, tensor in source.items():
            place = places[name.rstrip("01")]
            model.register_parameter(name, torch.nn.Parameter(distribute_tensor(torch.zeros_like(tensor), mesh, [place])))
        weights.load_into(model, path)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.full_tensor(), source[name]), name
        sharded = torch.nn.Linear(6, 9).bfloat16()
        weights.save(sharded, folder + f"/{rank}.safetensors")
        other = torch.nn.Linear(6, 9)
        fully_shard(other, mesh=mesh)
        weights.load_into(other, folder + f"/{rank}.safetensors")
        for name, parameter in other.named_parameters():
            whole = dict(sharded.named_parameters())[name].float().chunk(2)[rank]
            assert torch.equal(parameter.to_local(), whole), name
        try:
            weights.save(other, folder + "/x.safetensors")
            raise SystemExit("a DTensor was saved as a whole")
        except OptionError as error:
            assert "rank=" in str(error)
        with torch.device("meta"):
            empty = torch.nn.Linear(6, 9)
        fully_shard(empty, mesh=mesh)
        try:
            weights.load_into(empty, folder + "/0.safetensors", device="cpu")
            raise SystemExit("a DTensor of the meta device was filled")
        except OptionError as error:
            assert "to_empty" in str(error)
        dist.barrier()
        dist.destroy_process_group()
    """
    two_ranks(program, tmp_path)


def test_one_of_several_variants_is_named_by_its_index(tmp_path):
    tensors = {"a": torch.randn(50, 50), "b": torch.randn(60, 50)}
    for variant, cast in (("", torch.float32), (".fp16", torch.float16)):
        names = [f"model{variant}-{k}-of-2.safetensors" for k in (1, 2)]
        for name, key in zip(names, tensors):
            weights.save({key: tensors[key].to(cast)}, tmp_path / name)
        index = {"weight_map": dict(zip(tensors, names))}
        (tmp_path / f"model.safetensors.index{variant}.json").write_text(json.dumps(index))
    # The folder's own index has no variant.
    assert weights.load(tmp_path, device="cpu")["a"].dtype == torch.float32
    found = weights.load(tmp_path / "model.safetensors.index.fp16.json", device="cpu")
    assert all(same(found[name], tensor.half()) for name, tensor in tensors.items())
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"weight_map": {"c": "model-1-of-2.safetensors"}}))
    with pytest.raises(weights.FormatError, match="'c'|\"c\""):
        weights.load(wrong, device="cpu")
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(weights.FormatError, match="index of one model"):
        weights.load(tmp_path, device="cpu")


def test_files_that_nobody_closes_are_closed_with_their_reader(tmp_path):
    path = tmp_path / "m.safetensors"
    weights.save({"a": torch.ones(300)}, path)

    def open_files():
        gc.collect()
        return sum(os.path.realpath(f"/proc/self/fd/{number}") == str(path.resolve()) for number in os.listdir("/proc/self/fd"))

    with weights.from_pretrained():
        opened = [safetensors.safe_open(path, "pt") for _ in range(5)]
        assert [one.get_tensor("a").sum() for one in opened] == [300] * 5 and open_files() >= 5
        del opened
    assert open_files() == 0


def test_a_packed_file_is_never_given_to_a_reader_that_does_not_know_it(tmp_path):
    def file(name, dtype, count, length):
        text = json.dumps({"w": {"dtype": dtype, "shape": [count], "data_offsets": [0, length]}}).encode()
        plain = tmp_path / name
        plain.write_bytes(len(text).to_bytes(8, "little") + text + bytes(length))
        _native.pack(plain, tmp_path / f"packed-{name}", 1)
        return tmp_path / f"packed-{name}"

    six = file("six.safetensors", "F6_E2M3", 8000, 6000)
    eight = file("eight.safetensors", "U8", 6000, 6000)
    with weights.from_pretrained():
        # A type that torch does not have, and a device that Gapless does not serve.
        with pytest.raises(weights.FormatError, match="F6_E2M3"):
            safetensors.safe_open(six, "pt")
        with pytest.raises(OptionError, match="'xpu'"):
            safetensors.safe_open(eight, "pt", device="xpu")


def test_odd_calls_are_named(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    weights.save({"a": torch.ones(3)}, path)
    cases = [
        (lambda: weights.load(f"{path}\0x", device="cpu"), "a zero in it"),
        (lambda: weights.save({"a": torch.ones(3)}, f"{tmp_path}/x\0.safetensors"), "a zero in it"),
        (lambda: weights.load(path, device="cpu", dtype="bfloat16"), "invalid dtype=bfloat16"),
        (lambda: weights.save({"__metadata__": torch.ones(3)}, path), "metadata="),
    ]
    for call, wanted in cases:
        with pytest.raises(OptionError, match=wanted):
            call()
    with pytest.raises(weights.ReadError, match="make the folder first, or name another place$"):
        weights.save({"a": torch.ones(3)}, tmp_path / "no" / "m.safetensors")
    torch.save({"a": torch.ones(3)}, tmp_path / "m.pt")
    with pytest.raises(weights.FormatError, match="zip archive, as torch.save"):
        weights.load(tmp_path / "m.pt", device="cpu")

    def no_driver():
        raise RuntimeError("Found no NVIDIA driver on your system")

    monkeypatch.setattr(torch.cuda, "init", no_driver)
    with pytest.raises(OptionError, match="Found no NVIDIA driver.*device='cpu'"):
        weights.load(path)


def test_a_reader_that_was_closed_says_so_and_slices_are_those_of_safetensors(tmp_path):
    path = tmp_path / "m.safetensors"
    tensors = {"a": torch.randn(6, 5, 4), "scalar": torch.tensor(3.0), "row": torch.arange(7), "none": torch.empty(0, 3)}
    weights.save(tensors, path, pack=False)
    parts = [0, -1, 7, slice(None), slice(1, 3), slice(-2, None), slice(3, 1), slice(None, None, 2), slice(2, 100), slice(1, 1), Ellipsis, None, [0, 1], "x"]
    indexes = [(), *((one,) for one in parts), *((one, other) for one in parts for other in parts)]

    def got(opened, name, index):
        try:
            return opened.get_slice(name)[index]
        except Exception:
            return None

    with safetensors.safe_open(path, "pt") as theirs, weights.from_pretrained():
        with safetensors.safe_open(path, "pt") as ours:
            for name in tensors:
                for index in indexes:
                    wanted, found = got(theirs, name, index), got(ours, name, index)
                    assert (wanted is None) == (found is None), (name, index)
                    assert wanted is None or (wanted.dtype == found.dtype and torch.equal(wanted, found)), (name, index)
            kept = ours.get_slice("a")
        for late in (lambda: ours.get_tensor("row"), lambda: kept[1:3], ours.get_tensors):
            with pytest.raises(safetensors.SafetensorError, match="closed"):
                late()
    catalogue = _native.Catalogue(path)
    catalogue.close()
    with pytest.raises(weights.WeightsError, match="closed"):
        catalogue.load([], _native.Settings(device=-1, threads=1))


@pytest.mark.parametrize("before", [1, 2, 4])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_folder_that_is_saved_again_holds_the_new_model_alone(tmp_path, before, after):
    def model(count, value):
        return {f"layer{k}": torch.full((50,), float(value)) for k in range(count)}

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"not ours")
    for count, value in ((before, 1), (after, 2)):
        weights.save(model(count, value), tmp_path, shard_size=200)
    (tmp_path / "adapter_model.safetensors").unlink()
    found = weights.load(tmp_path, device="cpu")
    assert sorted(found) == sorted(model(after, 2)) and all(same(found[name], tensor) for name, tensor in model(after, 2).items())
    assert sum(name.endswith(".safetensors") for name in os.listdir(tmp_path)) == after
    assert (tmp_path / "config.json").exists() and (tmp_path / _save.INDEX).exists() == (after > 1)


def test_ranks_of_two_checkpoints_are_told_apart_by_their_number(tmp_path):
    for world in (3, 2):
        for rank in range(world):
            weights.save({"a": torch.arange(8.0) + world}, tmp_path, rank=rank, world=world)
    with pytest.raises(weights.FormatError, match="remove those of other checkpoints"):
        weights.load(tmp_path, device="cpu")
    with pytest.raises(OptionError, match="invalid model of the type dict"):
        weights.load_into({"a": torch.ones(3)}, tmp_path)
