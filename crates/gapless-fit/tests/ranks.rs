//! The closed forms of several GPUs, held against the ranks of real torch and DeepSpeed. A row of
//! `testdata/fit/ranks.jsonl` is a model, a layout and the bytes of the rank that holds most, as
//! `torch-bench/estimate/ranks.py` measured it with `gapless estimate`: all ranks, or that one alone.

use gapless_fit::ask::{Asked, Degrees, Question, Wishes, ask};
use gapless_fit::formulas::sharding::Sharding;
use gapless_fit::read;
use gapless_fit::settings::{Checkpointing, Precision};
use serde_json::Value;

/// The most that a form may be off.
const BOUND: f64 = 0.03;

fn asked(row: &Value) -> Asked {
    let words: Vec<&str> = row["asked"].as_array().expect("words").iter().filter_map(Value::as_str).collect();
    let word = |flag: &str| words.iter().position(|word| *word == flag).map(|at| words[at + 1]);
    let number = |flag: &str| word(flag).map(|text| text.parse().expect("a number"));
    let ranks = row["ranks"].as_u64();
    Asked {
        batch: number("--batch"),
        seq: number("--seq"),
        grad_accum: number("--grad-accum"),
        precision: Precision::ALL.into_iter().find(|one| row["precision"] == one.name()),
        checkpointing: word("--checkpointing").map(|_| Checkpointing::Full),
        gpus: ranks,
        degrees: Degrees { data: ranks, ..Degrees::default() },
        zero: Some(match row["zero"].as_str().expect("a layout") {
            "ddp" | "0" => Sharding::Ddp,
            "1" => Sharding::Zero1,
            "2" => Sharding::Zero2,
            "3" => Sharding::Zero3,
            _ => Sharding::Fsdp,
        }),
        ..Asked::default()
    }
}

#[test]
fn a_ranks_peak_is_the_one_of_real_torch() {
    let path = format!("{}/../../testdata/fit/ranks.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::env::var("RANKS").unwrap_or(path);
    let (mut off, mut count) = (Vec::new(), 0);
    for line in std::fs::read_to_string(text).expect("test data").lines() {
        let row: Value = serde_json::from_str(line).expect("JSON");
        let model = read::config("config.json", row["model"].to_string().as_bytes()).expect("a model");
        let q = Question::about("config.json", model, &asked(&row)).expect("a question");
        let answer = ask(&q, &Wishes::default()).expect("an answer");
        let estimate = answer.estimate.expect("a layout");
        let measured = row["peak_allocated"].as_u64().expect("bytes") as f64;
        let error = estimate.peak_allocated.0 as f64 / measured - 1.0;
        count += 1;
        let told = format!(
            "{:+.2} % {} zero {} {} {} x{} {}",
            100.0 * error,
            row["name"],
            row["zero"],
            row["precision"],
            row["asked"],
            row["ranks"],
            estimate.peak_at.phase,
        );
        println!("{told}\n    {:?}", estimate.components);
        if error.abs() > BOUND {
            off.push(told);
        }
    }
    assert!(off.is_empty() && count >= 8, "{} of {count}:\n{}", off.len(), off.join("\n"));
}
