//! The default policy: every node has a value, and a pod goes to the node whose value falls least.
//!
//! With r = free thousandths of a GPU, C = free CPUs of the node, F = free thousandths of the node:
//!
//! ```text
//! V = sum over GPUs with r > 0 of q + 10 D(r) q / h(r, most)     q = 0.65 h(r, C) + 0.35 h(r, C r / F)
//!     + 0.3 U + 1000 n M(n, C) + 100 if the node is untouched + 1.2 S F
//! ```
//!
//! * h(r, c): the expected use of a single GPU with r thousandths and c CPUs by random requests ([`holes`]).
//! * D(r): the value of a hole of r at the shadow prices of a linear program over the mix ([`prices`]).
//! * U: the free thousandths that typical requests could use, as FGD counts them.
//! * S: the scarcity of the node's model for pods that need it ([`scarcity`]). Without it, pods that accept any model
//!   fill the models that others need, and at 100 % of arrivals FGD places more on lists with many such pods.
//! * n: unused GPUs; M: share of typical requests for 2 to n GPUs whose CPUs fit.
//!
//! The score is floor(7 (V after - V before) / 1000). A share of a GPU goes to the GPU with the best difference.

mod holes;
mod prices;
mod scarcity;
mod simplex;

use super::fragment::{Typical, typical};
use crate::ledger::{Ledger, View};
use crate::mix::{Mix, common_units};
use crate::words::{Request, WHOLE};
use holes::Holes;
pub use prices::hole_values;

/// The part of a GPU's value that counts only its fair share of the node's CPUs.
const FAIR: f64 = 0.35;
const HOLE: f64 = 10.0;
const UNTOUCHED: f64 = 100.0;
const GANG: f64 = 1000.0;
const STEPS: f64 = 7.0 / 1000.0;
/// Different CPU requirements that the tables know.
const MOST_STEPS: usize = 128;
/// The weight of free thousandths that typical requests could use.
const USABLE: f64 = 0.3;
/// The weight of a free thousandth, times the scarcity of its model. Chosen on seeds 42 to 44 of the list gpuspec20
/// and of lists made from it by leaving out pods that accept any model; 1 and 1.4 do almost as well.
const SCARCE: f64 = 1.2;

/// The policy for one cluster and one mix.
#[derive(Clone, Debug)]
pub struct Value {
    /// For each model, the index of its tables.
    tables_of: Vec<u16>,
    tables: Vec<Tables>,
    /// The extra value of a free thousandth of each model.
    scarce: Vec<f64>,
    /// The largest node that the tables know.
    most_cpu: u64,
    most_whole: usize,
}

/// The policy's tables for one model.
#[derive(Clone, Debug)]
struct Tables {
    holes: Holes,
    /// 1 + 10 D(r) / h(r, most), by r.
    gain: Vec<f64>,
    /// CPU requirements of typical requests, ascending.
    steps: Vec<u64>,
    /// For each step and r: the share of typical partial requests that fit.
    partial: Vec<f64>,
    /// For each step and n: the share of typical requests for 1 to n whole GPUs, and for 2 to n.
    whole: Vec<(f64, f64)>,
    most_whole: usize,
}

impl Value {
    pub fn new(ledger: &Ledger, mix: &Mix) -> Value {
        let units = common_units(ledger);
        let gpus: u64 = ledger.nodes().iter().map(|node| u64::from(node.gpus)).sum();
        let worth = hole_values(mix, units, gpus);
        let most_cpu = ledger.nodes().iter().map(|node| node.cpu_milli).max().unwrap_or(0);
        let most_whole = ledger.nodes().iter().map(|node| node.gpus).max().unwrap_or(0) as usize;
        let all_typical = typical(ledger, mix);
        let mut tables_of = Vec::new();
        let mut tables: Vec<Tables> = Vec::new();
        let mut known: Vec<Vec<holes::Item>> = Vec::new();
        for (model, typical) in ledger.models().iter().zip(&all_typical) {
            let items = holes::items(mix, model);
            let same = known.iter().position(|seen| *seen == items);
            tables_of.push(same.unwrap_or(tables.len()) as u16);
            if same.is_none() {
                let holes = Holes::new(&items, most_cpu);
                tables.push(Tables::new(holes, &worth, typical, most_whole));
                known.push(items);
            }
        }
        let scarce = scarcity::scarcity(ledger, mix, units).iter().map(|scarce| scarce * SCARCE).collect();
        Value { tables_of, tables, scarce, most_cpu, most_whole }
    }

    /// True if the tables can score this node of the ledger.
    pub fn knows(&self, ledger: &Ledger, node: u32) -> bool {
        let at = ledger.node(node);
        usize::from(ledger.slot(node).model) < self.tables_of.len()
            && at.cpu_milli <= self.most_cpu
            && at.gpus as usize <= self.most_whole
    }

    pub(super) fn score(&self, view: View<'_>, request: &Request, before: &mut f64) -> i32 {
        if before.is_nan() {
            *before = self.of(view);
        }
        let units = view.slot.units;
        let milli = request.milli_of(units) as u16;
        let gain = if request.gpus == 1 && request.units_of(units) < units {
            match self.best(view, milli, request) {
                Some((after, _)) => after - *before,
                None => return i32::MIN + 1,
            }
        } else {
            self.with_gpus(view, milli, request) - *before
        };
        (gain * STEPS).floor() as i32
    }

    /// The GPU for a partial request.
    pub(super) fn gpu(&self, view: View<'_>, left: &[u64], request: &Request) -> Option<u16> {
        let milli = request.milli_of(view.slot.units) as u16;
        let gpu = self.best(view, milli, request)?.1;
        // Thousandths are rounded, so the units decide.
        (left[gpu as usize] >= request.units_of(view.slot.units)).then_some(gpu)
    }

    /// The value of a node.
    pub fn of(&self, view: View<'_>) -> f64 {
        let node = self.at(view.slot.model, view.slot.cpu, view.slot.free);
        let gpus: f64 = view.milli.iter().map(|&left| node.gpu(left)).sum();
        gpus + node.together(view.slot.whole as usize, view.gpus())
    }

    fn at(&self, model: u16, cpu: u64, free: u32) -> At<'_> {
        let tables = &self.tables[self.tables_of[model as usize] as usize];
        let cpus = cpu as f64 / 1000.0;
        let step = tables.steps.partition_point(|&needed| needed <= cpu);
        At {
            tables,
            cpus,
            ratio: if free == 0 { 0.0 } else { cpus / f64::from(free) },
            partial: &tables.partial[step * (WHOLE as usize + 1)..(step + 1) * (WHOLE as usize + 1)],
            whole: &tables.whole[step * (tables.most_whole + 1)..(step + 1) * (tables.most_whole + 1)],
            scarce: self.scarce[model as usize] * f64::from(free),
        }
    }

    /// The best value of a node after a partial request, and the GPU for it.
    fn best(&self, view: View<'_>, milli: u16, request: &Request) -> Option<(f64, u16)> {
        let free = view.slot.free - u32::from(milli).min(view.slot.free);
        let node = self.at(view.slot.model, view.slot.cpu - request.cpu_milli, free);
        let mut sum = 0.0;
        let mut best: Option<(f64, u16)> = None;
        let (mut last, mut value) = (u16::MAX, 0.0);
        for (gpu, &left) in view.milli.iter().enumerate() {
            let is_same = left == last;
            if !is_same {
                (last, value) = (left, node.gpu(left));
            }
            sum += value;
            if left >= milli && !is_same {
                let mut change = node.gpu(left - milli) - value;
                if u32::from(left) == WHOLE {
                    let whole = view.slot.whole as usize;
                    change += node.together(whole.saturating_sub(1), view.gpus());
                } else {
                    change += node.together(view.slot.whole as usize, view.gpus());
                }
                if best.is_none_or(|(highest, _)| change > highest) {
                    best = Some((change, gpu as u16));
                }
            }
        }
        best.map(|(change, gpu)| (sum + change, gpu))
    }

    /// The value of a node after a request for whole GPUs, for none, or for parts of several.
    fn with_gpus(&self, view: View<'_>, milli: u16, request: &Request) -> f64 {
        let asked = request.gpus * u32::from(milli);
        let node =
            self.at(view.slot.model, view.slot.cpu - request.cpu_milli, view.slot.free.saturating_sub(asked));
        let mut whole = view.slot.whole as usize;
        if request.gpus == 0 || u32::from(milli) == WHOLE {
            let mut taken = request.gpus;
            let mut sum = 0.0;
            for &left in view.milli {
                if taken > 0 && u32::from(left) == WHOLE {
                    taken -= 1;
                    whole -= 1;
                } else {
                    sum += node.gpu(left);
                }
            }
            return sum + node.together(whole, view.gpus());
        }
        let left: Vec<u64> = view.milli.iter().map(|&left| u64::from(left)).collect();
        let mut after: Vec<u16> = view.milli.to_vec();
        for gpu in super::fullest(&left, u64::from(milli), request.gpus as usize) {
            whole -= usize::from(u32::from(after[gpu as usize]) == WHOLE);
            after[gpu as usize] -= milli;
        }
        after.iter().map(|&left| node.gpu(left)).sum::<f64>() + node.together(whole, view.gpus())
    }
}

/// A node with these CPUs and thousandths free.
struct At<'a> {
    tables: &'a Tables,
    cpus: f64,
    ratio: f64,
    partial: &'a [f64],
    whole: &'a [(f64, f64)],
    scarce: f64,
}

impl At<'_> {
    /// The value of a GPU with `left` thousandths.
    fn gpu(&self, left: u16) -> f64 {
        if left == 0 {
            return 0.0;
        }
        let r = usize::from(left);
        let holes = &self.tables.holes;
        let q = (1.0 - FAIR) * holes.at(r, self.cpus) + FAIR * holes.at(r, self.ratio * r as f64);
        q * self.tables.gain[r] + USABLE * r as f64 * self.partial[r]
    }

    /// The value of the node as a whole, with `whole` unused GPUs.
    fn together(&self, whole: usize, gpus: usize) -> f64 {
        let (any, several) = self.whole[whole];
        let untouched = if whole == gpus && gpus > 0 { UNTOUCHED } else { 0.0 };
        whole as f64 * (USABLE * f64::from(WHOLE) * any + GANG * several) + untouched + self.scarce
    }
}

impl Tables {
    fn new(holes: Holes, worth: &[f64], typical: &[Typical], most_whole: usize) -> Tables {
        let gain = (0..=WHOLE as usize).map(|r| {
            let full = holes.full(r);
            if full > 0.0 { 1.0 + HOLE * worth[r] / full } else { 1.0 }
        });
        let gain = gain.collect();
        let mut steps: Vec<u64> = typical.iter().filter(|one| one.gpus > 0).map(|one| one.cpu).collect();
        steps.sort_unstable();
        steps.dedup();
        // A request between two kept steps counts as if it needed the CPUs of the higher one.
        let every = steps.len().div_ceil(MOST_STEPS).max(1);
        let steps: Vec<u64> =
            steps.into_iter().rev().step_by(every).collect::<Vec<_>>().into_iter().rev().collect();
        let mut partial = Vec::new();
        let mut whole = Vec::new();
        // Before the first step nothing fits; after step i all requests of at most its CPUs.
        for step in 0..=steps.len() {
            let fits = |one: &&Typical| step > 0 && one.accepts && one.gpus > 0 && one.cpu <= steps[step - 1];
            let mut by_size = vec![0.0; WHOLE as usize + 1];
            let mut by_count = vec![(0.0, 0.0); most_whole + 1];
            for one in typical.iter().filter(fits) {
                if u32::from(one.milli) == WHOLE {
                    for (n, (any, several)) in by_count.iter_mut().enumerate().skip(one.gpus as usize) {
                        debug_assert!(n >= one.gpus as usize);
                        *any += one.share;
                        if one.gpus >= 2 {
                            *several += one.share;
                        }
                    }
                } else {
                    by_size[one.milli as usize..].iter_mut().for_each(|sum| *sum += one.share);
                }
            }
            partial.extend(by_size);
            whole.extend(by_count);
        }
        Tables { holes, gain, steps, partial, whole, most_whole }
    }
}
