//! Fragmentation by FGD (USENIX ATC'23), and FGD itself: a pod goes to the node whose expected fragment grows least.
//!
//! The fragment of a node is the sum over typical requests of share x (free thousandths that the request could not
//! use): all of them if the request is CPU-only, wants another model, or does not fit by GPU or by CPU; if it fits,
//! the GPUs with less left than it asks for. Parts are added in the published order, because a score on the edge of
//! two integers depends on the last bit.

use crate::ledger::{Ledger, View, gpu_state, node_state};
use crate::mix::Mix;
use crate::words::Request;
use rustc_hash::FxHashMap;

/// A typical request, for GPUs of one model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Typical {
    pub(super) cpu: u64,
    pub(super) milli: u16,
    pub(super) gpus: u32,
    pub(super) share: f64,
    /// True if it accepts the model.
    pub(super) accepts: bool,
}

/// Typical requests for each model of a ledger.
pub(super) fn typical(ledger: &Ledger, mix: &Mix) -> Vec<Vec<Typical>> {
    let of_model = |model: &crate::ledger::Model| {
        let one = |(request, share): (&Request, f64)| Typical {
            cpu: request.cpu_milli,
            milli: request.milli_of(model.units) as u16,
            gpus: request.gpus,
            share,
            accepts: request.accepts(&model.name),
        };
        mix.typical().into_iter().map(one).collect()
    };
    ledger.models().iter().map(of_model).collect()
}

/// The fragments that typical requests leave.
#[derive(Clone, Debug)]
pub struct Fragments {
    typical: Vec<Vec<Typical>>,
}

impl Fragments {
    pub fn new(ledger: &Ledger, mix: &Mix) -> Fragments {
        Fragments { typical: typical(ledger, mix) }
    }

    /// The most typical requests of a model, which is the cost of computing a fragment.
    pub fn requests(&self) -> usize {
        self.typical.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// The fragment of a node, in thousandths.
    pub fn of(&self, view: View<'_>) -> f64 {
        self.at(view.slot.model, view.slot.cpu, view.milli)
    }

    fn at(&self, model: u16, cpu: u64, milli: &[u16]) -> f64 {
        let free: u32 = milli.iter().map(|&left| u32::from(left)).sum();
        let best = milli.iter().copied().max().unwrap_or(0);
        // Lacks both, lacks GPU, lacks CPU, CPU-only that fits, CPU-only that does not, another model.
        let mut parts = [0.0f64; 6];
        for one in &self.typical[model as usize] {
            let has_cpu = cpu >= one.cpu;
            let (part, amount) = if one.milli == 0 {
                (if has_cpu { 3 } else { 4 }, free)
            } else if !one.accepts {
                (5, free)
            } else {
                let fits = match one.gpus {
                    1 => best >= one.milli,
                    n => milli.iter().filter(|&&left| left >= one.milli).count() >= n as usize,
                };
                match (fits, has_cpu) {
                    (true, true) => {
                        let small = milli.iter().filter(|&&left| left < one.milli);
                        (1, small.map(|&left| u32::from(left)).sum())
                    }
                    (true, false) => (2, free),
                    (false, true) => (1, free),
                    (false, false) => (0, free),
                }
            };
            parts[part] += one.share * f64::from(amount);
        }
        parts.iter().sum()
    }
}

/// FGD with its computed fragments.
#[derive(Clone, Debug)]
pub struct Fgd {
    fragments: Fragments,
    known: FxHashMap<u64, f64>,
    scratch: Vec<u16>,
}

/// The most remembered states. Beyond it, all are forgotten at once.
const MOST_STATES: usize = 4_000_000;

impl Fgd {
    pub fn new(ledger: &Ledger, mix: &Mix) -> Fgd {
        Fgd { fragments: Fragments::new(ledger, mix), known: FxHashMap::default(), scratch: Vec::new() }
    }

    pub fn score(&mut self, view: View<'_>, request: &Request, before: &mut f64) -> i32 {
        if before.is_nan() {
            *before = self.before(view);
        }
        let before = *before;
        let units = view.slot.units;
        let milli = request.milli_of(units) as u16;
        if request.gpus == 1 && request.units_of(units) < units {
            return self.best(view, milli, request, before).map_or(0, |(score, _)| score);
        }
        let cpu = view.slot.cpu - request.cpu_milli;
        let mut state = view.slot.state.wrapping_add(self.cpu_changed(view, cpu));
        self.scratch.clear();
        self.scratch.extend_from_slice(view.milli);
        for _ in 0..request.gpus {
            // The fullest GPU with room that is not taken yet.
            let mut chosen: Option<usize> = None;
            for (gpu, &left) in self.scratch.iter().enumerate() {
                let is_taken = left != view.milli[gpu];
                if !is_taken && left >= milli && chosen.is_none_or(|best| left < self.scratch[best]) {
                    chosen = Some(gpu);
                }
            }
            if let Some(gpu) = chosen {
                let left = self.scratch[gpu];
                state = state.wrapping_sub(gpu_state(left)).wrapping_add(gpu_state(left - milli));
                self.scratch[gpu] = left - milli;
            }
        }
        let after = self.fragment(state, view.slot.model, cpu);
        scored(before - after)
    }

    /// The GPU for a partial request.
    pub fn gpu(&mut self, view: View<'_>, left: &[u64], request: &Request) -> Option<u16> {
        let milli = request.milli_of(view.slot.units) as u16;
        let before = self.before(view);
        let gpu = self.best(view, milli, request, before)?.1;
        // Thousandths are rounded, so the units decide.
        (left[gpu as usize] >= request.units_of(view.slot.units)).then_some(gpu)
    }

    /// The best score of a partial request on a node, and the first GPU that has it.
    fn best(&mut self, view: View<'_>, milli: u16, request: &Request, before: f64) -> Option<(i32, u16)> {
        let cpu = view.slot.cpu - request.cpu_milli;
        let state = view.slot.state.wrapping_add(self.cpu_changed(view, cpu));
        let mut best: Option<(i32, u16)> = None;
        for (gpu, &left) in view.milli.iter().enumerate() {
            if left < milli || view.milli[..gpu].contains(&left) {
                continue;
            }
            let state = state.wrapping_sub(gpu_state(left)).wrapping_add(gpu_state(left - milli));
            self.scratch.clear();
            self.scratch.extend_from_slice(view.milli);
            self.scratch[gpu] -= milli;
            let score = scored(before - self.fragment(state, view.slot.model, cpu));
            if best.is_none_or(|(highest, _)| score > highest) {
                best = Some((score, gpu as u16));
            }
        }
        best
    }

    fn before(&mut self, view: View<'_>) -> f64 {
        self.scratch.clear();
        self.scratch.extend_from_slice(view.milli);
        self.fragment(view.slot.state, view.slot.model, view.slot.cpu)
    }

    fn cpu_changed(&self, view: View<'_>, cpu: u64) -> u64 {
        node_state(view.slot.model, cpu).wrapping_sub(node_state(view.slot.model, view.slot.cpu))
    }

    /// The fragment of the GPUs in `scratch`, remembered by `state`.
    fn fragment(&mut self, state: u64, model: u16, cpu: u64) -> f64 {
        if self.known.len() >= MOST_STATES {
            self.known.clear();
        }
        *self.known.entry(state).or_insert_with(|| self.fragments.at(model, cpu, &self.scratch))
    }
}

fn scored(gain: f64) -> i32 {
    ((1.0 / (1.0 + (-gain / 1000.0).exp())) * 100.0) as i32
}
