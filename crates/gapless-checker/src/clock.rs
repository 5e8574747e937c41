//! Vector clocks: the order of work, independent of the schedule.
//!
//! A timeline is one stream from its creation to its last work; the handle of a destroyed stream may name another
//! timeline later. A piece of work is a [`Moment`]: a timeline and a tick. A [`Clock`] covers a moment if its own entry
//! for that timeline is not smaller.

/// A timeline's number.
pub(crate) type Line = usize;

/// One piece of work: the tick-th of its timeline, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) line: Line,
    pub(crate) tick: u32,
}

/// For each timeline, the last tick that happened before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(Vec<u32>);

impl Clock {
    pub(crate) fn get(&self, line: Line) -> u32 {
        self.0.get(line).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, line: Line, tick: u32) {
        if self.0.len() <= line {
            self.0.resize(line + 1, 0);
        }
        self.0[line] = tick;
    }

    /// Adds all that happened before the other clock.
    pub(crate) fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    pub(crate) fn covers(&self, moment: Moment) -> bool {
        self.get(moment.line) >= moment.tick
    }

    pub(crate) fn covers_all(&self, other: &Clock) -> bool {
        other.moments().all(|moment| self.covers(moment))
    }

    /// The last moment of each timeline that happened before.
    pub(crate) fn moments(&self) -> impl Iterator<Item = Moment> + '_ {
        self.0.iter().enumerate().filter(|(_, tick)| **tick > 0).map(|(line, &tick)| Moment { line, tick })
    }
}

/// The last use of something by each timeline. Uses that the host knows to be done may be left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses(Vec<Moment>);

impl Uses {
    pub(crate) fn add(&mut self, moment: Moment) {
        match self.0.iter_mut().find(|known| known.line == moment.line) {
            Some(known) => known.tick = known.tick.max(moment.tick),
            None => self.0.push(moment),
        }
    }

    pub(crate) fn forget_covered(&mut self, host: &Clock) {
        self.0.retain(|moment| !host.covers(*moment));
    }

    /// A use that did not happen before `clock`.
    pub(crate) fn not_before(&self, clock: &Clock) -> Option<Moment> {
        self.all_not_before(clock).next()
    }

    pub(crate) fn all_not_before(&self, clock: &Clock) -> impl Iterator<Item = Moment> {
        self.0.iter().copied().filter(|moment| !clock.covers(*moment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_covers_what_it_joined_and_nothing_later() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.set(0, 3);
        b.set(2, 1);
        assert!(!a.covers_all(&b) && !b.covers_all(&a));
        a.join(&b);
        assert!(a.covers_all(&b) && a.covers(Moment { line: 2, tick: 1 }));
        assert!(!a.covers(Moment { line: 2, tick: 2 }) && !a.covers(Moment { line: 7, tick: 1 }));
    }

    #[test]
    fn uses_keep_the_last_of_each_timeline() {
        let mut uses = Uses::default();
        for tick in [1, 4, 2] {
            uses.add(Moment { line: 1, tick });
        }
        let mut clock = Clock::default();
        clock.set(1, 3);
        assert_eq!(uses.not_before(&clock), Some(Moment { line: 1, tick: 4 }));
        clock.set(1, 4);
        assert_eq!(uses.not_before(&clock), None);
        uses.forget_covered(&clock);
        assert_eq!(uses.not_before(&Clock::default()), None);
    }
}
