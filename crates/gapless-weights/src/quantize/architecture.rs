//! Facts on a model's tensors from its config.json, for which names and shapes are not enough.
//!
//! The tables are facts of transformers 5.23 (`xtask/bench/quantize_modules.py` lists them anew) and of vLLM 0.33.
//! For other model types nothing is guessed: fused experts stay as they are.

use super::layout::Halves;
use super::scheme::Scheme;
use serde_json::Value as Json;
use std::collections::BTreeSet;

/// The facts in a config.json; empty if there is none.
#[derive(Clone, Debug, Default)]
pub(super) struct Architecture {
    /// Every `model_type`, also those of parts such as `text_config`.
    types: BTreeSet<String>,
    /// Every size of a vocabulary.
    vocabularies: BTreeSet<u64>,
}

/// The layout of a model's fused experts, as far as its type determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fused {
    Known(Halves),
    /// The layout is known, but no engine loads these experts when they are split.
    Whole,
    Unknown,
}

/// Experts whose `gate_up_proj` has all of gate before all of up, and whose split names engines load.
const HALVES: [&str; 30] = [
    "afmoe",
    "cohere2_moe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "flex_olmo",
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v_moe",
    "glm4v_moe_text",
    "glm_moe_dsa",
    "hunyuan_v1_moe",
    "llama4",
    "llama4_text",
    "mellum",
    "olmoe",
    "qwen2_moe",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_omni_moe",
    "qwen3_omni_moe_text",
    "qwen3_omni_moe_thinker",
    "qwen3_vl_moe",
    "qwen3_vl_moe_text",
    "solar_open",
];

/// Fused experts that neither transformers nor vLLM loads when they are split.
const WHOLE: [&str; 1] = ["gpt_oss"];

/// Split experts that transformers does not load, though vLLM does.
const VLLM_ALONE: [&str; 2] = ["qwen3_vl_moe", "qwen3_vl_moe_text"];
/// Models whose quantised experts transformers loads as modules, without a decoder of its own.
const MODULES: [&str; 2] = ["llama4", "llama4_text"];

/// Models whose matrices are not in Linear layers: GPT-2's Conv1D stores them transposed, I-BERT has layers of its own.
const NOT_LINEAR: [(&str, &str); 6] = [
    ("clvp", CONV1D),
    ("decision_transformer", CONV1D),
    ("gpt2", CONV1D),
    ("imagegpt", CONV1D),
    ("openai-gpt", CONV1D),
    ("ibert", "its layer is I-BERT's QuantLinear: engines quantise Linear layers alone"),
];
pub(super) const CONV1D: &str =
    "its layer is GPT-2's Conv1D, which stores the matrix transposed: engines quantise Linear layers alone";
/// The last part of the names of Conv1D layers.
const CONV1D_NAMES: [&str; 4] = ["c_attn", "c_proj", "c_fc", "q_attn"];

/// Output layers that share the weight of an embedding or of each other, so that no file has them, by the
/// model types that have them. Engines are told to ignore them, because they would look for their scales. All
/// models ignore `lm_head`.
const OUTPUTS: [(&str, &[&str]); 26] = [
    (
        "cls.predictions.decoder",
        &[
            "bert",
            "big_bird",
            "deberta",
            "deberta-v2",
            "ernie",
            "fnet",
            "layoutlm",
            "megatron-bert",
            "mobilebert",
            "mra",
            "nomic_bert",
            "nystromformer",
            "roc_bert",
            "roformer",
            "squeezebert",
            "tapas",
            "visual_bert",
            "yoso",
        ],
    ),
    (
        "decoder.cls.predictions.decoder",
        &["encoder-decoder", "speech-encoder-decoder", "vision-encoder-decoder"],
    ),
    ("ctc_head", &["granite_speech5_ctc"]),
    ("decoder", &["modernbert", "modernbert-decoder"]),
    ("decoder.class_embed", &["pp_doclayout_v3"]),
    ("embed_out", &["gpt_neox_japanese"]),
    ("entity_predictions.decoder", &["luke"]),
    ("generator_lm_head", &["convbert", "electra"]),
    ("language_model.lm_head", &["blip-2", "instructblip", "instructblipvideo"]),
    (
        "lm_head.decoder",
        &[
            "bert-generation",
            "camembert",
            "data2vec-text",
            "gte",
            "ibert",
            "jina_embeddings_v3",
            "longformer",
            "luke",
            "mpnet",
            "roberta",
            "roberta-prelayernorm",
            "xlm-roberta",
            "xlm-roberta-xl",
            "xmod",
        ],
    ),
    ("lm_head.out_proj", &["t5gemma", "t5gemma2"]),
    ("lm_loss", &["xlnet"]),
    ("mlm_score.decoder", &["bridgetower", "vilt"]),
    ("model.lm_head", &["shieldgemma2"]),
    ("output_projection", &["biogpt", "trocr"]),
    ("pred_layer.proj", &["flaubert", "xlm"]),
    ("predictions.decoder", &["albert"]),
    ("proj_out", &["canary", "moonshine", "whisper"]),
    ("text_decoder.cls.predictions.decoder", &["blip"]),
    ("t2u_model.lm_head", &["seamless_m4t", "seamless_m4t_v2"]),
    ("text_decoder_postnet.lm_head", &["speecht5"]),
    ("text_model.lm_head", &["kosmos-2", "kosmos-2.5"]),
    ("unembedding_projection", &["neomme"]),
    ("vocab_projector", &["distilbert"]),
    (r"re:decoder\.bbox_embed\..*", &["pp_doclayout_v3"]),
    (r"re:fine_acoustics\.lm_heads\..*", &["bark"]),
];

impl Architecture {
    pub(super) fn read(config: &Json) -> Architecture {
        let mut found = Architecture::default();
        found.add(config, 0);
        found
    }

    fn add(&mut self, config: &Json, depth: usize) {
        let Some(members) = config.as_object() else { return };
        for (key, value) in members {
            if key == "model_type" {
                self.types.extend(value.as_str().map(str::to_owned));
            } else if key.contains("vocab_size") {
                self.vocabularies.extend(value.as_u64());
            } else if depth < 4 {
                self.add(value, depth + 1);
            }
        }
    }

    fn is(&self, types: &[&str]) -> bool {
        types.iter().any(|name| self.types.contains(*name))
    }

    /// True if the model consists of other models, whose prefixes transformers renames when it loads them.
    pub(super) fn has_parts(&self) -> bool {
        self.types.len() > 1
    }

    /// The name for people.
    pub(super) fn name(&self) -> String {
        match self.types.len() {
            0 => "a model without config.json".to_owned(),
            _ => format!("model_type {}", self.types.iter().cloned().collect::<Vec<_>>().join(", ")),
        }
    }

    /// The reason why the matrix of a module is not that of a Linear layer.
    pub(super) fn not_linear(&self, module: &str) -> Option<&'static str> {
        let (_, why) = NOT_LINEAR.into_iter().find(|(name, _)| self.types.contains(*name))?;
        let last = module.rsplit('.').next().unwrap_or(module);
        (why != CONV1D || CONV1D_NAMES.contains(&last)).then_some(why)
    }

    /// True if a matrix of so many rows is an embedding or an output layer.
    pub(super) fn is_vocabulary(&self, rows: u64) -> bool {
        self.vocabularies.contains(&rows)
    }

    /// Output layers that no file has.
    pub(super) fn outputs(&self) -> impl Iterator<Item = &'static str> {
        OUTPUTS.into_iter().filter(|(_, types)| self.is(types)).map(|(name, _)| name)
    }

    /// A note for users of transformers on quantised experts.
    pub(super) fn notes(&self, scheme: Scheme, was_split: bool) -> Option<&'static str> {
        match scheme {
            _ if was_split && self.is(&VLLM_ALONE) => Some(
                "transformers 5.23 does not load experts of this model that are split; vLLM has their names",
            ),
            _ if self.is(&MODULES) => None,
            Scheme::Nvfp4 => Some(
                "transformers 5.23 decodes NVFP4 experts without the scale of the matrix: outputs are wrong, with no error",
            ),
            Scheme::Fp8Block | Scheme::W8a8 => Some("transformers 5.23 cannot load experts of this scheme"),
            _ => None,
        }
    }

    /// The layout of fused experts.
    pub(super) fn fused(&self) -> Fused {
        if self.is(&WHOLE) {
            Fused::Whole
        } else if self.is(&HALVES) {
            Fused::Known(Halves::Halves)
        } else {
            Fused::Unknown
        }
    }
}

/// True if a matrix of this name and shape is one of GPT-2's Conv1D: transposed, with three times as
/// many columns as rows.
pub(super) fn is_conv1d(name: &str, rows: u64, columns: u64) -> bool {
    name.ends_with(".c_attn.weight") && Some(columns) == rows.checked_mul(3)
}

#[cfg(test)]
mod tests {
    use super::{Architecture, CONV1D, Fused};
    use crate::quantize::layout::Halves;
    use serde_json::json;

    #[test]
    fn parts_of_a_model_tell_too() {
        let config =
            json!({"model_type": "llama4", "text_config": {"model_type": "llama4_text", "vocab_size": 99}});
        let found = Architecture::read(&config);
        assert_eq!(found.fused(), Fused::Known(Halves::Halves));
        assert!(found.is_vocabulary(99) && !found.is_vocabulary(98));
        assert_eq!(Architecture::default().fused(), Fused::Unknown);
        assert_eq!(Architecture::read(&json!({"model_type": "gpt_oss"})).fused(), Fused::Whole);
    }

    #[test]
    fn layers_that_are_not_linear_are_known_by_the_model() {
        let gpt2 = Architecture::read(&json!({"model_type": "x", "decoder": {"model_type": "gpt2"}}));
        assert_eq!(gpt2.not_linear("transformer.h.0.attn.c_attn"), Some(CONV1D));
        assert_eq!(gpt2.not_linear("encoder.q_proj"), None);
        assert_eq!(Architecture::default().not_linear("transformer.h.0.attn.c_attn"), None);
    }
}
