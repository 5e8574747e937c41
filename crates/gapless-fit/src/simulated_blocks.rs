//! A model block by block, for code that chooses blocks to recompute: the bytes that each block keeps, those that it
//! needs for a moment, and its cost.
//!
//! Found by two short runs, one that keeps everything and one that recomputes every block. All bytes are requests in
//! multiples of 512, relative to the bytes alive when the block began.

use crate::eager::log::Log;
use crate::eager::{Kind, Mode, Phase, Recomputed, Run, Scope, Steps, simulate};
use crate::model::Architecture;
use crate::models::BuildError;

/// One block, or the embedding, or the head with the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockProfile {
    /// Parameters that are trained.
    pub parameters: u64,
    /// Bytes of those; gradients take the same.
    pub weight_bytes: u64,
    /// Kept from its forward to its backward pass if it is not recomputed.
    pub saved: u64,
    /// Kept if it is recomputed: its input, and nothing else.
    pub input: u64,
    /// The most above the start while its forward runs.
    pub forward_peak: u64,
    /// The most above the start while its backward runs, gradients of its weights included; its saved tensors are freed
    /// meanwhile.
    pub backward_peak: u64,
    /// The bytes by which its backward leaves more (gradients) or less (freed saved tensors) alive.
    pub backward_change: i64,
    /// The same of a recomputed block: forward again and backward, above the start.
    pub recompute_peak: u64,
    pub recompute_change: i64,
    /// 16-bit copies of its weights that autocast keeps through the forward pass.
    pub cast_bytes: u64,
    /// Of one forward pass.
    pub flops: u64,
}

/// The whole model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimulatedBlocks {
    pub embedding: BlockProfile,
    pub blocks: Vec<BlockProfile>,
    /// The final norm, the head and the loss.
    pub head: BlockProfile,
}

/// The profile of `architecture` under `run`'s batch, length and precision.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_blocks(architecture: &Architecture, run: &Run) -> Result<SimulatedBlocks, BuildError> {
    let once = Run { mode: Mode::Train, steps: 1, accumulation: 1, note_ops: false, ..run.clone() };
    let kept = simulate(architecture, &Run { recomputed: Recomputed::None, ..once.clone() })?;
    let recomputed = simulate(architecture, &Run { recomputed: Recomputed::All, ..once })?;
    let mut profile = SimulatedBlocks::default();
    weights(&kept.log, run.precision.weights().bytes(), &mut profile);
    passes(&kept, &mut profile, false);
    passes(&recomputed, &mut profile, true);
    Ok(profile)
}

impl SimulatedBlocks {
    fn part(&mut self, scope: Scope) -> Option<&mut BlockProfile> {
        match scope {
            Scope::Embedding => Some(&mut self.embedding),
            Scope::Block(at) => {
                let at = at as usize;
                if at >= self.blocks.len() {
                    self.blocks.resize(at + 1, BlockProfile::default());
                }
                Some(&mut self.blocks[at])
            }
            Scope::Head | Scope::Loss => Some(&mut self.head),
            Scope::Model | Scope::Optimizer => None,
        }
    }
}

fn weights(log: &Log, width: u64, profile: &mut SimulatedBlocks) {
    for allocation in log.allocations.iter().filter(|a| a.kind == Kind::Weight && a.op == "parameter") {
        if let Some(part) = profile.part(allocation.scope) {
            part.weight_bytes += Log::rounded(allocation.bytes);
            part.parameters += allocation.bytes / width;
        }
    }
    for allocation in log.allocations.iter().filter(|a| a.kind == Kind::Cast && a.phase == Phase::Forward) {
        if let Some(part) = profile.part(allocation.scope) {
            part.cast_bytes += Log::rounded(allocation.bytes);
        }
    }
    for &(scope, flops) in &log.flops {
        if let Some(part) = profile.part(scope) {
            part.flops += flops;
        }
    }
}

/// A stretch of the run that belongs to one part in one direction.
#[derive(Clone, Copy)]
struct Stretch {
    scope: Scope,
    backward: bool,
    start: i64,
    most: i64,
}

fn passes(steps: &Steps, profile: &mut SimulatedBlocks, recomputed: bool) {
    let log = &steps.log;
    let end =
        log.marks.iter().find(|m| m.phase == Phase::Backward).map_or(log.events.len(), |m| m.event as usize);
    let mut live = 0i64;
    let mut current: Option<Stretch> = None;
    for event in &log.events[..end] {
        let allocation = &log.allocations[event.slot() as usize];
        let bytes = Log::rounded(allocation.bytes) as i64;
        if event.is_free() {
            live -= bytes;
            continue;
        }
        let scope = match allocation.scope {
            Scope::Loss => Scope::Head,
            scope => scope,
        };
        let backward = matches!(allocation.phase, Phase::Backward | Phase::Recompute);
        let counts = allocation.phase != Phase::Build && !matches!(scope, Scope::Model | Scope::Optimizer);
        if counts && current.is_none_or(|c| c.scope != scope || c.backward != backward) {
            finish(profile, current, live, recomputed);
            current = Some(Stretch { scope, backward, start: live, most: live });
        }
        live += bytes;
        if let Some(current) = &mut current {
            current.most = current.most.max(live);
        }
    }
    finish(profile, current, live, recomputed);
}

fn finish(profile: &mut SimulatedBlocks, stretch: Option<Stretch>, live: i64, recomputed: bool) {
    let Some(Stretch { scope, backward, start, most }) = stretch else { return };
    let Some(part) = profile.part(scope) else { return };
    let (peak, change) = ((most - start).max(0) as u64, live - start);
    match (recomputed, backward) {
        (false, false) => {
            part.forward_peak = part.forward_peak.max(peak);
            part.saved += change.max(0) as u64;
        }
        (false, true) => {
            part.backward_peak = part.backward_peak.max(peak);
            part.backward_change += change;
        }
        (true, false) => part.input += change.max(0) as u64,
        (true, true) => {
            part.recompute_peak = part.recompute_peak.max(peak);
            part.recompute_change += change;
        }
    }
}

impl SimulatedBlocks {
    /// Every part in order.
    pub fn parts(&self) -> impl Iterator<Item = &BlockProfile> {
        std::iter::once(&self.embedding).chain(&self.blocks).chain(std::iter::once(&self.head))
    }
}
