#!/usr/bin/env python3
"""@TITLE@

python @FILE@                                  on one GPU
torchrun --nproc-per-node N @FILE@             on N, each with a copy of the model

Runs a few steps of the plan below and prints the measured peak beside the predicted one. Replace batch() by your data.
"""

@COMMON@


def main():
    torch.manual_seed(0)
    model = build(DEVICE)
    model.train()
    checkpoint_blocks(model)
    run = model
    if WORLD > 1:
        torch.distributed.init_process_group("nccl" if CUDA else "gloo")
        ids = [LOCAL_RANK] if CUDA else None
        run = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model)
    for step in range(PLAN["steps"]):
        for part in range(PLAN["accumulation"]):
            last = part + 1 == PLAN["accumulation"]
            with nullcontext() if WORLD == 1 or last else run.no_sync():
                inputs = batch()
                with autocast(), saving():
                    loss = loss_of(run, inputs) / PLAN["accumulation"]
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
    report()
    if WORLD > 1:
        torch.distributed.destroy_process_group()


main()
