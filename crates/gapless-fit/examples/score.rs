//! The score board: predicted against measured peaks, cell by cell.
//!
//! `cargo run --release -p gapless-fit --example score -- [FOLDER [FILE [FILTER]]]` reads the cells of `FILE` (those of
//! an H200 in the test data if it is not given), with configurations inline or in `FOLDER/models/NAME/config.json`.
//! With `PHASES=1` in the environment every phase is shown.

mod support;

use gapless_fit::eager::{Figures, Phase, simulate};
use serde_json::Value;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(support::folder);
    let file = arguments.next().unwrap_or_else(|| format!("{folder}/h200_cells.jsonl"));
    let filter = arguments.next().unwrap_or_default();
    let (mut allocated, mut reserved) = (Vec::new(), Vec::new());
    println!(
        "{:<58} {:>14} {:>14} {:>8} {:>14} {:>8}",
        "cell", "measured", "predicted", "error %", "reserved", "error %"
    );
    for (cell, config) in support::cells(&folder, &file) {
        let label = support::label(&cell);
        let (Some(measured), Some(held)) = (cell["peak_allocated"].as_u64(), cell["peak_reserved"].as_u64())
        else {
            continue;
        };
        if !label.contains(&filter) {
            continue;
        }
        let Some(architecture) = support::architecture(&config) else {
            println!("{label:<58} not a model that is known");
            continue;
        };
        let steps = match simulate(&architecture, &support::run_of(&cell)) {
            Ok(steps) => steps,
            Err(error) => {
                println!("{label:<58} {error}");
                continue;
            }
        };
        let figures = steps.figures();
        let error = |predicted: u64, measured: u64| (predicted as f64 / measured as f64 - 1.0) * 100.0;
        let (a, r) = (error(figures.peak_allocated.0, measured), error(figures.peak_reserved.0, held));
        allocated.push(a.abs());
        reserved.push(r.abs());
        println!(
            "{label:<58} {measured:>14} {:>14} {a:>+8.3} {held:>14} {r:>+8.2}",
            figures.peak_allocated.0
        );
        if std::env::var_os("PHASES").is_some() {
            phases(&cell, &figures);
        }
    }
    for (name, mut errors) in [("allocated", allocated), ("reserved", reserved)] {
        errors.sort_by(f64::total_cmp);
        if errors.is_empty() {
            continue;
        }
        let at = |share: f64| errors[((errors.len() - 1) as f64 * share).ceil() as usize];
        let (median, most, worst) = (at(0.5), at(0.95), at(1.0));
        println!(
            "{name}: {} cells, median {median:.3} %, 95 % within {most:.3} %, worst {worst:.3} %",
            errors.len()
        );
    }
}

fn phases(cell: &Value, figures: &Figures) {
    for f in &figures.phases {
        let step = &cell["steps"][f.step as usize];
        let (live, peak) = match f.phase {
            Phase::Forward => ("after_forward", "peak_to_forward"),
            Phase::Backward => ("after_backward", "peak_to_backward"),
            Phase::Step => ("", "peak_to_step"),
            _ => ("after_step", ""),
        };
        println!(
            "    {} {:?}: {} (measured {}), peak {} (measured {})",
            f.step, f.phase, f.allocated.0, step[live], f.peak_allocated.0, step[peak]
        );
    }
}
