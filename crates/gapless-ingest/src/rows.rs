//! The tables into which a snapshot's dicts collapse, for every file format: drafts in, rows out.
//!
//! A draft collects the fields of one dict in any order; its `finish` checks them and appends a row. Rows of all
//! devices share one table; `finish.rs` hands them out to the devices at the end. Errors are texts without a position:
//! only the caller knows where in the file it is.

mod checked;
mod drafts;
mod event;
pub(crate) mod field;

pub(crate) use self::checked::size;
pub(crate) use self::drafts::{AnnotationDraft, BlockDraft, FrameDraft, SegmentDraft};
pub(crate) use self::event::EventDraft;
use crate::event_rows::EventRows;
use crate::features::Features;
use crate::names::Name;
use crate::value::Value;
use gapless_trace::stacks::FrameId;
use gapless_trace::{
    Annotation, BlockState, Bytes, DeviceAddr, Events, Frame, Frames, PoolId, SizeClass, StackId, Stacks,
    StreamId, StringId, Strings,
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
