"""One rank of a training run over several GPUs, as torch itself shares a model: `gapless estimate --nproc` runs it.

    gapless estimate torch-bench/estimate/sharded.py --nproc 4 -- --model MODEL.json --how fsdp --batch 2 --seq 1024

How: ddp (buckets are views of the gradients), zero1 (ZeroRedundancyOptimizer over that), zero2 (fully_shard, whose
gathered weights stay through the backward pass), fsdp (fully_shard around each block). The model is one of
transformers that generates text.
"""

import argparse
import json
import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import transformers


def build(keys, dtype):
    config = transformers.AutoConfig.for_model(**keys)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


def blocks(model):
    return next(part for part in model.modules() if isinstance(part, torch.nn.ModuleList))


def shared(model, how, rank):
    """The model as its rank holds it."""
    from torch.distributed.fsdp import fully_shard

    if how in ("ddp", "zero1"):
        return torch.nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[rank], gradient_as_bucket_view=True)
    for block in blocks(model):
        fully_shard(block, reshard_after_forward=how == "fsdp")
    return fully_shard(model, reshard_after_forward=how == "fsdp")


def stepper(model, how):
    if how == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-5)
    return torch.optim.AdamW(model.parameters(), lr=1e-5)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--how", choices=("ddp", "zero1", "zero2", "fsdp"), default="fsdp")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--precision", choices=("bf16", "fp32", "amp-bf16"), default="bf16")
    parser.add_argument("--checkpointing", action="store_true")
    args = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    keys = json.loads(Path(args.model).read_text())
    model = build(keys, torch.bfloat16 if args.precision == "bf16" else torch.float32)
    if args.checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    model = shared(model, args.how, rank)
    optimizer = stepper(model, args.how)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        tokens = torch.randint(0, keys["vocab_size"], (args.batch, args.seq), device="cuda")
        with torch.autocast("cuda", torch.bfloat16) if args.precision == "amp-bf16" else nullcontext():
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
    print("peak", rank, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())


if __name__ == "__main__":
    main()
