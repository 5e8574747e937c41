"""Plans that `gapless fit --emit` writes, run over the card as they stand: a rank holds what was predicted."""

import json
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

# The matrix of words is most of the model: a script that makes two of it takes nearly twice as much.
TIED = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 200_000,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize("target", ["fsdp"])
def test_a_head_that_is_the_embedding_stays_so_over_two_ranks(bench, command, tmp_path, target):
    model = tmp_path / "config.json"
    model.write_text(json.dumps(TIED))
    words = ["--gpus", "2", "--dp", "2", "--zero", target, "--precision", "bf16", "--batch", "1", "--seq", "16", "--format", "json"]
    done = bench.start([command, "fit", model, *words, "--emit", target, "--out", tmp_path / "plan"], LD_PRELOAD=None)
    predicted = json.loads(done.out)["peak_allocated"]
    script = next((tmp_path / "plan").glob("*.py"))
    words = [sys.executable, "-m", "gapless._estimate.command", "--format", "json", "--nproc", "2", script]
    run = bench.start(words, LD_PRELOAD=None, LD_LIBRARY_PATH=None, GAPLESS_CARD_LIBRARIES=str(bench.standin))
    assert run.code == 0, run.err
    measured = max(rank["peak_allocated"] for rank in json.loads(run.out)["ranks"])
    assert abs(predicted / measured - 1) < 0.05, (predicted, measured)
