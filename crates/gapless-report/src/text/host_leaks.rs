//! Memory that a program never freed, by stack. It is printed when the program ends, so it is short and has no table.

use super::{BOLD, DIM, RED, RESET, bytes, clean, count, percent, plural};
use crate::model::{EstimateInfo, HostLineInfo, HostRunInfo, Report};
use std::fmt::Write;

/// Frames of a stack that are shown, innermost first.
const FRAMES: usize = 12;

/// The lines that keep more and more memory, then those whose memory was never freed. Without a recording of host
/// memory, or if everything was freed, one line says so.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    let process = report.source.process.as_ref();
    let name = process.and_then(|process| process.program.as_deref()).unwrap_or("the program");
    let pid =
        process.and_then(|process| process.pid).map_or(String::new(), |pid| format!(" (process {pid})"));
    let program = format!("{}{pid}", clean(name));
    let Some(run) = report.host_run.as_ref().filter(|run| !run.never_freed.is_empty()) else {
        let _ = writeln!(out, "gapless: {program}: no sampled block was left when it ended");
        return out;
    };
    let what = if run.whole { "was never freed" } else { "was not freed when the program was killed" };
    let _ = writeln!(
        out,
        "{BOLD}gapless: {program}: {} {what}{RESET}, by {}",
        shown(&run.end_live),
        plural(run.samples, "sampled allocation"),
    );
    for line in &run.growing {
        let rate = format!("+{} a {}", bytes(line.rate.unwrap_or(0.0) as u64), run.rate_unit);
        entry(&mut out, &format!("{RED}grows{RESET}"), &rate, line);
    }
    for line in run.never_freed.iter().filter(|line| !grows(run, line)) {
        entry(&mut out, "never freed", "", line);
    }
    out
}

fn grows(run: &HostRunInfo, line: &HostLineInfo) -> bool {
    run.growing.iter().any(|other| other.label == line.label)
}

fn entry(out: &mut String, what: &str, rate: &str, line: &HostLineInfo) {
    let rate = if rate.is_empty() { String::new() } else { format!("  {rate}") };
    let _ = writeln!(
        out,
        "  {what}{rate}  {}  {} ×  {BOLD}{}{RESET}",
        shown(&line.kept),
        count(line.kept.samples),
        clean(&line.label)
    );
    for frame in line.stack.iter().take(FRAMES) {
        let place = match frame.line {
            0 => clean(&frame.file),
            number => format!("{}:{number}", clean(&frame.file)),
        };
        let _ = writeln!(out, "      {}  {DIM}{place}{RESET}", clean(&frame.name));
    }
}

/// `1.50 GiB ± 4 %`.
pub(super) fn shown(of: &EstimateInfo) -> String {
    let share = of.error as f64 / of.bytes.max(1) as f64;
    match of.error {
        0 => bytes(of.bytes),
        _ if share > 0.995 => format!("{} at most", bytes(of.bytes + of.error)),
        _ => format!("{} ± {}", bytes(of.bytes), percent(share)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_trace::Trace;

    fn line(label: &str, bytes: u64, rate: Option<f64>) -> HostLineInfo {
        let frame =
            |name: &str, line| crate::model::FrameInfo { name: name.into(), file: "train.py".into(), line };
        let stack = vec![frame("keeps", 13), frame("main", 40)];
        let kept = EstimateInfo { bytes, error: bytes / 20, samples: 412 };
        HostLineInfo { label: label.into(), stack, kept, rate }
    }

    #[test]
    fn lines_that_grow_come_first_and_each_has_its_stack() {
        let trace = Trace::default();
        let analysis = crate::Analysis::of(&trace).expect("an empty trace");
        let mut report = analysis.report("run.gtrace", 10);
        assert!(super::render(&report).contains("no sampled block was left"), "without a recording");
        let grows = line("train.py:13 keeps", 12 << 20, Some(3e5));
        let once = line("train.py:20 table", 1 << 20, None);
        let run = HostRunInfo {
            whole: true,
            samples: 900,
            end_live: EstimateInfo { bytes: 13 << 20, error: 0, samples: 900 },
            rate_unit: "step".into(),
            growing: vec![grows.clone()],
            never_freed: vec![HostLineInfo { rate: None, ..grows }, once],
            ..HostRunInfo::default()
        };
        report.host_run = Some(run);
        let shown = anstream_free(&super::render(&report));
        let wanted = "\
gapless: the program: 13.0 MiB was never freed, by 900 sampled allocations
  grows  +293 KiB a step  12.0 MiB ± 5.0 %  412 ×  train.py:13 keeps
      keeps  train.py:13
      main  train.py:40
  never freed  1.00 MiB ± 5.0 %  412 ×  train.py:20 table
      keeps  train.py:13
      main  train.py:40
";
        assert_eq!(shown, wanted);
    }

    /// Without colours.
    fn anstream_free(text: &str) -> String {
        let mut parts = text.split('\u{1b}');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |sum, part| sum + part.split_once('m').map_or("", |(_, rest)| rest))
    }
}
