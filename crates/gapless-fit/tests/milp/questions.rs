//! Random questions about what to recompute, the same on every machine: for the tests, and for the integer programs they are held against.

use gapless_fit::checkpoint::chain::{Block, Chain, Choice, Measured};
use gapless_fit::checkpoint::graph::{Graph, Node};
use gapless_fit::checkpoint::segments::Segmented;

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low + 1)
    }
}

pub(crate) fn measured(dice: &mut Dice) -> Measured {
    let saved = dice.within(20, 400);
    Measured {
        input: dice.within(1, 30),
        saved,
        forward_working: dice.within(0, 60),
        backward_working: dice.within(10, 150),
        output_gradient: dice.within(1, 30),
        gradient: dice.within(0, 40),
        forward_cost: dice.within(1, 99),
    }
}

/// Blocks with two to four ways to treat them.
pub(crate) fn chain(seed: u64, blocks: usize) -> Chain {
    let mut dice = Dice(seed);
    let blocks = (0..blocks)
        .map(|_| {
            let measured = measured(&mut dice);
            let mut block = measured.block();
            for _ in 0..dice.within(0, 2) {
                // In between: less retained than kept, less cost than all of it.
                let retained = dice.within(measured.input, measured.input.max(measured.saved));
                block.choices.push(Choice {
                    retained,
                    forward_peak: retained + measured.forward_working,
                    backward_peak: retained + measured.saved / 2 + measured.backward_working,
                    cost: dice.within(0, measured.forward_cost),
                });
            }
            Block { gradient: measured.gradient, ..block }
        })
        .collect();
    Chain {
        base: dice.within(0, 200),
        blocks,
        head_peak: dice.within(10, 500),
        head_gradient: dice.within(0, 50),
    }
}

pub(crate) fn segmented(seed: u64, blocks: usize) -> Segmented {
    let mut dice = Dice(seed);
    Segmented {
        blocks: (0..blocks).map(|_| measured(&mut dice)).collect(),
        base: dice.within(0, 200),
        head_peak: dice.within(10, 500),
        head_gradient: dice.within(0, 50),
        longest: blocks,
    }
}

/// Mostly chains with skips, as networks are.
pub(crate) fn graph(seed: u64, nodes: usize) -> Graph {
    let mut dice = Dice(seed);
    let mut list: Vec<Node> = Vec::new();
    for i in 0..nodes {
        let mut inputs = Vec::new();
        if i > 0 {
            inputs.push(i - 1 - usize::from(dice.within(0, 5) == 0 && i > 1));
            if dice.within(0, 2) == 0 {
                inputs.push(i - 1 - dice.within(0, (i as u64 - 1).min(6)) as usize);
            }
            inputs.sort_unstable();
            inputs.dedup();
        }
        let mut backward_reads: Vec<usize> =
            inputs.iter().copied().filter(|_| dice.within(0, 9) < 7).collect();
        if dice.within(0, 9) < 3 {
            backward_reads.push(i);
        }
        list.push(Node {
            bytes: dice.within(5, 100),
            cost: dice.within(1, 99),
            inputs,
            backward_reads,
            forward_working: dice.within(0, 20),
            backward_working: dice.within(0, 30),
            gradient: dice.within(5, 60),
            parameter_gradient: dice.within(0, 10),
        });
    }
    Graph { base: dice.within(0, 100), nodes: list }
}

/// What is asked: a kind, a size, a seed, and how tight the budget is between the least peak and that of keeping all, in hundredths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) kind: &'static str,
    pub(crate) size: usize,
    pub(crate) seed: u64,
    pub(crate) tightness: u64,
}

/// 100 chains of up to 40 blocks, 60 cut into segments, 100 graphs of up to 30 nodes.
pub(crate) fn questions() -> Vec<Question> {
    let mut dice = Dice(2026);
    let mut all = Vec::new();
    for (kind, count, low, high) in [("chain", 100, 4, 40), ("segments", 60, 3, 16), ("graph", 100, 6, 30)] {
        for _ in 0..count {
            let size = dice.within(low, high) as usize;
            all.push(Question { kind, size, seed: dice.roll() >> 1, tightness: dice.within(1, 95) });
        }
    }
    all
}

pub(crate) fn between(least: u64, most: u64, tightness: u64) -> u64 {
    least + (most - least) * tightness / 100
}
