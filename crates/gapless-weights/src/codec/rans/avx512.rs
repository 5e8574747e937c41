//! The paths of `rans` with AVX-512. Its portable code defines the results.

use super::{Ahead, BITS, LANES, START, SUM, Table};
use std::arch::x86_64::*;

/// As `encode`, by the fastest look-up of the symbols that occur. The lowest five or six bits distinguish almost all
/// exponents of a chunk, so permutations replace gathers and divisions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
pub(super) fn encode_any(
    blocks: &[[u8; LANES]],
    table: &[u32; 256],
    states: &mut [u32; LANES],
    words: &mut [u16],
    first: usize,
    ahead: &mut Ahead,
) -> usize {
    // True if no two of the symbols that occur have the same lowest bits.
    let differ = |bits: u32| {
        let mut seen = 0u64;
        table.iter().zip(0u32..).filter(|(entry, _)| **entry & 0xffff != 0).all(|(_, symbol)| {
            let bit = 1 << (symbol % (1 << bits));
            let is_new = seen & bit == 0;
            seen |= bit;
            is_new
        })
    };
    if differ(5) {
        encode::<1>(blocks, table, states, words, first, ahead)
    } else if differ(6) {
        encode::<2>(blocks, table, states, words, first, ahead)
    } else {
        encode::<0>(blocks, table, states, words, first, ahead)
    }
}

/// Takes whole blocks into the states, the last ones first, as `super::take` does. An entry of the table is a
/// symbol's frequency f and, 16 bits higher, its start. With `PAIRS` of registers, 1 or 2, they are looked up there
/// by the lowest five or six bits of the symbol, which differ for all symbols that occur.
///
/// Quotients x / f come from single precision: the estimate is the quotient or one less, and the remainder shows
/// which. x < f * 2^20, so the quotient is below 2^20. An inverse of f with 14 bits after a step of Newton's, 2^-21
/// too small on purpose, is too small by 2^-21 - 3 * 2^-24 at least, which the two roundings of x and of the product
/// do not make up for, and the estimate by less than 2^20 * 12.1 * 2^-24 < 1.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
pub(super) fn encode<const PAIRS: usize>(
    blocks: &[[u8; LANES]],
    table: &[u32; 256],
    states: &mut [u32; LANES],
    words: &mut [u16],
    mut first: usize,
    ahead: &mut Ahead,
) -> usize {
    let mut x = [_mm512_setzero_si512(); 4];
    for (x, states) in x.iter_mut().zip(states.as_chunks::<16>().0) {
        // SAFETY: the array has the 64 bytes that are read.
        *x = unsafe { _mm512_loadu_si512(states.as_ptr().cast()) };
    }
    let two = _mm512_set1_ps(2.0 - 1.0 / (1 << 21) as f32);
    let invert = |f: __m512| {
        let inverse = _mm512_rcp14_ps(f);
        _mm512_mul_ps(inverse, _mm512_fnmadd_ps(f, inverse, two))
    };
    // Entries and inverses by the lowest five or six bits of the symbol.
    let (mut entries, mut inverses) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_ps(); 4]);
    if PAIRS > 0 {
        let mut short = [1u32; 64];
        for (symbol, entry) in table.iter().enumerate().filter(|(_, entry)| **entry & 0xffff != 0) {
            short[symbol % (32 * PAIRS)] = *entry;
        }
        let parts = entries.iter_mut().zip(&mut inverses).zip(short.as_chunks::<16>().0);
        for ((entries, inverses), short) in parts {
            // SAFETY: the array has the 64 bytes that are read.
            *entries = unsafe { _mm512_loadu_si512(short.as_ptr().cast()) };
            let frequency = _mm512_and_si512(*entries, _mm512_set1_epi32(0xffff));
            *inverses = invert(_mm512_cvtepi32_ps(frequency));
        }
    }
    for block in blocks.iter().rev() {
        ahead.fetch();
        let (from, room) = words[..first].split_last_chunk_mut::<LANES>().expect("room for a block's words");
        let mut left = LANES;
        for (x, items) in x.iter_mut().zip(block.as_chunks::<16>().0).rev() {
            // SAFETY: the array has the 16 bytes that are read.
            let items = unsafe { _mm_loadu_si128(items.as_ptr().cast()) };
            let symbols = _mm512_cvtepu8_epi32(items);
            let entry = if PAIRS == 0 {
                // SAFETY: every index is a byte, and the table has 256 entries.
                unsafe { _mm512_i32gather_epi32::<4>(symbols, table.as_ptr().cast()) }
            } else {
                _mm512_permutex2var_epi32(entries[0], symbols, entries[1])
            };
            let upper = _mm512_test_epi32_mask(symbols, _mm512_set1_epi32(32));
            let entry = if PAIRS == 2 {
                let above = _mm512_permutex2var_epi32(entries[2], symbols, entries[3]);
                _mm512_mask_mov_epi32(entry, upper, above)
            } else {
                entry
            };
            let (frequency, start) =
                (_mm512_and_si512(entry, _mm512_set1_epi32(0xffff)), _mm512_srli_epi32::<16>(entry));
            let limit = _mm512_slli_epi32::<{ 32 - BITS }>(frequency);
            let spill = _mm512_cmpge_epu32_mask(*x, limit);
            let kept = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(spill, *x));
            let count = spill.count_ones() as usize;
            left -= count;
            // SAFETY: at most 16 of the block's 64 words are written for each 16 items, so `left` is not below 0, and
            // the mask has as many bits as there are words from `left` to the words written before.
            unsafe {
                let mask = ((1u32 << count) - 1) as u16;
                _mm256_mask_storeu_epi16(room.as_mut_ptr().add(left).cast(), mask, kept);
            }
            let y = _mm512_mask_srli_epi32::<16>(*x, spill, *x);
            let inverse = if PAIRS == 0 {
                invert(_mm512_cvtepi32_ps(frequency))
            } else {
                _mm512_permutex2var_ps(inverses[0], symbols, inverses[1])
            };
            let inverse = if PAIRS == 2 {
                let above = _mm512_permutex2var_ps(inverses[2], symbols, inverses[3]);
                _mm512_mask_mov_ps(inverse, upper, above)
            } else {
                inverse
            };
            let quotient = _mm512_cvttps_epu32(_mm512_mul_ps(_mm512_cvtepu32_ps(y), inverse));
            let rest = _mm512_sub_epi32(y, _mm512_mullo_epi32(quotient, frequency));
            // One more: the remainder falls by f, the quotient's 4096 is added.
            let more = _mm512_cmpge_epu32_mask(rest, frequency);
            let complement = _mm512_sub_epi32(_mm512_set1_epi32(SUM as i32), frequency);
            let y = _mm512_add_epi32(_mm512_slli_epi32::<BITS>(quotient), _mm512_add_epi32(rest, start));
            *x = _mm512_mask_add_epi32(y, more, y, complement);
        }
        first = from.len() + left;
    }
    for (x, states) in x.iter().zip(states.as_chunks_mut::<16>().0) {
        // SAFETY: the array has the 64 bytes that are written.
        unsafe { _mm512_storeu_si512(states.as_mut_ptr().cast(), *x) };
    }
    first
}

/// Decodes whole blocks of 64 items while a block's worth of words is left; returns the items and the words done.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
pub(super) fn decode(
    table: &Table,
    words: &[[u8; 2]],
    states: &mut [u32; LANES],
    out: &mut [u8],
    ahead: &mut Ahead,
) -> (usize, usize) {
    let mut x = [_mm512_setzero_si512(); 4];
    for (x, states) in x.iter_mut().zip(states.as_chunks::<16>().0) {
        // SAFETY: the array has the 64 bytes that are read.
        *x = unsafe { _mm512_loadu_si512(states.as_ptr().cast()) };
    }
    let (slot, least) = (_mm512_set1_epi32(SUM as i32 - 1), _mm512_set1_epi32(START as i32));
    let (mut done, mut used) = (0, 0);
    for block in out.as_chunks_mut::<LANES>().0 {
        let Some(next) = words.get(used..used + LANES) else { break };
        ahead.step();
        let mut taken = 0;
        // All gathers come first, for processors that wait for each gather: the rest then does not wait between.
        let entries = x.map(|x| {
            let index = _mm512_and_si512(x, slot);
            // SAFETY: every index is below 4096, the length of the table.
            unsafe { _mm512_i32gather_epi32::<4>(index, table.as_ptr().cast()) }
        });
        for ((x, entry), items) in x.iter_mut().zip(entries).zip(block.as_chunks_mut::<16>().0) {
            let symbols = _mm512_cvtepi32_epi8(entry);
            // SAFETY: the array has the 16 bytes that are written.
            unsafe { _mm_storeu_si128(items.as_mut_ptr().cast(), symbols) };
            let distance = _mm512_and_si512(_mm512_srli_epi32::<8>(entry), slot);
            let product = _mm512_mullo_epi32(_mm512_srli_epi32::<20>(entry), _mm512_srli_epi32::<BITS>(*x));
            let y = _mm512_add_epi32(product, distance);
            let low = _mm512_cmplt_epu32_mask(y, least);
            // At most 48 words of the block's 64 were taken before its last 16 items.
            let (window, _) = next[taken & 63..].split_first_chunk::<16>().unwrap_or((&[[0; 2]; 16], &[]));
            // SAFETY: the array has the 32 bytes that are read.
            let words = unsafe { _mm256_loadu_si256(window.as_ptr().cast()) };
            let words = _mm512_maskz_expand_epi32(low, _mm512_cvtepu16_epi32(words));
            *x = _mm512_or_si512(_mm512_mask_slli_epi32::<16>(y, low, y), words);
            taken += low.count_ones() as usize;
        }
        used += taken;
        done += LANES;
    }
    for (x, states) in x.iter().zip(states.as_chunks_mut::<16>().0) {
        // SAFETY: the array has the 64 bytes that are written.
        unsafe { _mm512_storeu_si512(states.as_mut_ptr().cast(), *x) };
    }
    (done, used)
}
