//! Prints the questions of tests/milp as JSON, with a budget for each, for tests/milp/solve.py.

#[path = "../tests/milp/questions.rs"]
#[allow(dead_code)]
mod questions;

use gapless_fit::checkpoint::graph::Graph;
use gapless_fit::checkpoint::segments::Part;
use gapless_fit::checkpoint::simulate;
use questions::{Question, between, questions};
use serde_json::{Value, json};

fn main() {
    let all: Vec<Value> = questions().into_iter().map(ask).collect();
    println!("{}", serde_json::to_string_pretty(&all).expect("values print"));
}

fn ask(question: Question) -> Value {
    let Question { kind, size, seed, tightness } = question;
    let body = match kind {
        "chain" => {
            let chain = questions::chain(seed, size);
            let most = simulate::chain(&chain, &vec![0; size]).peak;
            let budget = between(chain.least_peak(), most, tightness);
            let blocks: Vec<Value> = chain.blocks.iter().map(|b| json!({"gradient": b.gradient, "choices":
                b.choices.iter().map(|c| json!([c.retained, c.forward_peak, c.backward_peak, c.cost])).collect::<Vec<_>>()})).collect();
            json!({"base": chain.base, "head_peak": chain.head_peak, "head_gradient": chain.head_gradient, "blocks": blocks, "budget": budget})
        }
        "segments" => {
            let chain = questions::segmented(seed, size);
            let kept: Vec<Part> = (0..size).map(|block| Part::Kept { block }).collect();
            let budget = between(chain.least_peak(), simulate::segments(&chain, &kept).peak, tightness);
            let blocks: Vec<Value> = chain
                .blocks
                .iter()
                .map(|b| {
                    json!([
                        b.input,
                        b.saved,
                        b.forward_working,
                        b.backward_working,
                        b.output_gradient,
                        b.gradient,
                        b.forward_cost
                    ])
                })
                .collect();
            json!({"base": chain.base, "head_peak": chain.head_peak, "head_gradient": chain.head_gradient, "blocks": blocks, "budget": budget})
        }
        _ => {
            let graph = questions::graph(seed, size);
            let budget = graph_budget(&graph, tightness);
            let nodes: Vec<Value> = graph.nodes.iter().map(|n| json!({"bytes": n.bytes, "cost": n.cost, "inputs": n.inputs,
                "reads": n.backward_reads, "forward_working": n.forward_working, "backward_working": n.backward_working,
                "gradient": n.gradient, "parameter_gradient": n.parameter_gradient})).collect();
            json!({"base": graph.base, "nodes": nodes, "budget": budget})
        }
    };
    json!({"kind": kind, "size": size, "seed": seed, "tightness": tightness, "question": body})
}

/// Between the least that any stage needs and what keeping everything takes: some of these cannot be met, which is an answer too.
fn graph_budget(graph: &Graph, tightness: u64) -> u64 {
    let most = simulate::graph(graph, &vec![true; graph.nodes.len()]).peak;
    let least = graph.solve_within(0, 0).expect_err("nothing fits into nothing").least;
    between(least, most, tightness)
}
