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


@MODEL@


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


def paged(name, params, lr):
    import bitsandbytes

    return getattr(bitsandbytes.optim, name)(params, lr=lr)


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
        "paged-adamw": lambda: paged("PagedAdamW", params, lr),
        "paged-adamw8bit": lambda: paged("PagedAdamW8bit", params, lr),
        "sgd": lambda: optim.SGD(params, lr=lr),
        "sgd-momentum": lambda: optim.SGD(params, lr=lr, momentum=0.9),
        "rmsprop": lambda: optim.RMSprop(params, lr=lr),
        "adagrad": lambda: optim.Adagrad(params, lr=lr),
        "adafactor": lambda: optim.Adafactor(params, lr=lr),
        "lion": lambda: Lion(params, lr=lr),
        "muon": lambda: muon(model, lr),
    }[PLAN["optimizer"]]()


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
