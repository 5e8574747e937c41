//! A value of an untrusted file while it is read: one small word.
//!
//! Rows (events, blocks, segments, ...) are already in the assembler's columns when a `Value` names them. Neighbouring
//! rows join into one value: a list of a million events that were read one after the other is one `Rows`.

use gapless_trace::stacks::FrameId;
use gapless_trace::{StackId, StringId};

/// A table of the assembler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Table {
    Events,
    Blocks,
    Segments,
    Annotations,
    /// Former users of a block (torch 2.0 and older).
    Past,
    /// Notes on blocks (torch 2.14 and later), among the events.
    Notes,
}

impl Table {
    const ALL: [Table; 6] =
        [Table::Events, Table::Blocks, Table::Segments, Table::Annotations, Table::Past, Table::Notes];
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer from 2^63 on.
    Big(u64),
    /// An integer that 64 bits cannot hold.
    Huge,
    Float(f64),
    Str(StringId),
    /// A list, dict or tuple that is open, or of no known kind.
    Object(u32),
    /// `count` rows from `first` on.
    Rows(Table, u32, u32),
    Frame(FrameId),
    Stack(StackId),
    /// Two integers, interned.
    Pair(u32),
    /// A value that a trace does not need.
    Ignored,
}

impl Value {
    pub(crate) fn row(table: Table, row: u32) -> Value {
        Value::Rows(table, row, 1)
    }

    /// The usual name of a value of this kind.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool(_) => "a boolean",
            Value::Int(_) | Value::Big(_) => "an integer",
            Value::Huge => "an integer of more than 64 bits",
            Value::Float(_) => "a float",
            Value::Str(_) => "a string",
            Value::Object(_) => "a list, dict or tuple",
            Value::Rows(Table::Events, ..) => "an event",
            Value::Rows(Table::Blocks, ..) => "a block",
            Value::Rows(Table::Segments, ..) => "a segment",
            Value::Rows(Table::Annotations, ..) => "an annotation",
            Value::Rows(Table::Past, ..) => "a history entry",
            Value::Rows(Table::Notes, ..) => "a note",
            Value::Frame(_) => "a frame",
            Value::Stack(_) => "a list of frames",
            Value::Pair(_) => "a pair of integers",
            Value::Ignored => "bytes",
        }
    }
}

/// Appends `value`; a row that follows the rows at the end from `fence` on joins them.
#[inline]
pub(crate) fn push_joined(values: &mut Vec<Value>, fence: usize, value: Value) {
    if let Value::Rows(table, first, count) = value
        && values.len() > fence
        && let Some(Value::Rows(last_table, last_first, last_count)) = values.last_mut()
        && *last_table == table
        && last_first.checked_add(*last_count) == Some(first)
        && let Some(sum) = last_count.checked_add(count)
    {
        *last_count = sum;
        return;
    }
    values.push(value);
}

/// A value in four bytes, for the memo, which has two entries an event: four bits of tag, 28 of payload. Values that do
/// not fit go into a side table: numbers (no pickler memoises them), and ids from 2^28 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packed(u32);

const EMPTY: u32 = 0;
const SMALL: u32 = 1;
const STR: u32 = 2;
const OBJECT: u32 = 3;
const FRAME: u32 = 4;
const STACK: u32 = 5;
const PAIR: u32 = 6;
const WIDE: u32 = 7;
/// And the table's number.
const ROW: u32 = 8;

impl Packed {
    pub(crate) const EMPTY: Packed = Packed(EMPTY);
    /// Payloads are below this.
    pub(crate) const LIMIT: u32 = 1 << 28;

    #[inline]
    fn new(tag: u32, payload: u32) -> Option<Packed> {
        (payload < Packed::LIMIT).then_some(Packed(payload << 4 | tag))
    }

    #[inline]
    pub(crate) fn string(id: StringId) -> Option<Packed> {
        Packed::new(STR, id.0)
    }

    /// The builder reads fewer than [`Packed::LIMIT`] events.
    #[inline]
    pub(crate) fn event(row: u32) -> Packed {
        debug_assert!(row < Packed::LIMIT);
        Packed(row << 4 | (ROW + Table::Events as u32))
    }

    #[inline]
    pub(crate) fn frame(id: FrameId) -> Option<Packed> {
        Packed::new(FRAME, id.0)
    }

    #[inline]
    pub(crate) fn stack(id: StackId) -> Option<Packed> {
        Packed::new(STACK, id.0)
    }

    #[inline]
    pub(crate) fn pair(index: u32) -> Option<Packed> {
        Packed::new(PAIR, index)
    }

    /// Packs `value`; of several rows the last, which the memo takes as the top of the stack.
    #[inline]
    pub(crate) fn pack(value: Value, wide: &mut Vec<Value>) -> Packed {
        let packed = match value {
            Value::None => Packed::new(SMALL, 0),
            Value::Bool(false) => Packed::new(SMALL, 1),
            Value::Bool(true) => Packed::new(SMALL, 2),
            Value::Huge => Packed::new(SMALL, 3),
            Value::Ignored => Packed::new(SMALL, 4),
            Value::Str(id) => Packed::string(id),
            Value::Object(slot) => Packed::new(OBJECT, slot),
            Value::Rows(table, first, count) => Packed::new(ROW + table as u32, first + (count - 1)),
            Value::Frame(id) => Packed::frame(id),
            Value::Stack(id) => Packed::stack(id),
            Value::Pair(index) => Packed::pair(index),
            Value::Int(_) | Value::Big(_) | Value::Float(_) => None,
        };
        packed.unwrap_or_else(|| {
            let value = match value {
                Value::Rows(table, first, count) => Value::row(table, first + (count - 1)),
                other => other,
            };
            wide.push(value);
            // There are at most as many as the limit of values, a million.
            Packed((wide.len() as u32 - 1) << 4 | WIDE)
        })
    }

    #[inline]
    pub(crate) fn unpack(self, wide: &[Value]) -> Option<Value> {
        let payload = self.0 >> 4;
        Some(match self.0 & 15 {
            SMALL => match payload {
                0 => Value::None,
                1 => Value::Bool(false),
                2 => Value::Bool(true),
                3 => Value::Huge,
                _ => Value::Ignored,
            },
            STR => Value::Str(StringId(payload)),
            OBJECT => Value::Object(payload),
            FRAME => Value::Frame(FrameId(payload)),
            STACK => Value::Stack(StackId(payload)),
            PAIR => Value::Pair(payload),
            WIDE => *wide.get(payload as usize)?,
            EMPTY => return None,
            row => Value::row(*Table::ALL.get((row - ROW) as usize)?, payload),
        })
    }

    /// The string, if it is one.
    #[inline]
    pub(crate) fn as_string(self) -> Option<StringId> {
        (self.0 & 15 == STR).then_some(StringId(self.0 >> 4))
    }

    /// The stack, if it is one.
    #[inline]
    pub(crate) fn as_stack(self) -> Option<StackId> {
        (self.0 & 15 == STACK).then_some(StackId(self.0 >> 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_survives_packing() {
        let mut wide = Vec::new();
        let values = [
            Value::None,
            Value::Bool(true),
            Value::Bool(false),
            Value::Int(0),
            Value::Int(-1),
            Value::Int((1 << 59) - 1),
            Value::Int(-(1 << 59)),
            Value::Int(1 << 59),
            Value::Int(i64::MIN),
            Value::Big(u64::MAX),
            Value::Huge,
            Value::Float(-0.5),
            Value::Str(StringId(Packed::LIMIT - 1)),
            Value::Str(StringId(Packed::LIMIT)),
            Value::Str(StringId(u32::MAX)),
            Value::Object(7),
            Value::row(Table::Past, u32::MAX - 1),
            Value::row(Table::Events, 3),
            Value::row(Table::Notes, Packed::LIMIT - 1),
            Value::Frame(FrameId(9)),
            Value::Stack(StackId(10)),
            Value::Pair(11),
            Value::Ignored,
        ];
        for value in values {
            let packed = Packed::pack(value, &mut wide);
            assert_eq!(packed.unpack(&wide), Some(value));
        }
        assert_eq!(Packed::EMPTY.unpack(&wide), None);
        assert_eq!(Packed::event(3).unpack(&wide), Some(Value::row(Table::Events, 3)));
        let run = Packed::pack(Value::Rows(Table::Past, Packed::LIMIT, 3), &mut wide);
        assert_eq!(run.unpack(&wide), Some(Value::row(Table::Past, Packed::LIMIT + 2)));
        assert_eq!(size_of::<Value>(), 16);
    }

    #[test]
    fn neighbouring_rows_join_but_never_across_the_fence() {
        let mut values = Vec::new();
        for row in 0..5 {
            push_joined(&mut values, 0, Value::row(Table::Events, row));
        }
        assert_eq!(values, [Value::Rows(Table::Events, 0, 5)]);
        push_joined(&mut values, 1, Value::row(Table::Events, 5));
        push_joined(&mut values, 1, Value::row(Table::Blocks, 6));
        assert_eq!(values.len(), 3);
    }
}
