//! The figures of one allocator for one run, from as many replays as they need.

use crate::allocator::{Inventory, Stats};
use crate::curve::Curve;
use crate::device::Placement;
use crate::floor;
use crate::machine::{Drive, Driven, Machine};
use crate::outcome::{OomPoint, Outcome, Question};
use crate::run::{self, Exactness, Watch};
use crate::script::Script;
use gapless_trace::{Bytes, Tick};

/// No card is larger: stands for "unlimited", while sums stay in range.
pub const ENDLESS: Bytes = Bytes(1 << 50);

/// The result of `machine` for `script`.
#[must_use]
pub fn outcome(script: &Script, machine: &Machine, question: &Question) -> Outcome {
    let mut outcome = match machine {
        Machine::Plan => floor::outcome(script, question),
        _ => replayed(script, machine, question),
    };
    outcome.allocator = machine.name();
    outcome.settings = machine.settings();
    if question.min_capacity && !matches!(machine, Machine::Plan) {
        outcome.min_capacity = Some(min_capacity(script, machine, Placement::Lowest));
    }
    outcome
}

fn replayed(script: &Script, machine: &Machine, question: &Question) -> Outcome {
    let mut watcher = Watcher::new(script);
    if let Machine::Torch(torch) = machine
        && torch.recorded
        && script.recorded.has_segments
        && question.capacity.is_none()
    {
        let exactness = run::verify(script, &torch.settings, torch.version, &mut watcher);
        if exactness.is_exact() {
            let heap = |op: u32| run::recorded_heap(script, &torch.settings, torch.version, op + 1);
            let stats = exactness.stats;
            return watcher.outcome(stats, heap, Some(exactness));
        }
        // The recording differs from the model somewhere: report that, and answer by simulation.
        let mut outcome = simulated(script, machine, ENDLESS.0);
        outcome.exactness = Some(exactness);
        return outcome;
    }
    let capacity = question.capacity.unwrap_or_else(|| {
        // A share needs a card: the smallest on which the run survives.
        if machine.takes_a_share() { min_capacity(script, machine, Placement::Lowest) } else { ENDLESS }
    });
    simulated(script, machine, capacity.0)
}

fn simulated(script: &Script, machine: &Machine, capacity: u64) -> Outcome {
    let mut watcher = Watcher::new(script);
    let drive = Drive { inventory: true, ..Drive::on(capacity) };
    let Driven { failure, stats, inventory } = machine.drive(script, drive, &mut watcher);
    let end = inventory.unwrap_or_default();
    let oom = failure.map(|failure| OomPoint {
        failure,
        reserved: end.reserved,
        active: end.active,
        largest_hole: end.largest_hole,
    });
    let heap = |op: u32| {
        let until = Drive { until: op + 1, ..drive };
        machine.drive(script, until, &mut ()).inventory.unwrap_or_default()
    };
    Outcome { oom, ..watcher.outcome(stats, heap, None) }
}

/// True if the run gets to its end on a card of `capacity` bytes.
#[must_use]
pub fn survives(script: &Script, machine: &Machine, capacity: Bytes, placement: Placement) -> bool {
    let drive = Drive { placement, ..Drive::on(capacity.0) };
    machine.drive(script, drive, &mut ()).failure.is_none()
}

/// The smallest card on which the run survives, to 2 MiB: by bisection, each step a whole replay. A larger card is
/// taken to be no worse; if it is worse within a few MiB, the answer is still a card on which the run survives.
#[must_use]
pub fn min_capacity(script: &Script, machine: &Machine, placement: Placement) -> Bytes {
    const STEP: u64 = 2 << 20;
    let drive = Drive { placement, ..Drive::on(ENDLESS.0) };
    let free_run = machine.drive(script, drive, &mut ()).stats;
    // It never held more than its peak, so a card of that size refuses nothing.
    let mut high = free_run.reserved.peak.div_ceil(STEP);
    let mut low = free_run.active.peak / STEP;
    // The run may need less than it held, but not less than was active at once.
    if low > 0 && survives(script, machine, Bytes(low * STEP), placement) {
        high = low;
        low = 0;
    }
    while high - low > 1 {
        let middle = low.midpoint(high);
        if survives(script, machine, Bytes(middle * STEP), placement) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Bytes(high * STEP)
}

/// Watches a replay: the curve, when the peaks were, and failed requests that were served.
#[derive(Clone, Debug)]
struct Watcher {
    curve: Curve,
    peak: u64,
    peak_op: u32,
    peak_at: Tick,
    /// The most bytes that were allocated after an op, and the first such op.
    most: u64,
    most_op: u32,
    served: u32,
}

impl Watcher {
    fn new(script: &Script) -> Watcher {
        let curve = Curve::new(script);
        Watcher { curve, peak: 0, peak_op: 0, peak_at: Tick(0), most: 0, most_op: 0, served: 0 }
    }

    /// `heap` is the heap after an op.
    fn outcome(self, stats: Stats, heap: impl Fn(u32) -> Inventory, exactness: Option<Exactness>) -> Outcome {
        let at_peak = heap(self.peak_op);
        let stranded =
            if self.most_op == self.peak_op { at_peak.stranded } else { heap(self.most_op).stranded };
        Outcome {
            stranded,
            stats,
            peak_at: self.peak_at,
            at_peak,
            served: self.served,
            curve: self.curve.points,
            exactness,
            ..Outcome::default()
        }
    }
}

impl Watch for Watcher {
    #[inline]
    fn after(&mut self, op: u32, tick: Tick, stats: &Stats) {
        if stats.reserved.peak > self.peak {
            self.peak = stats.reserved.peak;
            self.peak_op = op;
            self.peak_at = tick;
        }
        if stats.allocated.current > self.most {
            self.most = stats.allocated.current;
            self.most_op = op;
        }
        self.curve.record(tick, Bytes(stats.reserved.current), Bytes(stats.allocated.current));
    }

    fn served(&mut self, _op: u32, _tick: Tick) {
        self.served += 1;
    }
}
