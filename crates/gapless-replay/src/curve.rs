//! Memory over a replay in a bounded number of points, exact in its maxima.

use crate::script::Script;
use gapless_trace::{Bytes, Tick};

/// The most bytes in use within a stretch of ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CurvePoint {
    /// First tick of the stretch; it ends where the next point begins.
    pub tick: Tick,
    pub reserved: Bytes,
    pub allocated: Bytes,
}

/// Maxima over stretches of equally many ticks.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) points: Vec<CurvePoint>,
    stride: u32,
    next: u32,
}

impl Curve {
    /// Points at most.
    const POINTS: u32 = 512;

    pub(crate) fn new(script: &Script) -> Curve {
        let last = script.ticks.last().copied().unwrap_or_default();
        let stride = (last.0 + 1).div_ceil(Self::POINTS).max(1);
        Curve { points: Vec::with_capacity(Self::POINTS as usize), stride, next: 0 }
    }

    /// Takes in the state at `tick`; ticks come in order.
    #[inline]
    pub(crate) fn record(&mut self, tick: Tick, reserved: Bytes, allocated: Bytes) {
        if tick.0 >= self.next {
            self.points.push(CurvePoint { tick, ..CurvePoint::default() });
            self.next = tick.0 + self.stride;
        }
        if let Some(point) = self.points.last_mut() {
            point.reserved = point.reserved.max(reserved);
            point.allocated = point.allocated.max(allocated);
        }
    }
}
