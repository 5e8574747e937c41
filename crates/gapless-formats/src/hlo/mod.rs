//! `HloProto`, as XLA dumps it (`--xla_dump_hlo_as_proto`): a compiled module, and the buffers that it was given.
//!
//! Only the fields that tell where memory goes are kept: literals, layouts and configurations of backends are skipped.
//! Numbers are as written, so sizes may be negative and names may be missing: the caller judges them.

mod buffers;
mod module;

pub use buffers::{Allocation, Assigned, Assignment, EventKind, HeapEvent, HeapTrace, LogicalBuffer};
pub use module::{Alias, Computation, Instruction, Leaf, Module, StackFrame};

use crate::fault::{Fault, Problem, malformed};
use crate::protobuf::{Wire, field, message, skip};
use crate::source::Source;
use std::io::Cursor;

/// The bytes of a file in memory.
pub(crate) type Bytes = Source<Cursor<Vec<u8>>>;

/// Things of one kind in a file. A list that claims more is refused.
pub(crate) const MOST: usize = 1 << 25;

/// A module, and its buffers if XLA wrote them.
#[derive(Clone, Debug, Default)]
pub struct Hlo {
    pub module: Module,
    pub assignment: Option<Assignment>,
}

/// True if these first bytes begin an `HloProto`: a module, which begins with its name.
#[must_use]
pub fn is_hlo(head: &[u8]) -> bool {
    // The module's length, in as many bytes as it takes.
    let Some((0x0a, rest)) = head.split_first().map(|(first, rest)| (*first, rest)) else { return false };
    let Some(end) = rest.iter().take(5).position(|byte| byte & 0x80 == 0) else { return false };
    let [0x0a, length, name @ ..] = &rest[end + 1..] else { return false };
    let length = usize::from(*length);
    // Names of modules are words; a longer one has its length in two bytes.
    let name = if length < 0x80 { name.get(..length) } else { name.get(1..64) };
    name.is_some_and(|name| {
        !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || b"_.-<>$#/".contains(b))
    })
}

/// Reads an `HloProto`.
///
/// # Errors
/// When the bytes are none.
pub fn read(bytes: Vec<u8>) -> Result<Hlo, Fault> {
    let mut source = Source::new(Cursor::new(bytes))?;
    let end = source.size();
    let mut hlo = Hlo::default();
    let mut has_module = false;
    while let Some((number, wire)) = field(&mut source, end)? {
        match (number, wire) {
            (1, Wire::Length) => {
                let inner = message(&mut source, end)?;
                hlo.module = module::read(&mut source, inner)?;
                has_module = true;
            }
            (3, Wire::Length) => {
                let inner = message(&mut source, end)?;
                hlo.assignment = Some(buffers::read(&mut source, inner)?);
            }
            _ => skip(&mut source, end, wire)?,
        }
    }
    if !has_module {
        return Err(Box::new(Problem::Malformed { offset: end, what: "no module in it".into() }));
    }
    Ok(hlo)
}

/// Adds to a list that a file fills, up to [`MOST`].
pub(crate) fn add<T>(list: &mut Vec<T>, value: T, source: &Bytes, what: &str) -> Result<(), Fault> {
    if list.len() >= MOST {
        return malformed(source.at(), format!("more than {MOST} {what}"));
    }
    list.push(value);
    Ok(())
}

/// An integer.
pub(crate) fn number(source: &mut Bytes, end: u64, wire: Wire) -> Result<i64, Fault> {
    match wire {
        Wire::Varint => Ok(crate::protobuf::varint(source, end)? as i64),
        _ => malformed(source.at(), "a number of another encoding: this is not the file it claims to be"),
    }
}

/// Text of any length that the message has room for; bytes that are not UTF-8 are replaced.
pub(crate) fn text(source: &mut Bytes, end: u64) -> Result<String, Fault> {
    let bytes = crate::protobuf::bytes(source, end, 1 << 20, "a text")?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}
