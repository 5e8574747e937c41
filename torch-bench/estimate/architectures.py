"""Small configurations of transformers' and diffusers' architectures, and how each is run: two cells a configuration.

    python torch-bench/estimate/architectures.py [--set tuned|held|all] [--only NAME] [--truth FILE] [--keep FOLDER]

Estimates the cells, and writes architectures.json, which torch-bench/live/configurations.py compares with a card. Half
of the configurations are set aside by a hash of the name. Needs torch, transformers and diffusers.
"""

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "python")]
ESTIMATES = HERE / "architectures.json"

# Each configuration by its name: the class, and its keys. Sizes are between a tenth and all of a real one.
CONFIGURATIONS = {
    "gpt-oss": dict(
        architectures=["GptOssForCausalLM"], model_type="gpt_oss", hidden_size=768, intermediate_size=768, num_hidden_layers=6, num_attention_heads=12,
        num_key_value_heads=4, head_dim=64, num_local_experts=8, num_experts_per_tok=2, vocab_size=50304, sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 3,
    ),
    "llama-4": dict(
        architectures=["Llama4ForCausalLM"], model_type="llama4_text", hidden_size=640, intermediate_size=1024, intermediate_size_mlp=2048, num_hidden_layers=8,
        num_attention_heads=10, num_key_value_heads=2, head_dim=64, num_local_experts=4, num_experts_per_tok=1, vocab_size=65536, attention_chunk_size=256,
    ),
    "qwen2-moe": dict(
        architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", hidden_size=768, intermediate_size=2048, moe_intermediate_size=512,
        shared_expert_intermediate_size=2048, num_hidden_layers=6, num_attention_heads=12, num_key_value_heads=12, num_experts=16, num_experts_per_tok=4,
        vocab_size=65536,
    ),
    "qwen3-next": dict(
        architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", hidden_size=512, intermediate_size=1024, moe_intermediate_size=256,
        shared_expert_intermediate_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=64, num_experts=8,
        num_experts_per_tok=2, vocab_size=32768, linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=64, linear_value_head_dim=64,
    ),
    "phi": dict(
        architectures=["PhiForCausalLM"], model_type="phi", hidden_size=1024, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=16, vocab_size=51200,
    ),
    "phi-moe": dict(
        architectures=["PhimoeForCausalLM"], model_type="phimoe", hidden_size=768, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=12,
        num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2, vocab_size=32064,
    ),
    "falcon": dict(
        architectures=["FalconForCausalLM"], model_type="falcon", hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, vocab_size=65024,
        alibi=False, multi_query=True, new_decoder_architecture=False, parallel_attn=True, bias=False,
    ),
    "bloom": dict(architectures=["BloomForCausalLM"], model_type="bloom", hidden_size=1024, n_layer=12, n_head=16, vocab_size=100352),
    "mpt": dict(architectures=["MptForCausalLM"], model_type="mpt", d_model=1024, n_layers=12, n_heads=16, max_seq_len=2048, vocab_size=50368),
    "starcoder2": dict(
        architectures=["Starcoder2ForCausalLM"], model_type="starcoder2", hidden_size=1024, intermediate_size=4096, num_hidden_layers=12,
        num_attention_heads=16, num_key_value_heads=2, vocab_size=49152,
    ),
    "command-r": dict(
        architectures=["CohereForCausalLM"], model_type="cohere", hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=4, vocab_size=65536, logit_scale=0.0625,
    ),
    "olmo-2": dict(
        architectures=["Olmo2ForCausalLM"], model_type="olmo2", hidden_size=1024, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=16,
        vocab_size=100352,
    ),
    "stablelm": dict(
        architectures=["StableLmForCausalLM"], model_type="stablelm", hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
        num_key_value_heads=16, vocab_size=50304,
    ),
    "gpt-j": dict(architectures=["GPTJForCausalLM"], model_type="gptj", n_embd=1024, n_layer=10, n_head=16, rotary_dim=32, vocab_size=50400, n_positions=2048),
    "gpt-neo": dict(
        architectures=["GPTNeoForCausalLM"], model_type="gpt_neo", hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]],
        max_position_embeddings=2048, vocab_size=50257,
    ),
    "mamba": dict(architectures=["MambaForCausalLM"], model_type="mamba", hidden_size=768, num_hidden_layers=4, state_size=16, vocab_size=50280),
    "mamba-2": dict(
        architectures=["Mamba2ForCausalLM"], model_type="mamba2", hidden_size=768, num_hidden_layers=8, num_heads=24, head_dim=64, n_groups=1, state_size=64,
        chunk_size=128, vocab_size=50288,
    ),
    "jamba": dict(
        architectures=["JambaForCausalLM"], model_type="jamba", hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, attn_layer_period=4, attn_layer_offset=2, expert_layer_period=2, expert_layer_offset=1,
        vocab_size=65536, use_mamba_kernels=False,
    ),
    "granite": dict(
        architectures=["GraniteForCausalLM"], model_type="granite", hidden_size=1024, intermediate_size=4096, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=4, vocab_size=49152,
    ),
    "distilbert": dict(architectures=["DistilBertForMaskedLM"], model_type="distilbert"),
    "albert": dict(
        architectures=["AlbertForMaskedLM"], model_type="albert", hidden_size=768, intermediate_size=3072, num_attention_heads=12, embedding_size=128,
    ),
    "electra": dict(
        architectures=["ElectraForPreTraining"], model_type="electra", embedding_size=768, hidden_size=768, intermediate_size=3072, num_attention_heads=12,
    ),
    "deberta-v3": dict(
        architectures=["DebertaV2ForMaskedLM"], model_type="deberta-v2", hidden_size=768, intermediate_size=3072, num_hidden_layers=6, num_attention_heads=12,
        vocab_size=128100, relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
        type_vocab_size=0, position_biased_input=False, max_relative_positions=-1,
    ),
    "modernbert": dict(architectures=["ModernBertForMaskedLM"], model_type="modernbert", num_hidden_layers=12),
    "mt5": dict(
        architectures=["MT5ForConditionalGeneration"], model_type="mt5", d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_heads=6, vocab_size=250112,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, is_encoder_decoder=True,
    ),
    "bart": dict(
        architectures=["BartForConditionalGeneration"], model_type="bart", d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, vocab_size=50265,
    ),
    "whisper": dict(
        architectures=["WhisperForConditionalGeneration"], model_type="whisper", d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, vocab_size=51865, num_mel_bins=80,
    ),
    "wav2vec2": dict(architectures=["Wav2Vec2ForCTC"], model_type="wav2vec2", layerdrop=0.0, mask_time_prob=0.0),
    "hubert": dict(architectures=["HubertForCTC"], model_type="hubert", layerdrop=0.0, mask_time_prob=0.0),
    "clip": dict(
        architectures=["CLIPModel"], model_type="clip", projection_dim=512, text_config=dict(model_type="clip_text_model"),
        vision_config=dict(model_type="clip_vision_model", patch_size=32),
    ),
    "siglip": dict(
        architectures=["SiglipModel"], model_type="siglip", text_config=dict(model_type="siglip_text_model"), vision_config=dict(model_type="siglip_vision_model"),
    ),
    "vit": dict(architectures=["ViTForImageClassification"], model_type="vit", num_labels=1000),
    "dinov2": dict(architectures=["Dinov2ForImageClassification"], model_type="dinov2", image_size=518, num_labels=1000),
    "swin": dict(architectures=["SwinForImageClassification"], model_type="swin", num_labels=1000),
    "segformer": dict(
        architectures=["SegformerForSemanticSegmentation"], model_type="segformer", num_labels=150, hidden_sizes=[64, 128, 320, 512], depths=[3, 4, 6, 3],
        decoder_hidden_size=768,
    ),
    "convnextv2": dict(architectures=["ConvNextV2ForImageClassification"], model_type="convnextv2", num_labels=1000),
    "llava": dict(
        architectures=["LlavaForConditionalGeneration"], model_type="llava", image_token_index=32000,
        text_config=dict(
            model_type="llama", hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=16, vocab_size=32064,
        ),
        vision_config=dict(
            model_type="clip_vision_model", hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8, image_size=336, patch_size=14,
        ),
    ),
    "qwen2-vl": dict(
        architectures=["Qwen2VLForConditionalGeneration"], model_type="qwen2_vl", image_token_id=32005, video_token_id=32006, vision_start_token_id=32002,
        vision_end_token_id=32003,
        text_config=dict(
            model_type="qwen2_vl_text", hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=2,
            vocab_size=32064, rope_parameters=dict(rope_type="default", rope_theta=1000000.0, mrope_section=[8, 12, 12]),
        ),
        vision_config=dict(model_type="qwen2_vl_vision", depth=8, embed_dim=512, hidden_size=1024, num_heads=8, mlp_ratio=4, patch_size=14),
    ),
    "gemma-3": dict(
        architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", image_token_index=32001, boi_token_index=32002, eoi_token_index=32003,
        mm_tokens_per_image=64,
        text_config=dict(
            model_type="gemma3_text", hidden_size=768, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
            vocab_size=32064, sliding_window=256,
        ),
        vision_config=dict(
            model_type="siglip_vision_model", hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8, image_size=448, patch_size=14,
        ),
    ),
    "sd-unet": dict(
        _class_name="UNet2DConditionModel", _diffusers_version="0.6.0", sample_size=64, in_channels=4, out_channels=4, cross_attention_dim=768,
        attention_head_dim=8, block_out_channels=[320, 640, 1280, 1280], layers_per_block=2,
        down_block_types=["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
        up_block_types=["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
    ),
    "sdxl-unet": dict(
        _class_name="UNet2DConditionModel", sample_size=128, in_channels=4, out_channels=4, cross_attention_dim=2048, attention_head_dim=[5, 10, 20],
        block_out_channels=[320, 640, 1280], layers_per_block=1, transformer_layers_per_block=[1, 1, 2], use_linear_projection=True,
        down_block_types=["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
        up_block_types=["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"], addition_embed_type="text_time", addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    ),
    "flux": dict(
        _class_name="FluxTransformer2DModel", patch_size=1, in_channels=64, num_layers=2, num_single_layers=4, attention_head_dim=128, num_attention_heads=8,
        joint_attention_dim=1024, pooled_projection_dim=768, guidance_embeds=True, axes_dims_rope=[16, 56, 56],
    ),
    "sd3": dict(
        _class_name="SD3Transformer2DModel", sample_size=64, patch_size=2, in_channels=16, num_layers=6, attention_head_dim=64, num_attention_heads=12,
        joint_attention_dim=1024, caption_projection_dim=768, pooled_projection_dim=2048, out_channels=16, pos_embed_max_size=96,
    ),
    "sd-vae": dict(
        _class_name="AutoencoderKL", sample_size=256, in_channels=3, out_channels=3, latent_channels=4, block_out_channels=[128, 256, 512, 512],
        layers_per_block=2, norm_num_groups=32, down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
    ),
}  # fmt: skip

# Sizes of a batch, if those of a language model do not serve: training, and the other cell.
_SIZES = {
    "mamba": (dict(batch=2, seq=128), dict(batch=2, seq=192)),
    "mamba-2": (dict(batch=2, seq=512), dict(batch=4, seq=512)),
    "jamba": (dict(batch=2, seq=128), dict(batch=2, seq=192)),
    "qwen3-next": (dict(batch=2, seq=512), dict(batch=2, seq=512)),
    "whisper": (dict(batch=4, seq=128), dict(batch=8, seq=64)),
    "wav2vec2": (dict(batch=2, seconds=8.0), dict(batch=4, seconds=4.0)),
    "hubert": (dict(batch=2, seconds=8.0), dict(batch=4, seconds=4.0)),
    "clip": (dict(batch=32), dict(batch=64)),
    "siglip": (dict(batch=16), dict(batch=32)),
    "vit": (dict(batch=32), dict(batch=64)),
    "dinov2": (dict(batch=4), dict(batch=8)),
    "swin": (dict(batch=16), dict(batch=64)),
    "segformer": (dict(batch=4, image=512), dict(batch=8, image=512)),
    "convnextv2": (dict(batch=16), dict(batch=32)),
    "llava": (dict(batch=2), dict(batch=2, seq=1024)),
    "qwen2-vl": (dict(batch=2, seq=512, image=448), dict(batch=2, seq=1024, image=560)),
    "gemma-3": (dict(batch=2, seq=512), dict(batch=2, seq=1024)),
    "sd-unet": (dict(batch=2), dict(batch=2)),
    "sdxl-unet": (dict(batch=1, image=512), dict(batch=2, image=512)),
    "flux": (dict(batch=1, image=512), dict(batch=2, image=512)),
    "sd3": (dict(batch=2, image=512), dict(batch=4, image=512)),
    "sd-vae": (dict(batch=1, image=256), dict(batch=2, image=256)),
}
_USUAL_SIZES = (dict(batch=4, seq=512), dict(batch=8, seq=256))
# How the two cells of a configuration run, in turn: precision, and what else is set. The second one may be inference.
_FIRST = (
    dict(precision="bf16"),
    dict(precision="amp-bf16", optimizer="adamw-fused"),
    dict(precision="bf16", checkpointing="full"),
    dict(precision="amp-bf16"),
    dict(precision="bf16", optimizer="sgd-momentum", accumulation=2),
)
_SECOND = (dict(precision="bf16", train=False), dict(precision="fp32"), dict(precision="bf16", train=False), dict(precision="amp-bf16", optimizer="adafactor"))
# Blocks of these cannot be recomputed, or only by arguments that no flag has.
_NOT_RECOMPUTED = {"mamba", "mamba-2", "jamba", "swin"}


def is_held(name):
    """True if a configuration is set aside."""
    return hashlib.sha256(f"configuration {name}".encode()).digest()[0] % 2 == 1


def cells(name):
    """(name of the cell, settings, steps) of the two cells of a configuration."""
    from gapless._estimate.configured import Settings
    from gapless._estimate.sizes import Sizes

    number = list(CONFIGURATIONS).index(name)
    how = dict(_FIRST[number % len(_FIRST)])
    if name in _NOT_RECOMPUTED:
        how.pop("checkpointing", None)
    for words, sizes in zip((how, _SECOND[number % len(_SECOND)]), _SIZES.get(name, _USUAL_SIZES)):
        settings = Settings(sizes=Sizes(**sizes), **words)
        shown = " ".join(str(value) for key, value in words.items() if key != "train")
        yield f"{name} {shown} {'train' if settings.train else 'infer'}", settings, 3 if settings.train else 2


def wanted(which, only):
    for name, keys in CONFIGURATIONS.items():
        if (only and name not in only) or (which != "all" and is_held(name) != (which == "held")):
            continue
        for cell, settings, steps in cells(name):
            yield cell, dict(kind="configuration", configuration=name, text=json.dumps(keys), settings=settings, steps=steps)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", default="tuned", choices=("tuned", "held", "all"))
    parser.add_argument("--only", action="append")
    parser.add_argument("--truth", default=str(ROOT / "testdata/estimate/h200_configurations.json.gz"))
    parser.add_argument("--keep")
    parser.add_argument("--out", default=str(ESTIMATES))
    asked = parser.parse_args()
    from gapless._estimate import cards

    if "GAPLESS_CARD" not in os.environ:
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=cards.environment(cards.card("h200"))).returncode)
    # Forks share these. diffusers is not among them: it looks at the card as it is imported.
    import torch  # noqa: F401
    import transformers  # noqa: F401

    from estimates import compared

    truth = {}
    if Path(asked.truth).is_file():
        with (gzip.open if asked.truth.endswith(".gz") else open)(asked.truth, "rt") as file:
            truth = json.load(file)
    sys.exit(1 if compared(wanted(asked.set, asked.only), asked.keep, truth, Path(asked.out)) else 0)


if __name__ == "__main__":
    main()
