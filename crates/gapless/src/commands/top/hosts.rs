//! Host memory by process, as lines of text: the printed list and the screen share them.

use super::draw::{bytes, command, left, right};
use crate::machine::Machine;
use std::fmt::Write;

/// Processes whose host memory Gapless serves; empty without one.
pub(super) fn text(machine: &Machine) -> String {
    let mut out = String::new();
    if machine.hosts.is_empty() {
        return out;
    }
    let _ = writeln!(
        out,
        "\nHost memory\n{} {} {} {} {} {} {} COMMAND",
        right("PID", 8),
        right("LARGE", 9),
        right("KEPT", 9),
        right("SMALL", 9),
        right("PINNED", 9),
        right("RESIDENT", 9),
        left("BUDGET", 19)
    );
    for statistics in &machine.hosts {
        let figures = &statistics.figures;
        let budget = match figures.limit {
            0 => "-".to_owned(),
            limit => format!("{} of {}", bytes(figures.budget_held), bytes(limit)),
        };
        let _ = writeln!(
            out,
            "{} {} {} {} {} {} {} {}",
            right(&statistics.process.pid.to_string(), 8),
            right(&bytes(figures.large_live), 9),
            right(&bytes(figures.kept), 9),
            right(&bytes(figures.small), 9),
            right(&bytes(figures.pinned), 9),
            right(&bytes(figures.resident), 9),
            left(&budget, 19),
            command(&statistics.process.command)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::testing::machine;
    use gapless_stats::HostStatistics;

    #[test]
    fn host_memory_is_listed_with_its_budget() {
        let mut machine = machine();
        let mut statistics = HostStatistics::default();
        statistics.process.pid = 4242;
        statistics.process.command = "python train.py".to_owned();
        let of = &mut statistics.figures;
        (of.large_live, of.kept, of.small, of.resident) = (3 << 30, 512 << 20, 200 << 20, 4 << 30);
        machine.hosts.push(statistics.clone());
        (statistics.process.pid, statistics.figures.limit, statistics.figures.budget_held) =
            (4243, 200 << 30, 5 << 30);
        machine.hosts.push(statistics);
        let shown = text(&machine);
        let words: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[3][..2], ["4242", "3.00"], "{shown}");
        assert!(words[3].contains(&"-") && shown.contains("5.00 GiB of 200 GiB"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
        assert_eq!(text(&Machine::default()), "");
    }
}
