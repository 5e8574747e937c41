//! Choices of a caller: the question, the limits, and each trick by name.

use std::time::Duration;

use gapless_trace::Bytes;

/// The question and its limits.
#[derive(Clone, Debug)]
pub struct Options {
    /// Find a plan within this capacity and stop there; `None`: make the peak as low as possible.
    pub capacity: Option<Bytes>,
    /// Memory comes in heaps of at most this size, one after the other: no buffer may lie across a multiple of it.
    pub chunk: Option<Bytes>,
    /// The random seed: the same seed and effort give the same plan.
    pub seed: u64,
    /// Ends the work with the best plan so far. The work itself is counted in steps, not in time.
    pub time_limit: Option<Duration>,
    /// The most search nodes (and their like in other methods) to spend; `None`: until solved or cut off.
    pub effort: Option<u64>,
    /// Seeds that are tried side by side, each on a thread with the whole effort; the best plan wins. The same seed,
    /// effort and number of threads give the same plan. 0 is 1.
    pub threads: usize,
    pub tricks: Tricks,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            capacity: None,
            chunk: None,
            seed: 0,
            time_limit: None,
            effort: None,
            threads: 1,
            tricks: Tricks::default(),
        }
    }
}

impl Options {
    /// The options of the thread of this number: the first has the seed itself.
    pub(crate) fn of_thread(&self, thread: usize) -> Options {
        let seed = self.seed.wrapping_add((thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Options { seed, threads: 1, ..self.clone() }
    }
}

/// Every trick, to be turned off for ablation. All are on by default.
///
/// Seconds of CPU for all of the challenging set at capacity 1,048,576: 0.06 with all tricks. Joins alone make up for
/// most others there, so these were turned off together with `join` (0.57): `section_bound` 4.4, `valley_fill` 0.62,
/// `remember_failures` 0.65, `weigh_failures` one of eleven unsolved after 30 s, `fewest_answers` three unsolved.
/// Heavy-tailed instance of 100,000 buffers after 10 s: 1.005 with all, 1.046 without `ejection`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tricks {
    /// Exact: each section is a machine with release dates; without it, only the sum of sizes above the floor counts.
    pub section_bound: bool,
    /// Exact: the part of a valley below its lower wall must be filled from within.
    pub valley_fill: bool,
    /// Exact: failed states are remembered.
    pub remember_failures: bool,
    /// Exact: sections that fail often are asked about first.
    pub weigh_failures: bool,
    /// Exact: ask about the place for the fewest buffers; without it, about the lowest valley.
    pub fewest_answers: bool,
    /// Ask for the lower bound first, even if the capacity is larger.
    pub bound_first: bool,
    /// Plan apart times that no lifetime connects, once the buffers alive throughout lie at the bottom.
    pub split: bool,
    /// Join buffers that can only be neighbours, or that look so: equal lifetimes, or equal sizes end to end.
    pub join: bool,
    /// Local search: buffers that stick out push others out of their places.
    pub ejection: bool,
    /// Ejection: large buffers first, among themselves; small ones fill the holes.
    pub rocks_first: bool,
    /// Plan the buffers alive around the peaks first, with everything else cut away.
    pub core: bool,
    /// Exact search at all.
    pub exact: bool,
}

impl Default for Tricks {
    fn default() -> Tricks {
        Tricks {
            section_bound: true,
            valley_fill: true,
            remember_failures: true,
            weigh_failures: true,
            fewest_answers: true,
            bound_first: true,
            split: true,
            join: true,
            ejection: true,
            rocks_first: true,
            core: true,
            exact: true,
        }
    }
}

impl Tricks {
    pub const NAMES: [&'static str; 12] = [
        "section_bound",
        "valley_fill",
        "remember_failures",
        "weigh_failures",
        "fewest_answers",
        "bound_first",
        "split",
        "join",
        "ejection",
        "rocks_first",
        "core",
        "exact",
    ];

    /// Turns the trick of this name off; false if there is none.
    pub fn turn_off(&mut self, name: &str) -> bool {
        let trick = match name {
            "section_bound" => &mut self.section_bound,
            "valley_fill" => &mut self.valley_fill,
            "remember_failures" => &mut self.remember_failures,
            "weigh_failures" => &mut self.weigh_failures,
            "fewest_answers" => &mut self.fewest_answers,
            "bound_first" => &mut self.bound_first,
            "split" => &mut self.split,
            "join" => &mut self.join,
            "ejection" => &mut self.ejection,
            "rocks_first" => &mut self.rocks_first,
            "core" => &mut self.core,
            "exact" => &mut self.exact,
            _ => return false,
        };
        *trick = false;
        true
    }
}
