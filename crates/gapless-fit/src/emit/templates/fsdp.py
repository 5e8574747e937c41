#!/usr/bin/env python3
"""@TITLE@

torchrun --nproc-per-node @GPUS_PER_NODE@ --nnodes @NODES@ @FILE@

Shards every block with fully_shard, runs a few steps of the plan below and prints the measured peak of rank 0 beside the predicted one.
Replace batch() by your data.
"""

@COMMON@


def build_sharded(mesh):
    """Only shards are ever materialised: parameters begin on the meta device, buffers keep their values."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    loaded = bool(PLAN["weights"])
    model = build("cpu") if loaded else build_without_values()
    model.train()
    checkpoint_blocks(model)
    compute = getattr(torch, PLAN["compute_type"])
    reduce = getattr(torch, PLAN["reduce_type"])
    settings = {
        "mesh": mesh,
        "reshard_after_forward": PLAN["reshard_after_forward"],
        "mp_policy": MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce),
        "offload_policy": CPUOffloadPolicy(pin_memory=CUDA) if PLAN["offload_parameters"] else OffloadPolicy(),
    }
    for block in blocks_of(model):
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    if not loaded:
        fill(model, torch.device("cpu") if PLAN["offload_parameters"] else DEVICE)
    return model


def build_without_values():
    """The model with its parameters on the meta device and its buffers as they should be."""
    register = torch.nn.Module.register_parameter
    resets = {kind: kind.reset_parameters for kind in (torch.nn.Linear, torch.nn.Embedding, torch.nn.LayerNorm)}

    def on_meta(module, name, parameter):
        register(module, name, parameter)
        # One that is on the meta device already is tied to another.
        if parameter is not None and not parameter.is_meta:
            module._parameters[name] = torch.nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    torch.nn.Module.register_parameter = on_meta
    for kind in resets:
        kind.reset_parameters = lambda module: None
    try:
        return build("cpu")
    finally:
        torch.nn.Module.register_parameter = register
        for kind, reset in resets.items():
            kind.reset_parameters = reset


def fill(model, device):
    """Random values for what is on the meta device; buffers move as they are."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    owners = {}
    named = ((module, name, parameter) for module in model.modules() for name, parameter in module._parameters.items())
    places = [(module, name, owners.setdefault(parameter, (module, name))) for module, name, parameter in named if parameter is not None]
    model.to_empty(device=device)
    # Every place has a parameter of its own now: tied ones are tied again.
    for module, name, (owner, own_name) in places:
        module._parameters[name] = owner._parameters[own_name]
    for name, buffer in model.named_buffers():
        if not buffers[name].is_meta:
            buffer.copy_(buffers[name])
    if device.type != DEVICE.type:
        # Parameters wait on the host, buffers are used where the batch is.
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.to(DEVICE)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            if name.endswith("bias"):
                local.zero_()
            elif parameter.dim() == 1:
                local.fill_(1.0)
            else:
                local.normal_(0.0, 0.02)


def main():
    from torch.distributed.device_mesh import init_device_mesh

    torch.manual_seed(0)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29577")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    backend = "cuda:nccl,cpu:gloo" if CUDA else "gloo"
    torch.distributed.init_process_group(backend)
    mesh = init_device_mesh(DEVICE.type, (torch.distributed.get_world_size(),))
    model = build_sharded(mesh)
    optimizer = make_optimizer(model)
    for step in range(PLAN["steps"]):
        for part in range(PLAN["accumulation"]):
            with saving():
                loss = model(**batch()).loss / PLAN["accumulation"]
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
    report()
    torch.distributed.destroy_process_group()


main()
