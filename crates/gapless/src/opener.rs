//! Opens a file with the program that the system has for it: a page in the browser.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An opener that fails ends within this time. One that still runs has opened the file, or is the browser.
const PATIENCE: Duration = Duration::from_secs(2);

/// Opens `path`. An error names the programs that were tried.
pub(crate) fn open(path: &Path) -> Result<(), String> {
    let mut tried = Vec::new();
    for (program, args) in openers() {
        match start(program, args, path).map(serves) {
            Ok(true) => return Ok(()),
            Ok(false) => tried.push(format!("{program} failed")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tried.push(format!("{program} is not installed"));
            }
            Err(error) => tried.push(format!("{program}: {error}")),
        }
    }
    Err(tried.join(", "))
}

/// Programs that may open a file here, the best first.
fn openers() -> Vec<(&'static str, &'static [&'static str])> {
    if cfg!(target_os = "macos") {
        return vec![("open", &[])];
    }
    if cfg!(target_os = "windows") {
        // The empty argument is the title of the window; without it a quoted path would be taken for one.
        return vec![("cmd", &["/C", "start", ""])];
    }
    let mut all: Vec<(&str, &[&str])> = vec![("xdg-open", &[]), ("gio", &["open"])];
    if is_wsl() {
        all.insert(0, ("wslview", &[]));
    }
    all
}

/// Linux under Windows: files open in the browser of Windows.
fn is_wsl() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .is_ok_and(|release| release.to_ascii_lowercase().contains("microsoft"))
}

fn start(program: &str, args: &[&str], path: &Path) -> io::Result<Child> {
    Command::new(program)
        .args(args)
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// True if the opener succeeded, or still runs after `PATIENCE`.
fn serves(mut child: Child) -> bool {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => std::thread::sleep(Duration::from_millis(20)),
            Err(_) => return false,
        }
    }
    true
}
