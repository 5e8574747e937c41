//! Events of one shape: the same keys in the same order, each value written in as many bytes.
//!
//! Nearly every event of a dump differs from others only in a few numbers, which stand at the same places. A shape is
//! these places and the bytes around them. An event of a known shape is read by comparing all bytes around at once, and
//! loading the numbers: about half of the time that going from key to key takes.
//!
//! A shape is learned from an event that the fast path has read. An event of it becomes the row and the memo entries
//! that the fast path would have made; anything else gives `None`, and nothing has changed.

use super::opcodes as op;
use crate::builder::Builder;
use crate::names::Name;
use crate::rows::EventDraft;
use crate::value::Packed;
use gapless_trace::Bytes;
use std::ops::Range;

/// Bytes of the longest event that has a shape.
const LONGEST: usize = 128;
/// Bytes that must be at hand: a number may be loaded as a word from the last of them.
pub(super) const ROOM: usize = LONGEST + 8;
const WORDS: usize = LONGEST / 8;
/// Bytes of an event without a stack and a pool, at most.
const USUAL: usize = 80;
/// Shapes that are known at a time: sizes come in three widths, and a few streams and kinds of references in two.
const SHAPES: usize = 8;
/// Memo entries of an event: itself, and strings or pools that stand in it in full.
const ENTRIES: usize = 4;

/// A number of some bytes at a place. One beyond `most` is for the fast path: it may be negative.
#[derive(Clone, Copy, Debug)]
struct Number {
    at: usize,
    mask: u64,
    most: u64,
}

impl Number {
    #[inline(always)]
    fn read(self, bytes: &[u8; ROOM]) -> Option<u64> {
        let value = word_at(bytes, self.at) & self.mask;
        (value <= self.most).then_some(value)
    }
}

/// Eight bytes at a place below [`LONGEST`]; the mask says so, so that nothing is checked.
#[inline(always)]
fn word_at(bytes: &[u8; ROOM], at: usize) -> u64 {
    let at = at & (LONGEST - 1);
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[derive(Debug)]
struct Shape {
    length: usize,
    /// `word & mask == bits` for each word of an event of this shape.
    masks: [u64; WORDS],
    bits: [u64; WORDS],
    /// The fields that all events of this shape have in common.
    draft: EventDraft,
    /// An index into the memo.
    action: Number,
    addr: Number,
    size: Number,
    time: Option<Number>,
    /// Indices into the memo, if the value is a reference.
    context: Option<Number>,
    stack: Option<Number>,
    /// True if the event is the first of its memo entries; the others are always the same.
    memoized: bool,
    entries: [Packed; ENTRIES],
    entry_count: usize,
}

impl Shape {
    /// The shape of `event`, from EMPTY_DICT to SETITEMS, which became `draft`. `own` are its memo entries, the last of
    /// `memo`.
    fn of(event: &[u8], draft: EventDraft, memo: &[Packed], own: &[Packed]) -> Option<Shape> {
        if event.len() > LONGEST || own.len() > ENTRIES || !draft.is_plain() {
            return None;
        }
        let mut variable = [false; LONGEST];
        let [mut action, mut addr, mut size, mut time, mut context, mut stack] = [None; 6];
        let memoized = event.get(1) == Some(&op::MEMOIZE);
        let mut at = if memoized { 2 } else { 1 };
        if event.get(at) != Some(&op::MARK) {
            return None;
        }
        at += 1;
        while event.get(at) != Some(&op::SETITEMS) {
            let (key, value) = reference(event, at)?;
            let name = Name::of(memo.get(key as usize)?.as_string()?);
            let place = match name {
                Name::Action => Some(&mut action),
                Name::Addr => Some(&mut addr),
                Name::Size => Some(&mut size),
                Name::TimeUs => Some(&mut time),
                Name::CompileContext => Some(&mut context),
                Name::Frames => Some(&mut stack),
                _ => None,
            };
            let by_reference = matches!(name, Name::Action | Name::CompileContext | Name::Frames);
            let counted = place.is_some() && !by_reference;
            let (number, end) = match *event.get(value)? {
                op::BINGET if by_reference => (Some((value + 1, 1, 0xff)), value + 2),
                op::LONG_BINGET if by_reference => (Some((value + 1, 4, u64::from(u32::MAX))), value + 5),
                op::BININT1 if counted => (Some((value + 1, 1, 0xff)), value + 2),
                op::BININT2 if counted => (Some((value + 1, 2, 0xffff)), value + 3),
                op::BININT if counted => (Some((value + 1, 4, i32::MAX as u64)), value + 5),
                op::LONG1 if counted => {
                    let width = usize::from(*event.get(value + 1)?);
                    if !(1..=8).contains(&width) {
                        return None;
                    }
                    (Some((value + 2, width, (1 << (8 * width - 1)) - 1)), value + 2 + width)
                }
                _ => (None, constant(event, value)?),
            };
            if let (Some(place), Some((at, width, most))) = (place, number) {
                let mask = u64::MAX >> (64 - 8 * width);
                let most = if name == Name::Size { Bytes::LIMIT.0.min(most) } else { most };
                // If a key comes twice, its last value counts, which the fast path handles.
                if place.replace(Number { at, mask, most }).is_some() || at + width > event.len() {
                    return None;
                }
                variable[at..at + width].fill(true);
            }
            at = end;
        }
        if at + 1 != event.len() {
            return None;
        }
        let (mut masks, mut bits) = ([0; WORDS], [0; WORDS]);
        for (i, (&byte, _)) in
            event.iter().zip(&variable).enumerate().filter(|(_, (_, variable))| !**variable)
        {
            masks[i / 8] |= 0xff << (8 * (i % 8));
            bits[i / 8] |= u64::from(byte) << (8 * (i % 8));
        }
        let mut entries = [Packed::EMPTY; ENTRIES];
        entries[..own.len()].copy_from_slice(own);
        Some(Shape {
            length: event.len(),
            masks,
            bits,
            draft,
            action: action?,
            addr: addr?,
            size: size?,
            time,
            context,
            stack,
            memoized,
            entries,
            entry_count: own.len(),
        })
    }

    #[inline(always)]
    fn matches(&self, bytes: &[u8; ROOM]) -> bool {
        let differing = |i: usize| (word_at(bytes, i * 8) ^ self.bits[i]) & self.masks[i];
        let differ = |words: Range<usize>| words.fold(0, |all, i| all | differing(i)) != 0;
        !differ(0..USUAL / 8) && (self.length <= USUAL || !differ(USUAL / 8..WORDS))
    }

    /// The row of the event that `bytes` begin with, which have this shape.
    #[inline(always)]
    fn read(&self, bytes: &[u8; ROOM], builder: &mut Builder) -> Option<u32> {
        let memo = &builder.memo;
        let entry = |number: Number| memo.get(number.read(bytes)? as usize);
        let mut draft = self.draft;
        draft.action = entry(self.action)?.as_string()?;
        draft.addr = self.addr.read(bytes)?;
        draft.size = self.size.read(bytes)?;
        if let Some(time) = self.time {
            draft.time = time.read(bytes)?;
        }
        if let Some(context) = self.context {
            draft.compile_context = entry(context)?.as_string()?;
        }
        if let Some(stack) = self.stack {
            draft.stack = entry(stack)?.as_stack()?;
        }
        let row = builder.rows.append_alike(&draft, builder.limits.events)?;
        let mut entries = &self.entries[..self.entry_count.min(ENTRIES)];
        if self.memoized {
            builder.memo.push(Packed::event(row));
            entries = entries.get(1..).unwrap_or_default();
        }
        for &entry in entries {
            builder.memo.push(entry);
        }
        Some(row)
    }
}

/// The memo index of a reference at `at`, and its end.
fn reference(event: &[u8], at: usize) -> Option<(u32, usize)> {
    match *event.get(at)? {
        op::BINGET => Some((u32::from(*event.get(at + 1)?), at + 2)),
        op::LONG_BINGET => Some((u32::from_le_bytes(*event.get(at + 1..)?.first_chunk::<4>()?), at + 5)),
        _ => None,
    }
}

/// The end of a value at `at` that is the same in all events of a shape: a reference, a number, a string, or two
/// numbers as a tuple. Picklers that memoise by index write other bytes each time.
fn constant(event: &[u8], at: usize) -> Option<usize> {
    let memoized = |end: usize| if event.get(end) == Some(&op::MEMOIZE) { end + 1 } else { end };
    let number = |at: usize| match *event.get(at)? {
        op::BININT1 => Some(at + 2),
        op::BININT2 => Some(at + 3),
        op::BININT => Some(at + 5),
        op::LONG1 => Some(at + 2 + usize::from(*event.get(at + 1)?)),
        _ => None,
    };
    if let Some(end) = number(at) {
        return match number(end) {
            Some(end) if event.get(end) == Some(&op::TUPLE2) => Some(memoized(end + 1)),
            _ => Some(end),
        };
    }
    match *event.get(at)? {
        op::SHORT_BINUNICODE => Some(memoized(at + 2 + usize::from(*event.get(at + 1)?))),
        _ => reference(event, at).map(|(_, end)| end),
    }
}

/// The shapes that are known.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    known: Vec<Shape>,
    /// The last one that an event had.
    last: usize,
    /// The one to be replaced next.
    oldest: usize,
    hits: u64,
    misses: u64,
}

impl Shapes {
    /// The event at the beginning of `bytes`, if it has a known shape: its length and row.
    #[inline(always)]
    pub(super) fn read(&mut self, bytes: &[u8], builder: &mut Builder) -> Option<(usize, u32)> {
        let bytes = bytes.first_chunk::<ROOM>()?;
        if !self.known.get(self.last).is_some_and(|shape| shape.matches(bytes)) {
            self.last = self.other(bytes)?;
        }
        let shape = self.known.get(self.last)?;
        let row = shape.read(bytes, builder)?;
        self.hits += 1;
        Some((shape.length, row))
    }

    #[inline(never)]
    fn other(&self, bytes: &[u8; ROOM]) -> Option<usize> {
        if !self.worth_trying() {
            return None;
        }
        self.known.iter().position(|shape| shape.matches(bytes))
    }

    /// Files in which events are never alike pay for a few hundred trials only.
    fn worth_trying(&self) -> bool {
        self.misses < self.hits + 256
    }

    /// The fast path read `event`, which became `draft` and the last memo entries, from `entry` on.
    #[inline(never)]
    pub(super) fn learn(&mut self, event: &[u8], draft: EventDraft, memo: &[Packed], entry: usize) {
        if !self.worth_trying() {
            return;
        }
        self.misses += 1;
        let Some(shape) = memo.get(entry..).and_then(|own| Shape::of(event, draft, memo, own)) else {
            return;
        };
        if self.known.len() < SHAPES {
            self.known.push(shape);
        } else {
            self.known[self.oldest] = shape;
            self.oldest = (self.oldest + 1) % SHAPES;
        }
    }

    /// References may mean something else from now on.
    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.last = 0;
        self.oldest = 0;
    }
}
