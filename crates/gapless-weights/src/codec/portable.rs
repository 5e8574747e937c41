//! The cascade's blocks in portable code: the definition that the vector paths must equal.
//!
//! A block is 64 items. Its codes are bit planes: bit k of word j is bit j of item k's code.

use super::ahead::Ahead;

/// Spreads the 8 bits of a byte over the low bits of 8 bytes.
const fn spread_table() -> [u64; 256] {
    let mut table = [0u64; 256];
    let mut i = 0;
    while i < 256 {
        let mut bit = 0;
        while bit < 8 {
            table[i] |= ((i as u64 >> bit) & 1) << (8 * bit);
            bit += 1;
        }
        i += 1;
    }
    table
}
static SPREAD: [u64; 256] = spread_table();

fn word(planes: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&planes[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// The symbols of one block (0 if one is escaped), and the escape mask.
#[inline(always)]
fn block<const B: usize>(planes: &[u8], palette: &[u8; 8]) -> ([u8; 64], u64) {
    let mut symbols = [0u8; 64];
    let mut escaped = !0u64;
    let mut p = [0u64; B];
    for (b, plane) in p.iter_mut().enumerate() {
        *plane = word(planes, 8 * b);
        escaped &= *plane;
    }
    for group in 0..8 {
        let eight: u64 = if B == 2 {
            // Two selects on whole words: without a table look-up for each value.
            let m0 = SPREAD[usize::from((p[0] >> (8 * group)) as u8)] * 255;
            let m1 = SPREAD[usize::from((p[1] >> (8 * group)) as u8)] * 255;
            let all = |code: usize| u64::from(palette[code]) * 0x0101_0101_0101_0101;
            let low = all(0) ^ (m0 & (all(0) ^ all(1)));
            low ^ (m1 & (low ^ (all(2) & !m0)))
        } else {
            let mut code = 0u64;
            for (b, plane) in p.iter().enumerate() {
                code |= SPREAD[usize::from((plane >> (8 * group)) as u8)] << b;
            }
            u64::from_le_bytes(code.to_le_bytes().map(|code| palette[usize::from(code & 7)]))
        };
        symbols[8 * group..8 * group + 8].copy_from_slice(&eight.to_le_bytes());
    }
    (symbols, escaped)
}

/// Puts the next symbols of `source` at the places of the mask.
#[inline(always)]
fn fill(symbols: &mut [u8; 64], mut escaped: u64, source: &[u8], position: &mut usize) {
    let next = &source[*position..*position + 64];
    *position += escaped.count_ones() as usize;
    let mut k = 0;
    while escaped != 0 {
        symbols[escaped.trailing_zeros() as usize & 63] = next[k & 63];
        k += 1;
        escaped &= escaped - 1;
    }
}

pub(super) fn decode_level<const B: usize>(
    planes: &[u8],
    palette: &[u8; 8],
    source: &[u8],
    out: &mut [u8],
    ahead: &mut Ahead,
) -> usize {
    let mut position = 0;
    for (out, planes) in out.as_chunks_mut::<64>().0.iter_mut().zip(planes.chunks_exact(8 * B)) {
        ahead.fetch();
        let (mut symbols, escaped) = block::<B>(planes, palette);
        fill(&mut symbols, escaped, source, &mut position);
        *out = symbols;
    }
    position
}

pub(super) fn decode_first<const B: usize>(
    low: &[[u8; 64]],
    planes: &[u8],
    palette: &[u8; 8],
    source: &[u8],
    out: &mut [[u8; 128]],
    ahead: &mut Ahead,
) -> usize {
    let mut position = 0;
    for ((out, low), planes) in out.iter_mut().zip(low).zip(planes.chunks_exact(8 * B)) {
        ahead.step();
        let (mut symbols, escaped) = block::<B>(planes, palette);
        fill(&mut symbols, escaped, source, &mut position);
        for ((value, high), low) in out.as_chunks_mut::<2>().0.iter_mut().zip(symbols).zip(low) {
            *value = u16::from_be_bytes([high, *low]).rotate_right(1).to_le_bytes();
        }
    }
    position
}

fn code_table<const B: usize>(palette: &[u8; 8]) -> [u8; 256] {
    let top = (1u8 << B) - 1;
    let mut table = [top; 256];
    for code in (0..top).rev() {
        table[usize::from(palette[usize::from(code)])] = code;
    }
    table
}

/// Values of 16 bits from their low and their high bytes.
pub(super) fn join(low: &[u8], high: &[u8], out: &mut [u8]) {
    for ((value, high), low) in out.as_chunks_mut::<2>().0.iter_mut().zip(high).zip(low) {
        *value = u16::from_be_bytes([*high, *low]).rotate_right(1).to_le_bytes();
    }
}

/// Planes of one block of up to 64 items; the escaped ones go to `out[*position..]`. Items past the end get code 0.
#[inline(always)]
fn encode_block<const B: usize>(
    symbols: &[u8; 64],
    count: usize,
    codes: &[u8; 256],
    planes: &mut [u8],
    out: &mut [u8],
    position: &mut usize,
) {
    let mut p = [0u64; B];
    for group in 0..8 {
        let mut eight = [0u8; 8];
        for (code, symbol) in eight.iter_mut().zip(&symbols[8 * group..8 * group + 8]) {
            *code = codes[usize::from(*symbol)];
        }
        let codes = u64::from_le_bytes(eight);
        for (b, plane) in p.iter_mut().enumerate() {
            // Gathers bit b of 8 bytes into one byte.
            let byte = ((codes >> b) & 0x0101_0101_0101_0101).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            *plane |= byte << (8 * group);
        }
    }
    let valid = if count == 64 { !0 } else { (1u64 << count) - 1 };
    let mut escaped = valid;
    for (b, plane) in p.iter().enumerate() {
        let plane = plane & valid;
        escaped &= plane;
        planes[8 * b..8 * b + 8].copy_from_slice(&plane.to_le_bytes());
    }
    let room = &mut out[*position..*position + 64];
    *position += escaped.count_ones() as usize;
    let mut k = 0;
    while escaped != 0 {
        room[k & 63] = symbols[escaped.trailing_zeros() as usize & 63];
        k += 1;
        escaped &= escaped - 1;
    }
}

pub(super) fn encode_first<const B: usize>(
    values: &[u8],
    palette: &[u8; 8],
    low: &mut [[u8; 64]],
    planes: &mut [u8],
    out: &mut [u8],
    ahead: &mut Ahead,
) -> usize {
    let (codes, mut position) = (code_table::<B>(palette), 0);
    for ((block, low), planes) in values.chunks(128).zip(low).zip(planes.chunks_exact_mut(8 * B)) {
        ahead.fetch();
        let mut symbols = [0u8; 64];
        *low = [0; 64];
        for ((value, low), high) in block.as_chunks::<2>().0.iter().zip(low).zip(&mut symbols) {
            [*high, *low] = u16::from_le_bytes(*value).rotate_left(1).to_be_bytes();
        }
        encode_block::<B>(&symbols, block.len() / 2, &codes, planes, out, &mut position);
    }
    position
}

pub(super) fn encode_level<const B: usize>(
    source: &[u8],
    count: usize,
    palette: &[u8; 8],
    planes: &mut [u8],
    out: &mut [u8],
    ahead: &mut Ahead,
) -> usize {
    let (codes, mut position) = (code_table::<B>(palette), 0);
    let blocks = source.as_chunks::<64>().0.iter().zip(planes.chunks_exact_mut(8 * B));
    for (i, (symbols, planes)) in blocks.take(count.div_ceil(64)).enumerate() {
        ahead.fetch();
        encode_block::<B>(symbols, (count - 64 * i).min(64), &codes, planes, out, &mut position);
    }
    position
}
