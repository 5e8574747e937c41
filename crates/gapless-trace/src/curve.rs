//! Memory over the run, in a bounded number of points: small enough to print, exact in its maxima.

use crate::usage::Usage;
use crate::words::{Bytes, Tick};

/// The most bytes in use within a stretch of ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CurvePoint {
    /// First tick of the stretch; it ends where the next point begins.
    pub tick: Tick,
    pub live: Bytes,
    pub allocated: Bytes,
    pub active: Bytes,
    pub reserved: Bytes,
}

/// Maxima over consecutive stretches of equally many ticks. Their maximum is the peak, to the byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Curve {
    pub points: Vec<CurvePoint>,
    stride: u32,
    /// First tick behind the open point.
    next: u32,
}

impl Curve {
    /// The most points a curve has.
    pub const POINTS: u32 = 512;

    pub(crate) fn for_ticks(last: Tick) -> Curve {
        let stride = (last.0 + 1).div_ceil(Curve::POINTS).max(1);
        Curve { points: Vec::with_capacity(Curve::POINTS as usize), stride, next: 0 }
    }

    /// A curve that records nothing, for callers that do not know the number of ticks yet.
    pub(crate) fn without_points() -> Curve {
        Curve { points: Vec::new(), stride: 1, next: u32::MAX }
    }

    /// Ticks that a point stands for.
    pub(crate) fn stride(&self) -> u32 {
        self.stride
    }

    /// Appends a point that is whole.
    pub(crate) fn push(&mut self, point: CurvePoint) {
        self.next = point.tick.0 + self.stride;
        self.points.push(point);
    }

    /// Takes in the state at `now`; ticks come in order.
    #[inline]
    pub(crate) fn record(&mut self, now: Tick, usage: &Usage) {
        if now.0 >= self.next {
            self.points.push(CurvePoint { tick: now, ..CurvePoint::default() });
            self.next = now.0 + self.stride;
        }
        let Some(point) = self.points.last_mut() else { return };
        point.live = point.live.max(usage.live.current);
        point.allocated = point.allocated.max(usage.allocated.current);
        point.active = point.active.max(usage.active.current);
        point.reserved = point.reserved.max(usage.reserved.current);
    }

    /// The same if nothing has grown since the tick before: then only a new point needs the state.
    #[inline]
    pub(crate) fn record_no_growth(&mut self, now: Tick, usage: &Usage) {
        if now.0 >= self.next {
            self.record(now, usage);
        }
    }
}
