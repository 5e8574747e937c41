//! Values of fields: strings, integers, pools and stacks, by reference to the memo or in full.

use super::super::opcodes as op;
use super::words::NOT_APPLICABLE;
use super::{Keys, Path};
use crate::names::Name;
use crate::value::{Packed, Value};
use gapless_trace::stacks::FrameId;
use gapless_trace::{StackId, StringId};

impl Path<'_> {
    /// A string, by reference or in full.
    #[inline]
    pub(super) fn text(&mut self) -> Option<StringId> {
        let word = self.word()?;
        if word & 0xffff_ffff_ffff == NOT_APPLICABLE {
            self.at += 6;
            self.builder.memo.push(Packed::string(Name::NotApplicable.id())?);
            return Some(Name::NotApplicable.id());
        }
        match word as u8 {
            op::LONG_BINGET => {
                self.at += 5;
                self.builder.memo.get((word >> 8) as u32 as usize)?.as_string()
            }
            op::BINGET => {
                self.at += 2;
                self.builder.memo.get((word >> 8) as u8 as usize)?.as_string()
            }
            op::SHORT_BINUNICODE => self.text_in_full(2, (word >> 8) as u8 as usize),
            op::BINUNICODE => self.text_in_full(5, (word >> 8) as u32 as usize),
            _ => None,
        }
    }

    fn text_in_full(&mut self, head: usize, length: usize) -> Option<StringId> {
        let start = self.at + head;
        let text = self.bytes.get(start..start.checked_add(length)?)?;
        if length as u64 > self.builder.limits.string {
            return None;
        }
        let repaired = self.builder.rows.repaired_names;
        let id = self.builder.rows.intern(text).ok()?;
        if self.builder.rows.repaired_names != repaired {
            // The machine may read it again, and would count it twice.
            self.builder.rows.repaired_names = repaired;
            return None;
        }
        self.at = start + length;
        self.memoize(Packed::string(id)?)?;
        Some(id)
    }

    /// An integer of at most 63 bits and a sign.
    #[inline]
    pub(super) fn int(&mut self) -> Option<i64> {
        let word = self.word()?;
        match word as u8 {
            op::LONG1 => {
                let length = (word >> 8) as u8;
                if !(1..=8).contains(&length) {
                    return None;
                }
                let bytes = self.bytes.get(self.at + 2..)?.first_chunk::<8>()?;
                let spare = 64 - 8 * u32::from(length);
                self.at += 2 + usize::from(length);
                Some((u64::from_le_bytes(*bytes) << spare) as i64 >> spare)
            }
            op::BININT => {
                self.at += 5;
                Some(i64::from((word >> 8) as u32 as i32))
            }
            op::BININT1 => {
                self.at += 2;
                Some(i64::from((word >> 8) as u8))
            }
            op::BININT2 => {
                self.at += 3;
                Some(i64::from((word >> 8) as u16))
            }
            _ => None,
        }
    }

    /// An integer as 64 bits whatever its sign; LONG1 of nine bytes too, if the ninth is zero.
    #[inline]
    pub(super) fn unsigned(&mut self) -> Option<u64> {
        if let [op::LONG1, 9, low @ .., 0] = self.bytes.get(self.at..)?.first_chunk::<11>()? {
            self.at += 11;
            return Some(u64::from_le_bytes(*low));
        }
        self.int().map(|n| n as u64)
    }

    /// A pool's identity: two integers as a tuple, or a reference to one.
    pub(super) fn pool(&mut self) -> Option<u16> {
        let pair = match *self.bytes.get(self.at)? {
            op::BINGET | op::LONG_BINGET => match self.reference()? {
                Value::Pair(pair) => pair,
                _ => return None,
            },
            _ => {
                let (a, b) = (self.int()?, self.int()?);
                self.expect(op::TUPLE2)?;
                let pair = self.builder.rows.pair(a, b);
                self.memoize(Packed::pair(pair)?)?;
                pair
            }
        };
        self.builder.rows.pool_of_pair(pair).ok()
    }

    /// A list of frames, by reference or in full.
    pub(super) fn stack(&mut self) -> Option<StackId> {
        if matches!(*self.bytes.get(self.at)?, op::BINGET | op::LONG_BINGET) {
            let value = self.reference()?;
            return match value {
                Value::Stack(id) => Some(id),
                Value::Object(_) if self.builder.list(value)?.is_empty() => Some(StackId::NONE),
                _ => None,
            };
        }
        self.expect(op::EMPTY_LIST)?;
        let entry = self.builder.memo.len();
        self.memoize(Packed::EMPTY)?;
        let mut frames = std::mem::take(&mut self.state.frames);
        frames.clear();
        let read = self.frames(&mut frames);
        let stack = read.and_then(|()| self.builder.rows.stack(&frames).ok());
        self.state.frames = frames;
        let stack = stack?;
        let packed = Packed::stack(stack)?;
        if let Some(memo) = self.builder.memo.get_mut(entry)
            && *memo == Packed::EMPTY
        {
            *memo = packed;
        }
        self.memoize(packed)?;
        Some(stack)
    }

    fn frames(&mut self, frames: &mut Vec<FrameId>) -> Option<()> {
        match *self.bytes.get(self.at)? {
            op::MARK => self.at += 1,
            op::EMPTY_DICT | op::BINGET | op::LONG_BINGET => {
                // Either one frame and APPEND, or no frame at all and the next key.
                let start = (self.at, self.builder.memo.len());
                if let Some(frame) = self.one_frame()
                    && self.bytes.get(self.at) == Some(&op::APPEND)
                {
                    frames.push(frame);
                    self.at += 1;
                } else {
                    self.at = start.0;
                    self.builder.memo.truncate(start.1);
                }
                return Some(());
            }
            _ => return Some(()),
        }
        while *self.bytes.get(self.at)? != op::APPENDS {
            frames.push(self.one_frame()?);
        }
        self.at += 1;
        Some(())
    }

    fn one_frame(&mut self) -> Option<FrameId> {
        let value = match *self.bytes.get(self.at)? {
            op::EMPTY_DICT => {
                self.at += 1;
                let entry = self.builder.memo.len();
                self.memoize(Packed::EMPTY)?;
                self.expect(op::MARK)?;
                let first = self.key(0, Keys::Frame)?;
                if !matches!(first, Name::Name | Name::Filename | Name::Line) {
                    return None;
                }
                self.frame(entry, first)?
            }
            op::BINGET | op::LONG_BINGET => self.reference()?,
            _ => return None,
        };
        if let Value::Frame(id) = value { Some(id) } else { None }
    }

    fn reference(&mut self) -> Option<Value> {
        let word = self.word()?;
        let index = if word as u8 == op::BINGET {
            self.at += 2;
            (word >> 8) as u8 as usize
        } else {
            self.at += 5;
            (word >> 8) as u32 as usize
        };
        self.builder.get(index)
    }
}
