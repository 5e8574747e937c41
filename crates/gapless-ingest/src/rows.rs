//! The tables into which a snapshot's dicts collapse, for every file format: drafts in, rows out.
//!
//! A draft collects the fields of one dict in any order; its `finish` checks them and appends a row. Rows of all
//! devices share one table; `finish.rs` hands them out to the devices at the end. Errors are texts without a position:
//! only the caller knows where in the file it is.

use crate::event_rows::EventRows;
use crate::features::{Feature, Features};
use crate::names::Name;
use crate::value::Value;
use gapless_trace::stacks::FrameId;
use gapless_trace::{
    Action, Annotation, BlockState, Bytes, DeviceAddr, Event, Events, Frame, Frames, Micros, PoolId,
    SizeClass, StackId, Stacks, Stage, StreamId, StringId, Strings,
};
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// An error in a value.
pub(crate) type Wrong = String;

/// A value's number by first sight, at most 2^16 - 1 of them; the last one asked for is found without hashing.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    pub(crate) values: Vec<T>,
    numbers: FxHashMap<T, u16>,
    last: Option<(T, u16)>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Numbered { values: Vec::new(), numbers: FxHashMap::default(), last: None }
    }
}

impl<T: Copy + Eq + Hash> Numbered<T> {
    #[inline]
    pub(crate) fn number(&mut self, value: T, what: &str) -> Result<u16, Wrong> {
        match self.last {
            Some((last, number)) if last == value => Ok(number),
            _ => self.find(value, what),
        }
    }

    fn find(&mut self, value: T, what: &str) -> Result<u16, Wrong> {
        let number = match self.numbers.get(&value) {
            Some(&number) => number,
            None => {
                let number = u16::try_from(self.values.len())
                    .ok()
                    .filter(|&n| n < u16::MAX)
                    .ok_or_else(|| format!("more than 65,535 {what}"))?;
                self.values.push(value);
                self.numbers.insert(value, number);
                number
            }
        };
        self.last = Some((value, number));
        Ok(number)
    }
}

/// A block whose place in a segment is not known yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRow {
    /// `None`: torch 2.0 and older leave it out.
    pub(crate) addr: Option<DeviceAddr>,
    pub(crate) size: Bytes,
    pub(crate) requested: Bytes,
    pub(crate) state: BlockState,
    pub(crate) stack: StackId,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentRow {
    pub(crate) device: u32,
    pub(crate) addr: DeviceAddr,
    pub(crate) size: Bytes,
    pub(crate) stream: u16,
    pub(crate) pool: u16,
    pub(crate) class: SizeClass,
    pub(crate) expandable: bool,
    pub(crate) stack: StackId,
    /// The list of blocks as read, resolved at the end.
    pub(crate) blocks: Value,
}

/// A former user of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastRow {
    pub(crate) real_size: Bytes,
    pub(crate) stack: StackId,
}

/// A note on the block at an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoteRow {
    pub(crate) addr: DeviceAddr,
    pub(crate) text: StringId,
}

/// The row of an event's dict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventRow {
    Event(u32),
    Note(u32),
    /// A kind of event that this reader does not know.
    Unknown,
}

#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) strings: Strings,
    pub(crate) frames: Frames,
    pub(crate) stacks: Stacks,
    pub(crate) events: EventRows,
    pub(crate) blocks: Vec<BlockRow>,
    pub(crate) segments: Vec<SegmentRow>,
    pub(crate) annotations: Vec<Annotation>,
    pub(crate) past: Vec<PastRow>,
    pub(crate) notes: Vec<NoteRow>,
    /// Notes on blocks as they are at the end, with their devices: `gapless.name_modules()` adds them to snapshots.
    pub(crate) owners: Vec<(u32, NoteRow)>,
    pub(crate) streams: Numbered<StreamId>,
    pub(crate) pools: Numbered<PoolId>,
    pub(crate) pairs: Vec<(i64, i64)>,
    pair_numbers: FxHashMap<(i64, i64), u32>,
    pub(crate) features: Features,
    /// Events of unknown kinds: their number, and the first such kind.
    pub(crate) unknown_actions: (u64, StringId),
    /// Events that are allocations at or around an address that the program chose, in order.
    pub(crate) exact_addresses: Vec<u32>,
    /// Names that were not UTF-8.
    pub(crate) repaired_names: u64,
    /// Bytes of distinct text so far, and their limit.
    text: usize,
    text_limit: usize,
    /// Cache of the interner: the last string for a hash of its length and ends.
    recent: Vec<StringId>,
    scratch: Vec<FrameId>,
}

impl Rows {
    pub(crate) fn new(text_limit: usize) -> Rows {
        let mut pools = Numbered::default();
        // The default pool is number 0, as in every trace.
        let _ = pools.number(PoolId::DEFAULT, "pools");
        Rows {
            strings: Name::strings(),
            frames: Frames::default(),
            stacks: Stacks::default(),
            events: EventRows::default(),
            blocks: Vec::new(),
            segments: Vec::new(),
            annotations: Vec::new(),
            past: Vec::new(),
            notes: Vec::new(),
            owners: Vec::new(),
            exact_addresses: Vec::new(),
            streams: Numbered::default(),
            pools,
            pairs: Vec::new(),
            pair_numbers: FxHashMap::default(),
            features: Features::default(),
            unknown_actions: (0, StringId(0)),
            repaired_names: 0,
            text: 0,
            text_limit,
            recent: vec![StringId(0); 256],
            scratch: Vec::new(),
        }
    }

    /// Makes room for about this many events. Unused room costs address space only; growing step by step would leave
    /// holes of half the size behind.
    pub(crate) fn expect_events(&mut self, events: usize) {
        self.events = EventRows::of(Events::with_capacity(events));
    }

    /// The id of a string; bytes that are not UTF-8 are replaced, and counted.
    #[inline]
    pub(crate) fn intern(&mut self, text: &[u8]) -> Result<StringId, Wrong> {
        let slot = match *text {
            [] => return Ok(StringId(0)),
            [first, .., last] => {
                (usize::from(first) ^ (usize::from(last) << 3) ^ (text.len() << 1)) % self.recent.len()
            }
            [one] => usize::from(one),
        };
        let recent = self.recent[slot];
        if self.strings.get(recent).as_bytes() == text {
            return Ok(recent);
        }
        let id = self.intern_slowly(text)?;
        self.recent[slot] = id;
        Ok(id)
    }

    fn intern_slowly(&mut self, text: &[u8]) -> Result<StringId, Wrong> {
        let known = self.strings.len();
        let id = match std::str::from_utf8(text) {
            Ok(text) => self.strings.try_intern(text),
            Err(_) => {
                self.repaired_names += 1;
                self.strings.try_intern(&String::from_utf8_lossy(text))
            }
        };
        if self.strings.len() > known {
            self.text += text.len();
        }
        id.filter(|_| self.text <= self.text_limit)
            .ok_or_else(|| format!("more than {} bytes of distinct text", self.text_limit))
    }

    pub(crate) fn pair(&mut self, a: i64, b: i64) -> u32 {
        let next = self.pairs.len() as u32;
        let number = *self.pair_numbers.entry((a, b)).or_insert(next);
        if number == next {
            self.pairs.push((a, b));
        }
        number
    }

    pub(crate) fn pool_of_pair(&mut self, pair: u32) -> Result<u16, Wrong> {
        let (a, b) = self.pairs.get(pair as usize).copied().unwrap_or_default();
        self.pools.number(PoolId(a as u64, b as u64), "pools")
    }

    /// The stack of these frames, innermost first.
    #[inline]
    pub(crate) fn stack(&mut self, frames: &[FrameId]) -> Result<StackId, Wrong> {
        if self.stacks.total_frames() + frames.len() > u32::MAX as usize {
            return Err("more than 2^32 frames in distinct stacks".into());
        }
        Ok(self.stacks.intern(frames))
    }

    /// The stack of `inner` and behind it `outer`.
    fn joined(&mut self, inner: StackId, outer: StackId) -> Result<StackId, Wrong> {
        if inner.is_none() || outer.is_none() {
            return Ok(if inner.is_none() { outer } else { inner });
        }
        let mut frames = std::mem::take(&mut self.scratch);
        frames.clear();
        frames.extend_from_slice(self.stacks.get(inner));
        frames.extend_from_slice(self.stacks.get(outer));
        let stack = self.stack(&frames);
        self.scratch = frames;
        stack
    }

    /// Appends an event whose fields are those of one before it, a plain one. `None`, and nothing has changed, if
    /// [`EventDraft::finish`] must check it.
    #[inline(always)]
    pub(crate) fn append_alike(&mut self, draft: &EventDraft, limit: u64) -> Option<u32> {
        let action = Name::action(draft.action)?;
        draft.addr.checked_add(draft.size)?;
        let row = self.events.len();
        if row as u64 >= limit.min(Events::MAX as u64) {
            return None;
        }
        self.events.push(draft.event(action));
        Some(row as u32)
    }

    /// A line of Python's `traceback.format_stack`, or any other text as a name of its own.
    pub(crate) fn frame_of_text(&mut self, text: StringId) -> Result<FrameId, Wrong> {
        let line = self.strings.get(text).trim();
        let parsed = line.strip_prefix("File \"").and_then(|rest| {
            let (file, rest) = rest.split_once("\", line ")?;
            let (number, rest) = rest.split_once(", in ")?;
            let name = rest.lines().next().unwrap_or(rest);
            Some((file.to_owned(), number.parse().ok()?, name.trim().to_owned()))
        });
        let frame = match parsed {
            Some((file, line, name)) => {
                Frame { name: self.intern(name.as_bytes())?, file: self.intern(file.as_bytes())?, line }
            }
            None => Frame { name: text, ..Frame::default() },
        };
        Ok(self.frames.intern(frame))
    }
}

/// One bit for each field of an event that was there.
pub(crate) mod field {
    pub(crate) const ACTION: u16 = 1;
    pub(crate) const ADDR: u16 = 2;
    pub(crate) const SIZE: u16 = 4;
    pub(crate) const STREAM: u16 = 8;
    pub(crate) const TIME: u16 = 16;
    pub(crate) const COMPILE_CONTEXT: u16 = 32;
    pub(crate) const USER_METADATA: u16 = 64;
    pub(crate) const POOL: u16 = 128;
    pub(crate) const FORWARD: u16 = 256;
    pub(crate) const CPP: u16 = 512;
    pub(crate) const INTERNAL: u16 = 1024;
    /// The mark of an exact address at the end of the user's metadata, as 2.13 and 2.14 write it.
    pub(crate) const MARK: u16 = 2048;
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventDraft {
    pub(crate) fields: u16,
    pub(crate) pool: u16,
    pub(crate) stream: u16,
    pub(crate) action: StringId,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) time: u64,
    pub(crate) stack: StackId,
    pub(crate) cpp_stack: StackId,
    pub(crate) forward_stack: StackId,
    pub(crate) compile_context: StringId,
    pub(crate) user_metadata: StringId,
    /// True if the allocator says that the program chose the address.
    pub(crate) exact: bool,
}

impl EventDraft {
    /// Sets the field `key`; an unknown key is left out. Lists of frames come as stacks.
    pub(crate) fn set(&mut self, rows: &mut Rows, key: Name, value: Value) -> Result<(), Wrong> {
        match key {
            Name::Action => {
                self.action = text(value, "action")?;
                self.fields |= field::ACTION;
            }
            Name::Addr | Name::DeviceFree => {
                self.addr = address(value, key.text())?.0;
                self.fields |= field::ADDR;
            }
            Name::Size => {
                self.size = size(value, "size")?.0;
                self.fields |= field::SIZE;
            }
            Name::Stream => {
                self.stream = rows.streams.number(stream(value)?, "streams")?;
                self.fields |= field::STREAM;
            }
            Name::TimeUs => {
                self.time = time(value)?.0;
                self.fields |= field::TIME;
            }
            Name::CompileContext => {
                self.compile_context = optional_text(value);
                self.fields |= field::COMPILE_CONTEXT;
            }
            Name::UserMetadata => {
                self.user_metadata = optional_text(value);
                self.fields |= field::USER_METADATA;
            }
            Name::InternalMetadata => {
                // An empty one is never written; a value that is no text means nothing.
                if let Value::Str(mark) = value
                    && mark != StringId(0)
                {
                    self.exact = mark == Name::ExactAddress.id();
                    self.fields |= field::INTERNAL;
                }
            }
            Name::PoolId => {
                if let Value::Pair(pair) = value {
                    self.pool = rows.pool_of_pair(pair)?;
                    self.fields |= field::POOL;
                }
            }
            Name::Frames => self.stack = stack(value),
            Name::CppFrames => {
                self.cpp_stack = stack(value);
                self.fields |= field::CPP;
            }
            Name::ForwardFrames => {
                self.forward_stack = stack(value);
                self.fields |= field::FORWARD;
            }
            _ => {}
        }
        Ok(())
    }

    /// True if the dict is not an event of the heap.
    pub(crate) fn is_note_or_unknown(&self) -> bool {
        Name::action(self.action).is_none()
    }

    /// Appends the event, or the note that it is.
    // Always: the draft then lives in registers on the fast path instead of being written out and read back.
    #[inline(always)]
    pub(crate) fn finish(mut self, rows: &mut Rows, limit: u64) -> Result<EventRow, Wrong> {
        let Some(action) = Name::action(self.action) else { return self.note_or_unknown(rows, limit) };
        if self.user_metadata != StringId(0) || self.exact {
            self.exact_address(rows, action)?;
        }
        const NEEDED: u16 = field::ACTION | field::ADDR | field::SIZE;
        if self.fields & NEEDED != NEEDED {
            self.check_needed(action)?;
        }
        if self.fields & field::STREAM == 0 {
            self.stream = rows.streams.number(StreamId(0), "streams")?;
        }
        if self.addr.checked_add(self.size).is_none() && action != Action::Oom {
            return Err(self.past_the_end(action));
        }
        if !self.cpp_stack.is_none() {
            self.stack = rows.joined(self.cpp_stack, self.stack)?;
        }
        let row = rows.events.len();
        let limit = limit.min(Events::MAX as u64);
        if row as u64 >= limit {
            return Err(too_many_events(limit));
        }
        rows.features.event(self.fields);
        rows.events.push(self.event(action));
        Ok(EventRow::Event(row as u32))
    }

    #[inline(always)]
    fn event(&self, action: Action) -> Event {
        let na = Name::NotApplicable.id();
        Event {
            action,
            addr: DeviceAddr(self.addr),
            size: Bytes(self.size),
            stream: self.stream,
            pool: self.pool,
            time: Micros(self.time),
            stack: self.stack,
            compile_context: if self.compile_context == na { StringId(0) } else { self.compile_context },
            user_metadata: self.user_metadata,
            forward_stack: self.forward_stack,
        }
    }

    /// True if another event with these fields, of which only numbers and references differ, can be appended by
    /// [`Rows::append_alike`].
    pub(crate) fn is_plain(&self) -> bool {
        const NEEDED: u16 = field::ACTION | field::ADDR | field::SIZE | field::STREAM;
        self.fields & NEEDED == NEEDED
            && self.user_metadata == StringId(0)
            && !self.exact
            && self.cpp_stack.is_none()
            && !self.is_note_or_unknown()
    }

    #[cold]
    fn note_or_unknown(self, rows: &mut Rows, limit: u64) -> Result<EventRow, Wrong> {
        if self.action != Name::Annotate.id() {
            rows.unknown_actions.0 += 1;
            if rows.unknown_actions.0 == 1 {
                rows.unknown_actions.1 = self.action;
            }
            return Ok(EventRow::Unknown);
        }
        if self.fields & field::ADDR == 0 {
            return Err("an event of kind annotate without \"addr\"".into());
        }
        if rows.notes.len() as u64 >= limit.min(u64::from(u32::MAX)) {
            return Err(format!("more than {limit} annotations of blocks"));
        }
        rows.features.add(Feature::BlockNotes);
        rows.features.event(self.fields);
        rows.notes.push(NoteRow { addr: DeviceAddr(self.addr), text: self.user_metadata });
        Ok(EventRow::Note(rows.notes.len() as u32 - 1))
    }

    /// Takes the allocator's mark out of the user's metadata, and counts the allocations that have one. Up to 2.14 the
    /// mark is the last line of the metadata.
    fn exact_address(&mut self, rows: &mut Rows, action: Action) -> Result<(), Wrong> {
        let text = rows.strings.get(self.user_metadata);
        if let Some(own) = text.strip_suffix(Name::ExactAddress.text())
            && (own.is_empty() || own.ends_with('\n'))
            && self.fields & field::INTERNAL == 0
        {
            let own = own.trim_end_matches('\n').to_owned();
            self.user_metadata = rows.intern(own.as_bytes())?;
            self.fields |= field::MARK;
            self.exact = true;
        }
        if self.exact && action == Action::Alloc {
            // This event is appended next.
            rows.exact_addresses.push(rows.events.len() as u32);
        }
        Ok(())
    }

    #[cold]
    fn past_the_end(&self, action: Action) -> Wrong {
        format!("{} of {} bytes at {:#x} reaches past the last address", action.name(), self.size, self.addr)
    }

    #[cold]
    fn check_needed(&self, action: Action) -> Result<(), Wrong> {
        for (bit, name) in [(field::ACTION, "action"), (field::ADDR, "addr"), (field::SIZE, "size")] {
            // A failed request and a snapshot have no place of their own.
            let optional = bit == field::ADDR && matches!(action, Action::Oom | Action::Snapshot);
            if self.fields & bit == 0 && !optional {
                return Err(format!("an event of kind {} without \"{name}\"", action.name()));
            }
        }
        Ok(())
    }
}

#[cold]
fn too_many_events(limit: u64) -> Wrong {
    format!("more than {limit} events")
}

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

// ---- values as fields ----

pub(crate) fn text(value: Value, field: &str) -> Result<StringId, Wrong> {
    match value {
        Value::Str(id) => Ok(id),
        other => Err(format!("\"{field}\" is {}, not a string", other.noun())),
    }
}

fn optional_text(value: Value) -> StringId {
    if let Value::Str(id) = value { id } else { StringId(0) }
}

fn stack(value: Value) -> StackId {
    if let Value::Stack(id) = value { id } else { StackId::NONE }
}

/// A number of bytes: at most 2^60, never negative.
pub(crate) fn size(value: Value, field: &str) -> Result<Bytes, Wrong> {
    match value {
        Value::Int(n) if n < 0 => Err(format!("\"{field}\" is {n}: a size cannot be negative")),
        Value::Int(n) if n as u64 <= Bytes::LIMIT.0 => Ok(Bytes(n as u64)),
        Value::Int(_) | Value::Big(_) | Value::Huge => {
            Err(format!("\"{field}\" is more than 2^60 bytes, which no device has"))
        }
        other => Err(format!("\"{field}\" is {}, not a number of bytes", other.noun())),
    }
}

/// An address. The C++ dump writes those from 2^63 on as negative numbers.
pub(crate) fn address(value: Value, field: &str) -> Result<DeviceAddr, Wrong> {
    match value {
        Value::Int(n) => Ok(DeviceAddr(n as u64)),
        Value::Big(n) => Ok(DeviceAddr(n)),
        other => Err(format!("\"{field}\" is {}, not an address", other.noun())),
    }
}

/// A stream's handle, taken as 64 bits whatever its sign.
fn stream(value: Value) -> Result<StreamId, Wrong> {
    match value {
        Value::Int(n) => Ok(StreamId(n as u64)),
        Value::Big(n) => Ok(StreamId(n)),
        other => Err(format!("\"stream\" is {}, not a stream's handle", other.noun())),
    }
}

fn time(value: Value) -> Result<Micros, Wrong> {
    match value {
        Value::Int(n) if n >= 0 => Ok(Micros(n as u64)),
        Value::Float(t) if (0.0..9e18).contains(&t) => Ok(Micros(t as u64)),
        Value::Int(n) => Err(format!("\"time_us\" is {n}: a time cannot be negative")),
        other => Err(format!("\"time_us\" is {}, not a time", other.noun())),
    }
}

fn device(value: Value) -> Result<u32, Wrong> {
    match value {
        // Device numbers are small; -1 stands for the current device in annotations of the host.
        Value::Int(n) if n < 0 => Ok(0),
        Value::Int(n) if n < 1 << 16 => Ok(n as u32),
        other => Err(format!("\"device\" is {other:?}, not a device's number")),
    }
}
