//! What is done besides decoding or encoding a chunk: lines of the next one are asked for, and a checksum is taken.
//!
//! A core waits for what stands beyond its second cache, and its own prefetching ends with each page of 4 KiB: reading
//! a chunk took as long as decoding it. So the loops over one chunk ask for the lines of the next one. And a core that
//! waits until its stores have left has time to sum up the bytes that it has just decoded, which are in its first cache.

use crate::checksum::Sum;

const LINE: usize = 64;
/// Blocks of 64 values to a block of 1 KiB of the checksum: low bytes come first in a chunk, one for each value.
const TURNS: u32 = 16;
/// Lines that are asked for in that time beyond one a block: a chunk is a third longer than its low bytes, or more.
const MORE: usize = 6;

/// What is left to do.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    lines: &'a [u8],
    sum: Option<Sum<'a>>,
    turn: u32,
}

impl<'a> Ahead<'a> {
    /// Asks for the lines of `next`.
    pub(super) fn new(next: &'a [u8]) -> Ahead<'a> {
        Ahead { lines: next, sum: None, turn: 0 }
    }

    /// Asks for the lines of `next`, and takes the checksum of `bytes`.
    pub(super) fn summing(bytes: &'a [u8], next: &'a [u8]) -> Ahead<'a> {
        Ahead { lines: next, sum: Some(Sum::new(bytes)), turn: 0 }
    }

    /// Asks for a line into the second cache, which has room for chunks.
    #[inline(always)]
    pub(super) fn fetch(&mut self) {
        if let Some((line, rest)) = self.lines.split_at_checked(LINE) {
            fetch(line);
            self.lines = rest;
        }
    }

    /// Asks for a line, and sums up what was decoded: once for each block of 64 values.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        self.fetch();
        self.turn += 1;
        if self.turn == TURNS {
            self.turn = 0;
            self.sum_up();
        }
    }

    #[inline(never)]
    fn sum_up(&mut self) {
        for _ in 0..MORE {
            self.fetch();
        }
        if let Some(sum) = &mut self.sum {
            sum.step();
        }
    }

    /// The checksum; of nothing, where none was wanted.
    pub(super) fn finish(self) -> u64 {
        self.sum.unwrap_or_else(|| Sum::new(&[])).finish()
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[inline(always)]
fn fetch(line: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: a prefetch changes nothing, and the address is a slice's.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn fetch(_: &[u8]) {}
