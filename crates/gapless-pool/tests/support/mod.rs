//! Code that the tests share.

#![allow(dead_code, reason = "each test uses some of it")]
#![allow(unreachable_pub, reason = "a module of tests")]

pub mod planner;

/// Pseudo-random numbers, the same in every run (SplitMix64): every seed is good.
#[derive(Debug)]
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Mostly small, sometimes huge, often on an edge.
    pub fn size(&mut self) -> u64 {
        const EDGES: [u64; 9] =
            [1, 511, 512, 513, 1 << 20, (1 << 20) + 1, 2 << 20, (2 << 20) + 512, (16 << 20) - 512];
        match self.below(4) {
            0 => EDGES[self.below(EDGES.len() as u64) as usize],
            _ => 1 + self.next() % (1 << (4 + self.below(23))),
        }
    }
}
