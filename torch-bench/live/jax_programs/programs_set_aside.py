"""Names of programs whose measurements were not looked at when the estimate was made."""

HELD_BACK = ("gpt_bf16_donated", "gpt_scan_dots", "moe_scan", "resnet_bf16", "lstm", "per_example", "top_k", "equinox_mlp")
