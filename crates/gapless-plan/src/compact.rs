//! The problem as solvers see it: flat arrays over compressed time.
//!
//! Time is cut into *sections*: maximal sets of buffers that are alive together, in order. Each buffer covers an
//! interval of sections `[first, last)`, and two buffers overlap in time exactly when these intervals do, so nothing
//! is lost. Sizes are divided by their common divisor (`unit`), alignments with them.

use crate::problem::{Lifetime, Problem};

/// Invariants: `first[b] < last[b] <= sections`; `size[b] > 0`; `align` is empty (all 1) or one for each; `original[b]`
/// is the position in the problem. Buffers of size 0 are left out, because they fit anywhere.
#[derive(Clone, Debug, Default)]
pub struct Compact {
    pub first: Vec<u32>,
    pub last: Vec<u32>,
    pub size: Vec<i64>,
    pub align: Vec<i64>,
    pub original: Vec<u32>,
    pub sections: usize,
    pub unit: i64,
}

impl Compact {
    /// Gaps are filled and fixed offsets forgotten. So plans of this form are valid for a problem with gaps, but not
    /// for one with fixed offsets: a solver that works on this form alone must not be asked for those.
    pub fn of_problem(problem: &Problem) -> Compact {
        let items = problem.buffers().iter().enumerate().filter(|(_, buffer)| buffer.size.0 > 0);
        let mut compact = Compact::default();
        let mut moments: Vec<(i64, bool, u32)> = Vec::new();
        let mut unit = 0i64;
        for (index, buffer) in items {
            let slot = compact.original.len() as u32;
            compact.original.push(index as u32);
            // Sizes are not rounded up to the alignment, which would raise the top of the highest buffer: solvers align
            // each offset themselves.
            compact.size.push(buffer.size.0 as i64);
            compact.align.push(buffer.alignment.0 as i64);
            unit = gcd(
                gcd(unit, buffer.size.0 as i64),
                if buffer.alignment.0 > 1 { buffer.alignment.0 as i64 } else { 0 },
            );
            moments.push((buffer.lifetime.start, true, slot));
            moments.push((buffer.lifetime.end, false, slot));
        }
        compact.unit = unit.max(1);
        for size in &mut compact.size {
            *size /= compact.unit;
        }
        if compact.align.iter().all(|align| *align <= 1 || *align == compact.unit) {
            compact.align.clear();
        } else {
            for align in &mut compact.align {
                *align = (*align / compact.unit).max(1);
            }
        }
        compact.first.resize(compact.size.len(), 0);
        compact.last.resize(compact.size.len(), 0);
        compact.set_sections(&mut moments);
        compact
    }

    /// Bare spans of time with sizes, in their order and unscaled; a size of 0 is kept.
    pub fn of_spans(spans: &[(Lifetime, i64)]) -> Compact {
        let mut compact = Compact { unit: 1, ..Compact::default() };
        let mut moments: Vec<(i64, bool, u32)> = Vec::with_capacity(spans.len() * 2);
        for (slot, (span, size)) in spans.iter().enumerate() {
            compact.original.push(slot as u32);
            compact.size.push(*size);
            moments.push((span.start, true, slot as u32));
            moments.push((span.end, false, slot as u32));
        }
        compact.first.resize(spans.len(), 0);
        compact.last.resize(spans.len(), 0);
        compact.set_sections(&mut moments);
        compact
    }

    /// Cuts time anew: after joins, neighbouring sections may have no end of a lifetime before the next beginning, and
    /// become one.
    pub fn close_up(&mut self) {
        let mut moments: Vec<(i64, bool, u32)> = Vec::with_capacity(self.len() * 2);
        for slot in 0..self.len() {
            moments.push((i64::from(self.first[slot]), true, slot as u32));
            moments.push((i64::from(self.last[slot]), false, slot as u32));
        }
        self.set_sections(&mut moments);
    }

    /// Ends sort before starts at the same time; a start after an end opens a new section.
    fn set_sections(&mut self, moments: &mut [(i64, bool, u32)]) {
        moments.sort_unstable();
        let mut section = 0u32;
        let mut ended = false;
        for (_, start, slot) in moments.iter() {
            if *start {
                section += u32::from(ended);
                ended = false;
                self.first[*slot as usize] = section;
            } else {
                ended = true;
                self.last[*slot as usize] = section + 1;
            }
        }
        self.sections = if self.size.is_empty() { 0 } else { section as usize + 1 };
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.size.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.size.len()
    }

    pub fn align_of(&self, slot: usize) -> i64 {
        self.align.get(slot).copied().unwrap_or(1)
    }

    /// Bytes alive in each section, in units.
    pub fn live(&self) -> Vec<i64> {
        let mut live = vec![0i64; self.sections + 1];
        for slot in 0..self.len() {
            live[self.first[slot] as usize] += self.size[slot];
            live[self.last[slot] as usize] -= self.size[slot];
        }
        let mut sum = 0;
        for value in &mut live {
            sum += *value;
            *value = sum;
        }
        live.pop();
        live
    }
}

pub fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
