//! Makes a program that shows a difference shorter, by leaving out operations that are not needed to show it.

use crate::ops::Op;

/// How often a program may be run: each takes a new process.
const RUNS: usize = 400;

/// The shortest program found for which `fails` still holds; `program` is one.
pub(crate) fn shrink(mut program: Vec<Op>, mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut runs = 0;
    let mut piece = program.len().div_ceil(2);
    while piece > 0 && runs < RUNS {
        let mut start = 0;
        let mut shorter = false;
        while start < program.len() && runs < RUNS {
            let end = (start + piece).min(program.len());
            // Names of streams stay: without them filters mean something else on the two sides.
            let named = program[start..end].iter().filter(|op| matches!(op, Op::Stream { .. }));
            let rest: Vec<Op> =
                program[..start].iter().chain(named).chain(&program[end..]).copied().collect();
            if rest.len() == program.len() {
                start = end;
                continue;
            }
            runs += 1;
            if fails(&rest) {
                program = rest;
                shorter = true;
            } else {
                start = end;
            }
        }
        if !shorter || piece > program.len() {
            piece /= 2;
        }
    }
    program
}
