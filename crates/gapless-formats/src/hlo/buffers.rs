//! `BufferAssignmentProto`: values, the allocations that hold them, and the order in which the heap gave them out.

use super::{Bytes, MOST, add, number, text};
use crate::fault::Fault;
use crate::protobuf::{Wire, field, integers, message, skip};

/// The memory of a module while it runs.
#[derive(Clone, Debug, Default)]
pub struct Assignment {
    pub buffers: Vec<LogicalBuffer>,
    pub allocations: Vec<Allocation>,
    pub traces: Vec<HeapTrace>,
}

/// A value of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogicalBuffer {
    pub id: i64,
    pub size: i64,
    /// The memory space: 0 is the device's, 5 the host's.
    pub color: i64,
    /// The instruction that makes it; 0 in files of releases that name it only.
    pub instruction: i64,
    pub instruction_name: String,
    /// Its place in the tuple that the instruction makes.
    pub index: Vec<i64>,
}

/// Memory that XLA takes in one piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    pub index: i64,
    pub size: i64,
    pub color: i64,
    pub is_thread_local: bool,
    pub is_tuple: bool,
    pub is_constant: bool,
    pub is_parameter: bool,
    pub parameter: i64,
    pub parameter_index: Vec<i64>,
    /// True if the caller gave the parameter away and an output has its memory.
    pub is_aliased: bool,
    /// True if a result lies in it.
    pub is_output: bool,
    pub assigned: Vec<Assigned>,
}

/// The place of a value in an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    pub buffer: i64,
    pub offset: i64,
    pub size: i64,
}

/// The heap's account of an allocation, in the order of the schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapTrace {
    pub events: Vec<HeapEvent>,
    pub allocation: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventKind {
    #[default]
    Alloc,
    Free,
    /// The buffer lies where another one lies, which lives until both are freed.
    Share,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapEvent {
    pub kind: EventKind,
    pub buffer: i64,
    /// The instruction that makes the buffer, for frees too.
    pub instruction: String,
    /// Of [`EventKind::Share`]: the buffer that it lies with.
    pub with: i64,
}

pub(super) fn read(source: &mut Bytes, end: u64) -> Result<Assignment, Fault> {
    let mut own = Assignment::default();
    while let Some((field, wire)) = field(source, end)? {
        match (field, wire) {
            (1, Wire::Length) => {
                let inner = message(source, end)?;
                let buffer = logical(source, inner)?;
                add(&mut own.buffers, buffer, source, "buffers")?;
            }
            (3, Wire::Length) => {
                let inner = message(source, end)?;
                let allocation = allocation(source, inner)?;
                add(&mut own.allocations, allocation, source, "allocations")?;
            }
            (4, Wire::Length) => {
                let inner = message(source, end)?;
                let trace = trace(source, inner)?;
                add(&mut own.traces, trace, source, "traces of heaps")?;
            }
            _ => skip(source, end, wire)?,
        }
    }
    Ok(own)
}

fn logical(source: &mut Bytes, end: u64) -> Result<LogicalBuffer, Fault> {
    let mut own = LogicalBuffer::default();
    while let Some((field, wire)) = field(source, end)? {
        match (field, wire) {
            (1, _) => own.id = number(source, end, wire)?,
            (2, _) => own.size = number(source, end, wire)?,
            (3, Wire::Length) => {
                let inner = message(source, end)?;
                location(source, inner, &mut own)?;
            }
            (4, _) => own.color = number(source, end, wire)?,
            _ => skip(source, end, wire)?,
        }
    }
    Ok(own)
}

fn location(source: &mut Bytes, end: u64, own: &mut LogicalBuffer) -> Result<(), Fault> {
    while let Some((field, wire)) = field(source, end)? {
        match (field, wire) {
            (2, Wire::Length) => own.instruction_name = text(source, end)?,
            (3, _) => integers(source, end, wire, MOST, &mut own.index)?,
            (4, _) => own.instruction = number(source, end, wire)?,
            _ => skip(source, end, wire)?,
        }
    }
    Ok(())
}

fn allocation(source: &mut Bytes, end: u64) -> Result<Allocation, Fault> {
    let mut own = Allocation::default();
    while let Some((field, wire)) = field(source, end)? {
        match (field, wire) {
            (1, _) => own.index = number(source, end, wire)?,
            (2, _) => own.size = number(source, end, wire)?,
            (3, _) => own.is_thread_local = number(source, end, wire)? != 0,
            (5, _) => own.is_parameter = number(source, end, wire)? != 0,
            (6, _) => own.parameter = number(source, end, wire)?,
            (7, _) => own.is_output = number(source, end, wire)? != 0,
            (8, _) => own.color = number(source, end, wire)?,
            (9, Wire::Length) => {
                let inner = message(source, end)?;
                let assigned = assigned(source, inner)?;
                add(&mut own.assigned, assigned, source, "values of an allocation")?;
            }
            (10, _) => integers(source, end, wire, MOST, &mut own.parameter_index)?,
            (11, _) => own.is_tuple = number(source, end, wire)? != 0,
            (12, _) => own.is_constant = number(source, end, wire)? != 0,
            (13, _) => own.is_aliased = number(source, end, wire)? != 0,
            _ => skip(source, end, wire)?,
        }
    }
    Ok(own)
}

fn assigned(source: &mut Bytes, end: u64) -> Result<Assigned, Fault> {
    let mut own = Assigned::default();
    while let Some((field, wire)) = field(source, end)? {
        match field {
            1 => own.buffer = number(source, end, wire)?,
            2 => own.offset = number(source, end, wire)?,
            3 => own.size = number(source, end, wire)?,
            _ => skip(source, end, wire)?,
        }
    }
    Ok(own)
}

fn trace(source: &mut Bytes, end: u64) -> Result<HeapTrace, Fault> {
    let mut own = HeapTrace::default();
    while let Some((field, wire)) = field(source, end)? {
        match (field, wire) {
            (1, Wire::Length) => {
                let inner = message(source, end)?;
                if let Some(event) = event(source, inner)? {
                    add(&mut own.events, event, source, "events of a heap")?;
                }
            }
            (3, _) => own.allocation = number(source, end, wire)?,
            _ => skip(source, end, wire)?,
        }
    }
    Ok(own)
}

/// An event; none of a kind that is not known, as XLA's own reader leaves them out.
fn event(source: &mut Bytes, end: u64) -> Result<Option<HeapEvent>, Fault> {
    let (mut own, mut kind) = (HeapEvent::default(), 0);
    while let Some((field, wire)) = field(source, end)? {
        match (field, wire) {
            (1, _) => kind = number(source, end, wire)?,
            (2, _) => own.buffer = number(source, end, wire)?,
            (4, Wire::Length) => own.instruction = text(source, end)?,
            (5, _) => own.with = number(source, end, wire)?,
            _ => skip(source, end, wire)?,
        }
    }
    own.kind = match kind {
        0 => EventKind::Alloc,
        1 => EventKind::Free,
        2 => EventKind::Share,
        _ => return Ok(None),
    };
    Ok(Some(own))
}
