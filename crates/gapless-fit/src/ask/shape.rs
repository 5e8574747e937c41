//! One simulated step over time, in as many pieces as a line of text has room for.

use crate::eager::{Layer, Log, Phase, Scope};
use crate::simulated::Simulated;

/// Columns of the picture.
const COLUMNS: usize = 72;

/// The memory of one step over time, in equal pieces, and where its phases end.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// The most bytes alive in each piece.
    pub most: Vec<u64>,
    /// Name, columns, peak.
    pub phases: Vec<(&'static str, usize, u64)>,
}

impl Shape {
    /// The last whole step: the first ones still make the optimizer's states.
    #[must_use]
    pub fn of(simulated: &Simulated) -> Shape {
        let log = &simulated.steps.log;
        let last = log.marks.iter().map(|m| m.step).max().unwrap_or(0);
        let begin =
            log.marks.iter().filter(|m| m.step < last).map(|m| m.event).max().unwrap_or(simulated.steps.base)
                as usize;
        let end = log.events.len();
        let mut live = 0u64;
        let mut curve = Vec::with_capacity(end - begin);
        for (at, event) in log.events.iter().enumerate() {
            let bytes = Log::rounded(log.allocations[event.slot() as usize].bytes);
            live = if event.is_free() { live.saturating_sub(bytes) } else { live + bytes };
            if at >= begin {
                curve.push(live);
            }
        }
        if curve.is_empty() {
            return Shape::default();
        }
        // The pieces are equal within each phase; passes of a step that accumulates follow each other.
        let mut bounds: Vec<(&'static str, usize)> = Vec::new();
        for mark in log.marks.iter().filter(|m| m.step == last && m.phase != Phase::Zero) {
            bounds.push((phase(mark.phase), (mark.event as usize).saturating_sub(begin).min(curve.len())));
        }
        let total = bounds.last().map_or(curve.len(), |(_, end)| (*end).max(1));
        let mut result = Shape::default();
        let mut from = 0;
        for (name, to) in bounds {
            if to <= from {
                continue;
            }
            let columns = ((to - from) * COLUMNS / total).max(2);
            for column in 0..columns {
                let (a, b) =
                    (from + (to - from) * column / columns, from + (to - from) * (column + 1) / columns);
                result.most.push(curve[a..b.max(a + 1)].iter().copied().max().unwrap_or(0));
            }
            let peak = curve[from..to].iter().copied().max().unwrap_or(0);
            result.phases.push((name, columns, peak));
            from = to;
        }
        result
    }
}

/// A phase as people call it.
pub(super) fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Build => "building the model",
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Recompute => "backward, recomputing",
        Phase::Step => "optimizer step",
        Phase::Zero => "end of the step",
    }
}

/// A part of the model as people call it.
pub(super) fn part(scope: Scope, layer: Layer) -> String {
    let layer = match layer {
        Layer::Norm => " norm",
        Layer::Attention => " attention",
        Layer::FeedForward => " feed-forward",
        Layer::Convolution => " convolution",
        Layer::Other => "",
    };
    match scope {
        Scope::Model => String::new(),
        Scope::Embedding => "the embedding".to_owned(),
        Scope::Block(at) => format!("block {at}{layer}"),
        Scope::Head => "the head".to_owned(),
        Scope::Loss => "the loss".to_owned(),
        Scope::Optimizer => "optimizer".to_owned(),
    }
}
