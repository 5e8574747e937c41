//! Streams: their queues, their clocks, and a scheduler that runs only the work that it is told to.
//!
//! Invariant: `ran <= clock[line]`, and the queue holds the work of the ticks `ran + 1 ..= clock[line]` in order.

use super::clock::{Clock, Line, Moment};
use super::memory::MapId;
use std::collections::VecDeque;
use std::rc::Rc;

/// The context of the allocator's device.
pub(crate) const OWN_CONTEXT: u8 = 0;
/// A context whose streams a fence does not cover.
pub(crate) const OTHER_CONTEXT: u8 = 1;

/// Queued work.
#[derive(Debug)]
pub(crate) struct Item {
    /// The work for which it waits, beside earlier work on its own stream.
    after: Option<Clock>,
    /// The mappings that it uses.
    pub(crate) maps: Rc<[MapId]>,
}

/// A stream's life.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) handle: u64,
    pub(crate) context: u8,
    pub(crate) clock: Clock,
    /// The last tick whose work is done.
    ran: u32,
    queue: VecDeque<Item>,
    /// True if it waited for another stream since its last work.
    has_waited: bool,
}

/// All timelines.
#[derive(Debug, Default)]
pub(crate) struct Streams(Vec<Timeline>);

impl Streams {
    pub(crate) fn create(&mut self, handle: u64, context: u8) -> Line {
        let (clock, queue) = (Clock::default(), VecDeque::new());
        self.0.push(Timeline { handle, context, clock, ran: 0, queue, has_waited: false });
        self.0.len() - 1
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn line(&self, line: Line) -> &Timeline {
        &self.0[line]
    }

    pub(crate) fn queued(&self, line: Line) -> usize {
        self.0[line].queue.len()
    }

    /// Queues work after all that the host knows to be done, and all for which its stream waited.
    pub(crate) fn enqueue(&mut self, line: Line, host: &Clock, maps: Rc<[MapId]>) -> Moment {
        let timeline = &mut self.0[line];
        timeline.clock.join(host);
        let tick = timeline.clock.get(line) + 1;
        timeline.clock.set(line, tick);
        let after = std::mem::take(&mut timeline.has_waited).then(|| timeline.clock.clone());
        timeline.queue.push_back(Item { after, maps });
        Moment { line, tick }
    }

    /// Lets later work of a stream begin after `clock`.
    pub(crate) fn wait(&mut self, line: Line, clock: &Clock) {
        self.0[line].clock.join(clock);
        self.0[line].has_waited = true;
    }

    /// The present end of every stream of a context, also of destroyed streams.
    pub(crate) fn all(&self, context: u8) -> Clock {
        let mut clock = Clock::default();
        for timeline in self.0.iter().filter(|timeline| timeline.context == context) {
            clock.join(&timeline.clock);
        }
        clock
    }

    pub(crate) fn is_done(&self, clock: &Clock) -> bool {
        clock.moments().all(|moment| self.0[moment.line].ran >= moment.tick)
    }

    /// Runs the next work of a stream, if there is some and it does not have to wait.
    pub(crate) fn run_next(&mut self, line: Line) -> Option<Item> {
        let front = self.0[line].queue.front()?;
        let tick = self.0[line].ran + 1;
        let is_ready = |moment: Moment| moment.line == line || self.0[moment.line].ran >= moment.tick;
        if !front.after.as_ref().is_none_or(|after| after.moments().all(is_ready)) {
            return None;
        }
        self.0[line].ran = tick;
        self.0[line].queue.pop_front()
    }

    /// Runs the work that must be done for `clock` to have happened; `ran` gets each piece of work.
    pub(crate) fn finish(&mut self, clock: &Clock, ran: &mut impl FnMut(Item)) {
        // Work that has to wait comes after the work for which it waits.
        let mut wanted: Vec<Moment> = clock.moments().collect();
        while let Some(&moment) = wanted.last() {
            if self.0[moment.line].ran >= moment.tick {
                wanted.pop();
            } else if let Some(item) = self.run_next(moment.line) {
                ran(item);
            } else {
                let after = self.0[moment.line].queue.front().and_then(|front| front.after.as_ref());
                let others = after.into_iter().flat_map(Clock::moments);
                let missing = others.filter(|o| o.line != moment.line && self.0[o.line].ran < o.tick);
                let missing: Vec<Moment> = missing.collect();
                assert!(!missing.is_empty(), "work that can neither run nor waits for other work");
                wanted.extend(missing);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(streams: &mut Streams, line: Line) -> Moment {
        streams.enqueue(line, &Clock::default(), Rc::new([]))
    }

    #[test]
    fn work_runs_behind_what_its_stream_waited_for() {
        let mut streams = Streams::default();
        let (a, b) = (streams.create(10, OWN_CONTEXT), streams.create(11, OWN_CONTEXT));
        work(&mut streams, a);
        let end_of_a = streams.line(a).clock.clone();
        streams.wait(b, &end_of_a);
        work(&mut streams, b);
        assert!(streams.run_next(b).is_none(), "it waits for the other stream");
        let end_of_b = streams.line(b).clock.clone();
        let mut count = 0;
        streams.finish(&end_of_b, &mut |_| count += 1);
        assert_eq!(count, 2);
        assert!(streams.is_done(&end_of_a) && streams.is_done(&end_of_b));
    }

    #[test]
    fn a_fence_covers_its_own_context_alone() {
        let mut streams = Streams::default();
        let (own, other) = (streams.create(10, OWN_CONTEXT), streams.create(11, OTHER_CONTEXT));
        let (near, far) = (work(&mut streams, own), work(&mut streams, other));
        let fence = streams.all(OWN_CONTEXT);
        assert!(fence.covers(near) && !fence.covers(far));
    }
}
