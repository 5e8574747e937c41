//! Memory that is wanted soon, asked for while something else is computed.
//!
//! A core waits for what stands beyond its second cache, and its own prefetching ends with each page of 4 KiB: reading
//! a chunk took as long as decoding it. So the loops over one chunk ask for the lines of the next one, a line a block.

const LINE: usize = 64;

/// Lines that are still to be asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead<'a> {
    lines: &'a [u8],
}

impl<'a> Ahead<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Ahead<'a> {
        Ahead { lines: bytes }
    }

    /// Asks for the next line into the second cache, which has room for chunks.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        if let Some((line, rest)) = self.lines.split_at_checked(LINE) {
            fetch(line);
            self.lines = rest;
        }
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
