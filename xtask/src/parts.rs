//! The parts of a run: each is timed and judged alone, all of them run, and the run ends with one line for each. The
//! processor time beside the time tells whether a part waits (below the number of cores) or works.

use crate::skips::Skips;
use anyhow::{Result, bail};
use std::time::{Duration, Instant};

struct Done {
    name: &'static str,
    took: Duration,
    /// The processor time of the programs that the part started, where the system tells it.
    worked: Option<Duration>,
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
        let (began, work) = (Instant::now(), work_of_children());
        let mut skips = Skips::of(name);
        let failure = part(&mut skips).and_then(|()| skips.judge()).err();
        if let Some(error) = &failure {
            eprintln!("\n== {name} failed: {error:#}");
        }
        let worked = work_of_children().zip(work).map(|(after, before)| after.saturating_sub(before));
        self.done.push(Done { name, took: began.elapsed(), worked, skipped: skips.count(), failure });
    }

    /// The time of each part; an error if one failed.
    pub(crate) fn close(self) -> Result<()> {
        eprintln!("\n== time of each part");
        for done in &self.done {
            let result = if done.failure.is_some() { "FAILED" } else { "passed" };
            let skipped =
                if done.skipped > 0 { format!(", {} skipped", done.skipped) } else { String::new() };
            eprintln!("part {:<8} {}  {result}{skipped}", done.name, times(done.took, done.worked));
        }
        let all: Duration = self.done.iter().map(|done| done.took).sum();
        eprintln!("part {:<8} {}", "all", times(all, self.done.iter().map(|done| done.worked).sum()));
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

/// The processor time of all children that have ended, theirs included.
fn work_of_children() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses, which may contain blanks; see proc(5).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(13)?.parse::<u64>().ok()? + fields.get(14)?.parse::<u64>().ok()?;
    // Linux shows a hundred ticks a second, whatever the kernel counts in.
    Some(Duration::from_millis(ticks * 10))
}

fn times(took: Duration, worked: Option<Duration>) -> String {
    let worked = worked.map_or_else(String::new, |worked| format!(", {:>12} of processors", minutes(worked)));
    format!("{:>12}{worked}", minutes(took))
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {:02.0} s", time.as_secs() / 60, seconds % 60.0)
    }
}
