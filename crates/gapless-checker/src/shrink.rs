//! Short programs: leaves operations out as long as the same rule is violated (delta debugging).

use super::ops::Program;
use super::run::run;
use super::violation::{Rule, Violation};

/// At most this many programs are tried.
const TRIES: usize = 6000;

/// The shortest program found that violates the same rule, and its violation.
#[must_use]
pub fn shrink(program: &Program, violation: &Violation, ignored: &[Rule]) -> (Program, Violation) {
    // Otherwise programs that panic would print it each time.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let mut best = (program.clone(), violation.clone());
    best.0.ops.truncate(violation.at + 1);
    let mut tries = 0;
    let mut parts = 2;
    while best.0.ops.len() >= 2 && tries < TRIES {
        let length = best.0.ops.len().div_ceil(parts);
        let mut is_shorter = false;
        let mut from = 0;
        while from < best.0.ops.len() && tries < TRIES {
            let mut shorter = best.0.clone();
            let to = (from + length).min(shorter.ops.len());
            shorter.ops.drain(from..to);
            tries += 1;
            match run(&shorter, ignored).1 {
                Some(found) if found.rule == violation.rule => {
                    shorter.ops.truncate(found.at + 1);
                    best = (shorter, found);
                    is_shorter = true;
                }
                _ => from = to,
            }
        }
        if length == 1 && !is_shorter {
            break;
        }
        parts = if is_shorter { parts.max(2) } else { (2 * parts).min(best.0.ops.len().max(2)) };
    }
    std::panic::set_hook(hook);
    best
}
