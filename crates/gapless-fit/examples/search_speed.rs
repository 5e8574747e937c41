//! How fast the search and the checkpointing are: configurations a second on one core, a search over 1,024 GPUs, a
//! chain of 128 blocks.
//!
//! Prints one JSON object; `cargo xtask bench fit` reads it.

#[path = "../tests/common/models.rs"]
#[allow(dead_code)]
mod models;

use gapless_fit::checkpoint::chain::{Chain, Measured};
use gapless_fit::checkpoint::simulate;
use gapless_fit::hardware::{self, Cluster};
use gapless_fit::search::cost::CostModel;
use gapless_fit::search::profile::Profile;
use gapless_fit::search::space::Space;
use gapless_fit::search::train::search;
use gapless_fit::settings::{Optimizer, Precision};
use serde_json::json;
use std::time::Instant;

fn main() {
    let h100 = *hardware::find("h100").expect("known");
    let mut searches = Vec::new();
    for (name, decoder, nodes) in [
        ("llama-3-8b, 8 GPUs", models::llama3_8b(), 1),
        ("llama-3-70b, 1024 GPUs", models::llama3_70b(), 128),
        ("deepseek-v3, 1024 GPUs", models::deepseek_v3(), 128),
    ] {
        let profile = Profile::from_decoder(name, &decoder);
        let cluster = Cluster::new(h100, 8, nodes);
        let mut space = Space::open(&profile, &cluster, 2048, 4096, Precision::Mixed, Optimizer::AdamWFused);
        space.precisions = vec![Precision::Mixed, Precision::MixedMainGrad, Precision::Bf16];
        let start = Instant::now();
        let found = search(&profile, &cluster, &space, &CostModel::default(), 10).expect("sensible");
        let seconds = start.elapsed().as_secs_f64();
        searches.push(json!({
            "name": name,
            "seconds": seconds,
            "points": found.census.points,
            "examined": found.census.examined,
            "fit": found.census.fit,
            "points_per_second": found.census.points as f64 / seconds,
            "examined_per_second": found.census.examined as f64 / seconds,
            "cheapest_seconds": found.plans.first().map(|plan| plan.cost.total()),
            "cheapest": found.plans.first().map(|plan| format!("{:?}", plan.config)),
        }));
    }
    // All points are evaluated: as many plans are kept as there are, so none is pruned by cost.
    let profile = Profile::from_decoder("llama-3-70b", &models::llama3_70b());
    let cluster = Cluster::new(h100, 8, 128);
    let space = Space::open(&profile, &cluster, 2048, 4096, Precision::Mixed, Optimizer::AdamWFused);
    let start = Instant::now();
    let found = search(&profile, &cluster, &space, &CostModel::default(), usize::MAX).expect("sensible");
    let evaluated = found.census.examined as f64 / start.elapsed().as_secs_f64();
    let mut slowest = 0f64;
    let mut sum = 0f64;
    for seed in 0..40 {
        let chain = chain(seed, 128);
        let most = simulate::chain(&chain, &[0; 128]).peak;
        let least = chain.least_peak();
        let budget = least + (most - least) * (5 + 90 * (seed % 10) / 10) / 100;
        let start = Instant::now();
        let solution = chain.solve(budget).expect("feasible");
        let seconds = start.elapsed().as_secs_f64();
        assert!(solution.is_optimal() && simulate::chain(&chain, &solution.choices).peak <= budget);
        (slowest, sum) = (slowest.max(seconds), sum + seconds);
    }
    let chains =
        json!({"blocks": 128, "questions": 40, "mean_seconds": sum / 40.0, "slowest_seconds": slowest});
    let all = json!({"searches": searches, "evaluated_per_second": evaluated, "chains": chains});
    println!("{}", serde_json::to_string_pretty(&all).expect("values print"));
}

/// Blocks that all differ, in bytes and operations as models have them; a third of them with costs that go with their
/// bytes.
fn chain(seed: u64, blocks: usize) -> Chain {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut within = |low: u64, high: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        low + state % (high - low + 1)
    };
    let blocks = (0..blocks)
        .map(|_| {
            let saved = within(1 << 26, 1 << 32);
            Measured {
                input: within(1 << 20, 1 << 26),
                saved,
                forward_working: within(0, 1 << 28),
                backward_working: within(1 << 20, 1 << 30),
                output_gradient: within(1 << 20, 1 << 26),
                gradient: within(0, 1 << 28),
                forward_cost: if seed.is_multiple_of(3) {
                    saved * 1000
                } else {
                    within(1_000_000_000, 1_000_000_000_000)
                },
            }
            .block()
        })
        .collect();
    Chain { base: 1 << 34, blocks, head_peak: 1 << 32, head_gradient: 1 << 28 }
}
