//! The cascade's blocks with AVX2: 64 items as two halves of 32; escapes are expanded 8 at a time through a table of
//! 2 KiB.
//!
//! As in the AVX-512 path, every load and store goes through an array of the right length. Each caller has its own
//! equal version of a block function, because the compiler always inlines a function with one caller.
#![allow(unsafe_code)]

use super::ahead::{Ahead, SOON, TURNS, soon};
use super::portable;
use std::arch::x86_64::*;

/// The index of the next byte for item k of a group; 0x80 (a zero byte) if bit k of the mask is clear.
const fn expand_table() -> [[u8; 8]; 256] {
    let mut table = [[0x80u8; 8]; 256];
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

/// The positions of a mask's set bits, then 0x80.
const fn compress_table() -> [[u8; 8]; 256] {
    let mut table = [[0x80u8; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut k, mut next) = (0, 0);
        while k < 8 {
            if mask >> k & 1 == 1 {
                table[mask][next] = k;
                next += 1;
            }
            k += 1;
        }
        mask += 1;
    }
    table
}
static COMPRESS: [[u8; 8]; 256] = compress_table();

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the array has the 32 bytes that are read; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(bytes: &mut [u8; 32], value: __m256i) {
    // SAFETY: the array has the 32 bytes that are written; the store needs no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), value) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn put<const STREAM: bool>(bytes: &mut [u8; 32], value: __m256i) {
    if STREAM && (bytes.as_ptr() as usize).is_multiple_of(32) {
        // SAFETY: the array has the 32 bytes that are written, and the condition above checked that it is aligned.
        unsafe { _mm256_stream_si256(bytes.as_mut_ptr().cast(), value) }
    } else {
        store(bytes, value);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn eight(bytes: &[u8; 8]) -> __m128i {
    _mm_set_epi64x(0, i64::from_le_bytes(*bytes))
}

/// 32 bits to 32 bytes of 0 or 0xff. With `FIRST` the second and the third eight are swapped: see `decode_first`. The
/// bits come from memory, because a broadcast from there needs no shuffle.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes<const FIRST: bool>(mask: &[u8; 4]) -> __m256i {
    let (second, third) = (0x0101_0101_0101_0101, 0x0202_0202_0202_0202);
    let (second, third) = if FIRST { (third, second) } else { (second, third) };
    let each = _mm256_setr_epi64x(0, second, third, 0x0303_0303_0303_0303);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
    let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(*mask)), each);
    _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit)
}

#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn expand(mask: u64, window: &[u8; 72], position: &mut usize) -> __m128i {
    let mask = usize::from(mask as u8);
    // At most 56 symbols of the block were taken before its last group.
    let (next, _) = window[*position & 63..].split_first_chunk::<8>().expect("64 and 8 bytes");
    *position += mask.count_ones() as usize;
    _mm_shuffle_epi8(eight(next), eight(&EXPAND[mask]))
}

#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn block<const B: usize, const FIRST: bool, const STREAM: bool>(
    planes: &[u8],
    palette: __m256i,
    source: &[u8],
    position: &mut usize,
) -> [__m256i; 2] {
    let mut escaped = !0u64;
    for bytes in planes.as_chunks::<8>().0.iter().take(B) {
        escaped &= u64::from_le_bytes(*bytes);
    }
    let fours = planes.as_chunks::<4>().0;
    let (window, _) =
        source[*position..].split_first_chunk::<72>().expect("tables have slack behind every position");
    let mut taken = 0;
    let mut halves = [_mm256_setzero_si256(); 2];
    for (h, half) in halves.iter_mut().enumerate() {
        let mut code = _mm256_setzero_si256();
        for (b, [low, high]) in fours.as_chunks::<2>().0.iter().enumerate().take(B) {
            let bit = bytes::<FIRST>(if h == 0 { low } else { high });
            code = _mm256_or_si256(code, _mm256_and_si256(bit, _mm256_set1_epi8(1 << b)));
        }
        let symbols = _mm256_shuffle_epi8(palette, code);
        let mask = escaped >> (32 * h);
        let a = expand(mask, window, &mut taken);
        let b = expand(mask >> 8, window, &mut taken);
        let c = expand(mask >> 16, window, &mut taken);
        let d = expand(mask >> 24, window, &mut taken);
        let (second, third) = if FIRST { (c, b) } else { (b, c) };
        let more = _mm256_set_m128i(_mm_unpacklo_epi64(third, d), _mm_unpacklo_epi64(a, second));
        *half = _mm256_or_si256(symbols, more);
    }
    *position += escaped.count_ones() as usize;
    halves
}

#[target_feature(enable = "avx2,popcnt")]
pub(super) fn decode_level<const B: usize>(
    planes: &[u8],
    palette: &[u8; 8],
    source: &[u8],
    out: &mut [u8],
    ahead: &mut Ahead,
) -> usize {
    let mut position = 0;
    let palette = _mm256_broadcastsi128_si256(eight(palette));
    for (out, planes) in out.as_chunks_mut::<64>().0.iter_mut().zip(planes.chunks_exact(8 * B)) {
        ahead.fetch();
        let halves = block::<B, false, false>(planes, palette, source, &mut position);
        for (to, half) in out.as_chunks_mut::<32>().0.iter_mut().zip(halves) {
            store(to, half);
        }
    }
    position
}

#[target_feature(enable = "avx2,popcnt")]
pub(super) fn decode_first<const B: usize, const STREAM: bool>(
    low: &[[u8; 64]],
    planes: &[u8],
    palette: &[u8; 8],
    source: &[u8],
    out: &mut [[u8; 128]],
    ahead: &mut Ahead,
) -> usize {
    let mut position = 0;
    let palette = _mm256_broadcastsi128_si256(eight(palette));
    let parts = out.chunks_mut(TURNS).zip(low.chunks(TURNS)).zip(planes.chunks(8 * B * TURNS));
    for ((out, low), planes) in parts {
        let lines = ahead.steps();
        let blocks = out.iter_mut().zip(low).zip(planes.chunks_exact(8 * B)).enumerate();
        for (number, ((out, low), planes)) in blocks {
            lines.fetch(number);
            soon(low, SOON);
            let halves = block::<B, true, STREAM>(planes, palette, source, &mut position);
            let outs = out.as_chunks_mut::<64>().0;
            // Bytes are interleaved in each half of a vector, so the second and the third eight are swapped first.
            // The symbols were swapped already.
            for ((out, low), high) in outs.iter_mut().zip(low.as_chunks::<32>().0).zip(halves) {
                let low = _mm256_permute4x64_epi64::<0b11011000>(load(low));
                let quarters = [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)];
                for (to, values) in out.as_chunks_mut::<32>().0.iter_mut().zip(quarters) {
                    let turned =
                        _mm256_or_si256(_mm256_srli_epi16::<1>(values), _mm256_slli_epi16::<15>(values));
                    put::<STREAM>(to, turned);
                }
            }
        }
    }
    position
}

/// Values of 16 bits from blocks of their low and their high bytes.
#[target_feature(enable = "avx2")]
pub(super) fn join<const STREAM: bool>(
    low: &[[u8; 64]],
    high: &[[u8; 64]],
    out: &mut [[u8; 128]],
    ahead: &mut Ahead,
) -> usize {
    let blocks = out.len().min(low.len()).min(high.len());
    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
        ahead.step();
        let halves = low.as_chunks::<32>().0.iter().zip(high.as_chunks::<32>().0);
        for (out, (low, high)) in out.as_chunks_mut::<64>().0.iter_mut().zip(halves) {
            let low = _mm256_permute4x64_epi64::<0b11011000>(load(low));
            let high = _mm256_permute4x64_epi64::<0b11011000>(load(high));
            let quarters = [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)];
            for (to, values) in out.as_chunks_mut::<32>().0.iter_mut().zip(quarters) {
                let turned = _mm256_or_si256(_mm256_srli_epi16::<1>(values), _mm256_slli_epi16::<15>(values));
                put::<STREAM>(to, turned);
            }
        }
    }
    blocks
}

/// Planes of 64 symbols, of which `valid` exist; the escaped ones go to `out[position..]`.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn encode_block<const B: usize, const FIRST: bool>(
    halves: [__m256i; 2],
    valid: u64,
    palette: &[__m256i; 7],
    planes: &mut [u8],
    out: &mut [u8],
    position: usize,
) -> usize {
    let (mut words, mut hit) = ([0u64; B], !valid);
    for (code, symbol) in palette.iter().enumerate().take((1 << B) - 1) {
        let low = u64::from(_mm256_movemask_epi8(_mm256_cmpeq_epi8(halves[0], *symbol)) as u32);
        let high = u64::from(_mm256_movemask_epi8(_mm256_cmpeq_epi8(halves[1], *symbol)) as u32);
        let equal = (low | high << 32) & !hit;
        hit |= equal;
        for (b, word) in words.iter_mut().enumerate() {
            if code >> b & 1 == 1 {
                *word |= equal;
            }
        }
    }
    let escaped = !hit;
    for (bytes, word) in planes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = (word | escaped).to_le_bytes();
    }
    let (room, _) =
        out[position..].split_first_chunk_mut::<72>().expect("tables have slack behind every position");
    let mut taken = 0;
    for group in 0..8 {
        let half = halves[group / 4];
        let quarter =
            if group % 4 < 2 { _mm256_castsi256_si128(half) } else { _mm256_extracti128_si256::<1>(half) };
        let symbols = if group % 2 == 0 { quarter } else { _mm_unpackhi_epi64(quarter, quarter) };
        let mask = usize::from((escaped >> (8 * group)) as u8);
        let kept = _mm_shuffle_epi8(symbols, eight(&COMPRESS[mask]));
        let (to, _) = room[taken & 63..].split_first_chunk_mut::<8>().expect("64 and 8 bytes");
        *to = _mm_cvtsi128_si64(kept).to_le_bytes();
        taken += mask.count_ones() as usize;
    }
    taken
}

#[inline]
#[target_feature(enable = "avx2")]
fn each(palette: &[u8; 8]) -> [__m256i; 7] {
    std::array::from_fn(|i| _mm256_set1_epi8(palette[i] as i8))
}

#[target_feature(enable = "avx2,popcnt")]
pub(super) fn encode_first<const B: usize>(
    values: &[u8],
    codes: &[u8; 8],
    low: &mut [[u8; 64]],
    planes: &mut [u8],
    out: &mut [u8],
    ahead: &mut Ahead,
) -> usize {
    let byte = _mm256_set1_epi16(255);
    let (palette, mut position) = (each(codes), 0);
    let (whole, rest) = values.as_chunks::<128>();
    for ((block, low), planes) in whole.iter().zip(&mut *low).zip(planes.chunks_exact_mut(8 * B)) {
        ahead.fetch();
        let mut halves = [_mm256_setzero_si256(); 2];
        let quarters = block.as_chunks::<64>().0;
        for ((half, from), low) in halves.iter_mut().zip(quarters).zip(low.as_chunks_mut::<32>().0) {
            let [a, b] = from.as_chunks::<32>().0 else { continue };
            let (a, b) = (load(a), load(b));
            let a = _mm256_or_si256(_mm256_slli_epi16::<1>(a), _mm256_srli_epi16::<15>(a));
            let b = _mm256_or_si256(_mm256_slli_epi16::<1>(b), _mm256_srli_epi16::<15>(b));
            let lows = _mm256_packus_epi16(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
            let highs = _mm256_packus_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b));
            store(low, _mm256_permute4x64_epi64::<0b11011000>(lows));
            *half = _mm256_permute4x64_epi64::<0b11011000>(highs);
        }
        position += encode_block::<B, true>(halves, !0, &palette, planes, out, position);
    }
    if !rest.is_empty() {
        let (low, planes) = (&mut low[whole.len()..], &mut planes[8 * B * whole.len()..]);
        position += portable::encode_first::<B>(rest, codes, low, planes, &mut out[position..], ahead);
    }
    position
}

#[target_feature(enable = "avx2,popcnt")]
pub(super) fn encode_level<const B: usize>(
    source: &[u8],
    count: usize,
    palette: &[u8; 8],
    planes: &mut [u8],
    out: &mut [u8],
    ahead: &mut Ahead,
) -> usize {
    let (palette, mut position) = (each(palette), 0);
    let blocks = source.as_chunks::<64>().0.iter().zip(planes.chunks_exact_mut(8 * B));
    for (i, (symbols, planes)) in blocks.take(count.div_ceil(64)).enumerate() {
        ahead.fetch();
        let left = count - 64 * i;
        let valid = if left >= 64 { !0u64 } else { (1u64 << left) - 1 };
        let [a, b] = symbols.as_chunks::<32>().0 else { continue };
        position += encode_block::<B, false>([load(a), load(b)], valid, &palette, planes, out, position);
    }
    position
}
