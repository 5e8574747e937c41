//! Memory that a smaller batch would need: activations and temporaries scale with the batch; weights, gradients and
//! optimizer state do not. Kinds are inferred, so this is too ([`BatchInfo::inferred`]). It needs steps.

use crate::analysis::DeviceAnalysis;
use crate::model::advice::BatchInfo;
use gapless_trace::Tick;
use gapless_trace::kinds::Kind;

/// For a card of `capacity` bytes; `asked` bytes were wanted at `tick` besides those that were live.
pub(crate) fn scaling(d: &DeviceAnalysis<'_>, tick: Tick, asked: u64, capacity: u64) -> Option<BatchInfo> {
    if d.steps.spans.is_empty() {
        return None;
    }
    let by_kind = d.kinds.active_at(&d.history, tick);
    // Without known weights, the bytes that would stay cannot be told from those that scale.
    if by_kind[Kind::Weights as usize].0 == 0 {
        return None;
    }
    let of = |kinds: &[Kind]| kinds.iter().map(|&k| by_kind[k as usize].0).sum::<u64>();
    let scaling = of(&[Kind::Activations, Kind::Temporaries]) + asked;
    // Unexplained bytes count as fixed: if some of them scale after all, the batch fits all the more.
    let fixed = of(&[Kind::Weights, Kind::Gradients, Kind::OptimizerState, Kind::Unexplained]);
    share(fixed, scaling, capacity).map(|fits_share| BatchInfo { inferred: true, fixed, scaling, fits_share })
}

/// The share of `scaling` that fits beside `fixed`; `None` if nothing scales or if all of it fits.
fn share(fixed: u64, scaling: u64, capacity: u64) -> Option<f64> {
    if scaling == 0 || fixed + scaling <= capacity {
        return None;
    }
    let share = capacity.saturating_sub(fixed) as f64 / scaling as f64;
    // Rounded down to a hundredth, because the report says that this share fits.
    Some((share * 100.0).floor() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn what_follows_the_batch_takes_the_room_that_the_rest_leaves() {
        assert_eq!(share(4, 8, 8), Some(0.5));
        assert_eq!(share(4, 9, 7), Some(0.33), "downward");
        assert_eq!(
            share(9, 8, 8),
            Some(0.0),
            "memory that does not depend on the batch is already too large"
        );
        assert_eq!(share(1, 2, 3), None, "all of it fits");
        assert_eq!(share(9, 0, 8), None, "nothing follows the batch");
    }
}
