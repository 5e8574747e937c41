//! Prints the questions of tests/milp as JSON, with a budget for each, for tests/milp/solve.py.

#[path = "../tests/milp/questions.rs"]
#[allow(dead_code)]
mod questions;

use gapless_fit::checkpoint::simulate;
use questions::{Question, between, questions};
use serde_json::{Value, json};

fn main() {
    let all: Vec<Value> = questions().into_iter().map(ask).collect();
    println!("{}", serde_json::to_string_pretty(&all).expect("values print"));
}

fn ask(question: Question) -> Value {
    let Question { size, seed, tightness } = question;
    let chain = questions::chain(seed, size);
    let most = simulate::chain(&chain, &vec![0; size]).peak;
    let budget = between(chain.least_peak(), most, tightness);
    let choices = |block: &gapless_fit::checkpoint::chain::Block| -> Vec<Value> {
        block.choices.iter().map(|c| json!([c.retained, c.forward_peak, c.backward_peak, c.cost])).collect()
    };
    let blocks: Vec<Value> =
        chain.blocks.iter().map(|b| json!({"gradient": b.gradient, "choices": choices(b)})).collect();
    let body = json!({
        "base": chain.base,
        "head_peak": chain.head_peak,
        "head_gradient": chain.head_gradient,
        "blocks": blocks,
        "budget": budget,
    });
    json!({"size": size, "seed": seed, "tightness": tightness, "question": body})
}
