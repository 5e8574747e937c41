//! Thrift's compact protocol, as far as Parquet's footer and page headers need it: structs are written field by field,
//! in the order of their numbers.

/// A struct that is being written.
#[derive(Debug, Default)]
pub(super) struct Struct {
    bytes: Vec<u8>,
    last: i16,
}

const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

impl Struct {
    /// A field's header: its number's distance from the last one, and its type.
    fn field(&mut self, number: i16, kind: u8) {
        let step = number - self.last;
        debug_assert!((1..16).contains(&step), "fields come in order");
        self.bytes.push((step as u8) << 4 | kind);
        self.last = number;
    }

    pub(super) fn bool(mut self, number: i16, value: bool) -> Struct {
        self.field(number, if value { 1 } else { 2 });
        self
    }

    pub(super) fn i8(mut self, number: i16, value: i8) -> Struct {
        self.field(number, 3);
        self.bytes.push(value.cast_unsigned());
        self
    }

    pub(super) fn i32(mut self, number: i16, value: i32) -> Struct {
        self.field(number, I32);
        varint(&mut self.bytes, zigzag(value.into()));
        self
    }

    pub(super) fn i64(mut self, number: i16, value: i64) -> Struct {
        self.field(number, I64);
        varint(&mut self.bytes, zigzag(value));
        self
    }

    pub(super) fn binary(mut self, number: i16, value: &[u8]) -> Struct {
        self.field(number, BINARY);
        binary(&mut self.bytes, value);
        self
    }

    pub(super) fn inner(mut self, number: i16, value: Struct) -> Struct {
        self.field(number, STRUCT);
        self.bytes.extend(value.end());
        self
    }

    pub(super) fn structs(mut self, number: i16, values: impl ExactSizeIterator<Item = Struct>) -> Struct {
        self.list(number, STRUCT, values.len());
        values.for_each(|value| self.bytes.extend(value.end()));
        self
    }

    pub(super) fn i32s(mut self, number: i16, values: &[i32]) -> Struct {
        self.list(number, I32, values.len());
        values.iter().for_each(|&value| varint(&mut self.bytes, zigzag(value.into())));
        self
    }

    pub(super) fn binaries(mut self, number: i16, values: &[&str]) -> Struct {
        self.list(number, BINARY, values.len());
        values.iter().for_each(|value| binary(&mut self.bytes, value.as_bytes()));
        self
    }

    fn list(&mut self, number: i16, kind: u8, length: usize) {
        self.field(number, LIST);
        if length < 15 {
            self.bytes.push((length as u8) << 4 | kind);
        } else {
            self.bytes.push(0xf0 | kind);
            varint(&mut self.bytes, length as u64);
        }
    }

    /// The whole struct, with the mark of its end.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn binary(out: &mut Vec<u8>, value: &[u8]) {
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Small numbers of either sign as small numbers.
pub(super) fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

/// Seven bits a byte, the lowest first.
pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
