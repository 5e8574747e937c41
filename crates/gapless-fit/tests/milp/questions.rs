//! Random questions about which blocks to recompute, the same on every machine: for the tests, and for the integer
//! programs they are held against.

use gapless_fit::checkpoint::chain::{Block, Chain, Choice, Measured};

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

/// One question: a size, a seed, and the place of the budget between the least peak and that of keeping all, in
/// hundredths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) size: usize,
    pub(crate) seed: u64,
    pub(crate) tightness: u64,
}

/// 100 chains of 4 to 40 blocks.
pub(crate) fn questions() -> Vec<Question> {
    let mut dice = Dice(2026);
    let mut ask = || Question {
        size: dice.within(4, 40) as usize,
        seed: dice.roll() >> 1,
        tightness: dice.within(1, 95),
    };
    (0..100).map(|_| ask()).collect()
}

pub(crate) fn between(least: u64, most: u64, tightness: u64) -> u64 {
    least + (most - least) * tightness / 100
}
