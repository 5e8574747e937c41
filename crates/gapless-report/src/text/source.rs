//! The head of every text: the file, its format and producer, the settings of the run, and parts that
//! the reader repaired.

use super::layout::{facts, shorten, width, wrap};
use super::paint::{BOLD, DIM, RESET, clean};
use crate::model::{ProcessInfo, SourceInfo};
use std::fmt::Write;

pub(crate) fn render(out: &mut String, source: &SourceInfo, conf: Option<&str>) {
    let _ = writeln!(out, "{BOLD}{}{RESET}", shorten(&clean(&source.path), width()));
    let mut known = vec![clean(&source.format)];
    if !source.producer.is_empty() {
        known.push(clean(&source.producer));
    }
    if let Some(conf) = conf.filter(|c| !c.is_empty()) {
        known.push(clean(conf));
    }
    facts(out, "", &known);
    if let Some(process) = &source.process {
        facts(out, "", &words(process, &source.producer));
    }
    for note in &source.notes {
        for line in wrap(&clean(&format!("note: {}", note.text)), width()) {
            let _ = writeln!(out, "{DIM}{line}{RESET}");
        }
    }
}

/// The known facts on a process. An allocator that is also the producer is named once.
fn words(process: &ProcessInfo, producer: &str) -> Vec<String> {
    let mut words = Vec::new();
    let pid = process.pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
    match &process.program {
        Some(program) => words.push(format!("recorded in {}{pid}", clean(program))),
        None if !pid.is_empty() => words.push(format!("recorded in{}", pid.replace(['(', ')'], ""))),
        None => {}
    }
    words.extend(process.host.as_ref().map(|host| format!("on {}", clean(host))));
    words.extend(match (process.rank, process.world) {
        (Some(rank), Some(world)) => Some(format!("rank {rank} of {world}")),
        (Some(rank), None) => Some(format!("rank {rank}")),
        _ => None,
    });
    words.extend(process.torch.as_ref().map(|torch| format!("torch {}", clean(torch))));
    let allocator = process.allocator.as_ref().filter(|allocator| *allocator != producer);
    words.extend(allocator.map(|allocator| format!("allocator {}", clean(allocator))));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_as_far_as_it_is_known() {
        let mut process = ProcessInfo {
            program: Some("python train.py".to_owned()),
            pid: Some(4711),
            host: Some("node-3".to_owned()),
            rank: Some(1),
            world: Some(8),
            torch: Some("2.11.0+cu130".to_owned()),
            allocator: Some("gapless 0.1.0".to_owned()),
        };
        let told = words(&process, "gapless 0.1.0").join(" · ");
        assert_eq!(
            told,
            "recorded in python train.py (process 4711) · on node-3 · rank 1 of 8 · torch 2.11.0+cu130"
        );
        assert!(words(&process, "").join(" · ").ends_with("allocator gapless 0.1.0"));
        (process.program, process.world, process.host, process.torch) = (None, None, None, None);
        assert_eq!(words(&process, "gapless 0.1.0").join(" · "), "recorded in process 4711 · rank 1");
    }
}
