//! Progress bars for long reads and sweeps: only on a terminal, and only after a delay.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Shorter reads show no bar.
const PATIENCE: Duration = Duration::from_millis(400);

pub(crate) struct Progress {
    bar: ProgressBar,
    since: Instant,
    name: String,
}

impl Progress {
    /// A bar for reading `name`; silent if standard error is no terminal.
    pub(crate) fn reading(name: &str) -> Progress {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
        } else {
            ProgressBar::hidden()
        };
        Progress { bar, since: Instant::now(), name: name.to_owned() }
    }

    /// `done` bytes of the file, of `total` if that is known.
    pub(crate) fn update(&self, done: u64, total: Option<u64>) {
        if !std::io::stderr().is_terminal() || self.since.elapsed() < PATIENCE {
            return;
        }
        if self.bar.is_hidden() {
            let template = if total.is_some() {
                "{msg} {bar:32.cyan/dim} {bytes}/{total_bytes} {eta}"
            } else {
                "{msg} {spinner} {bytes} {bytes_per_sec}"
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(style.progress_chars(if crate::terminal::is_ascii() {
                    "##-"
                } else {
                    "━━─"
                }));
            }
            self.bar.set_message(format!("reading {}", self.name));
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        if let Some(total) = total {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
    }
}

/// A bar that counts.
pub(crate) struct Counter {
    bar: ProgressBar,
    since: Instant,
}

impl Counter {
    /// A bar for `total` of `what`; silent if standard error is no terminal.
    pub(crate) fn new(what: &'static str, total: usize) -> Counter {
        let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:32.cyan/dim} {pos}/{len} {eta}") {
            bar.set_style(style.progress_chars(if crate::terminal::is_ascii() {
                "##-"
            } else {
                "━━─"
            }));
        }
        bar.set_message(what);
        Counter { bar, since: Instant::now() }
    }

    /// `done` of them are done. Any thread may call it.
    pub(crate) fn update(&self, done: usize) {
        if !std::io::stderr().is_terminal() || self.since.elapsed() < PATIENCE {
            return;
        }
        if self.bar.is_hidden() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done as u64);
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
