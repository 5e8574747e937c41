"""Files of two saves never load together: a save that is killed at any place leaves what loads as the old model, as the
new one, or not at all, with an error that says why."""

import itertools
import json
import os
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gapless import OptionError, weights  # noqa: E402
from gapless.weights import _native, _save  # noqa: E402

pytestmark = pytest.mark.usefixtures("loader")


class Killed(BaseException):
    """An exception that no handler of the library catches."""


def model(step, count=4):
    generator = torch.Generator().manual_seed(step)
    return {f"layer{n}.weight": (torch.randn(40, 50, generator=generator) * 0.02).to(torch.bfloat16) for n in range(count)}


def same(found, wanted):
    return set(found) == set(wanted) and all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def killed_at(monkeypatch, place, save):
    """Ends a save before its change number `place` of the folder; true if it was ended."""
    changes = itertools.count()

    def wrap(function):
        def wrapped(*arguments, **others):
            if next(changes) == place:
                raise Killed
            return function(*arguments, **others)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(_native, "save", wrap(_native.save))
        for name in ("replace", "remove", "makedirs", "fsync"):
            patch.setattr(_save.os, name, wrap(getattr(os, name)))
        try:
            save()
        except Killed:
            return True
        return False


def outcome(folder, states):
    """Which of the models a folder loads as; the text of the error if it does not load."""
    try:
        found = weights.load(folder, device="cpu")
    except weights.WeightsError as error:
        return str(error)
    matching = [name for name, state in states.items() if same(found, state)]
    assert matching, "a mixture of two saves loads"
    return matching[0]


# Shards of an old and a new save: as many, fewer, more, one, none before.
@pytest.mark.parametrize(
    ("sizes", "pack"),
    [((8000, 8000), True), *((sizes, False) for sizes in ((8000, 8000), (4000, 8000), (8000, 4000), (8000, 10**9), (10**9, 8000), (None, 8000)))],
)
def test_a_killed_save_loads_as_the_old_model_or_the_new_one_or_says_why_not(tmp_path, monkeypatch, sizes, pack):
    old, new = model(1), model(2)
    seen = set()
    for place in itertools.count():
        folder = tmp_path / str(place)
        if sizes[0] is not None:
            weights.save(old, folder, pack=pack, shard_size=sizes[0])
        if not killed_at(monkeypatch, place, lambda folder=folder: weights.save(new, folder, pack=pack, shard_size=sizes[1])):
            break
        if folder.exists():
            seen.add(outcome(folder, {"old": old, "new": new}))
        # The next save repairs the folder.
        weights.save(new, folder, pack=pack, shard_size=sizes[1])
        assert outcome(folder, {"new": new}) == "new"
        assert not [name for name in os.listdir(folder) if name.endswith(".json") and not name.startswith("model")]
        shutil.rmtree(folder)
    assert place >= 3 and outcome(folder, {"new": new}) == "new"
    if sizes == (8000, 8000):
        assert "old" in seen and any("different saves" in text for text in seen), seen
    if sizes == (None, 8000):
        assert any("one of 2 of a save" in text for text in seen), seen


def test_shards_of_two_saves_are_an_error_with_an_index_and_without(tmp_path):
    for step in (1, 2):
        weights.save(model(step), tmp_path / str(step), shard_size=8000)
    names = sorted(path.name for path in (tmp_path / "1").glob("*.safetensors"))
    assert len(names) == 2
    shutil.copy(tmp_path / "1" / names[1], tmp_path / "2" / names[1])
    index = tmp_path / "2" / "model.safetensors.index.json"
    for path in (tmp_path / "2", index):
        with pytest.raises(weights.FormatError, match="different saves"):
            weights.load(path, device="cpu")
    # Only the index is of the other save.
    shutil.copy(tmp_path / "1" / names[0], tmp_path / "2" / names[0])
    with pytest.raises(weights.FormatError, match="different saves"):
        weights.load(tmp_path / "2", device="cpu")
    index.unlink()
    assert same(weights.load(tmp_path / "2", device="cpu"), model(1))
    # One file alone loads with its own tensors.
    assert len(weights.load(tmp_path / "1" / names[0], device="cpu")) == 2


def test_files_of_other_programs_have_no_identity_and_load(tmp_path):
    safe = pytest.importorskip("safetensors.torch")
    parts = model(3)
    names = list(parts)
    for number, part in enumerate((names[:2], names[2:]), 1):
        safe.save_file({name: parts[name] for name in part}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    assert same(weights.load(tmp_path, device="cpu"), parts)
    # One of our files among them means that a save was interrupted.
    weights.save(model(4), tmp_path / "ours", shard_size=8000)
    shutil.copy(tmp_path / "ours" / "model-00001-of-00002.safetensors", tmp_path)
    with pytest.raises(weights.FormatError, match="different saves"):
        weights.load(tmp_path, device="cpu")


@pytest.mark.parametrize("pack", [False, True])
def test_ranks_of_two_steps_never_load_together(tmp_path, pack):
    for step in (1, 2):
        for rank in range(3):
            weights.save(model(step), tmp_path, pack=pack, rank=rank, world=3, identity=f"step-{step}")
            found = outcome(tmp_path, {"1": model(1), "2": model(2)})
            whole = {(1, 2): "1", (2, 2): "2"}.get((step, rank))
            if whole:
                assert found == whole
            elif step == 1:
                assert "3 ranks wrote this checkpoint" in found, found
            else:
                assert "different saves" in found, found


def test_ranks_agree_through_the_store_of_torch_distributed(tmp_path):
    program = """
import os, sys, torch, torch.distributed as dist
from gapless import weights
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/store", rank=rank, world_size=2)
for step in range(2):
    weights.save({"w": torch.full((4, 3), float(step))}, f"{sys.argv[2]}/{step}", rank=rank, world=2)
dist.barrier()
dist.destroy_process_group()
"""
    import subprocess
    import sys

    script = tmp_path / "train.py"
    script.write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    ranks = [subprocess.Popen([sys.executable, script, str(rank), tmp_path], env=environment) for rank in range(2)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    for step in range(2):
        assert torch.equal(weights.load(tmp_path / str(step), device="cpu")["w"], torch.full((4, 3), float(step)))
    first = tmp_path / "0" / "shard-00001-model-00001-of-00001.safetensors"
    shutil.copy(first, tmp_path / "1")
    with pytest.raises(weights.FormatError, match="different saves"):
        weights.load(tmp_path / "1", device="cpu")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"metadata": {"gapless.sum": "0"}}, "invalid metadata key 'gapless.sum'"),
        ({"metadata": {"gapless_save": "0"}}, "invalid metadata key 'gapless_save'"),
        ({"identity": "a"}, "invalid identity='a': it is for saves of several ranks"),
        ({"identity": "a/b", "rank": 0, "world": 1}, "invalid identity='a/b'"),
        ({"identity": "", "rank": 0, "world": 1}, "invalid identity=''"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(tmp_path, options, wanted):
    with pytest.raises(OptionError) as error:
        weights.save(model(1), tmp_path / "m", **options)
    assert wanted in str(error.value)
    assert not (tmp_path / "m").exists()


def test_the_index_says_whose_it_is(tmp_path):
    weights.save(model(1), tmp_path, shard_size=8000)
    about = json.loads((tmp_path / "model.safetensors.index.json").read_text())["metadata"]
    identity, count = about["gapless_save"].split("/")
    assert len(identity) == 32 and count == "2" and about["total_size"] == 16000
