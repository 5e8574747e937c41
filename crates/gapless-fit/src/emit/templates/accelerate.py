#!/usr/bin/env python3
"""@TITLE@

accelerate launch --config_file accelerate.yaml @FILE@

Runs a few steps of the plan below and prints the measured peak of the first process beside the predicted one. Replace batch() by your data.
"""

@COMMON@


def main():
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=PLAN["accumulation"])
    # What is sharded is built on the host: no device has to hold all of it.
    model = build("cpu" if PLAN["sharded"] else DEVICE)
    model.train()
    checkpoint_blocks(model)
    optimizer = make_optimizer(model)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(PLAN["steps"]):
        for part in range(PLAN["accumulation"]):
            with accelerator.accumulate(model):
                with saving():
                    loss = model(**batch()).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    report()
    accelerator.end_training()


main()
