//! Closed forms against simulations of the same run on one GPU: within the bar that answers from closed forms have,
//! for one sequence and many, short and long.

use gapless_fit::ask::policy::PICTURE_ERROR_FACTOR;
use gapless_fit::eager::{Mode, Recomputed, Run};
use gapless_fit::formulas::overhead;
use gapless_fit::formulas::sharding::Sharding;
use gapless_fit::formulas::weights::Format;
use gapless_fit::hardware::{self, Cluster};
use gapless_fit::model::Architecture;
use gapless_fit::profiled::block_profile;
use gapless_fit::search::space::{Config, Offload};
use gapless_fit::search::train;
use gapless_fit::settings::{Checkpointing, Optimizer, Precision};
use gapless_fit::simulated::{CLOSED_FORM_ERROR, Simulated};

const MODELS: &[&str] = &[
    r#"{"model_type":"bert","hidden_size":512,"num_hidden_layers":4,"num_attention_heads":8,"intermediate_size":2048,"vocab_size":30522}"#,
    r#"{"model_type":"t5","d_model":512,"d_kv":64,"num_heads":8,"d_ff":2048,"num_layers":3,"vocab_size":32128}"#,
    r#"{"model_type":"vit","hidden_size":384,"num_hidden_layers":4,"num_attention_heads":6,"intermediate_size":1536}"#,
    r#"{"model_type":"gpt2","n_embd":512,"n_layer":4,"n_head":8,"vocab_size":20000}"#,
    r#"{"model_type":"llama","hidden_size":512,"intermediate_size":1408,"num_hidden_layers":4,"num_attention_heads":8,"num_key_value_heads":4,"vocab_size":16000}"#,
    r#"{"model_type":"qwen3_moe","hidden_size":256,"intermediate_size":512,"moe_intermediate_size":128,"num_experts":8,"num_experts_per_tok":2,"num_hidden_layers":3,"num_attention_heads":8,"num_key_value_heads":4,"head_dim":32,"vocab_size":5000}"#,
];

fn run(batch: u64, length: u64, precision: Precision, all: bool) -> Run {
    Run {
        mode: Mode::Train,
        batch,
        length,
        precision,
        optimizer: Optimizer::AdamWFused,
        recomputed: if all { Recomputed::All } else { Recomputed::None },
        attention: None,
        lora: None,
        stored: None,
        more_cache: 0,
        accumulation: 1,
        steps: 3,
        last_logits: false,
        note_ops: false,
    }
}

/// Allocated bytes of a run on one GPU by closed forms.
fn closed(architecture: &Architecture, run: &Run) -> f64 {
    let profile = block_profile("a model", architecture, run).expect("its blocks are simulated");
    let cluster = Cluster::new(*hardware::find("h200").expect("known"), 1, 1);
    let all = run.recomputed == Recomputed::All;
    let config = Config {
        precision: run.precision,
        optimizer: run.optimizer,
        checkpointing: if all { Checkpointing::Full } else { Checkpointing::None },
        sharding: Sharding::Ddp,
        data: 1,
        tensor: 1,
        pipeline: 1,
        context: 1,
        expert: 1,
        chunks: 1,
        micro_batch: run.batch,
        accumulation: 1,
        length: run.length,
        offload: Offload::default(),
        lora: None,
        format: Format::Half,
        sequence_parallel: true,
    };
    train::account(&profile, &cluster, &config, f64::MAX).peak - overhead::context(true).value as f64
}

#[test]
fn closed_forms_are_within_their_bar_of_the_simulation() {
    let (mut worst, mut wrong) = (0f64, Vec::new());
    for (at, text) in MODELS.iter().enumerate() {
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("closed-{at}.json"));
        std::fs::write(&path, text).expect("written");
        let path = path.display().to_string();
        let architecture = gapless_fit::read::open(&path).expect("a model").architecture.expect("known");
        let pictures = matches!(architecture, Architecture::Vision(_));
        let shapes: &[(u64, u64)] = if pictures {
            &[(1, 224), (64, 224)]
        } else {
            &[(1, 512), (4, 512), (64, 16), (256, 1), (512, 8)]
        };
        for &(batch, length) in shapes {
            for precision in [Precision::Bf16, Precision::Fp32, Precision::AmpBf16, Precision::AmpFp16] {
                for all in [false, true] {
                    let run = run(batch, length, precision, all);
                    let truth = Simulated::of(&architecture, &run).expect("it runs").figures.peak_allocated.0;
                    let off = closed(&architecture, &run) / truth as f64 - 1.0;
                    worst = worst.max(off.abs());
                    let bar =
                        if pictures { PICTURE_ERROR_FACTOR * CLOSED_FORM_ERROR } else { CLOSED_FORM_ERROR };
                    if off.abs() > bar {
                        let what = &text[15..25];
                        wrong.push(format!(
                            "{what} {batch} x {length} {precision:?} {all}: {:+.1} %",
                            off * 100.0
                        ));
                    }
                }
            }
        }
    }
    println!("worst {worst:.3}");
    assert!(wrong.is_empty(), "worst {worst:.3}\n{}", wrong.join("\n"));
}
