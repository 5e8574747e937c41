//! From GGUF metadata to an architecture: llama.cpp's keys, and the tensors if the keys say too little (tied heads,
//! biases). The simulation runs the transformers implementation of the same family.

use super::error::{Fault, Problem};
use super::gguf::{Gguf, Meta};
use super::json::brief;
use crate::model::{Activation, Architecture, Attention, Decoder, DecoderStyle, Mla, Model, Moe, Weight};
use crate::parameters;
use crate::stored::Stored;

/// The model of a parsed file.
pub(crate) fn model(name: String, gguf: Gguf) -> Result<Model, Fault> {
    let mut notes = Vec::new();
    let architecture = Reader { gguf: &gguf }.architecture(&mut notes)?;
    if let Some(architecture) = &architecture
        && parameters::count(architecture).is_none()
    {
        return fault("general.architecture", "the sizes multiply to more than 2^60 parameters");
    }
    if let Some(Meta::Int(parts @ 2..)) = gguf.meta.get("split.count") {
        notes.push(format!("this is one of {parts} parts of the model: only its own weights are listed"));
    }
    if let Some((kind, _)) = gguf.types.first() {
        let total: u64 = gguf.weights.iter().map(|weight| weight.bytes).sum();
        let shares: Vec<String> =
            gguf.types.iter().take(4).map(|(kind, bytes)| format!("{kind} {bytes}")).collect();
        notes.push(format!("{total} bytes of weights, most of them {kind}: {}", shares.join(", ")));
    }
    let name = match gguf.meta.get("general.name") {
        Some(Meta::Text(text)) if !text.is_empty() => brief(text),
        _ => name,
    };
    let blocks = gguf.weights.iter().any(|weight| weight.dtype.is_none());
    let stored = architecture.as_ref().filter(|_| blocks).and_then(|architecture| {
        let bytes = gguf.weights.iter().map(|weight| weight.bytes).sum();
        Some(Stored::listed("gguf", bytes, crate::parameters::count(architecture)?))
    });
    Ok(Model { name, architecture, weights: Some(gguf.weights), stored, notes })
}

fn fault<T>(key: &str, what: impl Into<String>) -> Result<T, Fault> {
    Err(Box::new(Problem::Key { key: key.to_owned(), offset: None, what: what.into() }))
}

struct Reader<'a> {
    gguf: &'a Gguf,
}

impl Reader<'_> {
    fn int(&self, key: &str) -> Result<Option<u64>, Fault> {
        const LARGEST: i128 = (1 << 31) - 1;
        match self.gguf.meta.get(key) {
            None => Ok(None),
            Some(Meta::Int(number)) if (0..=LARGEST).contains(number) => Ok(Some(*number as u64)),
            // One number per layer, if all layers have the same.
            Some(Meta::Numbers(numbers)) => match numbers.split_first() {
                Some((first, rest))
                    if rest.iter().all(|number| number == first) && (0..=LARGEST).contains(first) =>
                {
                    Ok(Some(*first as u64))
                }
                _ => fault(key, "layers of different sizes are not modelled"),
            },
            Some(_) => fault(key, "must be a number below 2^31"),
        }
    }

    fn weight(&self, name: &str) -> Option<&Weight> {
        self.gguf.weights.iter().find(|weight| weight.name == name)
    }

    fn architecture(&self, notes: &mut Vec<String>) -> Result<Option<Architecture>, Fault> {
        let Some(Meta::Text(family)) = self.gguf.meta.get("general.architecture") else {
            notes.push("the metadata has no general.architecture: only the weights are known".into());
            return Ok(None);
        };
        let experts = self.int(&format!("{family}.expert_count"))?.unwrap_or(0);
        let style = match family.as_str() {
            "llama" if experts > 0 => DecoderStyle::Mixtral,
            "llama" => DecoderStyle::Llama,
            "mistral" | "mistral3" => DecoderStyle::Mistral,
            "qwen2" => DecoderStyle::Qwen2,
            "qwen3" => DecoderStyle::Qwen3,
            "qwen3moe" => DecoderStyle::Qwen3Moe,
            "gemma" => DecoderStyle::Gemma,
            "gemma2" => DecoderStyle::Gemma2,
            "gemma3" => DecoderStyle::Gemma3,
            "phi3" => DecoderStyle::Phi3,
            "gpt2" => DecoderStyle::Gpt2,
            "gptneox" => DecoderStyle::GptNeox,
            "deepseek2" => DecoderStyle::DeepseekV3,
            other => {
                notes.push(format!(
                    "the architecture \"{}\" is not known: only the weights are",
                    brief(other)
                ));
                return Ok(None);
            }
        };
        Ok(Some(Architecture::Decoder(self.decoder(family, style, notes)?)))
    }

    fn decoder(&self, family: &str, style: DecoderStyle, notes: &mut Vec<String>) -> Result<Decoder, Fault> {
        let key = |name: &str| format!("{family}.{name}");
        let needed = |name: &str| -> Result<u64, Fault> {
            match self.int(&key(name))? {
                Some(number) if number > 0 => Ok(number),
                Some(_) => fault(&key(name), "must be at least 1"),
                None => fault(&key(name), "is missing from the metadata"),
            }
        };
        let layers = needed("block_count")?;
        if layers > 10_000 {
            return fault(&key("block_count"), "no model has more than 10,000 layers");
        }
        let hidden = needed("embedding_length")?;
        let heads = needed("attention.head_count")?;
        let kv_heads = self.int(&key("attention.head_count_kv"))?.filter(|heads| *heads > 0).unwrap_or(heads);
        let head_dim =
            self.int(&key("attention.key_length"))?.filter(|dim| *dim > 0).unwrap_or(hidden / heads);
        let vocab = match (self.weight("token_embd.weight"), self.int(&key("vocab_size"))?) {
            (Some(weight), _) if weight.shape.len() == 2 && weight.shape[0] < 1 << 31 => weight.shape[0],
            (_, Some(vocab)) if vocab > 0 => vocab,
            _ => match self.gguf.meta.get("tokenizer.ggml.tokens") {
                Some(Meta::Strings(count)) if *count > 0 && *count < 1 << 31 => *count,
                _ => return fault(&key("vocab_size"), "is missing, and there is no embedding to count"),
            },
        };
        let learned = style == DecoderStyle::Gpt2;
        let bias = |name: &str| self.weight(&format!("blk.0.{name}.bias")).is_some();
        let window = self.int(&key("attention.sliding_window"))?.filter(|window| *window > 0);
        let gemma = matches!(style, DecoderStyle::Gemma | DecoderStyle::Gemma2 | DecoderStyle::Gemma3);
        let mut decoder = Decoder {
            style,
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            rotary_dim: if learned {
                0
            } else {
                self.int(&key("rope.dimension_count"))?.unwrap_or(head_dim).min(head_dim)
            },
            embed_dim: None,
            intermediate: needed("feed_forward_length")?,
            vocab,
            max_positions: needed("context_length")?,
            tied: self.weight("output.weight").is_none(),
            activation: match style {
                _ if gemma => Activation::GeluTanh,
                DecoderStyle::Gpt2 => Activation::GeluNew,
                DecoderStyle::GptNeox => Activation::Gelu,
                _ => Activation::Silu,
            },
            qkv_bias: bias("attn_q") || bias("attn_qkv"),
            out_bias: bias("attn_output"),
            mlp_bias: bias("ffn_up"),
            post_norm: false,
            parallel_residual: style == DecoderStyle::GptNeox
                && !matches!(self.gguf.meta.get(&key("use_parallel_residual")), Some(Meta::Bool(false))),
            embed_dropout: 0.0,
            attention_dropout: 0.0,
            residual_dropout: 0.0,
            attention: Attention::Sdpa,
            sliding_window: window,
            sliding_pattern: match style {
                DecoderStyle::Gemma2 => 2,
                DecoderStyle::Gemma3 => {
                    self.int(&key("attention.sliding_window_pattern"))?.unwrap_or(6).max(1)
                }
                _ => 1,
            },
            attention_softcap: self.gguf.meta.contains_key(&key("attn_logit_softcapping")),
            logit_softcap: self.gguf.meta.contains_key(&key("final_logit_softcapping")),
            moe: None,
            mla: None,
            dtype: None,
        };
        self.experts(family, &mut decoder, notes)?;
        self.latent(family, &mut decoder)?;
        if decoder.head_dim == 0 || (decoder.mla.is_none() && !decoder.heads.is_multiple_of(decoder.kv_heads))
        {
            return fault(
                &key("attention.head_count"),
                format!("{heads} heads do not share {kv_heads} of keys over {hidden}"),
            );
        }
        Ok(decoder)
    }

    fn experts(&self, family: &str, decoder: &mut Decoder, notes: &mut Vec<String>) -> Result<(), Fault> {
        let key = |name: &str| format!("{family}.{name}");
        let Some(experts) = self.int(&key("expert_count"))?.filter(|experts| *experts > 0) else {
            return Ok(());
        };
        if experts > 100_000 {
            return fault(&key("expert_count"), "no model has more than 100,000 experts");
        }
        let top_k = self.int(&key("expert_used_count"))?.unwrap_or(2);
        if top_k == 0 || top_k > experts {
            return fault(&key("expert_used_count"), format!("{top_k} of {experts} experts"));
        }
        let expert_intermediate = self
            .int(&key("expert_feed_forward_length"))?
            .filter(|size| *size > 0)
            .unwrap_or(decoder.intermediate);
        let shared = self.int(&key("expert_shared_count"))?.unwrap_or(0);
        decoder.moe = Some(Moe {
            experts,
            top_k,
            expert_intermediate,
            shared,
            shared_intermediate: shared * expert_intermediate,
            dense_layers: self.int(&key("leading_dense_block_count"))?.unwrap_or(0).min(decoder.layers),
            groups: self.int(&key("expert_group_count"))?.unwrap_or(1).max(1),
            top_groups: self.int(&key("expert_group_used_count"))?.unwrap_or(1).max(1),
        });
        if decoder.style == DecoderStyle::DeepseekV3
            && self.weight(&format!("blk.{}.exp_probs_b.bias", decoder.layers - 1)).is_none()
        {
            decoder.style = DecoderStyle::DeepseekV2;
            notes.push("experts are chosen without biases: read as DeepSeek V2".into());
        }
        Ok(())
    }

    fn latent(&self, family: &str, decoder: &mut Decoder) -> Result<(), Fault> {
        if !matches!(decoder.style, DecoderStyle::DeepseekV2 | DecoderStyle::DeepseekV3) {
            return Ok(());
        }
        let key = |name: &str| format!("{family}.{name}");
        let Some(kv_rank) = self.int(&key("attention.kv_lora_rank"))?.filter(|rank| *rank > 0) else {
            return fault(&key("attention.kv_lora_rank"), "is missing from the metadata");
        };
        let rope_dim = self.int(&key("rope.dimension_count"))?.unwrap_or(64);
        // Newer files give the sizes of the compressed cache as key_length, and the heads' own ones as key_length_mla.
        let query = self.int(&key("attention.key_length_mla"))?.unwrap_or(decoder.head_dim);
        let value = match self.int(&key("attention.value_length_mla"))? {
            Some(value) => value,
            None => self.int(&key("attention.value_length"))?.unwrap_or(128),
        };
        if query <= rope_dim || value == 0 {
            return fault(
                &key("attention.key_length"),
                format!("heads of {query} leave nothing beside {rope_dim} that rotate"),
            );
        }
        decoder.mla = Some(Mla {
            q_rank: self.int(&key("attention.q_lora_rank"))?.filter(|rank| *rank > 0),
            kv_rank,
            nope_dim: query - rope_dim,
            rope_dim,
            value_dim: value,
        });
        decoder.head_dim = query;
        decoder.rotary_dim = rope_dim;
        decoder.kv_heads = decoder.heads;
        Ok(())
    }
}
