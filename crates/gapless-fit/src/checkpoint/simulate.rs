//! A finished schedule walked through, event by event: its peak and its cost. Shares no code with the optimiser,
//! which the tests hold against it.

use super::chain::Chain;

/// Peak and cost of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub peak: u64,
    /// Cost beyond one forward of everything.
    pub cost: u64,
}

/// Bytes that are there now, and the most there have been.
#[derive(Default)]
struct Meter {
    live: u64,
    peak: u64,
}

impl Meter {
    fn add(&mut self, bytes: u64) {
        self.live += bytes;
        self.peak = self.peak.max(self.live);
    }

    fn free(&mut self, bytes: u64) {
        self.live -= bytes;
    }

    fn reach(&mut self, bytes: u64) {
        self.add(bytes);
        self.free(bytes);
    }
}

/// A chain with a choice for each block.
#[must_use]
pub fn chain(chain: &Chain, choices: &[usize]) -> Outcome {
    let mut meter = Meter::default();
    meter.add(chain.base);
    let chosen: Vec<_> =
        chain.blocks.iter().zip(choices).map(|(block, &choice)| block.choices[choice]).collect();
    for choice in &chosen {
        meter.reach(choice.forward_peak);
        meter.add(choice.retained);
    }
    meter.reach(chain.head_peak);
    // A gradient is part of the peak of the backward that makes it, and counts by itself from then on.
    meter.live += chain.head_gradient;
    for (block, choice) in chain.blocks.iter().zip(&chosen).rev() {
        meter.free(choice.retained);
        meter.reach(choice.backward_peak);
        meter.live += block.gradient;
    }
    Outcome { peak: meter.peak, cost: chosen.iter().map(|choice| choice.cost).sum() }
}
