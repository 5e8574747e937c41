//! The list as plain text, printed once: for logs, pipes and simple terminals.

use super::NOBODY;
use super::draw::{bytes, command, duration, left, percent, rate, right};
use super::hosts;
use super::state::{Ui, gpus};
use super::view::{held, note, summary};
use crate::machine::Machine;
use std::fmt::Write;

pub(super) fn text(machine: &Machine) -> String {
    let mut out = String::new();
    for gpu in &machine.gpus {
        let _ = writeln!(
            out,
            "GPU {} {}  {} of {} used: allocated {}, reserved {}, others {}",
            gpu.number(),
            gpu.name,
            bytes(gpu.used),
            bytes(gpu.total),
            bytes(gpu.live),
            bytes(gpu.reserved),
            bytes(gpu.others)
        );
    }
    if machine.processes.is_empty() {
        if machine.hosts.is_empty() {
            let _ = writeln!(out, "{NOBODY}");
        }
    } else {
        let _ = writeln!(out, "{}\n", summary(machine));
        let _ = writeln!(
            out,
            "{} {} {} {} {} {} {} COMMAND",
            right("PID", 8),
            left("USER", 9),
            left("GPU", 5),
            right("ALLOCATED", 9),
            right("RESERVED", 8),
            right("FRAG", 5),
            right("ALLOC/S", 7)
        );
    }
    for process in Ui::default().rows(machine) {
        let is_ours = process.statistics.is_some();
        let or_dash = |text: String| if is_ours { text } else { "-".to_owned() };
        let silent = process.silent(machine.time).map(|since| format!(" (silent for {})", duration(since)));
        let _ = writeln!(
            out,
            "{} {} {} {} {} {} {} {}{}",
            right(&process.pid.to_string(), 8),
            left(&process.user, 9),
            left(&gpus(process, machine), 5),
            right(&or_dash(bytes(process.live())), 9),
            right(&held(process), 8),
            right(&or_dash(percent(process.fragmentation())), 5),
            right(&or_dash(rate(process.rate())), 7),
            command(&process.command),
            silent.unwrap_or_default()
        );
    }
    out.push_str(&hosts::text(machine));
    if let Some(note) = note(machine) {
        let _ = writeln!(out, "\n{note}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::testing::machine;

    #[test]
    fn the_list_once() {
        insta::assert_snapshot!(text(&machine()));
    }

    #[test]
    fn nobody_once() {
        let machine =
            Machine { no_nvml: Some("libnvidia-ml.so.1 was not found".to_owned()), ..Machine::default() };
        insta::assert_snapshot!(text(&machine));
    }
}
