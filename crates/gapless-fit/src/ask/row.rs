//! One plan, and the list that an answer shows.

use super::estimate::Estimate;
use super::question::Question;
use crate::formulas::sharding::Sharding;
use crate::formulas::weights::Format;
use crate::search::serve::ServePlan;
use crate::search::space::{Config, Offload};
use crate::search::train::Census;
use crate::settings::{Checkpointing, Optimizer};
use crate::stored::Stored;
use gapless_trace::Bytes;

/// One plan.
#[derive(Clone, Debug)]
pub struct Row {
    pub words: String,
    /// True if its memory was simulated.
    pub exact: bool,
    pub estimate: Option<Estimate>,
    pub process_total: Bytes,
    pub largest_batch: Option<u64>,
    pub seconds: f64,
    pub unit: &'static str,
    pub cost: Vec<(&'static str, f64)>,
    pub config: Option<Config>,
    pub recomputed: Vec<u64>,
    pub selective: Vec<u64>,
    pub serve: Option<ServePlan>,
}

/// Shares of a card: the engine's, which is too small for what was asked, and the smallest hundredth that is not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    pub taken: f64,
    pub enough: Option<f64>,
}

/// Plans that fit, cheapest first, and the proof that nothing cheaper does.
#[derive(Clone, Debug)]
pub struct Plans {
    pub title: String,
    /// True if they change only the layout. Otherwise the run that was asked for does not fit.
    pub keeps_recipe: bool,
    pub rows: Vec<Row>,
    pub proof: String,
    pub notes: Vec<String>,
    /// If no row keeps the recipe: the bytes of the process that needs least.
    pub least_needed: Option<u64>,
    /// The memory of a card that is enough for one of them, its error bar and the promised share free included.
    pub least_card: Option<u64>,
    /// The engine's share of the card, if it is why nothing fits.
    pub share: Option<Share>,
    pub census: Census,
    /// Runs simulated from beginning to end.
    pub simulated: u64,
}

impl Plans {
    /// Takes a process of so many bytes, and the card that it needs, where they are less than those known.
    pub(super) fn at_least(&mut self, needed: u64, card: u64) {
        self.least_needed = Some(self.least_needed.map_or(needed, |before| before.min(needed)));
        self.least_card = Some(self.least_card.map_or(readable(card), |before| before.min(readable(card))));
    }
}

/// The smallest memory of a card, no less than `bytes`, that people can read and ask for: three digits and a unit, as
/// [`Bytes`] prints it.
pub(super) fn readable(bytes: u64) -> u64 {
    let asked =
        |card: u64| Bytes(card).to_string().replace(' ', "").parse::<Bytes>().map_or(0, |b| b.0 >> 20 << 20);
    // A step is at most a hundredth, and the third digit moves within two.
    let step = (bytes / 2000).max(1 << 18);
    let mut card = bytes;
    for _ in 0..64 {
        if asked(card) >= bytes {
            return asked(card);
        }
        card = card.saturating_add(step);
    }
    card
}

/// The unit of a time, if a model is trained.
pub(super) const UNIT: &str = "a step";

/// A format with the bits that the model's weights have in the mean, those included that keep 16.
pub(super) fn averaged(q: &Question, format: Format, stored: Option<&Stored>) -> Format {
    let (Some(stored), Some(count)) = (stored, crate::parameters::count(&q.architecture)) else {
        return format;
    };
    let bits = stored.bytes(&q.architecture, 2) as f64 * 8.0 / count.max(1) as f64;
    Format::Stored { name: format.name(), bits: (bits * 1000.0).ceil() as u32 }
}

/// The configuration of a run on one GPU, all of whose memory is there.
pub(super) fn alone(
    q: &Question,
    optimizer: Optimizer,
    micro_batch: u64,
    accumulation: u64,
    recomputed: &[u64],
) -> Config {
    Config {
        precision: q.run.precision,
        optimizer,
        checkpointing: if recomputed.is_empty() { Checkpointing::None } else { Checkpointing::Optimal },
        sharding: Sharding::Ddp,
        data: 1,
        tensor: 1,
        pipeline: 1,
        context: 1,
        expert: 1,
        chunks: 1,
        micro_batch,
        accumulation,
        length: q.run.length,
        offload: Offload::default(),
        lora: q.run.lora,
        format: averaged(q, q.format, q.stored.as_deref()),
        sequence_parallel: true,
    }
}
