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
//! Item k belongs to state k mod 64. A decoder ends with every state at its start and no word left, otherwise
//! the plane is damaged.

use super::ahead::Ahead;
use super::path::Path;
use std::sync::LazyLock;

const BITS: u32 = 12;
const SUM: u32 = 1 << BITS;
const LANES: usize = 64;
/// Every state begins here, and never falls below it between two symbols.
const START: u32 = 1 << 16;

/// Frequencies that add up to 4096, at least 1 for every symbol that occurs; `None` if fewer than two symbols do.
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
    // The error of rounding goes to the largest frequencies, which it changes least.
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

/// Logarithms of small frequencies, as low bytes have: 256 of them in a plane.
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

/// The most bytes of a section of `items`: no symbol costs more than 12 bits.
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
/// `words`. Returns the index of the first of them.
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
        // SAFETY: `is_wide` found the instructions.
        return unsafe { avx512::encode_any(blocks, &table, states, words, first, ahead) };
    }
    let _ = path;
    blocks.iter().rev().fold(first, |first, block| {
        ahead.fetch();
        take(block, &symbols, states, words, first)
    })
}

/// Takes a block of at most 64 items into the states, and writes their spilled words before `words[first]`.
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
        // The word is always written, and kept only if the state is too large, so that no branch can be mispredicted.
        let spill = x >= symbol.limit;
        room[left.wrapping_sub(1) % LANES] = x as u16;
        left -= usize::from(spill);
        let x = if spill { x >> 16 } else { x };
        let quotient = ((u64::from(x) * symbol.inverse) >> 44) as u32;
        *state = x + quotient * u32::from(symbol.complement) + u32::from(symbol.start);
    }
    from.len() + left
}

/// True if there is AVX-512 with bytes and words. Earlier processors have this than the cascade's path needs.
#[cfg(target_arch = "x86_64")]
fn is_wide() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

/// Appends the plane to `out`; returns the bytes written. The frequencies are those of `plan`.
pub(super) fn encode(
    plane: &[u8],
    frequencies: &[u32; 256],
    out: &mut [u8],
    words: &mut Vec<u16>,
    path: (Path, &mut Ahead),
) -> usize {
    let mut states = [START; LANES];
    // A block spills at most a word for each item, and a word is written even if it is not kept.
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
/// and the symbol's frequency (12): the frequency is highest because a product waits for it, and one shift extracts it.
pub(super) type Table = [u32; SUM as usize];

/// Length of the section that begins `bytes`, or `None` if it does not fit.
pub(super) fn length(bytes: &[u8]) -> Option<usize> {
    let words = u32::from_le_bytes(*bytes.first_chunk::<4>()?) as usize;
    let symbols: u32 = bytes.get(4..36)?.iter().map(|byte| byte.count_ones()).sum();
    let length = 36 + packed(symbols as usize) + 4 * LANES + 2 * words;
    (length <= bytes.len()).then_some(length)
}

/// Decodes a section of exactly `length` bytes. False if it is damaged.
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
            // The word is always read, and used only if the state is too small, so that no branch can be mispredicted.
            let word = u32::from(u16::from_le_bytes(words.get(used).copied().unwrap_or_default()));
            let is_low = x < START;
            *state = if is_low { x << 16 | word } else { x };
            used += usize::from(is_low);
        }
    }
    used == words.len() && states.iter().all(|state| *state == START)
}

/// Whole blocks by vector instructions, while a block's worth of words is left; returns the items and the words done.
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
        // SAFETY: `is_wide` found the instructions.
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
mod avx512;

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2;

#[cfg(test)]
mod tests;
