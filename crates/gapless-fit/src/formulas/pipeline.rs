//! The number of micro-batches whose activations a pipeline stage holds at its worst.

use super::{Term, Unit};

/// The order in which a stage runs forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Schedule {
    Gpipe,
    OneForwardOneBackward,
    /// With v chunks of layers on each stage.
    Interleaved(u64),
    ZeroBubbleH1,
    ZeroBubbleH2,
    /// V-shaped, two chunks.
    ZeroBubbleV,
    VHalf,
    VMin,
    /// Both directions at once: two copies of the parameters.
    DualPipe,
}

impl Schedule {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Schedule::Gpipe => "gpipe",
            Schedule::OneForwardOneBackward => "1f1b",
            Schedule::Interleaved(_) => "interleaved",
            Schedule::ZeroBubbleH1 => "zb-h1",
            Schedule::ZeroBubbleH2 => "zb-h2",
            Schedule::ZeroBubbleV => "zb-v",
            Schedule::VHalf => "v-half",
            Schedule::VMin => "v-min",
            Schedule::DualPipe => "dualpipe",
        }
    }

    /// Micro-batches, in units of a whole stage's layers, at stage r of p with m in all.
    #[must_use]
    pub fn in_flight(self, r: u64, p: u64, m: u64) -> f64 {
        let whole = |count: u64| count.min(m) as f64;
        match self {
            Schedule::Gpipe => m as f64,
            Schedule::OneForwardOneBackward => whole(p - r),
            Schedule::Interleaved(v) => {
                let chunks = (2 * (p - r - 1) + (v - 1) * p + 1).min(m * v);
                chunks as f64 / v as f64
            }
            Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => whole(p),
            Schedule::ZeroBubbleH2 => whole(2 * p - 1),
            Schedule::VHalf => whole(p.div_ceil(2) + 1),
            Schedule::VMin => whole(p.div_ceil(3) + 1),
            Schedule::DualPipe => whole(p + 1),
        }
    }

    /// Idle time as a share of the busy time.
    #[must_use]
    pub fn bubble(self, p: u64, m: u64) -> f64 {
        let one = (p - 1) as f64 / m as f64;
        match self {
            Schedule::Gpipe | Schedule::OneForwardOneBackward => one,
            Schedule::Interleaved(v) => one / v as f64,
            // A third of 1F1B's: the weights' gradients fill the rest.
            Schedule::ZeroBubbleH1 => one / 3.0,
            Schedule::ZeroBubbleH2 | Schedule::ZeroBubbleV => 0.0,
            Schedule::VHalf => one / 2.0,
            Schedule::VMin => one * 2.0 / 3.0,
            Schedule::DualPipe => (p / 2).saturating_sub(1) as f64 / m as f64 / 2.0,
        }
    }

    /// The same as a term; chunks of an interleaved stage round up to whole micro-batches.
    #[must_use]
    pub fn term(self, r: u64, p: u64, m: u64) -> Term {
        let equation = match self {
            Schedule::Gpipe => "m",
            Schedule::OneForwardOneBackward => "min(m, p - r)",
            Schedule::Interleaved(_) => "min(m v, 2 (p - r - 1) + (v - 1) p + 1) / v",
            Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => "min(m, p)",
            Schedule::ZeroBubbleH2 => "min(m, 2 p - 1)",
            Schedule::VHalf => "min(m, p / 2 + 1)",
            Schedule::VMin => "min(m, p / 3 + 1)",
            Schedule::DualPipe => "min(m, p + 1), parameters twice",
        };
        let inputs = [("r", r as f64), ("p", p as f64), ("m", m as f64)];
        Term::bytes(
            "micro-batches in flight",
            self.in_flight(r, p, m).ceil(),
            equation,
            &inputs,
            "Narayanan et al. 2021; Qi et al. 2023, 2024; DeepSeek-V3",
        )
        .with_unit(Unit::MicroBatches)
    }
}
