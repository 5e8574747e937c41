//! Runs as text, in at most 80 columns.

use super::{Simulated, counted, fragmented, grouped, refusals};
use std::fmt::Write;

pub fn text(simulated: &Simulated) -> String {
    let mut out = String::new();
    let gpus: u64 = simulated.nodes.iter().map(|node| u64::from(node.gpus)).sum();
    let first = &simulated.runs[0].run;
    let _ = writeln!(
        out,
        "{} with {} · {}, {:.2} % of the GPUs · seed {}\n",
        counted(simulated.nodes.len() as u64, "node"),
        counted(gpus, "GPU"),
        counted(first.outcomes.len() as u64, "arrival"),
        first.arrived_share(),
        simulated.seed
    );
    let _ = writeln!(out, "  policy      allocated  fragmented   placed   failed  moved  decisions/s");
    for named in &simulated.runs {
        let run = &named.run;
        let _ = writeln!(
            out,
            "  {:<10} {:>8.2} %  {:>8.2} %  {:>7}  {:>7}  {:>5}  {:>11}",
            named.policy,
            run.share(),
            fragmented(run),
            grouped(run.placed() as u64),
            grouped((run.outcomes.len() - run.placed()) as u64),
            grouped(run.moves.len() as u64),
            grouped(run.decisions_per_second() as u64)
        );
    }
    for named in &simulated.runs {
        let refused = refusals(&named.run);
        if refused.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n  why {} refused pods", named.policy);
        for (cause, count) in refused {
            let _ = writeln!(out, "  {:>7}  {}", grouped(count as u64), cause.words());
        }
    }
    if first.departed > 0 {
        let _ = writeln!(out, "\n  {} left during the run", counted(first.departed, "pod"));
    }
    out
}
