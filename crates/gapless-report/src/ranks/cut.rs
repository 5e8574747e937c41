//! A device with the steps by which it is compared.

use crate::analysis::DeviceAnalysis;
use gapless_trace::Allocation;
use gapless_trace::steps::Steps;

/// A device, cut into these steps or into none.
pub(super) struct Cut<'a, 't> {
    pub(super) d: &'a DeviceAnalysis<'t>,
    pub(super) steps: &'a Steps,
}

impl<'t> std::ops::Deref for Cut<'_, 't> {
    type Target = DeviceAnalysis<'t>;

    fn deref(&self) -> &DeviceAnalysis<'t> {
        self.d
    }
}

/// True if an allocation outlives the step it was born in; without steps, if it lives for a quarter of the run.
pub(super) fn lasts(d: &Cut<'_, '_>, a: &Allocation) -> bool {
    match d.steps.step_at(a.start) {
        Some(step) => a.freed > d.steps.spans[step].end,
        None if d.steps.spans.is_empty() => a.freed.0.saturating_sub(a.start.0) > d.history.last_tick.0 / 4,
        None => true,
    }
}
