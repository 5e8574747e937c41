"""Adapter runs measured on a card: one JSON object a cell, for `crates/gapless-fit/tests/adapters.rs`.

    python torch-bench/fit/adapters.py [--only NUMBER] > cells.jsonl

Needs a card of 24 GiB or more, torch and transformers; less than two minutes on an H200. Adapters come from peft if it
can be imported, else from a copy of its `Linear.forward` (`"peft": false` in the cell). Frozen weights in nf4 come from
bitsandbytes if it can be imported, else from tensors of the same sizes and a product that dequantises them as
`bitsandbytes.autograd._functions.MatMul4Bit` does (`"bitsandbytes": false`): the numbers are then random, and their
memory is the same.

Each cell is three steps of `loss.backward(); optimizer.step(); zero_grad(set_to_none=True)` over random tokens. Bytes
come from torch's own statistics; the cache is emptied between cells. `base_allocated` is the memory of libraries before
the model is built.
"""

import argparse
import gc
import importlib.util
import json
import sys
import time

import torch
import transformers
from torch import nn

LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
LLAMA_1B = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 50000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
GPT2 = {"model_type": "gpt2"}
MODELS = {"llama-240m": LLAMA, "llama-1b": LLAMA_1B, "qwen2-0.5b": QWEN2, "qwen3-12": QWEN3, "gpt2": GPT2}

# Linear layers of a block by the last part of their names.
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "c_attn", "c_proj", "c_fc")
USUAL = {"gpt2": ("c_attn",)}


def cell(model, batch, seq, rank, targets="all-linear", **more):
    """One run. The defaults are LoRA over bf16 weights with fp32 adapters and AdamW, as in peft."""
    usual = {"precision": "bf16", "checkpointing": False, "optimizer": "adamw", "dtype": "fp32", "base": "16-bit", "dora": False, "dropout": 0.0, "save": [], "accumulation": 1}
    return {"model": model, "batch": batch, "seq": seq, "rank": rank, "targets": targets, **usual, **more}


CELLS = [
    cell("llama-240m", 2, 512, 8),
    cell("llama-240m", 4, 1024, 16, checkpointing=True),
    cell("llama-240m", 4, 512, 64, targets="default"),
    cell("llama-240m", 2, 1024, 16, dtype="bf16"),
    cell("llama-240m", 2, 777, 16, precision="fp32"),
    cell("llama-240m", 4, 512, 16, precision="amp-bf16"),
    cell("llama-240m", 4, 512, 16, dropout=0.05),
    cell("llama-240m", 2, 512, 16, dora=True),
    cell("llama-240m", 2, 512, 16, base="nf4"),
    cell("llama-240m", 4, 1024, 16, base="nf4-double", checkpointing=True),
    cell("llama-240m", 2, 512, 16, save=["lm_head"]),
    cell("llama-240m", 3, 640, 32, targets=["gate_proj", "up_proj", "down_proj"], accumulation=2),
    cell("llama-1b", 1, 2048, 16, checkpointing=True),
    cell("llama-1b", 2, 512, 128, dtype="bf16", optimizer="adamw-fused"),
    cell("llama-1b", 4, 1024, 16, base="nf4", checkpointing=True, dtype="bf16"),
    cell("llama-1b", 1, 1024, 8, targets="default", optimizer="sgd"),
    cell("qwen2-0.5b", 2, 512, 16),
    cell("qwen2-0.5b", 4, 512, 16, checkpointing=True, targets="default"),
    cell("qwen2-0.5b", 2, 768, 32, dtype="bf16", targets=["q_proj", "k_proj", "v_proj", "o_proj"]),
    cell("qwen3-12", 2, 1024, 16),
    cell("qwen3-12", 8, 256, 8, targets="default", checkpointing=True),
    cell("gpt2", 4, 512, 8, targets="default"),
    cell("gpt2", 2, 1024, 16, checkpointing=True),
    cell("gpt2", 4, 512, 32, dtype="bf16", optimizer="adamw-fused"),
]

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-5),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-5, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-5),
}


def has(name):
    return importlib.util.find_spec(name) is not None


class Dora(nn.Module):
    """peft's DoraLinearLayer: the norm of the adapted weight is computed anew in each forward pass, without a
    gradient."""

    def __init__(self, weight, low, high, scaling):
        super().__init__()
        with torch.no_grad():
            norm = self.norm(weight, high.weight @ low.weight, scaling)
        self.weight = nn.Parameter(norm)

    @staticmethod
    def norm(weight, lora_weight, scaling):
        weight = weight + scaling * lora_weight
        return torch.linalg.norm(weight, dim=1).to(weight.dtype)

    def forward(self, x, low, high, scaling, base, result):
        eye = torch.eye(low.weight.shape[1], device=low.weight.device, dtype=low.weight.dtype)
        lora_weight = high(low(eye)).T.to(x.dtype)
        weight = base.weight.to(x.dtype)
        norm = self.norm(weight, lora_weight.detach(), scaling).detach()
        scale = (self.weight / norm).view(1, -1)
        if base.bias is not None:
            result = result - base.bias
        return (scale - 1) * result + scale * high(low(x)) * scaling


class Adapted(nn.Module):
    """peft's Linear with one adapter."""

    def __init__(self, base, inputs, outputs, spec):
        super().__init__()
        self.base, self.scaling = base, 2.0
        self.low = nn.Linear(inputs, spec["rank"], bias=False)
        self.high = nn.Linear(spec["rank"], outputs, bias=False)
        nn.init.zeros_(self.high.weight)
        self.to(next(base.parameters(), next(base.buffers(), None)).device)
        self.low.to(TYPES[spec["dtype"]])
        self.high.to(TYPES[spec["dtype"]])
        self.dropout = nn.Dropout(spec["dropout"]) if spec["dropout"] > 0 else nn.Identity()
        self.dora = Dora(base.weight, self.low, self.high, self.scaling) if spec["dora"] else None
        self.four = spec["base"] != "16-bit"

    def forward(self, x):
        result = self.base(x)
        if self.four:
            result = result.clone()
            convert = not torch.is_autocast_enabled()
            before = result.dtype
            if convert and x.dtype != self.low.weight.dtype:
                x = x.to(self.low.weight.dtype)
            output = self.high(self.low(self.dropout(x))) * self.scaling
            return result + (output.to(before) if convert else output)
        before = result.dtype
        x = x if x.dtype == self.low.weight.dtype else x.to(self.low.weight.dtype)
        if self.dora is None:
            result = result + self.high(self.low(self.dropout(x))) * self.scaling
        else:
            result = result + self.dora(x, self.low, self.high, self.scaling, self.base, result)
        return result.to(before)


class Dequantised(torch.autograd.Function):
    """bitsandbytes' MatMul4Bit: the weight becomes 16 bits in each pass, and is dropped again."""

    @staticmethod
    def forward(ctx, x, packed, absmax, nested, shape):
        ctx.state = (packed, absmax, nested, shape, x.dtype)
        return torch.nn.functional.linear(x, dequantised(packed, absmax, nested, shape, x.dtype))

    @staticmethod
    def backward(ctx, grad):
        packed, absmax, nested, shape, dtype = ctx.state
        return torch.matmul(grad, dequantised(packed, absmax, nested, shape, dtype)), None, None, None, None


def dequantised(packed, absmax, nested, shape, dtype):
    if nested is not None:
        scale = torch.empty(absmax.numel(), device=absmax.device, dtype=torch.float32)
        scale += 0.0
    return torch.zeros(shape, device=packed.device, dtype=dtype)


class Linear4(nn.Module):
    """A frozen linear layer in nf4: two values a byte, a scale for 64 of them, or 8-bit scales with a scale for 256."""

    def __init__(self, linear, double):
        super().__init__()
        weight = linear.weight
        n, device = weight.numel(), weight.device
        self.shape = tuple(weight.shape)
        self.bias = linear.bias
        self.register_buffer("packed", torch.zeros((n + 1) // 2, dtype=torch.uint8, device=device))
        blocks = -(-n // 64)
        self.register_buffer("absmax", torch.zeros(blocks, dtype=torch.uint8 if double else torch.float32, device=device))
        self.register_buffer("code", torch.zeros(16, device=device))
        self.register_buffer("offset", torch.zeros((), device=device) if double else None)
        self.register_buffer("nested", torch.zeros(-(-blocks // 256), device=device) if double else None)
        self.register_buffer("nested_code", torch.zeros(256, device=device) if double else None)

    def forward(self, x):
        out = Dequantised.apply(x, self.packed, self.absmax, self.nested, self.shape)
        return out if self.bias is None else out + self.bias


def linear_like(module):
    return isinstance(module, nn.Linear) or type(module).__name__ in ("Conv1D", "Linear4", "Linear4bit")


def sizes(module):
    if isinstance(module, Linear4):
        return module.shape[1], module.shape[0]
    if type(module).__name__ == "Conv1D":
        return tuple(module.weight.shape)
    return module.in_features, module.out_features


def replace(model, wanted, make):
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in wanted and linear_like(child):
                setattr(parent, name, make(child))


def build(spec):
    numbers = {key: value for key, value in MODELS[spec["model"]].items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(MODELS[spec["model"]]["model_type"], **numbers)
    dtype = torch.bfloat16 if spec["precision"] == "bf16" else torch.float32
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    if spec["base"] != "16-bit":
        quantise(model, spec)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    kind = MODELS[spec["model"]]["model_type"]
    targets = spec["targets"]
    wanted = ALL if targets == "all-linear" else USUAL.get(kind, ("q_proj", "v_proj")) if targets == "default" else targets
    if has("peft") and spec["base"] == "16-bit":
        import peft

        config = peft.LoraConfig(
            r=spec["rank"],
            lora_alpha=2 * spec["rank"],
            lora_dropout=spec["dropout"],
            target_modules=[name for name in wanted if any(n.rsplit(".", 1)[-1] == name for n, _ in model.named_modules())],
            modules_to_save=spec["save"] or None,
            use_dora=spec["dora"],
            task_type="CAUSAL_LM",
            fan_in_fan_out=kind == "gpt2",
        )
        model = peft.get_peft_model(model, config, autocast_adapter_dtype=spec["dtype"] == "fp32")
    else:
        replace(model, wanted, lambda linear: Adapted(linear, *sizes(linear), spec))
        if spec["save"]:
            # peft keeps the frozen module beside the copy that is trained.
            model.kept = model.lm_head
            model.lm_head = nn.Linear(*sizes(model.kept), bias=False, device="cuda", dtype=dtype)
    if spec["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    return model


def quantise(model, spec):
    replace(model, ALL, lambda linear: Linear4(linear, spec["base"] == "nf4-double"))


def run(number, spec):
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    base = torch.cuda.memory_allocated()
    torch.manual_seed(0)
    model = build(spec)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = OPTIMIZERS[spec["optimizer"]](trained)
    vocab = model.config.vocab_size
    steps = []
    x = loss = None
    for _ in range(3):
        began = time.time()
        for _ in range(spec["accumulation"]):
            x = torch.randint(0, vocab, (spec["batch"], spec["seq"]), device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=spec["precision"] == "amp-bf16"):
                loss = model(input_ids=x, labels=x, use_cache=False).loss
            step = {"after_forward": torch.cuda.memory_allocated(), "peak_to_forward": torch.cuda.max_memory_allocated()}
            loss.backward()
        step.update(after_backward=torch.cuda.memory_allocated(), peak_to_backward=torch.cuda.max_memory_allocated())
        optimizer.step()
        step.update(peak_to_step=torch.cuda.max_memory_allocated())
        optimizer.zero_grad(set_to_none=True)
        step.update(after_step=torch.cuda.memory_allocated(), s=round(time.time() - began, 4))
        steps.append(step)
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    result = {
        "number": number,
        "model": spec["model"],
        "config": MODELS[spec["model"]],
        **{key: spec[key] for key in ("batch", "seq", "precision", "checkpointing", "optimizer", "accumulation")},
        "mode": "train",
        "lora": {key: spec[key] for key in ("rank", "targets", "dtype", "base", "dora", "dropout", "save")},
        "peft": has("peft") and spec["base"] == "16-bit",
        "bitsandbytes": False,
        "base_allocated": base,
        "params": sum(p.numel() for p in model.parameters()),
        "trained": sum(p.numel() for p in trained),
        "steps": steps,
        "peak_allocated": stats["allocated_bytes.all.peak"],
        "peak_requested": stats["requested_bytes.all.peak"],
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "device_used_outside_torch": total - free - stats["reserved_bytes.all.current"],
    }
    del model, optimizer, trained, x, loss
    return result


def warm():
    """Memory that libraries keep for the whole process: a product in each direction."""
    a = torch.ones(512, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    linear = nn.Linear(512, 512, device="cuda", dtype=torch.bfloat16)
    linear(a).sum().backward()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, action="append", help="the number of a cell")
    arguments = parser.parse_args()
    warm()
    failed = 0
    for number, spec in enumerate(CELLS):
        if arguments.only and number not in arguments.only:
            continue
        try:
            print(json.dumps(run(number, spec)), flush=True)
        except Exception as error:  # a cell that fails is told, and the others go on
            failed += 1
            print(f"cell {number} {spec}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    print(f"{len(CELLS) - failed} passed, {failed} failed; torch {torch.__version__}, transformers {transformers.__version__}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
