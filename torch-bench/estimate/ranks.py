"""fit's closed forms for several GPUs against the ranks of real torch: what `gapless fit --emit` writes, estimated.

    python torch-bench/estimate/ranks.py [--gapless PROGRAM] [--only WORD] [--ranks 2,4,8] [--alone] [--out FILE]

For each model and layout `gapless fit` predicts a rank's peak and writes a script; `gapless estimate --nproc` runs that
script, unchanged, with as many ranks. With --alone only the rank that holds most runs, over torch's fake process group
(alone.py), but for DistributedDataParallel, which that group does not serve. Plans for DeepSpeed need it (its source on
the PYTHONPATH is enough: AdamW is torch's). Writes the peaks as JSON lines, which crates/gapless-fit/tests/ranks.rs
compares with the forms.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16,
    "vocab_size": 32000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
MODELS = {
    "llama-30m": {**LLAMA, "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8000},
    "llama-280m": LLAMA,
    "llama-1b": {**LLAMA, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4},
    "llama-1b-tied": {**LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 50000, "tie_word_embeddings": True},
    "llama-wide": {**LLAMA, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 6, "num_key_value_heads": 4, "vocab_size": 50304},
    "gpt2-medium": {"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
# Sharding, what is emitted, precision and what else is asked.
LAYOUTS = (
    ("fsdp", "fsdp", "bf16", ["--batch", "4", "--seq", "1024"]),
    ("1", "deepspeed", "mixed", ["--batch", "4", "--seq", "1024"]),
    ("2", "deepspeed", "mixed", ["--batch", "1", "--seq", "512"]),
    ("3", "deepspeed", "mixed", ["--batch", "1", "--seq", "512"]),
    ("0", "torch", "bf16", ["--batch", "2", "--seq", "1024"]),
    ("fsdp", "fsdp", "bf16", ["--batch", "1", "--seq", "512"]),
    ("fsdp", "fsdp", "mixed", ["--batch", "2", "--seq", "1024"]),
    ("fsdp", "fsdp", "bf16", ["--batch", "8", "--seq", "1024", "--checkpointing", "full"]),
)


def cell(program, folder, name, layout, ranks, alone):
    """The prediction of fit and the memory of the ranks, of one model, layout and number of ranks."""
    zero, target, precision, words = layout
    model = folder / f"{name}.json"
    model.write_text(json.dumps(MODELS[name]))
    asked = ["--gpus", str(ranks), "--dp", str(ranks), "--zero", zero, "--precision", precision, *words]
    done = subprocess.run([program, "fit", model, *asked, "--emit", target, "--out", folder / "plan", "--format", "json"], capture_output=True, text=True)
    if done.returncode > 1:
        return {"error": done.stderr[-400:]}
    said = json.loads(done.stdout)
    script = next((folder / "plan").glob("*.py"))
    command = [sys.executable, "-m", "gapless._estimate.command", "--format", "json"]
    if alone and zero != "0":
        # The last partition's gradients come first; in ZeRO 3 all ranks hold the same, and rank 0 is asked.
        command += [ROOT / "torch-bench/estimate/alone.py", "--", str(ranks), str(0 if zero == "3" else ranks - 1), script]
    else:
        command += ["--nproc", str(ranks), script]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode > 1:
        return {"error": run.stderr[-2500:]}
    found = json.loads(run.stdout)
    peaks = [rank["peak_allocated"] for rank in found.get("ranks", [found])]
    return {"fit": said["estimate"]["peak_allocated"] if "estimate" in said else said["peak_allocated"], "peaks": peaks}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gapless", default=str(ROOT / "target/debug/gapless"))
    parser.add_argument("--only")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--out")
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    rows = []
    for layout in LAYOUTS:
        for name in MODELS:
            for ranks in map(int, asked.ranks.split(",")):
                title = f"{name} {layout[0]} {layout[2]} {' '.join(layout[3])} x{ranks}"
                if asked.only and asked.only not in title:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    found = cell(asked.gapless, Path(folder), name, layout, ranks, asked.alone)
                if "error" in found:
                    print(f"{title:<72} FAILED {found['error']}", flush=True)
                    continue
                worst = max(found["peaks"])
                print(f"{title:<72} ranks {worst / 2**20:9.1f} MiB  fit {found['fit'] / 2**20:9.1f} MiB  {found['fit'] / worst - 1:+.2%}", flush=True)
                rows.append({"model": MODELS[name], "name": name, "zero": layout[0], "precision": layout[2], "asked": layout[3], "ranks": ranks, "peak_allocated": worst})
                if asked.out:
                    Path(asked.out).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
