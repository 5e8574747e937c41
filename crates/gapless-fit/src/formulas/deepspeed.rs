//! Bytes that DeepSpeed's ZeRO holds beside weights, master copies and states, and when, as its optimizers do it (0.19,
//! `runtime/zero/stage_1_and_2.py` and `stage3.py`) with contiguous gradients and overlapping communication.
//!
//! Stages 1 and 2:
//! The first gradient of a backward pass makes two buffers of `reduce_bucket_size` elements, however small the model. A
//! gradient is copied into one of them and freed. Whenever the next one has no room, the bucket is reduced: if it has
//! gradients of several partitions, they are copied once more. Then a rank copies its own part into a buffer for all
//! gradients that its partition touches, cut or not. The rank that owns the end of the model does so first, and holds
//! most. Stage 1 does the same at the last of several micro-batches, and keeps all gradients and both buffers before
//! it.
//!
//! Stage 3 makes one buffer for a bucket and one for its partition's gradients at the beginning. It keeps as many
//! weights gathered as `stage3_max_live_parameters` allows.

use super::Term;

const SOURCE: &str = "DeepSpeed 0.19, runtime/zero/stage_1_and_2.py";

/// One rank: counts are elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Zero {
    /// Parameters that the rank trains, and its share of them.
    pub parameters: f64,
    pub partition: f64,
    /// The largest parameter.
    pub largest: f64,
    /// Parameters whose gradients come first; if the embedding is one of them, its gradient waits for the last block.
    pub head: f64,
    pub tied: bool,
    /// Parameters of one block, and the number of blocks.
    pub block: f64,
    pub blocks: f64,
    /// `reduce_bucket_size`.
    pub bucket: f64,
    /// Bytes of a gradient.
    pub gradient: f64,
}

/// A moment of backward: which share of the blocks is done, and bytes beside activations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reduced {
    pub done: f64,
    pub bytes: f64,
}

impl Zero {
    /// The two buffers.
    #[must_use]
    pub fn buckets(&self) -> Term {
        Term::bytes(
            "reduction buckets",
            2.0 * self.bucket * self.gradient,
            "2 reduce_bucket_size g",
            &[("reduce_bucket_size", self.bucket), ("g", self.gradient)],
            SOURCE,
        )
    }

    /// The gradients that a partition touches. One that several partitions share is whole in each.
    #[must_use]
    pub fn gradients(&self) -> Term {
        let times = if self.partition > 0.0 { (self.largest / self.partition).ceil().max(1.0) } else { 1.0 };
        Term::bytes(
            "gradients of the partition",
            self.gradient * (times * self.partition).min(self.parameters),
            "g p ceil(P_largest / p)",
            &[("g", self.gradient), ("p", self.partition), ("P_largest", self.largest)],
            SOURCE,
        )
    }

    /// Bytes beside the two buffers when the head's gradient is there: one that no buffer holds is reduced at once.
    #[must_use]
    pub fn at_first(&self) -> f64 {
        let copies = if self.head > self.bucket && self.partition < self.head { 2.0 } else { 1.0 };
        copies * self.gradient * self.head
    }

    /// Beside the two buffers: before the first reduction, at the first one, and at the next one that has gradients of
    /// several partitions.
    #[must_use]
    pub fn in_blocks(&self) -> [Reduced; 3] {
        let is_cut = self.partition < self.parameters;
        let waits = if self.tied { self.gradient * self.head } else { 0.0 };
        let own = self.gradients().value as f64;
        let copy = self.gradient * self.bucket.min(self.parameters);
        let first = if is_cut && self.partition < self.bucket { own.max(copy) } else { own };
        let next = (self.partition / self.bucket).ceil().max(2.0);
        let more = if is_cut { copy } else { 0.0 };
        [
            Reduced { done: 0.0, bytes: waits },
            Reduced { done: self.done(1.0), bytes: waits + first },
            Reduced { done: self.done(next), bytes: waits + own + more },
        ]
    }

    /// The share of blocks whose gradients fill so many buckets.
    #[must_use]
    pub fn done(&self, buckets: f64) -> f64 {
        let head = if self.tied { 0.0 } else { self.head };
        let filled = (buckets * self.bucket - head).max(0.0);
        if self.block > 0.0 && self.blocks > 0.0 {
            ((filled / self.block).floor() / self.blocks).min(1.0)
        } else {
            0.0
        }
    }

    /// The optimizer's step, gradients included. It is the largest of three: their norm in 64 bits one by one; one flat
    /// copy of them and another in the master copies' type; that one with the optimizer's temporaries for each element.
    #[must_use]
    pub fn step(&self, master: f64, transient: f64) -> Term {
        let own = self.gradients().value as f64;
        let norm = own + 8.0 * self.largest.min(self.partition);
        let converted = if master > self.gradient { master } else { 0.0 };
        let copies = own + (self.gradient + converted) * self.partition;
        let updates = (self.gradient.max(master) + transient) * self.partition;
        let inputs = [
            ("G", own),
            ("P_largest", self.largest),
            ("p", self.partition),
            ("g", self.gradient),
            ("m", master),
            ("x", transient),
        ];
        Term::bytes(
            "optimizer step",
            norm.max(copies).max(updates),
            "max(G + 8 min(P_largest, p), G + (g + m) p, (m + x) p)",
            &inputs,
            SOURCE,
        )
    }
}

/// Weights that stage 3 has gathered: it prefetches and keeps up to its limit.
#[must_use]
pub fn live(parameters: f64, most: f64, x: f64) -> Term {
    Term::bytes(
        "live parameters",
        x * parameters.min(most),
        "x min(P, stage3_max_live_parameters)",
        &[("x", x), ("P", parameters), ("stage3_max_live_parameters", most)],
        "DeepSpeed 0.19, runtime/zero/partitioned_param_coordinator.py",
    )
}
