//! `--watch`: the report of a file that grows or is replaced, made again whenever the file changes, until Ctrl-C.
//!
//! A `.gtrace` may be read while it is written: its reader takes every whole block. Another file may be half written;
//! then the report says so and waits for the next change. The file's size, time and identity are checked a few times
//! a second, less often if a report takes long.

use super::{Target, report};
use crate::cli::report::{ReportArgs, ReportFormat};
use crate::failure::{self, Failure};
use crate::{load, output};
use anyhow::{Context, Result};
use gapless_report::text;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The interval between two checks of the file.
const LOOK: Duration = Duration::from_millis(400);
/// The delay until Ctrl-C is noticed.
const NAP: Duration = Duration::from_millis(50);

static STOP: AtomicBool = AtomicBool::new(false);

pub(super) fn run(args: &ReportArgs, file: &Path, target: &Target) -> Result<()> {
    if file.as_os_str() == "-" {
        return Err(Failure::new(
            "--watch needs a file: standard input cannot be read twice",
            "write it to a file, and name that",
        )
        .into());
    }
    // If no handler can be set, Ctrl-C ends the process. Files appear whole, so this leaves none half written.
    let _ = ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed));
    let mut screen = Screen::of(target);
    let mut seen: Option<Stamp> = None;
    let mut waiting = false;
    while !STOP.load(Ordering::Relaxed) {
        let now = Stamp::of(file);
        if now.is_none() && !waiting {
            waiting = true;
            eprintln!("waiting for {}", file.display());
        }
        let mut pause = LOOK;
        if now.is_some() && now != seen {
            waiting = false;
            seen = now;
            let start = Instant::now();
            again(args, file, target, &mut screen)?;
            // A quarter of one core at most.
            pause = pause.max(start.elapsed() * 3);
        }
        rest(pause);
    }
    Ok(())
}

/// Sleeps until the pause ends or Ctrl-C comes.
fn rest(pause: Duration) {
    let start = Instant::now();
    while start.elapsed() < pause && !STOP.load(Ordering::Relaxed) {
        std::thread::sleep(NAP.min(pause));
    }
}

/// The identity of one state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified: Option<SystemTime>,
    identity: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        let about = std::fs::metadata(path).ok()?;
        Some(Stamp { size: about.len(), modified: about.modified().ok(), identity: identity(&about) })
    }
}

#[cfg(unix)]
fn identity(about: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(about)
}

#[cfg(not(unix))]
fn identity(_: &std::fs::Metadata) -> u64 {
    0
}

/// One report. A file that cannot be read is reported, and the watch goes on; a failed write ends it.
fn again(args: &ReportArgs, file: &Path, target: &Target, screen: &mut Screen) -> Result<()> {
    let trace = match load::trace_of(file, args.device) {
        Ok(trace) => trace,
        Err(error) => return tell(&error),
    };
    let analysis = match load::analyse(&trace, file) {
        Ok(analysis) => analysis,
        Err(error) => return tell(&error),
    };
    let report = report(args, file, &analysis)?;
    match screen {
        Screen::Redrawn => draw(&text::render(&report))?,
        Screen::Appended { reports } => {
            *reports += 1;
            if *reports > 1 {
                output::write_text(None, &format!("\n=== report {reports}\n"))?;
            }
            target.write(&analysis, &report)?;
        }
        Screen::File { told } => {
            target.write(&analysis, &report)?;
            if !*told {
                *told = true;
                target.tell();
            }
        }
    }
    Ok(())
}

fn tell(error: &anyhow::Error) -> Result<()> {
    failure::print(error);
    eprintln!("waiting for the file to change");
    Ok(())
}

/// The place of the next report.
enum Screen {
    /// In the place of the one before.
    Redrawn,
    /// Below the one before.
    Appended { reports: u64 },
    /// In a file.
    File { told: bool },
}

impl Screen {
    fn of(target: &Target) -> Screen {
        let to_file = target.path.as_ref().is_some_and(|path| path.as_os_str() != "-");
        match target.format {
            _ if to_file => Screen::File { told: false },
            ReportFormat::Text if std::io::stdout().is_terminal() => Screen::Redrawn,
            _ => Screen::Appended { reports: 0 },
        }
    }
}

/// As much of the report as the terminal has lines for, in the place of the one before.
fn draw(report: &str) -> Result<()> {
    crate::terminal::use_terminal_width();
    let rows = ratatui::crossterm::terminal::size().map_or(24, |(_, rows)| usize::from(rows));
    let mut shown = String::from("\x1b[H\x1b[2J");
    shown.push_str(&cut(report, rows));
    let mut out = anstream::stdout().lock();
    out.write_all(shown.as_bytes()).and_then(|()| out.flush()).context("cannot write to standard output")
}

/// The lines that fit into `rows`, with a word about those that do not.
fn cut(report: &str, rows: usize) -> String {
    let lines: Vec<&str> = report.lines().collect();
    if lines.len() < rows {
        return report.to_owned();
    }
    let kept = rows.saturating_sub(2).max(1);
    let more = lines.len() - kept;
    format!(
        "{}\n\x1b[2m{more} more lines: --format html -o FILE has everything\x1b[0m\n",
        lines[..kept].join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_cut_to_the_lines_of_the_terminal() {
        assert_eq!(cut("a\nb\n", 24), "a\nb\n");
        let long: String = (0..40).map(|i| format!("{i}\n")).collect();
        let shown = cut(&long, 24);
        assert_eq!(shown.lines().count(), 23, "the cursor stays on the last line");
        assert!(shown.contains("18 more lines"), "{shown}");
    }

    #[test]
    fn a_stamp_changes_with_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        assert_eq!(Stamp::of(&path), None);
        std::fs::write(&path, "a").expect("written");
        let first = Stamp::of(&path);
        assert_eq!(first, Stamp::of(&path));
        std::fs::write(&path, "ab").expect("written");
        assert_ne!(first, Stamp::of(&path));
    }
}
