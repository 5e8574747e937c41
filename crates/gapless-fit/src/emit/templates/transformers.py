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
        return adapt(loaded.to(device))
    numbers = {key: value for key, value in CONFIG.items() if key not in ("model_type", "attn_implementation", "dtype", "torch_dtype")}
    config = AutoConfig.for_model(CONFIG["model_type"], **numbers)
    if CONFIG["model_type"] == "t5" and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id or 0
    with torch.device(device):
        return adapt(model_class().from_config(config, dtype=WEIGHT_TYPE, attn_implementation=PLAN["attention"]))


def adapt(model):
    """Freezes the model in the plan's format and adds the plan's adapters; without any, the model as it is."""
    lora = PLAN.get("lora")
    if not lora:
        return model
    import peft

    if lora["base"] != "16-bit":
        quantise(model, lora["base"])
    wanted = peft.LoraConfig(
        r=lora["rank"],
        lora_alpha=2 * lora["rank"],
        lora_dropout=lora["dropout"],
        target_modules=lora["targets"],
        use_dora=lora["dora"],
        modules_to_save=lora["save"] or None,
    )
    return peft.get_peft_model(model, wanted, autocast_adapter_dtype=not lora["narrow"])


def quantise(model, base):
    """bitsandbytes' layers in place of the linear ones, but of the head: what transformers does as it loads."""
    import bitsandbytes

    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, torch.nn.Linear) or child is head:
                continue
            inputs, outputs, bias, weight = child.in_features, child.out_features, child.bias is not None, child.weight.data
            with torch.device("meta"):
                if base == "int8":
                    layer = bitsandbytes.nn.Linear8bitLt(inputs, outputs, bias, has_fp16_weights=False, threshold=6.0)
                else:
                    layer = bitsandbytes.nn.Linear4bit(inputs, outputs, bias, WEIGHT_TYPE, compress_statistics=base == "nf4-double", quant_type="nf4")
            if base == "int8":
                layer.weight = bitsandbytes.nn.Int8Params(weight.cpu(), requires_grad=False, has_fp16_weights=False)
            else:
                twice = base == "nf4-double"
                layer.weight = bitsandbytes.nn.Params4bit(weight.cpu(), requires_grad=False, compress_statistics=twice, quant_type="nf4", module=layer)
            layer.bias = child.bias
            setattr(parent, name, layer.to(weight.device))


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
