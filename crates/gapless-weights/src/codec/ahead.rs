//! Work beside decoding or encoding a chunk: prefetching lines of the next one, and a checksum.
//!
//! A core waits for bytes beyond its second cache, and its own prefetching stops at each page of 4 KiB, so that
//! reading a chunk took as long as decoding it. So the loops over one chunk prefetch the lines of the next one. While
//! a core waits for its stores, it has time for a checksum. The checksum runs ahead of the decoder: its loads wait
//! for the second cache all at once, and the decoder then finds its bytes in the first.

use crate::checksum::Sum;

const LINE: usize = 64;
/// A block of the checksum.
const BLOCK: usize = 1024;
/// Blocks of 64 values to a block of 1 KiB of the checksum: low bytes come first in a chunk, one for each value.
pub(super) const TURNS: usize = 16;
/// Lines that are prefetched in that time beyond one a block: a chunk is a third longer than its low bytes, or more.
const MORE: usize = 6;

/// Blocks of 1 KiB by which the checksum is ahead of the decoder.
const LEAD: usize = 2;

/// Low bytes are prefetched this far ahead of the decoder. Stores past the caches leave few buffers for loads that
/// miss the first one, and a core's own prefetching does not reach so far. This saves a tenth of the time.
pub(super) const SOON: usize = 3 << 10;

/// The rest of this work.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    lines: &'a [u8],
    sum: Option<Sum<'a>>,
    turn: usize,
}

impl<'a> Ahead<'a> {
    /// Prefetches the lines of `next`.
    pub(super) fn new(next: &'a [u8]) -> Ahead<'a> {
        Ahead { lines: next, sum: None, turn: 0 }
    }

    /// Prefetches the lines of `next`, and takes the checksum of `bytes`.
    pub(super) fn summing(bytes: &'a [u8], next: &'a [u8]) -> Ahead<'a> {
        let mut sum = Sum::new(bytes);
        (0..LEAD).for_each(|_| sum.step());
        Ahead { lines: next, sum: Some(sum), turn: 0 }
    }

    /// Prefetches a line into the second cache, which has room for chunks.
    #[inline(always)]
    pub(super) fn fetch(&mut self) {
        if let Some((line, rest)) = self.lines.split_at_checked(LINE) {
            fetch::<false>(line.as_ptr());
            self.lines = rest;
        }
    }

    /// Prefetches a line, and sums up the bytes that are decoded next: once for each block of 64 values.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        self.fetch();
        self.turn += 1;
        if self.turn == TURNS {
            self.turn = 0;
            self.sum_up();
        }
    }

    /// As `step` for 16 blocks, but the caller prefetches the 16 lines through [`Lines`].
    pub(super) fn steps(&mut self) -> Lines {
        let (lines, rest) = self.lines.split_at(self.lines.len().min(TURNS * LINE));
        self.lines = rest;
        let lines = Lines(if lines.is_empty() { NOTHING.as_ptr() } else { lines.as_ptr() });
        self.sum_up();
        lines
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

    /// Moves an encoded chunk to its place, returns its checksum, and prefetches the remaining lines meanwhile. With
    /// `past_caches` the bytes go directly to memory if `to` is aligned: they are not read soon, and the core need
    /// not fetch the lines that it overwrites. The caller then calls [`settle`].
    pub(super) fn move_out(&mut self, chunk: &[u8], to: &mut [u8], past_caches: bool) -> u64 {
        let mut sum = Sum::new(chunk);
        let lines = self.lines.len() / LINE;
        let each = lines.div_ceil((chunk.len() / BLOCK).max(1));
        for (from, to) in chunk.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
            (0..each).for_each(|_| self.fetch());
            sum.step();
            put(from, to, past_caches);
        }
        sum.finish()
    }

    /// The checksum, or that of no bytes if none was wanted.
    pub(super) fn finish(self) -> u64 {
        self.sum.unwrap_or_else(|| Sum::new(&[])).finish()
    }
}

/// Lines that are prefetched if none are left. The processor would look up an unmapped address again each time.
static NOTHING: [u8; TURNS * LINE] = [0; TURNS * LINE];

/// Lines to prefetch one after another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines(*const u8);

impl Lines {
    /// Prefetches line `number`. A number past the end of the bytes does no harm.
    #[inline(always)]
    pub(super) fn fetch(self, number: usize) {
        fetch::<false>(self.0.wrapping_add(LINE * number));
    }
}

/// Prefetches the line `bytes` after `from` into the first cache.
#[inline(always)]
pub(super) fn soon(from: &[u8], bytes: usize) {
    fetch::<true>(from.as_ptr().wrapping_add(bytes));
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[inline(always)]
fn fetch<const FIRST: bool>(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
    // SAFETY: a prefetch changes no memory and does not fault, even at an unmapped address.
    unsafe {
        if FIRST {
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        } else {
            _mm_prefetch::<_MM_HINT_T1>(line.cast());
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn fetch<const FIRST: bool>(_: *const u8) {}

/// Copies bytes of the same length, past the caches if the caller wants that and lines are aligned.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn put(from: &[u8], to: &mut [u8], past_caches: bool) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128, _mm512_loadu_si512, _mm512_stream_si512};
    #[target_feature(enable = "avx512f")]
    fn lines(from: &[[u8; LINE]], to: &mut [[u8; LINE]]) {
        for (from, to) in from.iter().zip(to) {
            // SAFETY: both arrays have 64 bytes, and `put` checked below that `to` is aligned to a line.
            unsafe { _mm512_stream_si512(to.as_mut_ptr().cast(), _mm512_loadu_si512(from.as_ptr().cast())) };
        }
    }
    if !past_caches || !(to.as_ptr() as usize).is_multiple_of(LINE) || !from.len().is_multiple_of(LINE) {
        return to.copy_from_slice(from);
    }
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: `is_x86_feature_detected` found AVX-512F.
        return unsafe { lines(from.as_chunks().0, to.as_chunks_mut().0) };
    }
    for (from, to) in from.as_chunks::<16>().0.iter().zip(to.as_chunks_mut::<16>().0) {
        // SAFETY: both arrays have 16 bytes, and the second is aligned: `to` begins on a line, as checked above.
        unsafe { _mm_stream_si128(to.as_mut_ptr().cast(), _mm_loadu_si128(from.as_ptr().cast())) };
    }
}

/// Waits until all threads can see stores that went past the caches. It runs once behind all chunks, because behind
/// each chunk it takes a twentieth of the time.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
pub(crate) fn settle() {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { std::arch::x86_64::_mm_sfence() }
}

#[cfg(not(target_arch = "x86_64"))]
fn put(from: &[u8], to: &mut [u8], _: bool) {
    to.copy_from_slice(from);
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn settle() {}
