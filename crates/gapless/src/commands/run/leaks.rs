//! `gapless run --host-leaks`: waits until the program ends, then prints the memory that it never freed, by stack.
//!
//! The program records a sample of its allocations, into a folder that goes away afterwards or into the file of
//! `--host-record`. The terminal sends interrupts to the program itself; this command forwards other signals.

use crate::Answer;
use crate::failure::Failure;
use crate::load;
use anyhow::{Context, Result};
use gapless_report::text;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

/// Lines that are shown of each process.
const TOP: usize = 10;
/// The interval between two checks for a signal to forward.
const LOOK: Duration = Duration::from_millis(50);
const HANDED_ON: [i32; 4] = [SIGHUP, SIGTERM, SIGUSR1, SIGUSR2];

/// The place of the recordings.
pub(super) struct Recordings {
    file: PathBuf,
    /// A folder that is made for them, and removed.
    own: Option<PathBuf>,
    began: SystemTime,
}

impl Recordings {
    /// `file` is the value of `--host-record`.
    pub(super) fn prepare(file: Option<&Path>) -> Result<Recordings> {
        // Times of files come from a coarser clock, hence one second earlier.
        let began = SystemTime::now() - Duration::from_secs(1);
        if let Some(file) = file {
            return Ok(Recordings { file: std::path::absolute(file)?, own: None, began });
        }
        let own = std::env::temp_dir().join(format!("gapless-leaks-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&own);
        std::fs::create_dir(&own).map_err(|error| {
            let what = format!("--host-leaks: {} cannot be made: {error}", own.display());
            Failure::new(what, "TMPDIR names a folder that you can write to")
        })?;
        Ok(Recordings { file: own.join("run.gtrace"), own: Some(own), began })
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// The program's recording, then those of processes that it started.
    fn all(&self) -> Vec<PathBuf> {
        let (Some(folder), Some(stem)) = (self.file.parent(), self.file.file_stem().and_then(OsStr::to_str))
        else {
            return Vec::new();
        };
        let is_child = |path: &Path| {
            let name = path.file_stem().and_then(OsStr::to_str).and_then(|name| name.strip_prefix(stem));
            let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let is_new =
                path.metadata().and_then(|meta| meta.modified()).is_ok_and(|time| time >= self.began);
            name.and_then(|name| name.strip_prefix('.')).is_some_and(is_number)
                && path.extension() == self.file.extension()
                && is_new
        };
        let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let mut children: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|path| is_child(path)).collect();
        children.sort();
        std::iter::once(self.file.clone()).filter(|file| file.is_file()).chain(children).collect()
    }

    /// Prints the leaks of each process. A recording that cannot be read is named, and the others are still shown.
    fn tell(&self) {
        let all = self.all();
        if all.is_empty() {
            eprintln!(
                "gapless: the program wrote no recording, so leaks are not known; a program that is linked statically \
                 cannot be recorded"
            );
        }
        for file in all {
            match leaks(&file) {
                Ok(shown) => crate::failure::tell(&shown),
                Err(error) => crate::failure::print(&error),
            }
        }
    }
}

impl Drop for Recordings {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            let _ = std::fs::remove_dir_all(own);
        }
    }
}

fn leaks(file: &Path) -> Result<String> {
    let trace = load::trace_quietly(file)?;
    let analysis = load::analyse(&trace, file)?;
    Ok(text::render_leaks(&analysis.report(&file.display().to_string(), TOP)))
}

/// Runs the program to its end, prints its leaks, and ends with its exit code.
pub(super) fn run(mut command: Command, program: &OsStr, recordings: Recordings) -> Result<Answer> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in HANDED_ON {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)
            .context("a signal's handler")?;
    }
    for number in [SIGINT, SIGQUIT] {
        // The terminal sends these to the program too, which decides whether to end.
        signal_hook::flag::register_usize(number, Arc::default(), 1).context("a signal's handler")?;
    }
    let child = command.spawn().map_err(|error| super::not_started(&error, program))?;
    let status = wait(child, &signal)?;
    recordings.tell();
    drop(recordings);
    // Shells report a signal as 128 plus its number.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    std::process::exit(code)
}

fn wait(mut child: Child, signal: &AtomicUsize) -> Result<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let number = signal.swap(0, Ordering::Relaxed);
        if let (Some(pid), Some(number)) =
            (pid, i32::try_from(number).ok().and_then(rustix::process::Signal::from_named_raw))
        {
            let _ = rustix::process::kill_process(pid, number);
        }
        std::thread::sleep(LOOK);
    }
}
