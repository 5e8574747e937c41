//! The identity of a process, from /proc: its number and its start time. A number alone can be reused.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The writer of a statistics file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// Its start time, in the kernel's ticks since the machine started.
    pub start: u64,
    /// The namespace of its number, because containers that share a folder do not share numbers.
    pub namespace: u64,
    /// The time at which it began to write statistics files, in microseconds since the Unix epoch.
    pub began: u64,
    pub command: String,
    /// The program that wrote the statistics file, with its version.
    pub program: String,
}

impl Process {
    /// This process; `None` without /proc.
    #[must_use]
    pub fn current(program: &str) -> Option<Process> {
        let pid = std::process::id();
        Some(Process {
            pid,
            start: start_of(pid)?,
            namespace: namespace()?,
            began: now(),
            command: command_of(pid).unwrap_or_default(),
            program: program.to_owned(),
        })
    }

    /// The name of its statistics file.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{}-{}-{}.stats", self.pid, self.start, self.namespace)
    }
}

/// The writer's pid, start and namespace from the name of its statistics file.
#[must_use]
pub fn parse_name(name: &str) -> Option<(u32, u64, u64)> {
    let mut parts = name.strip_suffix(".stats")?.split('-');
    let found = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(found)
}

/// Microseconds since the Unix epoch.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// The start time of a process, in ticks; `None` if there is none, or only its exit status is left.
#[must_use]
pub fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name in brackets before it may contain brackets too.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The command line of a process, its words separated by spaces.
#[must_use]
pub fn command_of(pid: u32) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<_> =
        bytes.split(|&b| b == 0).filter(|word| !word.is_empty()).map(String::from_utf8_lossy).collect();
    if words.is_empty() {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        return Some(format!("[{}]", name.trim()));
    }
    Some(words.join(" "))
}

/// Resident bytes of a process.
#[must_use]
pub fn resident_of(pid: u32) -> Option<u64> {
    let pages: u64 =
        fs::read_to_string(format!("/proc/{pid}/statm")).ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

/// The namespace of process numbers in which this process lives.
#[must_use]
pub fn namespace() -> Option<u64> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// The user whose rights this process has.
#[must_use]
pub fn user() -> Option<u32> {
    user_in(&fs::read_to_string("/proc/self/status").ok()?)
}

fn user_in(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The owner of a process.
#[must_use]
pub fn owner_of(pid: u32) -> Option<u32> {
    user_in(&fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself() {
        let process = Process::current("test 1").expect("/proc");
        assert_eq!(Some(process.start), start_of(std::process::id()));
        assert_eq!(process.pid, std::process::id());
        assert!(process.start > 0 && process.namespace > 0 && process.began > 1_000_000_000_000_000);
        assert_eq!(owner_of(process.pid), user());
        let named = parse_name(&process.file_name()).expect("its own name");
        assert_eq!(named, (process.pid, process.start, process.namespace));
        for wrong in ["", "1.stats", "1-2.stats", "1-2-3", "1-2-3-4.stats", "-1-2-3.stats", "a-2-3.stats"] {
            assert_eq!(parse_name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_process_that_ended_has_no_start() {
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let pid = child.id();
        child.wait().expect("its end");
        assert_eq!(start_of(pid), None);
    }
}
