//! The parts of a run: each is timed and judged alone, all of them run, and the run ends with one line for each.

use crate::skips::Skips;
use anyhow::{Result, bail};
use std::time::{Duration, Instant};

struct Done {
    name: &'static str,
    took: Duration,
    skipped: usize,
    failure: Option<anyhow::Error>,
}

/// The parts that have run so far.
#[derive(Default)]
pub(crate) struct Parts {
    done: Vec<Done>,
}

impl Parts {
    /// Runs a part. If it fails, the others still run, so that one run shows all failures.
    pub(crate) fn run(&mut self, name: &'static str, part: impl FnOnce(&mut Skips) -> Result<()>) {
        eprintln!("\n== {name}");
        let began = Instant::now();
        let mut skips = Skips::of(name);
        let failure = part(&mut skips).and_then(|()| skips.judge()).err();
        if let Some(error) = &failure {
            eprintln!("\n== {name} failed: {error:#}");
        }
        self.done.push(Done { name, took: began.elapsed(), skipped: skips.count(), failure });
    }

    /// The time of each part; an error if one failed.
    pub(crate) fn close(self) -> Result<()> {
        eprintln!("\n== time of each part");
        for done in &self.done {
            let result = if done.failure.is_some() { "FAILED" } else { "passed" };
            let skipped =
                if done.skipped > 0 { format!(", {} skipped", done.skipped) } else { String::new() };
            eprintln!("part {:<8} {:>12}  {result}{skipped}", done.name, minutes(done.took));
        }
        let all: Duration = self.done.iter().map(|done| done.took).sum();
        eprintln!("part {:<8} {:>12}", "all", minutes(all));
        let failed: Vec<String> = self
            .done
            .iter()
            .filter_map(|done| Some(format!("{}: {:#}", done.name, done.failure.as_ref()?)))
            .collect();
        if !failed.is_empty() {
            bail!("{}", failed.join("\n"));
        }
        Ok(())
    }
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {:02.0} s", time.as_secs() / 60, seconds % 60.0)
    }
}
