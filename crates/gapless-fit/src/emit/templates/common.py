import json
import os
import sys
from contextlib import nullcontext
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

PLAN = json.loads(r'''@PLAN@''')
CONFIG = json.loads(r'''@CONFIG@''')

CUDA = torch.cuda.is_available()
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))
WORLD = int(os.environ.get("WORLD_SIZE", 1))
DEVICE = torch.device("cuda", LOCAL_RANK) if CUDA else torch.device("cpu")
if CUDA:
    torch.cuda.set_device(DEVICE)
WEIGHT_TYPE = getattr(torch, PLAN["weight_type"])


def model_class():
    import transformers

    special = {
        "bert": "AutoModelForMaskedLM",
        "roberta": "AutoModelForMaskedLM",
        "t5": "AutoModelForSeq2SeqLM",
        "vit": "AutoModelForImageClassification",
    }
    return getattr(transformers, special.get(CONFIG.get("model_type"), "AutoModelForCausalLM"))


def build(device):
    """The model on this device: with its weights where the plan names them, else with random ones."""
    from transformers import AutoConfig

    if PLAN["weights"]:
        attention = PLAN["attention"]
        loaded = model_class().from_pretrained(PLAN["weights"], dtype=WEIGHT_TYPE, attn_implementation=attention)
        return loaded.to(device)
    numbers = {key: value for key, value in CONFIG.items() if key not in ("model_type", "attn_implementation", "dtype", "torch_dtype")}
    config = AutoConfig.for_model(CONFIG["model_type"], **numbers)
    if CONFIG["model_type"] == "t5" and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id or 0
    with torch.device(device):
        return model_class().from_config(config, dtype=WEIGHT_TYPE, attn_implementation=PLAN["attention"])


def blocks_of(model):
    """The model's blocks in the order of forward: what transformers itself can checkpoint one by one."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    blocks = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if len(blocks) != PLAN["blocks"]:
        sys.exit(f"the plan is for {PLAN['blocks']} blocks, this model has {len(blocks)}: plan it again from its own config.json")
    return blocks


def checkpoint_blocks(model):
    """Recomputes exactly the blocks that the plan names, and of others the attention core alone."""
    blocks = blocks_of(model)
    for number in PLAN["recompute"]:
        blocks[number].gradient_checkpointing = True
        blocks[number]._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    if PLAN["selective"]:
        checkpoint_cores(blocks, PLAN["selective"])


def checkpoint_cores(blocks, numbers):
    """Scores and probabilities are computed again from the queries, keys and values, which stay."""
    chosen = {id(module) for number in numbers for module in blocks[number].modules()}
    home = sys.modules[type(blocks[numbers[0]]).__module__]
    plain = getattr(home, "eager_attention_forward", None)
    if plain is None or PLAN["attention"] != "eager":
        sys.exit("selective recomputation is for eager attention, whose scores are tensors: plan this model without it")

    def core(attention, *args, **kwargs):
        if id(attention) in chosen and attention.training:
            return checkpoint(plain, attention, *args, use_reentrant=False, **kwargs)
        return plain(attention, *args, **kwargs)

    home.eager_attention_forward = core


class Lion(torch.optim.Optimizer):
    """One state: the sign of an interpolation between gradient and momentum (Chen et al. 2023)."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(momentum.lerp(p.grad, 1 - first).sign_(), alpha=-group["lr"])
                momentum.lerp_(p.grad, 1 - second)


class Several:
    """Optimizers that step together."""

    def __init__(self, *parts):
        self.parts = parts

    def step(self):
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none=True):
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)


def muon(model, lr):
    """Muon on the matrices of the blocks, AdamW on the rest."""
    inner = {id(p) for block in blocks_of(model) for p in block.parameters() if p.dim() == 2}
    matrices = [p for p in model.parameters() if p.requires_grad and id(p) in inner]
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in inner]
    return Several(torch.optim.Muon(matrices, lr=lr), torch.optim.AdamW(rest, lr=lr))


def adamw8bit(params, lr):
    import bitsandbytes

    return bitsandbytes.optim.AdamW8bit(params, lr=lr)


def make_optimizer(model):
    params = [p for p in model.parameters() if p.requires_grad]
    lr = PLAN["learning_rate"]
    optim = torch.optim
    return {
        "adamw": lambda: optim.AdamW(params, lr=lr),
        "adamw-fused": lambda: optim.AdamW(params, lr=lr, fused=True),
        "adamw-forloop": lambda: optim.AdamW(params, lr=lr, foreach=False),
        "amsgrad": lambda: optim.AdamW(params, lr=lr, amsgrad=True),
        "adamw8bit": lambda: adamw8bit(params, lr),
        "sgd": lambda: optim.SGD(params, lr=lr),
        "sgd-momentum": lambda: optim.SGD(params, lr=lr, momentum=0.9),
        "rmsprop": lambda: optim.RMSprop(params, lr=lr),
        "adagrad": lambda: optim.Adagrad(params, lr=lr),
        "adafactor": lambda: optim.Adafactor(params, lr=lr),
        "lion": lambda: Lion(params, lr=lr),
        "muon": lambda: muon(model, lr),
    }[PLAN["optimizer"]]()


def vocabulary():
    """How many tokens there are: a key that a configuration leaves out has its class's default."""
    from transformers import AutoConfig

    return CONFIG.get("vocab_size") or AutoConfig.for_model(CONFIG["model_type"]).vocab_size


def batch():
    """One micro-batch of made-up data: put your own here."""
    size, length = PLAN["micro_batch"], PLAN["length"]
    if CONFIG.get("model_type") == "vit":
        pixels = torch.randn(size, CONFIG.get("num_channels", 3), length, length, device=DEVICE, dtype=WEIGHT_TYPE)
        return {"pixel_values": pixels, "labels": torch.randint(0, 2, (size,), device=DEVICE)}
    tokens = torch.randint(0, vocabulary(), (size, length), device=DEVICE)
    inputs = {"input_ids": tokens, "labels": tokens}
    if CONFIG.get("model_type") not in ("bert", "roberta", "t5"):
        inputs["use_cache"] = False
    return inputs


def autocast():
    return torch.autocast(DEVICE.type, dtype=torch.bfloat16) if PLAN["autocast"] else nullcontext()


def saving():
    """Where activations wait for backward: on the device, or on the host."""
    if PLAN["offload_activations"]:
        return torch.autograd.graph.save_on_cpu(pin_memory=CUDA)
    return nullcontext()


def report():
    """What the run took, beside what was predicted."""
    if LOCAL_RANK != 0:
        return
    predicted = PLAN["predicted_peak_allocated"]
    found = {"plan": PLAN["name"], "predicted_peak_allocated": predicted}
    if CUDA:
        measured = torch.cuda.max_memory_allocated()
        found["measured_peak_allocated"] = measured
        found["measured_peak_reserved"] = torch.cuda.max_memory_reserved()
        if predicted:
            found["error"] = round(predicted / measured - 1, 5)
    print(json.dumps(found))
