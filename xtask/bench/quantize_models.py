"""The models of `quantize_loads.py`: one small configuration for each architecture, all sizes multiples of 128."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

H, F, V = 128, 256, 384  # hidden, feed-forward, vocabulary
TEXT: dict[str, Any] = {
    "hidden_size": H,
    "intermediate_size": F,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": V,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


#: transformers 5.23 calls an architecture's own `_init_weights` on packed layers, and some ask for `weight` there
INIT = "its own _init_weights asks a packed layer for its weight"
PACKED: dict[Any, str] = {(scheme, 0): INIT for scheme in ("w4a16", "mxfp4", "nvfp4")}


def without_head_dim() -> dict[str, Any]:
    return {key: value for key, value in TEXT.items() if key != "head_dim"}


def tokens() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 100, (1, 7))}


@dataclass
class Case:
    config: Callable[[], Any]
    model: Any
    inputs: Callable[[], dict[str, torch.Tensor]] = tokens
    #: how a fused tensor of experts is made of its parts: by halves, or in turns
    layout: str = ""
    #: (scheme, way) or a way alone, 0 as it is and 1 dequantised: why transformers does not load it
    fails: dict[Any, str] = field(default_factory=dict)
    scheme: str = ""
    #: a module that the user leaves out
    ignore: str = ""

    def save(self, to: Path) -> None:
        model = self.model.from_config(self.config()) if hasattr(self.model, "from_config") else None
        model = model if model is not None else self.model(self.config())
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.05)
        model.bfloat16().save_pretrained(to)
        if self.layout:
            self.save_fused(model, to)

    def save_fused(self, model: Any, to: Path) -> None:
        """Experts as the released models have them; transformers saves some of them apart."""
        fused = {name: value.detach() for name, value in model.state_dict().items() if name.endswith("proj")}
        fused = {name: value for name, value in fused.items() if value.dim() == 3}
        stored = load_file(to / "model.safetensors")
        kept = {name: value for name, value in stored.items() if ".experts." not in name or name.endswith("bias")}
        if "columns" in self.layout and "swapped" in self.layout:
            fused = {name: value.transpose(1, 2) for name, value in fused.items()}
        whole = {**kept, **{name: value.contiguous() for name, value in fused.items()}}
        save_file(whole, to / "model.safetensors", {"format": "pt"})

    def expected(self, scheme: str, way: int) -> str:
        return self.fails.get((scheme, way)) or self.fails.get(way) or ""

    def fuse(self, name: str, value: torch.Tensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """The tensor of the original name, of what it was split into."""
        is_bias = name.endswith("_bias")
        base = name.removesuffix("_bias").removesuffix(".weight")
        parent, _, last = base.rpartition(".")
        leaf = "bias" if is_bias else "weight"
        out = torch.empty_like(value)
        names = ["gate_proj", "up_proj"] if last == "gate_up_proj" else [last]
        for expert in range(value.shape[0]):
            found = [parts.pop(f"{parent}.{expert}.{part}.{leaf}") for part in names]
            if is_bias:
                joined = torch.cat(found) if "pairs" not in self.layout else torch.stack(found, 1).flatten()
            else:
                joined = torch.cat(found) if "pairs" not in self.layout else torch.stack(found, 1).flatten(0, 1)
                if "columns" in self.layout:
                    joined = joined.T
            out[expert] = joined
        return out


def refused(name: str) -> bool:
    """Whether quantising this model must be refused."""
    return name in ("gpt2", "openai-gpt")


def audio() -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(1, 80, 64), "decoder_input_ids": torch.randint(3, 100, (1, 7))}


def both() -> dict[str, torch.Tensor]:
    return {**tokens(), "decoder_input_ids": torch.randint(3, 100, (1, 7))}


def image() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 3, 32, 32)}


MOE = {**TEXT, "moe_intermediate_size": F, "num_experts": 4, "num_experts_per_tok": 2, "num_local_experts": 4}
CLASSES = {"num_labels": 3}
VISION = {"hidden_size": H, "intermediate_size": F, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 32}
ENCODER_DECODER = {
    "vocab_size": V,
    "d_model": H,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": F,
    "decoder_ffn_dim": F,
}
T5 = {"vocab_size": V, "d_model": H, "d_ff": F, "d_kv": 32, "num_layers": 2, "num_heads": 4}
T5 |= {"pad_token_id": 0, "decoder_start_token_id": 0}
MAMBA = {"hidden_size": H, "num_hidden_layers": 2, "vocab_size": V, "state_size": 16}
BERT = {**TEXT, "hidden_act": "gelu"}


def gemma3() -> Any:
    text = {**TEXT, "sliding_window": 32, "query_pre_attn_scalar": 64}
    vision = {**VISION, "patch_size": 8}
    return tf.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)


def llama4() -> Any:
    text = {**MOE, "intermediate_size_mlp": F, "interleave_moe_layer_step": 1, "moe_layers": [0, 1]}
    return tf.Llama4TextConfig(**text)


def qwen35() -> Any:
    sizes = {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 4}
    more = {"linear_num_value_heads": 4, "shared_expert_intermediate_size": F}
    layers = {"layer_types": ["linear_attention", "full_attention"]}
    return tf.Qwen3_5MoeTextConfig(**MOE, **sizes, **more, **layers)


def qwen3_vl() -> Any:
    vision = {"depth": 1, "hidden_size": H, "intermediate_size": F, "num_heads": 4, "out_hidden_size": H}
    vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    text = {**MOE, "rope_parameters": {"rope_type": "default", "mrope_section": [12, 10, 10], "rope_theta": 1e4}}
    return tf.Qwen3VLMoeConfig(text_config=text, vision_config=vision)


def deepseek() -> Any:
    sizes = {"q_lora_rank": H, "kv_lora_rank": H, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64}
    experts = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1}
    return tf.DeepseekV3Config(**{**MOE, "num_key_value_heads": 4, **sizes, **experts})


#: transformers 5.23 knows only the fused names
VLLM_ALONE: dict[Any, str] = {0: "split experts are not in its table of names", 1: "as above"}
#: transformers 5.23 decodes experts itself: without NVFP4's scale of the matrix, and int8 and blocks not at all
DECODES = "its decoder of experts has no such scheme"
EXPERTS: dict[Any, str] = {(scheme, way): DECODES for scheme in ("fp8-block", "w8a8", "nvfp4") for way in (0, 1)}
CAUSAL, SEQ, MASKED = tf.AutoModelForCausalLM, tf.AutoModelForSeq2SeqLM, tf.AutoModelForMaskedLM
CASES: dict[str, Case] = {
    "llama": Case(lambda: tf.LlamaConfig(**TEXT), CAUSAL),
    "llama-tied": Case(lambda: tf.LlamaConfig(**TEXT, tie_word_embeddings=True), CAUSAL),
    "llama-score": Case(lambda: tf.LlamaConfig(**TEXT, **CLASSES), tf.AutoModelForSequenceClassification),
    "qwen3": Case(lambda: tf.Qwen3Config(**TEXT), CAUSAL),
    "qwen3-moe": Case(lambda: tf.Qwen3MoeConfig(**MOE), CAUSAL, fails=EXPERTS),
    "mixtral": Case(lambda: tf.MixtralConfig(**MOE), CAUSAL, fails=EXPERTS),
    "deepseek-v3": Case(deepseek, CAUSAL, fails=EXPERTS),
    "qwen3.5-moe": Case(qwen35, CAUSAL, layout="rows", fails=EXPERTS),
    "qwen3-vl-moe": Case(qwen3_vl, tf.AutoModelForImageTextToText, layout="columns swapped", fails=VLLM_ALONE),
    "llama4": Case(llama4, CAUSAL, layout="columns"),
    "gpt-oss": Case(lambda: tf.GptOssConfig(**MOE), CAUSAL, layout="columns pairs"),
    "gemma3": Case(gemma3, tf.AutoModelForImageTextToText, fails=PACKED),
    "gemma3-ignore": Case(gemma3, tf.AutoModelForImageTextToText, fails=PACKED, ignore="language_model.model.layers.0.mlp.down_proj"),
    "phi3": Case(lambda: tf.Phi3Config(**{**TEXT, "num_key_value_heads": 4}), CAUSAL),
    "opt": Case(lambda: tf.OPTConfig(**TEXT, ffn_dim=F, word_embed_proj_dim=H), CAUSAL),
    "gpt2": Case(lambda: tf.GPT2Config(n_embd=H, n_layer=2, n_head=4, vocab_size=V, n_positions=64), CAUSAL),
    "gpt-neox": Case(lambda: tf.GPTNeoXConfig(**TEXT), CAUSAL),
    "falcon": Case(lambda: tf.FalconConfig(**without_head_dim()), CAUSAL, fails=PACKED),
    "bert": Case(lambda: tf.BertConfig(**BERT), MASKED),
    "bert-score": Case(lambda: tf.BertConfig(**BERT, **CLASSES), tf.AutoModelForSequenceClassification),
    "roberta": Case(lambda: tf.RobertaConfig(**BERT), MASKED),
    "modernbert": Case(lambda: tf.ModernBertConfig(**without_head_dim()), MASKED, fails=PACKED),
    "vit": Case(lambda: tf.ViTConfig(**VISION, patch_size=8, **CLASSES), tf.AutoModelForImageClassification, image),
    "whisper": Case(
        lambda: tf.WhisperConfig(
            **ENCODER_DECODER,
            max_source_positions=32,
            max_target_positions=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            begin_suppress_tokens=None,
            suppress_tokens=None,
        ),
        tf.AutoModelForSpeechSeq2Seq,
        audio,
    ),
    "t5": Case(
        lambda: tf.T5Config(**T5),
        SEQ,
        both,
        fails=PACKED,
    ),
    "bart": Case(
        lambda: tf.BartConfig(
            **ENCODER_DECODER,
            max_position_embeddings=64,
        ),
        SEQ,
        both,
    ),
    "mamba": Case(lambda: tf.MambaConfig(**MAMBA, time_step_rank=128), CAUSAL, fails=PACKED),
    "mamba2": Case(lambda: tf.Mamba2Config(**MAMBA, num_heads=4, head_dim=64, n_groups=1), CAUSAL, fails=PACKED),
}
