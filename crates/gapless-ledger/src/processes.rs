//! Identifies the process of an entry, and tells if it still runs.

use std::io::Read;

/// The identity of a process. The kernel reuses numbers, but not a number with its start time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Who {
    pub pid: u32,
    /// Its start time, in the kernel's ticks since the machine started.
    pub start: u64,
    /// The namespace of the number.
    pub space: u64,
}

/// A source of processes: the system's, or a test's.
pub trait Processes: std::fmt::Debug + Send {
    /// This process.
    fn me(&self) -> Who;

    /// True if a process may still hold memory of a card. A process of another namespace counts as alive; processes
    /// of its own namespace will see its end.
    fn is_alive(&self, who: Who) -> bool;
}

/// The processes of this machine, as `/proc` shows them.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

/// The content of `/proc/<pid>/stat`: true if the process runs, and its start time.
fn stat(pid: &str) -> Option<(bool, u64)> {
    let mut text = String::new();
    std::fs::File::open(format!("/proc/{pid}/stat")).ok()?.take(4096).read_to_string(&mut text).ok()?;
    parse_stat(&text)
}

fn parse_stat(text: &str) -> Option<(bool, u64)> {
    // The name, in brackets, may hold any characters, so fields are read after the last bracket.
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    let (state, threads, start) = (*fields.first()?, fields.get(17)?, fields.get(19)?);
    // A process that ended but was not reaped holds no memory any more. If only its first thread ended,
    // others may still run.
    let is_gone = matches!(state, "Z" | "X" | "x") && threads.parse::<u64>().ok()? <= 1;
    Some((!is_gone, start.parse().ok()?))
}

/// The number in `pid:[4026531836]`; 0 if it cannot be read.
fn space() -> u64 {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let text = link.to_string_lossy();
    text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

impl Processes for System {
    fn me(&self) -> Who {
        let start = stat("self").map_or(0, |(_, start)| start);
        Who { pid: std::process::id(), start, space: space() }
    }

    fn is_alive(&self, who: Who) -> bool {
        who.space != space() || stat(&who.pid.to_string()) == Some((true, who.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_read_whatever_the_process_is_called() {
        let line = |name: &str, state: &str, threads: u32| {
            format!("7 ({name}) {state} 1 7 7 0 -1 4194304 1 0 0 0 5 2 0 0 20 0 {threads} 0 987654 1 2 3")
        };
        assert_eq!(parse_stat(&line("python", "S", 9)), Some((true, 987_654)));
        assert_eq!(parse_stat(&line("a) Z 1 (b", "R", 1)), Some((true, 987_654)));
        assert_eq!(parse_stat(&line("python", "Z", 1)), Some((false, 987_654)));
        assert_eq!(parse_stat(&line("python", "Z", 3)), Some((true, 987_654)), "other threads still run");
        for wrong in ["", "7 (x", "7 (x) S 1 2", "7 (x) S a b c d e f g h i j k l m n o p q r s"] {
            assert_eq!(parse_stat(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn this_process_runs_and_another_start_is_another_process() {
        let me = System.me();
        assert_eq!(me.pid, std::process::id());
        assert!(me.start > 0 && System.is_alive(me));
        assert!(!System.is_alive(Who { start: me.start + 1, ..me }));
        assert!(System.is_alive(Who { space: me.space + 1, ..me }), "another namespace: nothing is known");
    }

    #[test]
    fn a_killed_process_is_dead_before_it_was_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep runs");
        let (_, start) = stat(&child.id().to_string()).expect("it runs");
        let who = Who { pid: child.id(), start, ..System.me() };
        assert!(System.is_alive(who));
        child.kill().expect("a kill");
        while System.is_alive(who) {
            std::thread::yield_now();
        }
        child.wait().expect("its end");
        assert!(!System.is_alive(who));
    }
}
