//! Runs as JSON: `gapless.fleet-sim/1`.

use super::{Named, Simulated, fragmented, refusals};
use serde_json::{Value, json as value};

/// One run as an object, several as an object with a list.
pub fn json(simulated: &Simulated) -> Value {
    let mut all: Vec<Value> = simulated.runs.iter().map(|named| one(simulated, named)).collect();
    match all.as_mut_slice() {
        [single] => single.take(),
        _ => value!({"schema": "gapless.fleet-sim/1", "seed": simulated.seed, "policies": all}),
    }
}

fn one(simulated: &Simulated, named: &Named) -> Value {
    let run = &named.run;
    let round = |number: f64| (number * 1e6).round() / 1e6;
    let columns: Vec<Value> = run.columns.iter().map(|mean| value!(mean.map(round))).collect();
    let refused: serde_json::Map<String, Value> = refusals(run)
        .into_iter()
        .map(|(cause, count)| (value!(cause).as_str().unwrap_or_default().to_owned(), value!(count)))
        .collect();
    let moves: Vec<Value> = run
        .moves
        .iter()
        .map(|(order, one)| {
            value!({
                "order": order,
                "arrival": one.pod,
                "from": simulated.nodes[one.from as usize].name,
                "from_gpus": one.from_gpus,
                "to": simulated.nodes[one.to as usize].name,
                "to_gpus": one.to_gpus,
                "gained_milli": one.gained_milli,
            })
        })
        .collect();
    let curve: Vec<Value> = run
        .curve
        .iter()
        .map(|point| value!([round(point.arrived), round(point.allocated), round(point.fragmented)]))
        .collect();
    value!({
        "schema": "gapless.fleet-sim/1",
        "policy": named.policy,
        "seed": simulated.seed,
        "nodes": simulated.nodes.len(),
        "gpus_total": run.total_milli / 1000,
        "gpus_allocated": run.allocated_milli as f64 / 1000.0,
        "allocated_share": round(run.share()),
        "arrived_share": round(run.arrived_share()),
        "fragmented_share": round(fragmented(run)),
        "last_column": run.columns.iter().rev().flatten().next().copied().map(round),
        "arrivals": run.outcomes.len(),
        "placed": run.placed(),
        "failed": run.outcomes.len() - run.placed(),
        "departed": run.departed,
        "refused": refused,
        "decisions_per_second": run.decisions_per_second().round(),
        "moves": moves,
        "columns": columns,
        "curve": curve,
    })
}
