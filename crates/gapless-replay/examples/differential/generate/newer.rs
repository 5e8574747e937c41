//! Actions of programs from 2.13 on: captures apart from pools, requests for an address; from 2.15 on classes of
//! streams.

use super::{Live, MIB, Writer};
use crate::ops::{CLASSES, Op};

impl Writer {
    /// True if the release tells a capture from a routing; the same ones take requests for an address.
    pub(super) fn captures(&self) -> bool {
        self.plan.minor >= 13
    }

    pub(super) fn is_capturing(&self) -> bool {
        self.marks > 0 && self.captures.contains(&self.current)
    }

    pub(super) fn set_current(&mut self, stream: u64) {
        self.current = stream;
        self.ops.push(Op::Current { stream });
    }

    /// A request for an address: that of a block freed lately, or a little after it; mostly of its stream, and mostly
    /// no longer than it was. Now and then for an address that no block can have.
    pub(super) fn malloc_at(&mut self) {
        let last = self.freed.len();
        let back =
            if self.random.chance(60) { self.random.index(last.min(6)) } else { self.random.index(last) };
        let Some(&old) = last.checked_sub(back + 1).and_then(|index| self.freed.get(index)) else { return };
        if old.size == 0 {
            return;
        }
        if self.current != old.stream && self.random.chance(80) {
            self.set_current(old.stream);
        }
        let offset = match self.random.below(10) {
            0..=3 => 0,
            4 => self.random.below(old.size),
            5 => 512 * self.random.between(1, 8),
            _ => self.random.below(old.size) / 512 * 512,
        };
        let left = old.size.saturating_sub(offset).max(1);
        let size = match self.random.below(10) {
            0..=3 => left,
            4..=8 => self.random.between(1, left),
            _ => self.fresh_size().max(1),
        };
        let id = self.next_id;
        self.next_id += 1;
        self.ops.push(Op::MallocAt { id, size, near: old.id, offset });
        self.live.push(Live { id, size, stream: self.current });
        self.live_bytes += size;
    }

    /// Begins or ends a capture as programs do: the stream and the allocator's count together. Sometimes only one of
    /// the two, as a program that captures by itself, or one that gives a capture up.
    pub(super) fn capture(&mut self, stream: u64, on: bool) {
        let alone = self.random.below(12);
        if alone != 0 && self.captures.contains(&stream) != on {
            self.ops.push(Op::Capture { stream, on });
            if on {
                self.captures.push(stream);
            } else {
                self.captures.retain(|&s| s != stream);
            }
        }
        if alone != 1 && (on || self.marks > 0) {
            self.ops.push(Op::Mark { begins: on });
            self.marks = if on { self.marks + 1 } else { self.marks - 1 };
        }
    }

    /// Gives a stream one of the classes, or none.
    pub(super) fn classify(&mut self, stream: u64) {
        if self.plan.classes {
            let class = self.random.index(CLASSES.len()) as u32;
            self.ops.push(Op::ReserveClass { stream, class });
        }
    }

    /// A cap: a round share, or, from 2.13 on, one that is a fraction of a byte below or above whole segments, so that
    /// the rounding decides if the last one fits.
    pub(super) fn fraction(&mut self) -> f64 {
        let percent = self.random.pick(&[30_u32, 45, 60, 75, 90, 100]);
        let share = f64::from(percent) / 100.0;
        if self.random.chance(50) {
            return share;
        }
        let capacity = self.plan.capacity as f64;
        let segments = (share * capacity / (2 * MIB) as f64).floor() * (2 * MIB) as f64;
        let part = self.random.pick(&[-0.75, -0.5, -0.25, 0.25]);
        ((segments + part) / capacity).clamp(0.01, 1.0)
    }
}
