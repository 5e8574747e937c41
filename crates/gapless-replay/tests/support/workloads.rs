//! Made-up runs of kinds that no recorded trace has, as scripts: the same bytes on every machine.

use gapless_replay::{Lane, Op, Script};
use gapless_trace::{Bytes, PoolId, StreamId, Tick};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A script in the making.
struct Maker {
    ops: Vec<Op>,
    slots: u32,
    random: u64,
}

impl Maker {
    fn new(seed: u64) -> Maker {
        Maker { ops: Vec::new(), slots: 0, random: seed }
    }

    /// A number below `most`.
    fn below(&mut self, most: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % most
    }

    fn alloc(&mut self, size: u64) -> u32 {
        self.slots += 1;
        self.ops.push(Op::Alloc { slot: self.slots, size: Bytes(size), lane: 0 });
        self.slots
    }

    fn free(&mut self, slot: u32) {
        self.ops.push(Op::Free { slot });
    }

    /// Weights and the states of an optimizer.
    fn model(&mut self, weights: &[u64]) {
        for &size in weights {
            for _ in 0..3 {
                self.alloc(size);
            }
        }
    }

    /// One training step: activations that are kept until the backward pass reaches them, gradients of weights, and
    /// memory that one operator needs for itself.
    fn train(&mut self, activations: &[u64], weights: &[u64]) {
        let mut kept = Vec::new();
        for &size in activations {
            let own = self.alloc(size / 2);
            kept.push(self.alloc(size));
            // A statistic of the layer, in small memory.
            kept.push(self.alloc(KIB + size / 512));
            self.free(own);
        }
        let mut gradients = Vec::new();
        let mut left = weights.iter().rev().cycle();
        while let Some(slot) = kept.pop() {
            let own = self.alloc(activations[kept.len() / 2]);
            if kept.len().is_multiple_of(2) && gradients.len() < weights.len() {
                let size = *left.next().expect("a cycle");
                gradients.push(self.alloc(size));
            }
            self.free(slot);
            self.free(own);
        }
        for slot in gradients {
            self.free(slot);
        }
    }

    fn script(self) -> Script {
        Script {
            ticks: vec![Tick(0); self.ops.len()],
            ops: self.ops,
            lanes: vec![Lane { stream: StreamId(0), pool: PoolId::DEFAULT }],
            pools: vec![PoolId::DEFAULT],
            slots: self.slots + 1,
            ..Script::default()
        }
    }
}

/// Training of a vision model, with another batch and another resolution in each step.
pub(crate) fn vision_mix() -> Script {
    let mut maker = Maker::new(1);
    let weights: Vec<u64> = (0..48).map(|layer| (layer % 7 + 1) * 700 * KIB + 9 * KIB).collect();
    maker.model(&weights);
    for _ in 0..40 {
        let batch = 8 + maker.below(57);
        let side = 7 * (4 + maker.below(5));
        let activations: Vec<u64> =
            (0..48).map(|layer| batch * side * side * 16 * 4 * (64 >> (layer / 12)) / 16).collect();
        maker.train(&activations, &weights);
    }
    maker.script()
}

/// Roll-outs, whose caches of keys and values grow token by token and end at different lengths, in turns with training
/// on sequences of these lengths.
pub(crate) fn rollouts() -> Script {
    let mut maker = Maker::new(2);
    let weights: Vec<u64> = (0..32).map(|layer| if layer % 2 == 0 { 16 * MIB } else { 5632 * KIB }).collect();
    maker.model(&weights);
    for _ in 0..12 {
        let sequences = 4 + maker.below(13);
        let mut caches: Vec<u32> = Vec::new();
        let mut length = 64 + maker.below(64);
        for _ in 0..24 {
            length += 16 + maker.below(32);
            let size = sequences * length * 4 * KIB;
            let logits = maker.alloc(sequences * 128_256 * 4);
            let old = std::mem::take(&mut caches);
            for layer in 0..16 {
                caches.push(maker.alloc(size));
                if let Some(&slot) = old.get(layer) {
                    maker.free(slot);
                }
            }
            maker.free(logits);
        }
        for slot in caches {
            maker.free(slot);
        }
        let activations: Vec<u64> = (0..32)
            .map(|layer| sequences * length * if layer % 4 == 3 { 11 * KIB } else { 4 * KIB })
            .collect();
        maker.train(&activations, &weights);
    }
    maker.script()
}
