def build(device):
    """torchvision's own network with random weights, in the layout that it has by itself."""
    import torchvision

    if PLAN["weights"]:
        sys.exit("weights for a network of torchvision: load its state_dict at the end of build()")
    usual = torch.get_default_dtype()
    torch.set_default_dtype(WEIGHT_TYPE)
    try:
        with torch.device(device):
            size = {"image_size": PLAN["length"]} if CONFIG["model_type"] == "torchvision_vit" else {}
            return getattr(torchvision.models, CONFIG["name"])(weights=None, num_classes=CONFIG["num_classes"], **size)
    finally:
        torch.set_default_dtype(usual)


def blocks_of(model):
    """The network's blocks in the order of forward."""
    from torchvision.models import convnext, densenet, efficientnet, mobilenetv2, mobilenetv3, resnet, vision_transformer

    kinds = {
        "torchvision_resnet": (resnet.BasicBlock, resnet.Bottleneck),
        "torchvision_vit": (vision_transformer.EncoderBlock,),
        "torchvision_convnext": (convnext.CNBlock,),
        "torchvision_densenet": (densenet._DenseBlock,),
        "torchvision_mobilenet_v2": (mobilenetv2.InvertedResidual,),
        "torchvision_mobilenet_v3": (mobilenetv3.InvertedResidual,),
        "torchvision_efficientnet": (efficientnet.MBConv,),
    }
    kinds = kinds.get(CONFIG["model_type"])
    if kinds is None:
        sys.exit("this network has no blocks that could be told apart: plan it without recomputation, and with another optimizer than muon")
    blocks = [module for module in model.modules() if isinstance(module, kinds)]
    if len(blocks) != PLAN["blocks"]:
        sys.exit(f"the plan is for {PLAN['blocks']} blocks, this network has {len(blocks)}: plan it again")
    return blocks


def checkpoint_blocks(model):
    """Recomputes exactly the blocks that the plan names. A block keeps its name, so state_dict stays as it is."""
    if not PLAN["recompute"]:
        return
    blocks = blocks_of(model)
    for number in PLAN["recompute"]:
        blocks[number].forward = partial(checkpoint, blocks[number].forward, use_reentrant=False)


def batch():
    """One micro-batch of made-up images: put your own here."""
    size, side = PLAN["micro_batch"], PLAN["length"]
    return torch.randn(size, 3, side, side, device=DEVICE, dtype=WEIGHT_TYPE)


def labels():
    """The classes of that micro-batch: put your own here."""
    return torch.randint(0, CONFIG["num_classes"], (PLAN["micro_batch"],), device=DEVICE)


def loss_of(run, images):
    return torch.nn.functional.cross_entropy(run(images).float(), labels())
