//! Memory that serving engines take beside weights and cache: their defaults, and the peak of the pass that they
//! profile before they size the cache.
//!
//! vLLM runs a dummy batch of `max_num_batched_tokens` tokens, samples for `max_num_seqs` sequences, and gives the rest
//! of its share of the card to the cache, in blocks of 16 tokens. SGLang gives its static share to weights and cache
//! and leaves the rest to activations and graphs. CUDA graphs are captured after the cache exists, outside vLLM's
//! share. The tests hold these figures against lines of public logs.

use super::Term;
use crate::hardware::Gpu;
use crate::model::Decoder;
use crate::settings::Engine;

/// Bytes that sampling holds for each logit: fp32 logits, their sorted copy, its 64-bit indices, probabilities and
/// their sums. Two logs of vLLM 0.6 and 0.7 give 39 and 41.
pub const LOGIT_BYTES: f64 = 41.0;
/// Memory that is kept for captured CUDA graphs. It is no measurement: vllm pull request 39559 prints 0.73 GiB for one
/// model.
pub const GRAPHS: u64 = 1 << 30;
/// Share by which a serving account may be off: weights and cache are exact, activations come from a formula.
pub const ERROR: f64 = 0.05;

/// Values that an engine takes if nothing is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Defaults {
    /// Share of the card: vLLM's `gpu_memory_utilization`, SGLang's `mem_fraction_static`.
    pub utilization: f64,
    /// Tokens of one page of the cache.
    pub page: u64,
    /// Tokens of one forward at most: `max_num_batched_tokens`, `chunked_prefill_size`.
    pub batched_tokens: u64,
    /// Sequences that are sampled at once in the profiled pass.
    pub sampled: u64,
    /// True if activations come out of the share, false if out of the rest.
    pub activations_inside: bool,
}

/// The defaults of an engine's server on a card, `ranks` of which share the model.
///
/// vLLM's differ if the card has 70 GiB and is no A100 (`get_batch_defaults`). SGLang keeps 512 MiB, 1.5 MiB for each
/// token of a chunk, 2 MiB for each sequence of its largest graph and 128 MiB for each rank outside its static share
/// (`_handle_gpu_memory_settings`).
#[must_use]
pub fn defaults(engine: Engine, gpu: &Gpu, ranks: u64) -> Defaults {
    let memory = gpu.memory() >> 30;
    let large = memory >= 70 && !gpu.name.starts_with("a100");
    match engine {
        Engine::Vllm | Engine::Transformers => Defaults {
            utilization: 0.9,
            page: 16,
            batched_tokens: if large { 8192 } else { 2048 },
            sampled: if large { 1024 } else { 256 },
            activations_inside: true,
        },
        Engine::Sglang => {
            let wide = ranks >= 4;
            let (chunk, graph) = match memory {
                0..20 => (2048, 8),
                20..35 => (2048, if wide { 80 } else { 24 }),
                35..60 => (4096, if wide { 160 } else { 32 }),
                60..160 => (8192, if wide { 512 } else { 256 }),
                _ => (16384, 512),
            };
            let mut kept = 512 + chunk * 3 / 2 + graph * 2 + ranks * 128;
            if memory > 60 {
                kept = kept.max(10 << 10);
            }
            Defaults {
                utilization: (1.0 - (kept << 20) as f64 / gpu.memory() as f64).max(0.0),
                page: 1,
                batched_tokens: chunk,
                sampled: graph,
                activations_inside: false,
            }
        }
    }
}

/// Elements a token that a forward pass without gradients holds at most within a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Working {
    /// Divided by the tensor-parallel degree.
    pub cut: f64,
    pub whole: f64,
}

/// Of a decoder with fused kernels: gate and up in one product, their activation, the input, the residual and the
/// output; or queries, keys and values before and after rotation.
#[must_use]
pub fn working(decoder: &Decoder) -> Working {
    let hidden = decoder.hidden as f64;
    let (queries, keys) = (decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim);
    let attention = 2.0 * (queries + 2 * keys) as f64;
    let inner = decoder.moe.as_ref().map_or(3 * decoder.intermediate, |moe| {
        let routed = moe.top_k * (3 * moe.expert_intermediate + decoder.hidden);
        (routed + 3 * moe.shared_intermediate).max(if moe.dense_layers > 0 {
            3 * decoder.intermediate
        } else {
            0
        })
    });
    Working { cut: attention.max(inner as f64), whole: 3.0 * hidden }
}

/// The peak of the profiled pass beside the weights, in 16 bits: the forward of `tokens`, or sampling for `sampled`
/// sequences, which every tensor-parallel rank does over the whole vocabulary.
#[must_use]
pub fn activations(working: Working, tokens: u64, sampled: u64, vocab: u64, t: u64) -> Term {
    let forward = 2.0 * tokens as f64 * (working.cut / t as f64 + working.whole);
    let sampling = LOGIT_BYTES * sampled as f64 * vocab as f64;
    Term::bytes(
        "activations of the profiled pass",
        forward.max(sampling),
        "max(2 n (c / t + w), 41 q V)",
        &[
            ("n", tokens as f64),
            ("c", working.cut),
            ("t", t as f64),
            ("w", working.whole),
            ("q", sampled as f64),
            ("V", vocab as f64),
        ],
        "vLLM's profile_run; 41 bytes a logit as its logs show",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Architecture;

    fn decoder(name: &str) -> Decoder {
        match crate::read::open(name).expect("built in").architecture {
            Some(Architecture::Decoder(decoder)) => decoder,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn gib(name: &str, tokens: u64, sampled: u64, t: u64) -> f64 {
        let d = decoder(name);
        activations(working(&d), tokens, sampled, d.vocab, t).value as f64 / (1u64 << 30) as f64
    }

    #[test]
    fn the_profiled_pass_is_what_logs_of_vllm_print() {
        // vllm issue 10517, Llama 3.1 8B on a 3090: peak_torch_memory less 14.99 GiB of weights, at 20,000 and 29,000
        // tokens.
        assert!((gib("llama-3.1-8b", 20_000, 256, 1) - 2.07).abs() < 0.03);
        assert!((gib("llama-3.1-8b", 29_000, 256, 1) - 2.99).abs() < 0.03);
        // vllm pull request 10511, Llama 3 8B on an H100, 8,192 tokens and 256 sequences: sampling is the larger, on
        // one rank and on each of two.
        assert!((gib("llama-3-8b", 8192, 256, 1) - 1.26).abs() < 0.02);
        assert!((gib("llama-3-8b", 8192, 256, 2) - 1.26).abs() < 0.02);
        // vllm issue 13061, a Qwen 2.5 14B over two 4090: the driver has so much less for its cache than the other rank
        // (7.47 of 8.69 GiB), beside the other rank's 0.19 GiB.
        assert!((gib("qwen2.5-14b", 512, 256, 2) - 1.42).abs() < 0.1);
    }

    #[test]
    fn a_token_of_the_cache_is_what_logs_print() {
        use crate::formulas::cache::per_token;
        // vllm issue 10517: 3.81 GiB are 1952 blocks of 16 tokens, 2.89 GiB 1478.
        let block = 16 * per_token(&decoder("llama-3.1-8b"), 2.0, 1).value;
        for (gib, blocks) in [(3.81, 1952.0), (2.89, 1478.0)] {
            assert!((gib * (1u64 << 30) as f64 / block as f64 / blocks - 1.0).abs() < 0.002);
        }
        // vllm issue 21348, Qwen3-235B-A22B over four H100: SGLang prints 367,404 tokens, keys of 8.23 GiB.
        let token = per_token(&decoder("qwen3-235b-a22b"), 2.0, 4).value;
        assert!((367_404.0 * token as f64 / 2.0 / (1u64 << 30) as f64 - 8.23).abs() < 0.01);
        // vllm pull request 2031, Llama 2 7B on an A100 of 80 GB: 7351 blocks beside the weights stay below 0.9 of it.
        let d = decoder("llama-2-7b");
        let held = 7351 * 16 * per_token(&d, 2.0, 1).value + 2 * 6_738_415_616;
        let card = crate::hardware::find("a100-80").expect("known").memory();
        assert!((held as f64) < 0.9 * card as f64 && held as f64 > 0.87 * card as f64);
    }

    #[test]
    fn a_larger_card_batches_more_and_sglang_keeps_room_outside_its_share() {
        let of = |engine, name| defaults(engine, crate::hardware::find(name).expect("known"), 1);
        assert_eq!((of(Engine::Vllm, "h100").batched_tokens, of(Engine::Vllm, "h100").sampled), (8192, 1024));
        assert_eq!(
            (of(Engine::Vllm, "a100-80").batched_tokens, of(Engine::Vllm, "4090").sampled),
            (2048, 256)
        );
        let sglang = of(Engine::Sglang, "h100");
        assert!(!sglang.activations_inside && (0.82..0.88).contains(&sglang.utilization), "{sglang:?}");
    }
}
