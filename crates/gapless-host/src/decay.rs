//! The part of the kept memory that no request needed lately. Pure: the helper reports the time with [`Decay::tick`].
//!
//! At each tick the helper knows its low water: the least that was kept since the tick before. Memory below all low
//! waters of the window was not needed in that time, and is given back. A program that frees and allocates the same
//! buffers in a loop has a low water of zero and keeps its memory; a program that stopped gives all back after it.

use std::time::Duration;

/// The time between two ticks.
pub const TICK: Duration = Duration::from_millis(500);
/// Ticks of the window: memory that was idle for 4 s goes back. A pause between two epochs, or a checkpoint, is shorter
/// than that; a process that waits for work is idle longer.
const WINDOW: usize = 8;
/// If the program reports steps, memory of the last two of them stays, but no longer than this many ticks.
const LONGEST: usize = 60;

#[derive(Debug)]
pub struct Decay {
    lows: [u32; LONGEST],
    /// The number of ticks so far.
    ticks: usize,
    /// Ticks at which the last two steps began.
    steps: [usize; 2],
}

impl Default for Decay {
    fn default() -> Decay {
        Decay::new()
    }
}

impl Decay {
    #[must_use]
    pub const fn new() -> Decay {
        Decay { lows: [0; LONGEST], ticks: 0, steps: [0; 2] }
    }

    /// Notes that a step of the program began.
    pub fn step(&mut self) {
        // Many steps within one tick count as one.
        if self.steps[1] != self.ticks {
            self.steps = [self.steps[1], self.ticks];
        }
    }

    /// Called at each tick; at least `low` was kept since the last one. Returns the amount to give back.
    pub fn tick(&mut self, low: u32) -> u32 {
        self.lows[self.ticks % LONGEST] = low;
        self.ticks += 1;
        let since_steps = if self.steps[0] == 0 { 0 } else { self.ticks - self.steps[0] };
        // A program that reported steps and stopped is idle like any other.
        let window = if since_steps >= LONGEST { WINDOW } else { since_steps.max(WINDOW) };
        if self.ticks < window {
            return 0;
        }
        let newest = self.ticks - window..self.ticks;
        let surplus = newest.map(|tick| self.lows[tick % LONGEST]).min().unwrap_or(0);
        for low in &mut self.lows {
            *low = low.saturating_sub(surplus);
        }
        surplus
    }

    /// Called if nothing was kept for a while: the window begins again.
    pub fn rest(&mut self) {
        self.lows = [0; LONGEST];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_memory_goes_after_the_window_and_reused_memory_stays() {
        let mut decay = Decay::default();
        for _ in 0..WINDOW - 1 {
            assert_eq!(decay.tick(100), 0);
        }
        assert_eq!(decay.tick(100), 100);
        assert_eq!(decay.tick(0), 0, "it is gone");
        for round in 0..100 {
            assert_eq!(decay.tick(if round % 4 == 0 { 0 } else { 50 }), 0, "used again every two seconds");
        }
    }

    #[test]
    fn a_part_that_nobody_needs_goes_alone() {
        let mut decay = Decay::default();
        let given: u32 = (0..WINDOW * 3).map(|round| decay.tick(if round % 2 == 0 { 30 } else { 80 })).sum();
        assert_eq!(given, 3 * 30, "what stays below all low waters of a window, once a window");
    }

    #[test]
    fn steps_that_last_longer_than_the_window_keep_their_memory() {
        let mut decay = Decay::default();
        for round in 0..6 {
            decay.step();
            assert_eq!(decay.tick(0), 0, "the step uses it");
            for _ in 0..WINDOW + 4 {
                let given = decay.tick(100);
                // The first two steps show how long a step takes.
                assert!(given == 0 || round < 2, "and waits: {given} in step {round}");
            }
        }
        let given: u32 = (0..LONGEST * 2).map(|_| decay.tick(100)).sum();
        assert!(given >= 100, "a program that stopped gives it back");
    }
}
