//! The path of `rans` with AVX2. Its portable code defines the results.

use super::{Ahead, BITS, LANES, START, SUM, Table};
use std::arch::x86_64::*;

/// The index of the next word for lane k, by the mask of the lanes that take one.
const fn expand_table() -> [[u8; 8]; 256] {
    let mut table = [[0u8; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut k, mut next) = (0, 0);
        while k < 8 {
            if mask >> k & 1 == 1 {
                table[mask][k] = next;
                next += 1;
            }
            k += 1;
        }
        mask += 1;
    }
    table
}
static EXPAND: [[u8; 8]; 256] = expand_table();

/// Decodes whole blocks of 64 items while a block's worth of words is left; returns the items and the words done.
#[target_feature(enable = "avx2,popcnt")]
pub(super) fn decode(
    table: &Table,
    words: &[[u8; 2]],
    states: &mut [u32; LANES],
    out: &mut [u8],
    ahead: &mut Ahead,
) -> (usize, usize) {
    let mut x = [_mm256_setzero_si256(); 8];
    for (x, states) in x.iter_mut().zip(states.as_chunks::<8>().0) {
        // SAFETY: the array has the 32 bytes that are read.
        *x = unsafe { _mm256_loadu_si256(states.as_ptr().cast()) };
    }
    let (slot, least) = (_mm256_set1_epi32(SUM as i32 - 1), _mm256_set1_epi32(START as i32 - 1));
    let symbol = _mm256_set1_epi32(255);
    let (mut done, mut used) = (0, 0);
    for block in out.as_chunks_mut::<LANES>().0 {
        let Some(next) = words.get(used..used + LANES) else { break };
        ahead.step();
        let mut taken = 0;
        for (x, items) in x.iter_mut().zip(block.as_chunks_mut::<8>().0) {
            let index = _mm256_and_si256(*x, slot);
            // SAFETY: every index is below 4096, the length of the table.
            let entry = unsafe { _mm256_i32gather_epi32::<4>(table.as_ptr().cast(), index) };
            let symbols = _mm256_and_si256(entry, symbol);
            let pairs =
                _mm_packus_epi32(_mm256_castsi256_si128(symbols), _mm256_extracti128_si256::<1>(symbols));
            *items = _mm_cvtsi128_si64(_mm_packus_epi16(pairs, pairs)).to_le_bytes();
            let distance = _mm256_and_si256(_mm256_srli_epi32::<8>(entry), slot);
            let product =
                _mm256_mullo_epi32(_mm256_srli_epi32::<20>(entry), _mm256_srli_epi32::<{ BITS as i32 }>(*x));
            let y = _mm256_add_epi32(product, distance);
            // Unsigned y <= least.
            let low = _mm256_cmpeq_epi32(_mm256_min_epu32(y, least), y);
            let mask = usize::from(_mm256_movemask_ps(_mm256_castsi256_ps(low)) as u8);
            // At most 56 words of the block's 64 were taken before its last 8 items.
            let (window, _) = next[taken & 63..].split_first_chunk::<8>().unwrap_or((&[[0; 2]; 8], &[]));
            // SAFETY: the array has the 16 bytes that are read.
            let words = unsafe { _mm_loadu_si128(window.as_ptr().cast()) };
            let order = _mm256_cvtepu8_epi32(_mm_set_epi64x(0, i64::from_le_bytes(EXPAND[mask])));
            let words = _mm256_permutevar8x32_epi32(_mm256_cvtepu16_epi32(words), order);
            let refilled = _mm256_or_si256(_mm256_slli_epi32::<16>(y), words);
            *x = _mm256_blendv_epi8(y, refilled, low);
            taken += mask.count_ones() as usize;
        }
        used += taken;
        done += LANES;
    }
    for (x, states) in x.iter().zip(states.as_chunks_mut::<8>().0) {
        // SAFETY: the array has the 32 bytes that are written.
        unsafe { _mm256_storeu_si256(states.as_mut_ptr().cast(), *x) };
    }
    (done, used)
}
