//! The fast path: a whole dict at a time, straight from the bytes into a row.
//!
//! It knows the dicts of which a snapshot has millions, events and frames, in the ways in which picklers write them: an
//! optional memo entry, MARK, keys and flat values, SETITEMS. Anything else gives `None`, the memo is as before, and
//! the machine reads the dict again from its first byte; so this path changes the speed and nothing else.
//!
//! Keys are predicted: the n-th key of an event is nearly always written with the same bytes as the n-th key of the
//! event before it, a memo reference, so one comparison of a word replaces decoding and look-up. Events that look like
//! one before them are left to `shapes`.

mod values;
mod words;

use self::words::{NOT_APPLICABLE, ROOM, long, reference, short, word_at};
use super::opcodes as op;
use super::shapes::Shapes;
use crate::builder::Builder;
use crate::names::Name;
use crate::rows::{EventDraft, EventRow, FrameDraft, field};
use crate::value::{Packed, Table, Value};
use gapless_trace::stacks::FrameId;
use gapless_trace::{Bytes, StreamId};

/// The bytes of a key: `word & mask == bits` at its place means `name`, in `length` bytes.
#[derive(Clone, Copy, Debug)]
struct Written {
    bits: u64,
    mask: u64,
    length: u8,
    name: Name,
}

/// An entry that no word matches.
const NEVER: Written = Written { bits: 1, mask: 0, length: 0, name: Name::Other };

/// State that is kept from dict to dict.
#[derive(Debug)]
pub(super) struct State {
    event_keys: [Written; 16],
    frame_keys: [Written; 4],
    frames: Vec<FrameId>,
    shapes: Shapes,
}

impl Default for State {
    fn default() -> Self {
        State {
            event_keys: [NEVER; 16],
            frame_keys: [NEVER; 4],
            frames: Vec::new(),
            shapes: Shapes::default(),
        }
    }
}

impl State {
    /// Forgets the keys: a memo entry was overwritten, which may have been one.
    pub(super) fn forget(&mut self) {
        self.event_keys = [NEVER; 16];
        self.frame_keys = [NEVER; 4];
        self.shapes.forget();
    }
}

/// The dict at the beginning of `bytes`, and further ones as long as they are events: their length and value.
#[inline]
pub(super) fn dict(bytes: &[u8], builder: &mut Builder, state: &mut State) -> Option<(usize, Value)> {
    let mut path = Path { bytes, at: 0, builder, state };
    let mut events: Option<(u32, u32)> = None;
    loop {
        let (start, memo) = (path.at, path.builder.memo.len());
        if let Some(row) = path.shaped() {
            // Rows are handed out in order, so each follows the last.
            events.get_or_insert((row, 0)).1 += 1;
            continue;
        }
        // Above the limit of the memo the machine gives the error.
        let whole = if path.bytes.get(start) == Some(&op::EMPTY_DICT) && memo < path.builder.limits.memo {
            path.at += 1;
            path.dict()
        } else {
            None
        };
        match (whole, &mut events) {
            (Some(Value::Rows(Table::Events, row, 1)), None) => events = Some((row, 1)),
            (Some(Value::Rows(Table::Events, ..)), Some((_, count))) => *count += 1,
            (Some(value), None) => return Some((path.at, value)),
            (_, Some((first, count))) => {
                // Not an event: leave it to the next call, with the memo as before.
                path.builder.memo.truncate(memo);
                return Some((start, Value::Rows(Table::Events, *first, *count)));
            }
            (None, None) => {
                path.builder.memo.truncate(memo);
                return None;
            }
        }
    }
}

struct Path<'a> {
    bytes: &'a [u8],
    at: usize,
    builder: &'a mut Builder,
    state: &'a mut State,
}

impl Path<'_> {
    /// An event of a known shape, as a row.
    #[inline(always)]
    fn shaped(&mut self) -> Option<u32> {
        if self.builder.memo.len() >= self.builder.limits.memo {
            return None;
        }
        let bytes = self.bytes.get(self.at..)?;
        let (length, row) = self.state.shapes.read(bytes, self.builder)?;
        self.at += length;
        Some(row)
    }

    /// After EMPTY_DICT: a whole event or frame.
    #[inline]
    fn dict(&mut self) -> Option<Value> {
        // The entry is written when the row is known; until then it is empty, and a dict that names itself fails.
        let (start, entry) = (self.at - 1, self.builder.memo.len());
        self.memoize(Packed::EMPTY)?;
        self.expect(op::MARK)?;
        let mut draft = EventDraft::default();
        let n = self.usual(&mut draft);
        if n == 0 {
            match self.key(0, Keys::Event)? {
                Name::Action => {
                    draft.action = self.text()?;
                    draft.fields = field::ACTION;
                }
                name @ (Name::Name | Name::Filename | Name::Line) => return self.frame(entry, name),
                _ => return None,
            }
        }
        if *self.bytes.get(self.at)? != op::SETITEMS {
            self.fields(&mut draft, n.max(1))?;
        }
        self.at += 1;
        // Only events may be read twice: the machine reads other dicts, which count something.
        if draft.is_note_or_unknown() {
            return None;
        }
        let limit = self.builder.limits.events;
        let EventRow::Event(row) = draft.finish(&mut self.builder.rows, limit).ok()? else { return None };
        if let Some(memo) = self.builder.memo.get_mut(entry)
            && *memo == Packed::EMPTY
        {
            *memo = Packed::event(row);
        }
        self.state.shapes.learn(&self.bytes[start..self.at], draft, &self.builder.memo, entry);
        Some(Value::row(Table::Events, row))
    }

    /// The fields of an event that has them in the usual order, written in the usual way, up to the first that is not:
    /// the number of keys read. Straight-line code: every branch but the width of the size goes the same way nearly
    /// always.
    #[inline]
    fn usual(&mut self, draft: &mut EventDraft) -> usize {
        let keys = &self.state.event_keys;
        let Some(bytes) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<ROOM>()) else {
            return 0;
        };
        let word = |at| word_at(bytes, at);
        let rows = &mut self.builder.rows;
        let memo = &mut self.builder.memo;
        let mut at = 0;
        let mut n = 0;
        'usual: {
            macro_rules! key {
                ($name:ident) => {{
                    let key = &keys[n];
                    if word(at) & key.mask != key.bits || key.name != Name::$name {
                        break 'usual;
                    }
                    at + usize::from(key.length)
                }};
            }
            macro_rules! done {
                ($end:expr, $field:ident) => {{
                    at = $end;
                    n += 1;
                    draft.fields |= field::$field;
                }};
            }
            let value = key!(Action);
            let Some((text, end)) = reference(word(value), value, memo) else { break 'usual };
            draft.action = text;
            done!(end, ACTION);

            let value = key!(Addr);
            let Some((addr, end)) = long(word(value), word(value + 2), value) else { break 'usual };
            draft.addr = addr as u64;
            done!(end, ADDR);

            let value = key!(Size);
            let Some((size, end)) = short(word(value), value) else { break 'usual };
            draft.size = size;
            done!(end, SIZE);

            let value = key!(Stream);
            let Some((stream, end)) = short(word(value), value) else { break 'usual };
            let Ok(stream) = rows.streams.number(StreamId(stream), "streams") else { break 'usual };
            draft.stream = stream;
            done!(end, STREAM);

            let value = key!(TimeUs);
            let Some((time, end)) = long(word(value), word(value + 2), value) else { break 'usual };
            let Ok(time) = u64::try_from(time) else { break 'usual };
            draft.time = time;
            done!(end, TIME);

            let value = key!(CompileContext);
            let end = if word(value) & 0xffff_ffff_ffff == NOT_APPLICABLE {
                let Some(text) = Packed::string(Name::NotApplicable.id()) else { break 'usual };
                memo.push(text);
                draft.compile_context = Name::NotApplicable.id();
                value + 6
            } else {
                let Some((text, end)) = reference(word(value), value, memo) else { break 'usual };
                draft.compile_context = text;
                end
            };
            done!(end, COMPILE_CONTEXT);

            let value = key!(UserMetadata);
            let Some((text, end)) = reference(word(value), value, memo) else { break 'usual };
            draft.user_metadata = text;
            done!(end, USER_METADATA);
        }
        self.at += at;
        n
    }

    /// The fields of an event from the `n`-th key on, up to SETITEMS.
    fn fields(&mut self, draft: &mut EventDraft, mut n: usize) -> Option<()> {
        loop {
            self.skip_frame();
            if *self.bytes.get(self.at)? == op::SETITEMS {
                return Some(());
            }
            let key = self.key(n, Keys::Event)?;
            self.skip_frame();
            match key {
                Name::Addr | Name::DeviceFree => {
                    draft.addr = self.unsigned()?;
                    draft.fields |= field::ADDR;
                }
                Name::Size => {
                    let size = self.int()?;
                    if !(0..=Bytes::LIMIT.0 as i64).contains(&size) {
                        return None;
                    }
                    draft.size = size as u64;
                    draft.fields |= field::SIZE;
                }
                Name::Stream => {
                    let stream = StreamId(self.unsigned()?);
                    draft.stream = self.builder.rows.streams.number(stream, "streams").ok()?;
                    draft.fields |= field::STREAM;
                }
                Name::TimeUs => {
                    let time = self.int()?;
                    if time < 0 {
                        return None;
                    }
                    draft.time = time as u64;
                    draft.fields |= field::TIME;
                }
                Name::CompileContext => {
                    draft.compile_context = self.text()?;
                    draft.fields |= field::COMPILE_CONTEXT;
                }
                Name::UserMetadata => {
                    draft.user_metadata = self.text()?;
                    draft.fields |= field::USER_METADATA;
                }
                Name::PoolId => {
                    draft.pool = self.pool()?;
                    draft.fields |= field::POOL;
                }
                Name::Frames => draft.stack = self.stack()?,
                _ => return None,
            }
            n += 1;
        }
    }

    /// Python's protocols 4 and 5 cut the file into frames of 64 KiB, between any two values.
    #[inline]
    fn skip_frame(&mut self) {
        if self.bytes.get(self.at) == Some(&op::FRAME) {
            self.at += 9;
        }
    }

    /// After the first key of a frame.
    fn frame(&mut self, entry: usize, first: Name) -> Option<Value> {
        let mut draft = FrameDraft::default();
        let mut name = first;
        let mut n = 1;
        let mut has_file = false;
        loop {
            match name {
                Name::Filename => has_file = true,
                Name::Name | Name::Line | Name::Other => {}
                _ => return None, // an annotation or something else with a name
            }
            let value = match *self.bytes.get(self.at)? {
                op::BININT | op::BININT1 | op::BININT2 | op::LONG1 => Value::Int(self.int()?),
                _ => Value::Str(self.text()?),
            };
            draft.set(name, value);
            if *self.bytes.get(self.at)? == op::SETITEMS {
                self.at += 1;
                break;
            }
            name = self.key(n, Keys::Frame)?;
            n += 1;
        }
        if !has_file {
            return None;
        }
        let id = self.builder.rows.frames.intern(draft.frame);
        let packed = Packed::frame(id)?;
        if let Some(memo) = self.builder.memo.get_mut(entry)
            && *memo == Packed::EMPTY
        {
            *memo = packed;
        }
        // The C++ pickler memoises whole values.
        self.memoize(packed)?;
        Some(Value::Frame(id))
    }

    /// The `n`-th key.
    #[inline]
    fn key(&mut self, n: usize, keys: Keys) -> Option<Name> {
        let expected = match keys {
            Keys::Event => self.state.event_keys.get(n)?,
            Keys::Frame => self.state.frame_keys.get(n)?,
        };
        if self.word()? & expected.mask == expected.bits {
            self.at += usize::from(expected.length);
            return Some(expected.name);
        }
        self.other_key(n, keys)
    }

    fn other_key(&mut self, n: usize, keys: Keys) -> Option<Name> {
        let (start, word) = (self.at, self.word()?);
        let by_reference = matches!(self.bytes[start], op::BINGET | op::LONG_BINGET);
        let name = Name::of(self.text()?);
        // The words for keys only: a long string would not be told from its beginning.
        if by_reference {
            let length = (self.at - start) as u8;
            let mask = (1 << (8 * length)) - 1;
            let written = Written { bits: word & mask, mask, length, name };
            match keys {
                Keys::Event => self.state.event_keys[n] = written,
                Keys::Frame => self.state.frame_keys[n] = written,
            }
        }
        Some(name)
    }

    // ---- bytes ----

    /// The next eight bytes; `None` near the end of the bytes at hand.
    #[inline]
    fn word(&self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.bytes.get(self.at..)?.first_chunk::<8>()?))
    }

    #[inline]
    fn expect(&mut self, opcode: u8) -> Option<()> {
        (*self.bytes.get(self.at)? == opcode).then(|| self.at += 1)
    }

    /// Stores `packed` if the pickler memoised the last value, in order; other orders are the machine's.
    #[inline]
    fn memoize(&mut self, packed: Packed) -> Option<()> {
        let word = self.word()?;
        let index = match word as u8 {
            op::MEMOIZE => {
                self.at += 1;
                self.builder.memo.push(packed);
                return Some(());
            }
            op::BINPUT => {
                self.at += 2;
                (word >> 8) as u8 as usize
            }
            op::LONG_BINPUT => {
                self.at += 5;
                (word >> 8) as u32 as usize
            }
            _ => return Some(()),
        };
        (index == self.builder.memo.len()).then(|| self.builder.memo.push(packed))
    }
}

#[derive(Clone, Copy)]
enum Keys {
    Event,
    Frame,
}
