//! Range asymmetric numeral systems for a plane of bytes: as small as the frequencies of its symbols allow.
//!
//! 64 interleaved states of 32 bits, frequencies of 12 bits, refills of 16 bits.
//!
//! ```text
//! 0    4   number of refill words
//! 4   32   which symbols occur, a bit each
//! 36       frequency - 1 of each of them, 12 bits each, then zero up to a multiple of 4
//!          64 states of 4 bytes
//!          refill words of 2 bytes
//! ```
//!
//! Item k belongs to state k mod 64. A decoder ends with every state at its start and no word left, or the plane is
//! damaged.

use super::ahead::Ahead;
use super::path::Path;
use std::sync::LazyLock;

const BITS: u32 = 12;
const SUM: u32 = 1 << BITS;
const LANES: usize = 64;
/// Every state begins here, and never falls below it between two symbols.
const START: u32 = 1 << 16;

/// Frequencies that add up to 4096, at least 1 for every symbol that occurs; none where fewer than two symbols do.
fn normalise(counts: &[u32; 256]) -> Option<[u32; 256]> {
    let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    if counts.iter().filter(|count| **count > 0).count() < 2 {
        return None;
    }
    let mut frequencies = [0u32; 256];
    for (frequency, count) in frequencies.iter_mut().zip(counts) {
        if *count > 0 {
            let share = (u64::from(*count) * u64::from(SUM) + total / 2) / total;
            *frequency = share.clamp(1, u64::from(SUM) - 1) as u32;
        }
    }
    // What rounding gave or took goes to the largest ones, which feel it least.
    let mut sum: u32 = frequencies.iter().sum();
    let there: Vec<usize> = (0..256).filter(|symbol| frequencies[*symbol] > 0).collect();
    while sum != SUM {
        let top = there.iter().copied().max_by_key(|symbol| frequencies[*symbol])?;
        if sum > SUM {
            frequencies[top] -= 1;
            sum -= 1;
        } else {
            frequencies[top] += 1;
            sum += 1;
        }
    }
    Some(frequencies)
}

/// Logarithms of small frequencies: those of low bytes, 256 of them in a plane.
static LOGARITHMS: LazyLock<[f64; 256]> =
    LazyLock::new(|| std::array::from_fn(|frequency| (frequency as f64).log2()));

/// The frequencies of a plane and the bytes that it will take.
pub(super) fn plan(counts: &[u32; 256]) -> Option<([u32; 256], usize)> {
    let frequencies = normalise(counts)?;
    let (mut bits, small) = (0.0, &*LOGARITHMS);
    for (frequency, count) in frequencies.iter().zip(counts).filter(|(_, count)| **count > 0) {
        let known = small.get(*frequency as usize).copied();
        let logarithm = known.unwrap_or_else(|| f64::from(*frequency).log2());
        bits += f64::from(*count) * (f64::from(BITS) - logarithm);
    }
    let symbols = frequencies.iter().filter(|frequency| **frequency > 0).count();
    Some((frequencies, 36 + packed(symbols) + 4 * LANES + (bits / 8.0).ceil() as usize))
}

/// Bytes of the frequencies of `symbols` symbols.
fn packed(symbols: usize) -> usize {
    (symbols * 12).div_ceil(8).next_multiple_of(4)
}

/// The bytes that a section of `items` can take at its worst: no symbol costs more than 12 bits.
pub(super) fn most(items: usize) -> usize {
    36 + packed(256) + 4 * LANES + 2 * items
}

/// A state below `limit` (f << 20) with the symbol's frequency f becomes state + quotient * (4096 - f) + start.
///
/// The quotient by f is exact as (state * inverse) >> 44 with inverse = ceil(2^44 / f) = (2^44 + e) / f, e < f: the
/// error state * e / (f * 2^44) is below 1 / f, because state * e < f * 2^20 * f < 2^44. The product is below 2^64:
/// (f * 2^20 - 1) * (2^44 + e) / f = 2^64 + 2^20 * e - (2^44 + e) / f, and 2^20 * e < 2^32 < 2^44 / f.
#[derive(Clone, Copy, Default)]
struct Symbol {
    inverse: u64,
    limit: u32,
    complement: u16,
    start: u16,
}

/// Takes the items into the states, the last ones first, and writes the words that the states spill to the end of
/// `words`; gives the first of them.
#[allow(unsafe_code)]
fn states_of(
    plane: &[u8],
    frequencies: &[u32; 256],
    states: &mut [u32; LANES],
    words: &mut [u16],
    (path, ahead): (Path, &mut Ahead),
) -> usize {
    let mut symbols = [Symbol::default(); 256];
    let mut start = 0;
    for (symbol, &frequency) in symbols.iter_mut().zip(frequencies) {
        if frequency > 0 {
            *symbol = Symbol {
                inverse: (1u64 << 44).div_ceil(u64::from(frequency)),
                limit: frequency << (32 - BITS),
                complement: (SUM - frequency) as u16,
                start: start as u16,
            };
            start += frequency;
        }
    }
    let (blocks, rest) = plane.as_chunks::<LANES>();
    let first = words.len();
    let first = if rest.is_empty() { first } else { take(rest, &symbols, states, words, first) };
    #[cfg(target_arch = "x86_64")]
    if path != Path::Portable && is_wide() {
        let table = symbols.map(|symbol| symbol.limit >> (32 - BITS) | u32::from(symbol.start) << 16);
        // SAFETY: the processor has these instructions, as was just asked.
        return unsafe { avx512::encode_any(blocks, &table, states, words, first, ahead) };
    }
    let _ = path;
    blocks.iter().rev().fold(first, |first, block| {
        ahead.fetch();
        take(block, &symbols, states, words, first)
    })
}

/// Takes a block of at most 64 items into the states, and writes what they spill before `words[first]`.
#[inline(always)]
fn take(
    items: &[u8],
    symbols: &[Symbol; 256],
    states: &mut [u32; LANES],
    words: &mut [u16],
    first: usize,
) -> usize {
    let (from, room) = words[..first].split_last_chunk_mut::<LANES>().expect("room for a block's words");
    let mut left = LANES;
    for (state, item) in states[..items.len()].iter_mut().zip(items).rev() {
        let symbol = &symbols[usize::from(*item)];
        let x = *state;
        // Written always, kept only where the state is too large: no branch to mispredict.
        let spill = x >= symbol.limit;
        room[left.wrapping_sub(1) % LANES] = x as u16;
        left -= usize::from(spill);
        let x = if spill { x >> 16 } else { x };
        let quotient = ((u64::from(x) * symbol.inverse) >> 44) as u32;
        *state = x + quotient * u32::from(symbol.complement) + u32::from(symbol.start);
    }
    from.len() + left
}

/// Whether there is AVX-512 with bytes and words. The cascade's path needs more: earlier processors have this.
#[cfg(target_arch = "x86_64")]
fn is_wide() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

/// Appends the plane to `out`; gives the bytes written. The frequencies are those of `plan`.
pub(super) fn encode(
    plane: &[u8],
    frequencies: &[u32; 256],
    out: &mut [u8],
    words: &mut Vec<u16>,
    path: (Path, &mut Ahead),
) -> usize {
    let mut states = [START; LANES];
    // A block takes a word for each of its items at most, and each word is written before it is kept.
    if words.len() < plane.len() + LANES {
        words.resize(plane.len() + LANES, 0);
    }
    let first = states_of(plane, frequencies, &mut states, words, path);
    let words = &words[first..];
    out[..4].copy_from_slice(&(words.len() as u32).to_le_bytes());
    out[4..36].fill(0);
    let (mut at, mut kept, mut bits) = (36, 0u32, 0);
    for (symbol, frequency) in frequencies.iter().enumerate().filter(|(_, frequency)| **frequency > 0) {
        out[4 + symbol / 8] |= 1 << (symbol % 8);
        kept |= (frequency - 1) << bits;
        bits += 12;
        while bits >= 8 {
            out[at] = kept as u8;
            at += 1;
            kept >>= 8;
            bits -= 8;
        }
    }
    if bits > 0 {
        out[at] = kept as u8;
        at += 1;
    }
    out[at..at.next_multiple_of(4)].fill(0);
    at = at.next_multiple_of(4);
    for state in states {
        out[at..at + 4].copy_from_slice(&state.to_le_bytes());
        at += 4;
    }
    for (bytes, word) in out[at..].as_chunks_mut::<2>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    at + 2 * words.len()
}

/// A decoder's table: for each of 4096 slots the symbol (8 bits), the slot's distance from the symbol's first slot (12)
/// and the symbol's frequency (12): a product waits for the frequency, and one shift gives it.
pub(super) type Table = [u32; SUM as usize];

/// Length of the section that begins `bytes`, or nothing where it does not fit.
pub(super) fn length(bytes: &[u8]) -> Option<usize> {
    let words = u32::from_le_bytes(*bytes.first_chunk::<4>()?) as usize;
    let symbols: u32 = bytes.get(4..36)?.iter().map(|byte| byte.count_ones()).sum();
    let length = 36 + packed(symbols as usize) + 4 * LANES + 2 * words;
    (length <= bytes.len()).then_some(length)
}

/// Decodes a section of exactly `length` bytes. False where it is damaged.
#[allow(unsafe_code)]
pub(super) fn decode(
    section: &[u8],
    out: &mut [u8],
    table: &mut Table,
    path: Path,
    ahead: &mut Ahead,
) -> bool {
    let symbols: usize = section[4..36].iter().map(|byte| byte.count_ones() as usize).sum();
    if !fill(&section[4..36], &section[36..36 + packed(symbols)], table) {
        return false;
    }
    let (bytes, words) = section[36 + packed(symbols)..].split_at(4 * LANES);
    let mut states = [0u32; LANES];
    for (state, bytes) in states.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *state = u32::from_le_bytes(*bytes);
    }
    let words = words.as_chunks::<2>().0;
    let (done, mut used) = fast(table, words, &mut states, out, (path, ahead));
    for block in out[done..].chunks_mut(LANES) {
        for (item, state) in block.iter_mut().zip(&mut states) {
            let entry = table[(*state & (SUM - 1)) as usize];
            *item = entry as u8;
            let x = (entry >> 20) * (*state >> BITS) + ((entry >> 8) & (SUM - 1));
            // Read always, used only where the state is too small: no branch to mispredict.
            let word = u32::from(u16::from_le_bytes(words.get(used).copied().unwrap_or_default()));
            let is_low = x < START;
            *state = if is_low { x << 16 | word } else { x };
            used += usize::from(is_low);
        }
    }
    used == words.len() && states.iter().all(|state| *state == START)
}

/// Whole blocks by vector instructions, while a block's worth of words is left; gives the items and the words done.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn fast(
    table: &Table,
    words: &[[u8; 2]],
    states: &mut [u32; LANES],
    out: &mut [u8],
    (path, ahead): (Path, &mut Ahead),
) -> (usize, usize) {
    match path {
        Path::Portable => (0, 0),
        // SAFETY: the processor has these instructions, as was just asked.
        _ if is_wide() => unsafe { avx512::decode(table, words, states, out, ahead) },
        // SAFETY: `Path::checked` saw that the processor has these instructions.
        _ => unsafe { avx2::decode(table, words, states, out, ahead) },
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn fast(
    _: &Table,
    _: &[[u8; 2]],
    _: &mut [u32; LANES],
    _: &mut [u8],
    _: (Path, &mut Ahead),
) -> (usize, usize) {
    (0, 0)
}

fn fill(present: &[u8], packed: &[u8], table: &mut Table) -> bool {
    let mut slots = &mut table[..];
    let mut nibble = 0;
    for symbol in (0..256u32).filter(|symbol| present[*symbol as usize / 8] >> (symbol % 8) & 1 == 1) {
        let at = nibble / 2;
        let (a, b) = (u32::from(packed[at]), u32::from(packed.get(at + 1).copied().unwrap_or(0)));
        let frequency = 1 + if nibble % 2 == 0 { a | (b & 15) << 8 } else { a >> 4 | b << 4 };
        nibble += 3;
        if frequency == SUM {
            return false;
        }
        let Some((own, rest)) = slots.split_at_mut_checked(frequency as usize) else { return false };
        for (slot, distance) in own.iter_mut().zip(0u32..) {
            *slot = symbol | distance << 8 | frequency << 20;
        }
        slots = rest;
    }
    slots.is_empty()
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx512 {
    use super::{Ahead, BITS, LANES, START, SUM, Table};
    use std::arch::x86_64::*;

    /// As `encode`, by the quickest way to look up the symbols that occur: the lowest five or six bits tell almost all
    /// exponents of a chunk apart, and permutations take the place of gathers and of divisions.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
    pub(super) fn encode_any(
        blocks: &[[u8; LANES]],
        table: &[u32; 256],
        states: &mut [u32; LANES],
        words: &mut [u16],
        first: usize,
        ahead: &mut Ahead,
    ) -> usize {
        // Whether no two of the symbols that occur have the same lowest bits.
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
    /// Quotients x / f come from single precision: the estimate is the quotient or one less, and the remainder tells.
    /// x < f * 2^20, so the quotient is below 2^20. An inverse of f with 14 bits after a step of Newton's, 2^-21 too
    /// small on purpose, is too small by 2^-21 - 3 * 2^-24 at least, which the two roundings of x and of the product do
    /// not make up for, and the estimate by less than 2^20 * 12.1 * 2^-24 < 1.
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
            let (from, room) =
                words[..first].split_last_chunk_mut::<LANES>().expect("room for a block's words");
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
                // SAFETY: at most 16 of the block's 64 words are written for each 16 items, so `left` is not below 0,
                // and the mask has as many bits as there are words from `left` to what was written before.
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

    /// Decodes whole blocks of 64 items while a block's worth of words is left; gives the items and the words done.
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
            // All gathers first: where a processor waits for a gather to end, the rest does not wait between them.
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
                let product =
                    _mm512_mullo_epi32(_mm512_srli_epi32::<20>(entry), _mm512_srli_epi32::<BITS>(*x));
                let y = _mm512_add_epi32(product, distance);
                let low = _mm512_cmplt_epu32_mask(y, least);
                // At most 48 words of the block's 64 were taken before its last 16 items.
                let (window, _) =
                    next[taken & 63..].split_first_chunk::<16>().unwrap_or((&[[0; 2]; 16], &[]));
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
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2 {
    use super::{Ahead, BITS, LANES, START, SUM, Table};
    use std::arch::x86_64::*;

    /// Which of the next words lands on lane k, by the mask of the lanes that take one.
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

    /// Decodes whole blocks of 64 items while a block's worth of words is left; gives the items and the words done.
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
                let product = _mm256_mullo_epi32(
                    _mm256_srli_epi32::<20>(entry),
                    _mm256_srli_epi32::<{ BITS as i32 }>(*x),
                );
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vector_path_decodes_what_the_portable_one_does() {
        for (skew, count) in [(2u32, 1000usize), (7, 4096), (40, 65_536), (250, 65_537), (3, 64), (3, 63)] {
            let mut state = 1u32;
            let plane: Vec<u8> = (0..count)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    ((state >> 16) % skew).min((state >> 8) % skew) as u8
                })
                .collect();
            let mut counts = [0; 256];
            plane.iter().for_each(|symbol| counts[usize::from(*symbol)] += 1);
            let (frequencies, planned) = plan(&counts).expect("more than one symbol");
            let (mut section, ahead) = (vec![0; most(count)], &mut Ahead::new(&[]));
            let length = encode(&plane, &frequencies, &mut section, &mut Vec::new(), (Path::Portable, ahead));
            for path in Path::all() {
                let mut other = vec![0; most(count)];
                let same = encode(&plane, &frequencies, &mut other, &mut Vec::new(), (path, ahead));
                assert!(other[..same] == section[..length], "{path:?} writes other bytes");
            }
            assert!(
                length.abs_diff(planned) <= 2 * LANES + planned / 100,
                "{length} bytes, planned {planned}"
            );
            assert_eq!(super::length(&section), Some(length));
            let section = &section[..length];
            for path in Path::all() {
                let (mut out, mut table) = (vec![0; count], [0; 4096]);
                assert!(decode(section, &mut out, &mut table, path, &mut Ahead::new(&[])), "{path:?}");
                assert!(out == plane, "{path:?}");
            }
            // What the choice above leaves out on this processor.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            if Path::Avx2.is_there() {
                let (mut out, mut table) = (vec![0; count], [0; 4096]);
                let symbols: usize = section[4..36].iter().map(|byte| byte.count_ones() as usize).sum();
                assert!(fill(&section[4..36], &section[36..36 + packed(symbols)], &mut table));
                let (bytes, words) = section[36 + packed(symbols)..].split_at(4 * LANES);
                let mut states = [0u32; LANES];
                for (state, bytes) in states.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *state = u32::from_le_bytes(*bytes);
                }
                // SAFETY: the processor has the instructions.
                let (done, _) = unsafe {
                    avx2::decode(
                        &table,
                        words.as_chunks::<2>().0,
                        &mut states,
                        &mut out,
                        &mut Ahead::new(&[]),
                    )
                };
                assert!(out[..done] == plane[..done]);
            }
        }
    }

    /// States at both ends of what a frequency allows, and around multiples of it: where a quotient may go wrong.
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    #[test]
    fn quotients_of_every_frequency_are_exact() {
        if !is_wide() {
            return;
        }
        for f in 1..SUM {
            let (limit, start) = (f << (32 - BITS), (SUM - f) / 2);
            let mut symbols = [Symbol::default(); 256];
            symbols[7] = Symbol {
                inverse: (1u64 << 44).div_ceil(u64::from(f)),
                limit,
                complement: (SUM - f) as u16,
                start: start as u16,
            };
            let mut table = [0; 256];
            table[7] = f | start << 16;
            let near = |k: u32| (limit / 64).wrapping_mul(k) / f * f;
            let states: [u32; LANES] = std::array::from_fn(|k| match k {
                0 => START,
                1 => limit - 1,
                2 => limit,
                3 => u32::MAX,
                _ if k % 2 == 0 => near(k as u32).max(START),
                _ => near(k as u32).wrapping_sub(1).max(START),
            });
            let (mut theirs, mut their_words) = (states, [0u16; 2 * LANES]);
            let their_first = take(&[7; LANES], &symbols, &mut theirs, &mut their_words, 2 * LANES);
            for encode in [avx512::encode::<0>, avx512::encode::<1>, avx512::encode::<2>] {
                let (mut ours, mut words) = (states, [0u16; 2 * LANES]);
                let ahead = &mut Ahead::new(&[]);
                // SAFETY: the processor has these instructions, as was just asked.
                let first = unsafe { encode(&[[7; LANES]], &table, &mut ours, &mut words, 2 * LANES, ahead) };
                assert_eq!(their_first, first);
                assert!(ours == theirs && words[first..] == their_words[first..], "frequency {f}");
            }
        }
    }
}
