//! Values from whole words of eight bytes, without a branch that goes both ways.

use super::super::opcodes as op;
use crate::value::Packed;
use gapless_trace::StringId;

/// Bytes that the usual fields of an event do not pass: seven keys of at most 7 bytes and values of at most 10 end
/// before 120.
pub(super) const ROOM: usize = 256;

/// Eight bytes at a place below 128; the mask says so, so that nothing is checked.
#[inline(always)]
pub(super) fn word_at(bytes: &[u8; ROOM], at: usize) -> u64 {
    let at = at & 127;
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// "N/A" with MEMOIZE, which every event of a dump by Python has in full.
pub(super) const NOT_APPLICABLE: u64 =
    u64::from_le_bytes([op::SHORT_BINUNICODE, 3, b'N', b'/', b'A', op::MEMOIZE, 0, 0]);

/// A string by reference, and the end of the reference.
#[inline(always)]
pub(super) fn reference(word: u64, at: usize, memo: &[Packed]) -> Option<(StringId, usize)> {
    let (index, length) = match word as u8 {
        op::LONG_BINGET => ((word >> 8) as u32 as usize, 5),
        op::BINGET => ((word >> 8) as u8 as usize, 2),
        _ => return None,
    };
    Some((memo.get(index)?.as_string()?, at + length))
}

/// LONG1 of at most eight bytes: `word` is the one at its opcode, `digits` the one two bytes later.
#[inline(always)]
pub(super) fn long(word: u64, digits: u64, at: usize) -> Option<(i64, usize)> {
    let length = (word >> 8) as u8;
    if word as u8 != op::LONG1 || length.wrapping_sub(1) > 7 {
        return None;
    }
    let spare = 64 - 8 * u32::from(length);
    Some(((digits << spare) as i64 >> spare, at + 2 + usize::from(length)))
}

/// BININT1, BININT2, or BININT from 0 on, without a branch between them: sizes come in all three.
#[inline(always)]
pub(super) fn short(word: u64, at: usize) -> Option<(u64, usize)> {
    let length = WIDTH[word as u8 as usize];
    let value = (word >> 8) & ((1 << (8 * u32::from(length))) - 1);
    (length > 0 && value <= i32::MAX as u64).then_some((value, at + 1 + usize::from(length)))
}

/// Bytes of the argument of the short integer opcodes; 0 for all others.
const WIDTH: [u8; 256] = {
    let mut width = [0; 256];
    width[op::BININT1 as usize] = 1;
    width[op::BININT2 as usize] = 2;
    width[op::BININT as usize] = 4;
    width
};
