//! Drafts of frames, blocks, segments and annotations: each collects the fields of one dict.

use super::checked::{address, device, size, stack, stream, text, time};
use super::{BlockRow, NoteRow, PastRow, Rows, SegmentRow, Wrong};
use crate::features::Feature;
use crate::names::Name;
use crate::value::Value;
use gapless_trace::{
    Annotation, BlockState, Bytes, DeviceAddr, Frame, Micros, SizeClass, StackId, Stage, StreamId, StringId,
};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameDraft {
    pub(crate) frame: Frame,
}

impl FrameDraft {
    pub(crate) fn set(&mut self, key: Name, value: Value) {
        match (key, value) {
            (Name::Name, Value::Str(id)) => self.frame.name = id,
            (Name::Filename, Value::Str(id)) => self.frame.file = id,
            // A line of -1 or beyond 32 bits means that there is none.
            (Name::Line, Value::Int(line)) => self.frame.line = u32::try_from(line).unwrap_or(0),
            _ => {}
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockDraft {
    addr: Option<DeviceAddr>,
    size: Option<Bytes>,
    requested: Option<Bytes>,
    state: StringId,
    stack: StackId,
    cpp_stack: StackId,
    past: Option<PastRow>,
}

impl BlockDraft {
    pub(crate) fn set(&mut self, rows: &mut Rows, key: Name, value: Value) -> Result<(), Wrong> {
        match key {
            Name::Address => {
                self.addr = Some(address(value, "address")?);
                rows.features.add(Feature::BlockAddress);
            }
            Name::Size => self.size = Some(size(value, "size")?),
            Name::RequestedSize => {
                rows.features.add(Feature::RequestedSize);
                self.requested = Some(size(value, "requested_size")?);
            }
            Name::State => self.state = text(value, "state")?,
            Name::Frames => self.stack = stack(value),
            Name::CppFrames => self.cpp_stack = stack(value),
            _ => {}
        }
        Ok(())
    }

    /// The newest of the block's former users stands first.
    pub(crate) fn set_past(&mut self, rows: &Rows, first: u32) {
        self.past = rows.past.get(first as usize).copied();
    }

    pub(crate) fn finish(self, rows: &mut Rows, limit: u64) -> Result<u32, Wrong> {
        let state = match Name::of(self.state) {
            Name::ActiveAllocated => BlockState::Live,
            Name::ActivePendingFree | Name::ActiveAwaitingFree => BlockState::Pending,
            Name::Inactive => BlockState::Free,
            _ => return Err(format!("a block in the unknown state {:?}", rows.strings.get(self.state))),
        };
        let size = self.size.ok_or("a block without \"size\"")?;
        let requested = self.requested.or(self.past.map(|p| p.real_size)).unwrap_or(size);
        let stack = rows.joined(self.cpp_stack, self.stack)?;
        let stack = if stack.is_none() { self.past.map_or(StackId::NONE, |p| p.stack) } else { stack };
        if rows.blocks.len() as u64 >= limit.min(u64::from(u32::MAX)) {
            return Err(format!("more than {limit} blocks"));
        }
        rows.blocks.push(BlockRow { addr: self.addr, size, requested, state, stack });
        Ok(rows.blocks.len() as u32 - 1)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentDraft {
    device: u32,
    addr: Option<DeviceAddr>,
    size: Option<Bytes>,
    stream: StreamId,
    pool: u16,
    class: Option<SizeClass>,
    expandable: bool,
    stack: StackId,
    cpp_stack: StackId,
    pub(crate) blocks: Value,
}

impl Default for SegmentDraft {
    fn default() -> Self {
        SegmentDraft {
            device: 0,
            addr: None,
            size: None,
            stream: StreamId(0),
            pool: 0,
            class: None,
            expandable: false,
            stack: StackId::NONE,
            cpp_stack: StackId::NONE,
            blocks: Value::None,
        }
    }
}

impl SegmentDraft {
    pub(crate) fn set(&mut self, rows: &mut Rows, key: Name, value: Value) -> Result<(), Wrong> {
        match key {
            Name::Device => self.device = device(value)?,
            Name::Address => self.addr = Some(address(value, "address")?),
            Name::TotalSize => self.size = Some(size(value, "total_size")?),
            Name::Stream => self.stream = stream(value)?,
            Name::SegmentPoolId => {
                rows.features.add(Feature::SegmentPool);
                if let Value::Pair(pair) = value {
                    self.pool = rows.pool_of_pair(pair)?;
                }
            }
            Name::SegmentType => {
                self.class = match Name::of(text(value, "segment_type")?) {
                    Name::Small => Some(SizeClass::Small),
                    Name::Large => Some(SizeClass::Large),
                    _ => None,
                }
            }
            Name::IsExpandable => {
                rows.features.add(Feature::IsExpandable);
                self.expandable = value == Value::Bool(true);
            }
            Name::Frames => self.stack = stack(value),
            Name::CppFrames => self.cpp_stack = stack(value),
            Name::Blocks => self.blocks = value,
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn finish(self, rows: &mut Rows, limit: u64) -> Result<u32, Wrong> {
        let addr = self.addr.ok_or("a segment without \"address\"")?;
        let size = self.size.ok_or("a segment without \"total_size\"")?;
        if addr.0.checked_add(size.0).is_none() {
            return Err(format!("a segment of {} bytes at {addr} reaches past the last address", size.0));
        }
        let small = gapless_trace::torch_rules::SMALL_SEGMENT;
        let class = self.class.unwrap_or(if size <= small { SizeClass::Small } else { SizeClass::Large });
        if rows.segments.len() as u64 >= limit.min(u64::from(u32::MAX)) {
            return Err(format!("more than {limit} segments"));
        }
        let row = SegmentRow {
            device: self.device,
            addr,
            size,
            stream: rows.streams.number(self.stream, "streams")?,
            pool: self.pool,
            class,
            expandable: self.expandable,
            stack: rows.joined(self.cpp_stack, self.stack)?,
            blocks: self.blocks,
        };
        rows.segments.push(row);
        Ok(rows.segments.len() as u32 - 1)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnnotationDraft {
    name: StringId,
    stage: StringId,
    device: u32,
    time: Micros,
    addr: Option<DeviceAddr>,
}

impl AnnotationDraft {
    pub(crate) fn set(&mut self, key: Name, value: Value) -> Result<(), Wrong> {
        match key {
            Name::Name => self.name = text(value, "name")?,
            Name::Stage => self.stage = text(value, "stage")?,
            Name::Device => self.device = device(value)?,
            Name::TimeUs => self.time = time(value)?,
            Name::Addr => self.addr = Some(address(value, "addr")?),
            _ => {}
        }
        Ok(())
    }

    /// The row; `None` for an unknown stage, and for a note on a block, which is kept apart.
    pub(crate) fn finish(self, rows: &mut Rows, limit: u64) -> Result<Option<u32>, Wrong> {
        let stage = match Name::of(self.stage) {
            Name::Start => Stage::Start,
            Name::End => Stage::End,
            Name::OfBlock => {
                let addr = self.addr.ok_or("an annotation of a block without \"addr\"")?;
                if rows.owners.len() as u64 >= limit {
                    return Err(format!("more than {limit} annotations"));
                }
                rows.owners.push((self.device, NoteRow { addr, text: self.name }));
                return Ok(None);
            }
            _ => return Ok(None),
        };
        if rows.annotations.len() as u64 >= limit.min(u64::from(u32::MAX)) {
            return Err(format!("more than {limit} annotations"));
        }
        rows.annotations.push(Annotation { name: self.name, stage, device: self.device, time: self.time });
        Ok(Some(rows.annotations.len() as u32 - 1))
    }
}
