//! A recording of host memory in the terminal report.

use super::device::section;
use super::host_leaks::shown;
use super::layout::{facts, indent};
use super::table::{Align, Table};
use super::{BOLD, DIM, RESET, bytes, clean, count, duration, percent, plural};
use crate::model::{DeviceReport, HostLineInfo, HostRunInfo, HostStateInfo};

use Align::{Left, Right};

pub(super) fn render(out: &mut String, d: &DeviceReport, run: &HostRunInfo) {
    let mut known = vec![plural(run.samples, "sampled allocation")];
    if let Some(us) = d.duration_us {
        known.push(duration(us));
    }
    if d.steps.count > 0 {
        known.push(d.steps.evidence.clone());
    }
    known.push(format!(
        "estimates: one sample in about {} of small blocks, and every block from {}",
        bytes(run.interval),
        bytes(run.exact_from)
    ));
    out.push('\n');
    facts(out, &format!("{BOLD}Host memory{RESET}  "), &known);
    super::device::curves(out, d);
    figures(out, run);
    lines(out, "Largest holders at the peak", &run.holders, run.peak_live.bytes, run);
    grow(out, run);
    let title = if run.whole { "Never freed" } else { "Not freed when the recording ended" };
    lines(out, title, &run.never_freed, run.end_live.bytes, run);
    super::device::steps(out, d);
}

fn figures(out: &mut String, run: &HostRunInfo) {
    section(out, "What the process held", "± two standard errors of the sample");
    let mut table = Table::new(&[Left, Right, Right, Left]).spare(&[3]);
    table.row(DIM, ["", "at the peak", "at the end"].map(str::to_owned).to_vec());
    let mut row = |name: &str, peak: Option<String>, end: Option<String>, meaning: &str| {
        let cell = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
        table.row("", vec![name.to_owned(), cell(peak), cell(end), meaning.to_owned()]);
    };
    row("live", Some(shown(&run.peak_live)), Some(shown(&run.end_live)), "allocated and not freed");
    type Part = fn(&HostStateInfo) -> u64;
    let rows: [(&str, Part, &str); 4] = [
        ("  large buffers", |s| s.large, "of 1 MiB or more, exact"),
        ("kept for reuse", |s| s.kept, "freed; goes back when idle: no leak"),
        ("small objects hold", |s| s.small, "in use or not"),
        ("resident", |s| s.resident, "the whole process, by the kernel"),
    ];
    for (name, of, meaning) in rows {
        let value = |state: &Option<HostStateInfo>| state.as_ref().map(|state| bytes(of(state)));
        row(name, value(&run.at_peak), value(&run.at_end), meaning);
    }
    table.render(out, "    ");
}

fn lines(out: &mut String, title: &str, lines: &[HostLineInfo], whole: u64, run: &HostRunInfo) {
    if lines.is_empty() {
        return;
    }
    section(out, title, &format!("shares of {} live", bytes(whole)));
    let _ = run;
    let mut table = Table::new(&[Right, Right, Right, Left]).names(3, 24);
    for line in lines {
        let share = line.kept.bytes as f64 / whole.max(1) as f64;
        let samples = format!("{} ×", count(line.kept.samples));
        table.row("", vec![shown(&line.kept), percent(share), samples, clean(&line.label)]);
    }
    table.render(out, "    ");
}

fn grow(out: &mut String, run: &HostRunInfo) {
    section(out, "What grows", "");
    if run.growing.is_empty() {
        indent(out, "    ", "no line keeps more and more memory", DIM);
        return;
    }
    let mut table = Table::new(&[Right, Right, Right, Left]).names(3, 24);
    for line in &run.growing {
        let rate = format!("+{} a {}", bytes(line.rate.unwrap_or(0.0) as u64), run.rate_unit);
        let samples = format!("{} ×", count(line.kept.samples));
        table.row("", vec![rate, shown(&line.kept), samples, clean(&line.label)]);
    }
    table.render(out, "    ");
}
