//! A recording's description of its process: program, host and rank, and the release of torch.
//!
//! Everything comes from the process itself. Arguments are left out, because they may contain secrets.

use gapless_cuda::locks::SetOnce;
use gapless_trace::{Process, Source};
use std::ffi::OsString;
use std::path::Path;

/// The release of torch, after Python has reported it.
static TORCH: SetOnce<String> = SetOnce::new();

/// Notes the release of torch; only the first call counts.
pub(crate) fn set_torch(version: &str) {
    let _ = TORCH.set(version.to_owned());
}

/// This process, without torch's release. Called on a thread of the program: the program may set variables meanwhile,
/// so a thread of ours must not read them.
pub(super) fn describe() -> Process {
    described(|name| std::env::var(name).ok())
}

/// `said` reads a variable of the environment. `torchrun` and most other launchers set `RANK` and `WORLD_SIZE`.
fn described(said: impl Fn(&str) -> Option<String>) -> Process {
    let number = |name: &str| said(name)?.trim().parse().ok();
    Process {
        program: program(std::env::args_os()),
        pid: Some(u64::from(std::process::id())),
        host: std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
        rank: number("RANK"),
        world: number("WORLD_SIZE"),
        torch: String::new(),
        allocator: Source::gapless(env!("CARGO_PKG_VERSION")),
    }
}

/// The same with the release of torch, if it is known by now.
pub(super) fn with_torch(process: &Process) -> Process {
    Process { torch: TORCH.get().cloned().unwrap_or_default(), ..process.clone() }
}

/// The names of the executable and of the script or module that it runs.
fn program(args: impl Iterator<Item = OsString>) -> String {
    let name = |path: &OsString| {
        Path::new(path).file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    };
    let mut args = args.peekable();
    let Some(executable) = args.next() else { return String::new() };
    let executable = name(&executable);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            // The next argument is a program's text, not its name.
            Some("-c" | "-") => break,
            Some("-m") => {
                let module = args.next().map_or_else(String::new, |m| m.to_string_lossy().into_owned());
                return format!("{executable} -m {module}");
            }
            // These two flags take a value.
            Some("-W" | "-X") => {
                args.next();
            }
            Some(flag) if flag.starts_with('-') => {}
            _ => return format!("{executable} {}", name(&arg)),
        }
    }
    executable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_named_without_its_arguments() {
        let named = |line: &str| program(line.split(' ').map(OsString::from));
        assert_eq!(named("/usr/bin/python3 -u /home/me/train.py --token secret"), "python3 train.py");
        assert_eq!(named("python -X dev -m package.train --token secret"), "python -m package.train");
        assert_eq!(named("python -c print(1)"), "python");
        assert_eq!(named("./serve"), "serve");
        assert_eq!(program(std::iter::empty()), "");
    }

    #[test]
    fn a_process_knows_itself() {
        let process = described(|_| None);
        assert_eq!((process.rank, process.world), (None, None));
        assert_eq!(process.pid, Some(u64::from(std::process::id())));
        assert!(process.allocator.starts_with("gapless ") && !process.program.is_empty());
    }

    #[test]
    fn a_rank_is_what_the_launcher_says() {
        let said = |pairs: &'static [(&str, &str)]| {
            let process = described(|name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            });
            (process.rank, process.world)
        };
        assert_eq!(said(&[("RANK", "3"), ("WORLD_SIZE", "8")]), (Some(3), Some(8)));
        assert_eq!(said(&[("RANK", "many"), ("WORLD_SIZE", "8")]), (None, Some(8)));
    }
}
