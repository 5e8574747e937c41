//! What is wanted next, done while something else is computed: its lines are asked for, and its checksum is taken.
//!
//! A core waits for what stands beyond its second cache, and its own prefetching ends with each page of 4 KiB: reading
//! a chunk took as long as decoding it. And a core that waits until its stores have left has time for a checksum. So
//! the loops over one chunk ask for the lines of the next one, and sum up what has come.

use crate::checksum::Sum;

const LINE: usize = 64;
/// Blocks of 64 values to a block of 1 KiB of the checksum: a packed chunk of bf16 has two thirds of its values' bytes.
const TURNS: u32 = 12;
/// Lines that are asked for beyond one a block: together as much as is summed up.
const MORE: usize = 4;
/// A line is summed up when this many bytes were asked for after it.
const LEAD: usize = 8 << 10;

/// What is left to do with the bytes that are wanted next.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    lines: &'a [u8],
    sum: Option<Sum<'a>>,
    turn: u32,
}

impl<'a> Ahead<'a> {
    /// Bytes that are only asked for.
    pub(super) fn new(bytes: &'a [u8]) -> Ahead<'a> {
        Ahead { lines: bytes, sum: None, turn: 0 }
    }

    /// Bytes whose checksum is wanted, too.
    pub(super) fn summed(bytes: &'a [u8]) -> Ahead<'a> {
        Ahead { lines: bytes, sum: Some(Sum::new(bytes)), turn: 0 }
    }

    /// Asks for a line into the second cache, which has room for chunks.
    #[inline(always)]
    pub(super) fn fetch(&mut self) {
        if let Some((line, rest)) = self.lines.split_at_checked(LINE) {
            fetch(line);
            self.lines = rest;
        }
    }

    /// Asks for a line, and sums up what has come: once for each block of 64 values.
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
        if let Some(sum) = &mut self.sum
            && (self.lines.len() < LINE || sum.left() >= self.lines.len() + LEAD)
        {
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
