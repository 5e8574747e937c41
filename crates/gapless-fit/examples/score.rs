//! The score board: predicted against measured peaks, cell by cell.
//!
//! `cargo run --release -p gapless-fit --example score -- FOLDER` reads `h200_cells.jsonl` (and `models/NAME/config.json` beside it); with a
//! second argument another file of cells, whose configurations are inline.

mod support;

use gapless_fit::eager::simulate;
use serde_json::Value;
use std::time::Instant;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(support::folder);
    let file = arguments.next().unwrap_or_else(|| format!("{folder}/h200_cells.jsonl"));
    let filter = arguments.next().unwrap_or_default();
    let (mut allocated, mut reserved) = (Vec::new(), Vec::new());
    println!("{:<62} {:>14} {:>14} {:>8} {:>14} {:>8}", "cell", "measured", "predicted", "error %", "reserved", "error %");
    for (cell, config) in support::cells(&folder, &file) {
        let label = support::label(&cell);
        if !label.contains(&filter) {
            continue;
        }
        let Some(measured) = cell["peak_allocated"].as_u64() else { continue };
        let Some(architecture) = support::architecture(&config) else {
            println!("{label:<62} no architecture");
            continue;
        };
        let run = support::run_of(&cell);
        let began = Instant::now();
        let steps = match simulate(&architecture, &run) {
            Ok(steps) => steps,
            Err(error) => {
                println!("{label:<62} {error}");
                continue;
            }
        };
        let simulated = began.elapsed();
        let figures = steps.figures();
        let replayed = began.elapsed();
        if std::env::var("TIMES").is_ok() {
            println!("{simulated:?} {replayed:?} {} events", steps.log.events.len());
        }
        if let Some(count) = cell["params"].as_u64()
            && count != steps.parameters
        {
            println!("{label:<62} parameters {count} measured, {} predicted", steps.parameters);
        }
        let error = |predicted: u64, measured: u64| (predicted as f64 / measured as f64 - 1.0) * 100.0;
        let a = error(figures.peak_allocated.0, measured);
        let held = cell["peak_reserved"].as_u64().unwrap();
        let r = error(figures.peak_reserved.0, held);
        allocated.push(a.abs());
        reserved.push(r.abs());
        println!("{label:<62} {measured:>14} {:>14} {a:>+8.3} {held:>14} {r:>+8.2}", figures.peak_allocated.0);
        if std::env::var("PHASES").is_ok() {
            for f in &figures.phases {
                let step = &cell["steps"][f.step as usize];
                let key = match f.phase {
                    gapless_fit::eager::Phase::Forward => ("after_forward", "peak_to_forward"),
                    gapless_fit::eager::Phase::Backward => ("after_backward", "peak_to_backward"),
                    gapless_fit::eager::Phase::Step => ("x", "peak_to_step"),
                    _ => ("after_step", "x"),
                };
                println!(
                    "    {} {:?}: {} (measured {}), peak {} (measured {})",
                    f.step, f.phase, f.allocated.0, step[key.0], f.peak_allocated.0, step[key.1]
                );
            }
        }
    }
    for (name, mut errors) in [("allocated", allocated), ("reserved", reserved)] {
        errors.sort_by(f64::total_cmp);
        if errors.is_empty() {
            continue;
        }
        let at = |share: f64| errors[((errors.len() - 1) as f64 * share).round() as usize];
        println!("{name}: {} cells, median {:.3} %, 95 % within {:.3} %, worst {:.3} %", errors.len(), at(0.5), at(0.95), at(1.0));
    }
}
