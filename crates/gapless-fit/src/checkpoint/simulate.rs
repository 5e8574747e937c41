//! A finished schedule walked through, event by event: its peak and its cost. Shares no code with the optimisers; every test and every plan
//! that is handed out goes through here.

use super::chain::{Chain, Measured};
use super::graph::Graph;
use super::nested::Op;
use super::segments::{Part, Segmented};

/// What a schedule takes.
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

    fn pulse(&mut self, bytes: u64) {
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
        meter.pulse(choice.forward_peak);
        meter.add(choice.retained);
    }
    meter.pulse(chain.head_peak);
    // A gradient is part of the peak of the backward that makes it, and counts by itself from then on.
    meter.live += chain.head_gradient;
    for (block, choice) in chain.blocks.iter().zip(&chosen).rev() {
        meter.free(choice.retained);
        meter.pulse(choice.backward_peak);
        meter.live += block.gradient;
    }
    Outcome { peak: meter.peak, cost: chosen.iter().map(|choice| choice.cost).sum() }
}

/// A chain cut into kept blocks and segments.
#[must_use]
pub fn segments(chain: &Segmented, parts: &[Part]) -> Outcome {
    let mut meter = Meter::default();
    let mut cost = 0;
    meter.add(chain.base);
    let blocks = &chain.blocks;
    for part in parts {
        match *part {
            Part::Kept { block } => {
                meter.add(blocks[block].saved);
                meter.pulse(blocks[block].forward_working);
            }
            Part::Recomputed { from, to } => {
                meter.add(blocks[from].input);
                for (place, block) in blocks[from..to].iter().enumerate() {
                    let passed_on = if place == 0 { 0 } else { block.input };
                    meter.pulse(passed_on + block.forward_working);
                }
            }
        }
    }
    meter.pulse(chain.head_peak);
    let mut gradients = chain.head_gradient;
    for part in parts.iter().rev() {
        let backward = |meter: &mut Meter, block: &Measured, gradients: &mut u64| {
            meter.pulse(block.backward_working + *gradients);
            meter.free(block.saved);
            *gradients += block.gradient;
        };
        match *part {
            Part::Kept { block } => backward(&mut meter, &blocks[block], &mut gradients),
            Part::Recomputed { from, to } => {
                let waiting = blocks[to - 1].output_gradient;
                for block in &blocks[from..to] {
                    meter.add(block.saved);
                    meter.pulse(block.forward_working + waiting + gradients);
                    cost += block.forward_cost;
                }
                for block in blocks[from..to].iter().rev() {
                    backward(&mut meter, block, &mut gradients);
                }
                meter.free(blocks[from].input);
            }
        }
    }
    Outcome { peak: meter.peak, cost }
}

/// Why a list of operations is no schedule of the chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation {place} ({op:?}): {why}")]
pub struct Broken {
    pub place: usize,
    pub op: Op,
    pub why: &'static str,
}

/// A chain's operations with checkpoints within checkpoints.
pub fn nested(base: u64, blocks: &[Measured], ops: &[Op]) -> Result<Outcome, Broken> {
    let n = blocks.len();
    let (mut held, mut saved) = (vec![false; n], vec![false; n]);
    // The block whose input was just made, and the first block that has run backward.
    let (mut at, mut done) = (Some(0), n);
    let mut meter = Meter::default();
    let mut cost = 0;
    meter.add(base);
    for (place, &op) in ops.iter().enumerate() {
        let broken = |why| Broken { place, op, why };
        let waiting = if done < n { blocks[done - 1].output_gradient } else { 0 };
        match op {
            Op::Hold(i) => {
                if at != Some(i) || held[i] {
                    return Err(broken("its input is not at hand, or held already"));
                }
                held[i] = true;
                meter.add(blocks[i].input);
            }
            Op::Forward(i) | Op::ForwardSaving(i) => {
                if at != Some(i) && !held[i] {
                    return Err(broken("its input is gone"));
                }
                if saved[i] || i >= done {
                    return Err(broken("it is saved already, or has run backward"));
                }
                cost += blocks[i].forward_cost;
                if matches!(op, Op::ForwardSaving(_)) {
                    saved[i] = true;
                    meter.add(blocks[i].saved);
                    meter.pulse(blocks[i].forward_working + waiting);
                } else {
                    let passed_on = if held[i] { 0 } else { blocks[i].input };
                    meter.pulse(passed_on + blocks[i].forward_working + waiting);
                }
                at = Some(i + 1);
            }
            Op::Backward(i) => {
                if i + 1 != done || !saved[i] {
                    return Err(broken(
                        "backward runs from the last block to the first, and needs what forward saved",
                    ));
                }
                meter.pulse(blocks[i].backward_working);
                meter.free(blocks[i].saved);
                saved[i] = false;
                if std::mem::take(&mut held[i]) {
                    meter.free(blocks[i].input);
                }
                meter.live += blocks[i].gradient;
                (at, done) = (None, i);
            }
        }
    }
    let once: u64 = blocks.iter().map(|block| block.forward_cost).sum();
    if done != 0 {
        let op = ops.last().copied().unwrap_or(Op::Hold(0));
        return Err(Broken { place: ops.len(), op, why: "not every block has run backward" });
    }
    Ok(Outcome { peak: meter.peak, cost: cost - once })
}

/// A graph with a kept set: every tensor's comings and goings as the contract in `graph` tells them.
#[must_use]
pub fn graph(graph: &Graph, kept: &[bool]) -> Outcome {
    let n = graph.nodes.len();
    let mut there = vec![false; n];
    let (mut peak, mut cost) = (0, 0);
    // Which stage each tensor runs again in: found by walking backward and asking for what is missing.
    let mut again: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut made: Vec<bool> = kept.to_vec();
    for stage in (0..n).rev() {
        let mut wanted: Vec<usize> = graph.nodes[stage].backward_reads.clone();
        while let Some(v) = wanted.pop() {
            if !made[v] {
                made[v] = true;
                again[stage].push(v);
                cost += graph.nodes[v].cost;
                wanted.extend(&graph.nodes[v].inputs);
            }
        }
    }
    // The stages that read each tensor, and its last reader in forward.
    let mut used: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut last_reader = vec![None; n];
    for (stage, node) in graph.nodes.iter().enumerate() {
        let recomputed = again[stage].iter().flat_map(|&w| &graph.nodes[w].inputs);
        for &v in node.backward_reads.iter().chain(recomputed) {
            used[v].push(stage);
        }
        for &v in &node.inputs {
            last_reader[v] = Some(stage);
        }
    }
    for stage in 0..n {
        there[stage] = true;
        let held: u64 = (0..n).filter(|&v| there[v]).map(|v| graph.nodes[v].bytes).sum();
        peak = peak.max(graph.base + held + graph.nodes[stage].forward_working);
        for v in 0..=stage {
            let read_later = last_reader[v].is_some_and(|reader| reader > stage);
            there[v] = there[v] && (read_later || kept[v] && !used[v].is_empty());
        }
    }
    let mut gradient = vec![false; n];
    let mut parameters = 0;
    for stage in (0..n).rev() {
        for &v in &again[stage] {
            there[v] = true;
        }
        // The gradients of what it reads are made now, its own was made by its readers, or comes with the loss.
        gradient[stage] = true;
        for &input in &graph.nodes[stage].inputs {
            gradient[input] = true;
        }
        parameters += graph.nodes[stage].parameter_gradient;
        let held: u64 = (0..n).filter(|&v| there[v]).map(|v| graph.nodes[v].bytes).sum();
        let gradients: u64 = (0..n).filter(|&v| gradient[v]).map(|v| graph.nodes[v].gradient).sum();
        let running = again[stage].iter().map(|&v| graph.nodes[v].forward_working).max().unwrap_or(0);
        let working = graph.nodes[stage].backward_working.max(running);
        peak = peak.max(graph.base + held + gradients + parameters + working);
        gradient[stage] = false;
        for (v, there) in there.iter_mut().enumerate() {
            *there = *there && used[v].iter().any(|&later| later < stage);
        }
    }
    Outcome { peak, cost }
}
