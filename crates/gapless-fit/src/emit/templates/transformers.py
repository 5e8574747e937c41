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


def loss_of(run, inputs):
    return run(**inputs).loss
