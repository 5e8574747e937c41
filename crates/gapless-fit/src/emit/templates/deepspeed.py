#!/usr/bin/env python3
"""@TITLE@

deepspeed --num_gpus @GPUS_PER_NODE@ --num_nodes @NODES@ @FILE@

Runs a few steps of the plan below with ds_config.json beside this file and prints the measured peak of rank 0 beside the predicted one.
Replace batch() by your data.
"""

@COMMON@


def main():
    import deepspeed

    torch.manual_seed(0)
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "ds_config.json")) as file:
        settings = json.load(file)
    deepspeed.init_distributed()
    stage = settings["zero_optimization"]["stage"]
    with deepspeed.zero.Init(config_dict_or_path=settings) if stage == 3 else nullcontext():
        model = build("cpu" if stage == 3 else DEVICE)
    model.train()
    checkpoint_blocks(model)
    # Where the file names an optimizer (it runs on the host), DeepSpeed makes it.
    optimizer = None if "optimizer" in settings else make_optimizer(model)
    params = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=params, optimizer=optimizer, config=settings)
    for step in range(PLAN["steps"]):
        for part in range(PLAN["accumulation"]):
            with saving():
                loss = engine(**batch()).loss
            engine.backward(loss)
            engine.step()
    report()


main()
