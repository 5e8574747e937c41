//! The cascade's blocks with AVX-512 VBMI2: 64 items in about ten instructions, no branches.
//!
//! Every load and store goes through an array of the right length, so that no access can leave its slice. The only
//! check in a loop is that of the escaped symbols' position. Each caller has its own equal version of a block
//! function, because the compiler always inlines a function with one caller.
#![allow(unsafe_code)]

use super::ahead::{Ahead, SOON, TURNS, soon};
use super::portable;
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the array has the 64 bytes that are read; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(bytes: &mut [u8; 64], value: __m512i) {
    // SAFETY: the array has the 64 bytes that are written; the store needs no alignment.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), value) }
}

/// Stores past the caches with `STREAM`, if the memory is aligned to 64 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn put<const STREAM: bool>(bytes: &mut [u8; 64], value: __m512i) {
    if STREAM && (bytes.as_ptr() as usize).is_multiple_of(64) {
        // SAFETY: the array has the 64 bytes that are written, and the condition above checked that it is aligned.
        unsafe { _mm512_stream_si512(bytes.as_mut_ptr().cast(), value) }
    } else {
        store(bytes, value);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn next64(source: &[u8], position: usize) -> __m512i {
    let (window, _) =
        source[position..].split_first_chunk::<64>().expect("tables have slack behind every position");
    load(window)
}

fn word(planes: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&planes[8 * at..8 * at + 8]);
    u64::from_le_bytes(bytes)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
fn block<const B: usize, const FIRST: bool, const STREAM: bool>(
    planes: &[u8],
    palette: &[__m512i; 4],
) -> (__m512i, u64) {
    let p0 = word(planes, 0);
    if B == 1 {
        return (palette[0], p0);
    }
    let p1 = word(planes, 1);
    if B == 2 {
        let low = _mm512_mask_blend_epi8(p0, palette[0], palette[1]);
        return (_mm512_mask_blend_epi8(p1, low, palette[2]), p0 & p1);
    }
    let p2 = word(planes, 2);
    let mut code = _mm512_maskz_set1_epi8(p0, 1);
    code = _mm512_mask_add_epi8(code, p1, code, _mm512_set1_epi8(2));
    code = _mm512_mask_add_epi8(code, p2, code, _mm512_set1_epi8(4));
    (_mm512_shuffle_epi8(palette[3], code), p0 & p1 & p2)
}

/// The first three entries in every byte, and all of them once in each 16 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn splat(palette: &[u8; 8]) -> [__m512i; 4] {
    let all = |i: usize| _mm512_set1_epi8(palette[i] as i8);
    let eight = _mm_set_epi64x(0, i64::from_le_bytes(*palette));
    [all(0), all(1), all(2), _mm512_broadcast_i32x4(eight)]
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
pub(super) fn decode_level<const B: usize>(
    planes: &[u8],
    palette: &[u8; 8],
    source: &[u8],
    out: &mut [u8],
    ahead: &mut Ahead,
) -> usize {
    let (palette, mut position) = (splat(palette), 0);
    for (out, planes) in out.as_chunks_mut::<64>().0.iter_mut().zip(planes.chunks_exact(8 * B)) {
        ahead.fetch();
        let (symbols, escaped) = block::<B, false, false>(planes, &palette);
        let symbols = _mm512_mask_expand_epi8(symbols, escaped, next64(source, position));
        store(out, symbols);
        position += escaped.count_ones() as usize;
    }
    position
}

const fn interleave(from: u8) -> [u8; 64] {
    let mut table = [0u8; 64];
    let mut i = 0;
    while i < 32 {
        table[2 * i] = from + i as u8; // the low byte of a value
        table[2 * i + 1] = 64 + from + i as u8; // its high byte
        i += 1;
    }
    table
}
static LOW: [u8; 64] = interleave(0);
static HIGH: [u8; 64] = interleave(32);

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
pub(super) fn decode_first<const B: usize, const STREAM: bool>(
    low: &[[u8; 64]],
    planes: &[u8],
    palette: &[u8; 8],
    source: &[u8],
    out: &mut [[u8; 128]],
    ahead: &mut Ahead,
) -> usize {
    let (palette, mut position) = (splat(palette), 0);
    let (first, second) = (load(&LOW), load(&HIGH));
    let parts = out.chunks_mut(TURNS).zip(low.chunks(TURNS)).zip(planes.chunks(8 * B * TURNS));
    for ((out, low), planes) in parts {
        let lines = ahead.steps();
        let blocks = out.iter_mut().zip(low).zip(planes.chunks_exact(8 * B)).enumerate();
        for (number, ((out, low), planes)) in blocks {
            lines.fetch(number);
            soon(low, SOON);
            soon(planes, SOON / 4);
            soon(&source[position..], SOON / 4);
            let (symbols, escaped) = block::<B, true, STREAM>(planes, &palette);
            let symbols = _mm512_mask_expand_epi8(symbols, escaped, next64(source, position));
            position += escaped.count_ones() as usize;
            let low = load(low);
            let a = _mm512_permutex2var_epi8(low, first, symbols);
            let b = _mm512_permutex2var_epi8(low, second, symbols);
            let [to_a, to_b] = out.as_chunks_mut::<64>().0 else { continue };
            put::<STREAM>(to_a, _mm512_shrdi_epi16::<1>(a, a));
            put::<STREAM>(to_b, _mm512_shrdi_epi16::<1>(b, b));
        }
    }
    position
}

/// Values of 16 bits from blocks of their low and their high bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
pub(super) fn join<const STREAM: bool>(
    low: &[[u8; 64]],
    high: &[[u8; 64]],
    out: &mut [[u8; 128]],
    ahead: &mut Ahead,
) -> usize {
    let blocks = out.len().min(low.len()).min(high.len());
    let (first, second) = (load(&LOW), load(&HIGH));
    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
        ahead.step();
        let (low, high) = (load(low), load(high));
        let a = _mm512_permutex2var_epi8(low, first, high);
        let b = _mm512_permutex2var_epi8(low, second, high);
        let [to_a, to_b] = out.as_chunks_mut::<64>().0 else { continue };
        put::<STREAM>(to_a, _mm512_shrdi_epi16::<1>(a, a));
        put::<STREAM>(to_b, _mm512_shrdi_epi16::<1>(b, b));
    }
    blocks
}

/// Values of 16 bits where `bits` has a one, zeros elsewhere; `kept` has 32 values past those that are taken.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
pub(super) fn put_kept(bits: &[[u8; 4]], kept: &[u8], out: &mut [[u8; 64]]) -> usize {
    let mut position = 0;
    for (out, bits) in out.iter_mut().zip(bits) {
        let mask = u32::from_le_bytes(*bits);
        store(out, _mm512_maskz_expand_epi16(mask, next64(kept, 2 * position)));
        position += mask.count_ones() as usize;
    }
    position
}

/// A bit for each value of 16 bits that is not zero, and those values; `kept` has room for 32 more.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
pub(super) fn take_kept(values: &[[u8; 64]], bits: &mut [[u8; 4]], kept: &mut [u8]) -> usize {
    let mut position = 0;
    for (values, bits) in values.iter().zip(bits) {
        let values = load(values);
        let mask = _mm512_test_epi16_mask(values, values);
        *bits = mask.to_le_bytes();
        let (room, _) =
            kept[2 * position..].split_first_chunk_mut::<64>().expect("room behind the kept values");
        store(room, _mm512_maskz_compress_epi16(mask, values));
        position += mask.count_ones() as usize;
    }
    position
}

/// Planes of 64 symbols, of which `valid` exist; the escaped ones go to `out[position..]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
fn encode_block<const B: usize, const FIRST: bool>(
    symbols: __m512i,
    valid: u64,
    palette: &[__m512i; 7],
    planes: &mut [u8],
    out: &mut [u8],
    position: usize,
) -> usize {
    let (mut p, mut hit) = ([0u64; B], !valid);
    for (code, symbol) in palette.iter().enumerate().take((1 << B) - 1) {
        let equal = _mm512_cmpeq_epi8_mask(symbols, *symbol) & !hit;
        hit |= equal;
        for (b, plane) in p.iter_mut().enumerate() {
            if code >> b & 1 == 1 {
                *plane |= equal;
            }
        }
    }
    let escaped = !hit;
    for (bytes, plane) in planes.as_chunks_mut::<8>().0.iter_mut().zip(p) {
        *bytes = (plane | escaped).to_le_bytes();
    }
    let (room, _) =
        out[position..].split_first_chunk_mut::<64>().expect("tables have slack behind every position");
    store(room, _mm512_maskz_compress_epi8(escaped, symbols));
    escaped.count_ones() as usize
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn each(palette: &[u8; 8]) -> [__m512i; 7] {
    std::array::from_fn(|i| _mm512_set1_epi8(palette[i] as i8))
}

const fn step_of_two(from: u8) -> [u8; 64] {
    let mut table = [0u8; 64];
    let mut i = 0;
    while i < 64 {
        table[i] = 2 * i as u8 + from;
        i += 1;
    }
    table
}
static EVEN: [u8; 64] = step_of_two(0);
static ODD: [u8; 64] = step_of_two(1);

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
pub(super) fn encode_first<const B: usize>(
    values: &[u8],
    codes: &[u8; 8],
    low: &mut [[u8; 64]],
    planes: &mut [u8],
    out: &mut [u8],
    ahead: &mut Ahead,
) -> usize {
    let (even, odd, palette) = (load(&EVEN), load(&ODD), each(codes));
    let (whole, rest) = values.as_chunks::<128>();
    let mut position = 0;
    let blocks = whole.iter().zip(&mut *low).zip(planes.chunks_exact_mut(8 * B));
    for (number, ((block, low), planes)) in blocks.enumerate() {
        // Half of the next chunk's lines are prefetched here, because more would have to wait for one another. The
        // others are prefetched when this chunk is moved out.
        if number % 2 == 0 {
            ahead.fetch();
        }
        let [a, b] = block.as_chunks::<64>().0 else { continue };
        let (a, b) = (load(a), load(b));
        let (a, b) = (_mm512_shldi_epi16::<1>(a, a), _mm512_shldi_epi16::<1>(b, b));
        store(low, _mm512_permutex2var_epi8(a, even, b));
        let symbols = _mm512_permutex2var_epi8(a, odd, b);
        position += encode_block::<B, true>(symbols, !0, &palette, planes, out, position);
    }
    if !rest.is_empty() {
        let (low, planes) = (&mut low[whole.len()..], &mut planes[8 * B * whole.len()..]);
        position += portable::encode_first::<B>(rest, codes, low, planes, &mut out[position..], ahead);
    }
    position
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
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
        position += encode_block::<B, false>(load(symbols), valid, &palette, planes, out, position);
    }
    position
}

/// Words of 64 bits at every third place, from the first, second or third word of 24: indices into the first two
/// vectors, then into their result and the third.
const fn third(from: u64) -> ([u64; 8], [u64; 8]) {
    let (mut two, mut all) = ([0; 8], [0; 8]);
    let mut k = 0;
    while k < 8 {
        let at = 3 * k as u64 + from;
        if at < 16 {
            (two[k], all[k]) = (at, k as u64);
        } else {
            all[k] = at - 8;
        }
        k += 1;
    }
    (two, all)
}
static THIRDS: [([u64; 8], [u64; 8]); 3] = [third(0), third(1), third(2)];

/// Entry s: the items whose codes have all bits of s, in whole groups of 8 blocks. Entry 0 is not filled.
#[target_feature(enable = "avx512f,avx512bw,avx512vpopcntdq")]
pub(super) fn sets<const B: usize>(planes: &[u8]) -> [u32; 8] {
    let mut sums = [_mm512_setzero_si512(); 8];
    let mut add = |set: usize, planes: __m512i| {
        sums[set] = _mm512_add_epi64(sums[set], _mm512_popcnt_epi64(planes));
    };
    for group in planes.as_chunks::<64>().0.chunks_exact(B) {
        match group {
            [a] => add(1, load(a)),
            [a, b] => {
                let (x, y) = (load(a), load(b));
                let (a, b) = (_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
                add(1, a);
                add(2, b);
                add(3, _mm512_and_si512(a, b));
            }
            [a, b, c] => {
                let (x, y, z) = (load(a), load(b), load(c));
                let mut words = [x; 3];
                for (word, (two, all)) in words.iter_mut().zip(&THIRDS) {
                    // SAFETY: both arrays have the 64 bytes that are read.
                    let (two, all) = unsafe {
                        (_mm512_loadu_si512(two.as_ptr().cast()), _mm512_loadu_si512(all.as_ptr().cast()))
                    };
                    *word = _mm512_permutex2var_epi64(_mm512_permutex2var_epi64(x, two, y), all, z);
                }
                let [a, b, c] = words;
                let both = _mm512_and_si512(a, b);
                add(1, a);
                add(2, b);
                add(3, both);
                add(4, c);
                add(5, _mm512_and_si512(a, c));
                add(6, _mm512_and_si512(b, c));
                add(7, _mm512_and_si512(both, c));
            }
            _ => {}
        }
    }
    sums.map(|sum| _mm512_reduce_add_epi64(sum) as u32)
}
