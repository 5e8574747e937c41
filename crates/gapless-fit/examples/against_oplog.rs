//! The simulated step beside a recorded one, operator by operator: finds the first difference.
//!
//! `cargo run --release -p gapless-fit --example against_oplog -- [FILTER]` prints for each recording of
//! `testdata/fit/oplogs.jsonl.gz` whose label contains the filter the bytes alive at the end of each phase; with one
//! recording left, every operator of its third step.

mod support;

use gapless_fit::eager::{Phase, Run, simulate};
use serde_json::Value;

/// A recorded operator: name, live bytes before, the bytes that it left more, its peak above the start.
type Recorded = (String, i64, i64, i64);

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let logs: Vec<Value> =
        support::oplogs().into_iter().filter(|log| support::label(log).contains(&filter)).collect();
    for log in &logs {
        let label = support::label(log);
        let Some(architecture) = support::architecture(&log["config"]) else {
            println!("{label}: no architecture");
            continue;
        };
        let run = Run { note_ops: true, ..support::run_of(log) };
        let steps = match simulate(&architecture, &run) {
            Ok(steps) => steps,
            Err(error) => {
                println!("{label}: {error}");
                continue;
            }
        };
        let curve = steps.curve();
        let shift = log["base_allocated"].as_i64().unwrap_or(0) - curve[steps.base as usize - 1] as i64;
        let recorded: Vec<Recorded> = log["ops"]
            .as_array()
            .expect("operators")
            .iter()
            .map(|row| {
                let number = |at: usize| row[at].as_i64().unwrap_or(0);
                (row[0].as_str().unwrap_or_default().to_owned(), number(1), number(2), number(3))
            })
            .collect();
        let marks = &steps.log.marks;
        let last = marks.iter().map(|m| m.step).max().unwrap_or(0);
        let begin =
            marks.iter().rev().find(|m| m.step + 1 == last && m.phase == Phase::Zero).map_or(0, |m| m.event);
        let at = |event: u32| curve[event.max(1) as usize - 1] as i64 + shift;
        let mut line = format!("{label}:");
        for (name, phase) in
            [("#backward", Phase::Forward), ("#step", Phase::Backward), ("#end", Phase::Zero)]
        {
            let measured = recorded.iter().find(|r| r.0 == name).map(|r| r.1);
            let predicted = marks.iter().find(|m| m.step == last && m.phase == phase).map(|m| at(m.event));
            if let (Some(measured), Some(predicted)) = (measured, predicted) {
                let error = (predicted as f64 / measured as f64 - 1.0) * 100.0;
                line += &format!(" {name} {error:+.3} %");
            }
        }
        let measured = recorded.iter().map(|r| r.1 + r.3).max().unwrap_or(1);
        let predicted = curve[begin as usize..].iter().max().map_or(0, |p| *p as i64 + shift);
        println!("{line}, peak {:+.3} %", (predicted as f64 / measured as f64 - 1.0) * 100.0);
        if logs.len() == 1 {
            align(&steps.log, &recorded, begin, at);
        }
    }
}

/// Walks along both and prints each operator with the difference of the bytes alive before it.
fn align(log: &gapless_fit::eager::Log, recorded: &[Recorded], begin: u32, at: impl Fn(u32) -> i64) {
    let ops: Vec<_> = log.ops.iter().flatten().filter(|o| o.event >= begin).collect();
    let mut mine = 0;
    let mut last = 0;
    for (name, before, delta, peak) in recorded {
        let found = (mine..ops.len().min(mine + 12)).find(|&i| {
            let op = ops[i].op;
            op == name || op.trim_end_matches('_') == name.trim_end_matches('_')
        });
        let Some(found) = found else {
            println!("        only recorded: {name} {delta:+} (peak {peak})");
            continue;
        };
        let difference = at(ops[found].event) - before;
        let jump = if (difference - last).abs() > 2 << 20 { "  <<<" } else { "" };
        println!(
            "{name:<44} {:?} {delta:>+12} alive {before:>12} difference {difference:>+10}{jump}",
            ops[found].scope
        );
        last = difference;
        mine = found + 1;
    }
}
