//! Lists, dicts and the memo while a file is read, and how they collapse into rows.
//!
//! A dict is whole when it becomes part of another value. Then its keys tell its kind, it becomes a row, and its object
//! goes: an event of a million leaves nothing but its row. If another value still names the object, it keeps its slot,
//! which then has its row or its reading; changing such an object afterwards is refused, because no pickler does it.
//!
//! Invariant: a slot that is not `SHARED` is named by at most one value and one memo entry (`memo`), so it can be
//! reused once both are replaced.

mod metadata;

use crate::names::Name;
use crate::options::Limits;
use crate::rows::{
    AnnotationDraft, BlockDraft, EventDraft, EventRow, FrameDraft, PastRow, Rows, SegmentDraft, Wrong, size,
};
use crate::value::{Packed, Table, Value, push_joined};
use gapless_trace::StackId;
use gapless_trace::stacks::FrameId;

#[derive(Debug)]
enum Object {
    /// A list or a tuple.
    List(Vec<Value>),
    /// Keys and values in turn, as they came; of equal keys the last counts.
    Dict(Vec<Value>),
    /// The value that it became.
    Settled(Value),
}

/// More than one value or memo entry names the object.
const SHARED: u8 = 1;
/// Examined once, and of no known kind.
const PLAIN: u8 = 2;

#[derive(Debug)]
struct Slot {
    object: Object,
    /// The memo entry that names it, plus one; 0 is none.
    memo: u32,
    flags: u8,
}

#[derive(Debug)]
pub(crate) struct Builder {
    pub(crate) rows: Rows,
    pub(crate) limits: Limits,
    pub(crate) memo: Vec<Packed>,
    /// Values of the memo that four bytes cannot hold.
    pub(crate) wide: Vec<Value>,
    slots: Vec<Slot>,
    spare: Vec<u32>,
    /// Values in all objects together.
    held: usize,
    scratch: Vec<FrameId>,
}

impl Builder {
    pub(crate) fn new(limits: Limits) -> Builder {
        // The memo has 28 bits for the row of an event.
        let limits = Limits { events: limits.events.min(u64::from(Packed::LIMIT)), ..limits };
        Builder {
            rows: Rows::new(limits.text),
            limits,
            memo: Vec::new(),
            wide: Vec::new(),
            slots: Vec::new(),
            spare: Vec::new(),
            held: 0,
            scratch: Vec::new(),
        }
    }

    /// Makes room for the events of a file of about `bytes` bytes: an event takes 72 bytes and two memo entries in a
    /// dump without stacks. Returns the number of events.
    pub(crate) fn expect(&mut self, bytes: u64) -> usize {
        const MOST: u64 = 4 << 20;
        let events = (bytes / 70).min(MOST) as usize;
        self.memo = Vec::with_capacity(events * 2 + 4096);
        events
    }

    // ---- objects ----

    pub(crate) fn new_list(&mut self, items: Vec<Value>) -> Result<Value, Wrong> {
        self.add(Object::List(items))
    }

    pub(crate) fn new_dict(&mut self, entries: Vec<Value>) -> Result<Value, Wrong> {
        self.add(Object::Dict(entries))
    }

    fn hold(&mut self, values: usize) -> Result<(), Wrong> {
        self.held += values;
        if self.held > self.limits.values {
            return Err(format!(
                "more than {} values in lists and dicts of no known kind",
                self.limits.values
            ));
        }
        Ok(())
    }

    fn let_go(&mut self, values: usize) {
        // An object that is taken apart while it is filled, because it names itself, is counted off before it was
        // counted.
        self.held = self.held.saturating_sub(values);
    }

    fn add(&mut self, object: Object) -> Result<Value, Wrong> {
        if let Object::List(values) | Object::Dict(values) = &object {
            self.hold(values.len())?;
        }
        let slot = Slot { object, memo: 0, flags: 0 };
        if let Some(id) = self.spare.pop() {
            self.slots[id as usize] = slot;
            return Ok(Value::Object(id));
        }
        if self.slots.len() >= self.limits.objects {
            return Err(format!("more than {} lists and dicts of no known kind", self.limits.objects));
        }
        self.slots.push(slot);
        Ok(Value::Object(self.slots.len() as u32 - 1))
    }

    /// A tuple: pairs of integers are interned, anything else is a list.
    pub(crate) fn new_tuple(&mut self, items: &[Value]) -> Result<Value, Wrong> {
        if let [Value::Int(a), Value::Int(b)] = *items {
            return Ok(Value::Pair(self.rows.pair(a, b)));
        }
        self.new_list(items.to_vec())
    }

    /// A tuple in a format that has only lists.
    pub(crate) fn new_tuple_or_list(&mut self, items: Vec<Value>) -> Result<Value, Wrong> {
        if let [Value::Int(_), Value::Int(_)] = items[..] {
            return self.new_tuple(&items);
        }
        self.new_list(items)
    }

    pub(crate) fn list(&self, value: Value) -> Option<&[Value]> {
        match &self.slot(value)?.object {
            Object::List(items) => Some(items),
            _ => None,
        }
    }

    /// Keys and values in turn.
    pub(crate) fn dict(&self, value: Value) -> Option<&[Value]> {
        match &self.slot(value)?.object {
            Object::Dict(entries) => Some(entries),
            _ => None,
        }
    }

    /// True if this is a dict with the keys of an event.
    pub(crate) fn is_event(&self, value: Value) -> bool {
        // Picklers set a thousand keys at a time: a dict with that many may get more.
        self.dict(value).is_some_and(|entries| entries.len() < 2000 && kind_of(entries) == Some(Kind::Event))
    }

    fn slot(&self, value: Value) -> Option<&Slot> {
        if let Value::Object(id) = value { self.slots.get(id as usize) } else { None }
    }

    /// The same list or dict will be named twice from now on.
    pub(crate) fn share(&mut self, value: Value) {
        if let Value::Object(id) = value {
            self.slots[id as usize].flags |= SHARED;
        }
    }

    /// Appends whole values to a list.
    pub(crate) fn extend_list(&mut self, list: Value, items: &[Value]) -> Result<(), Wrong> {
        let mut own = match self.open(list)? {
            Object::List(own) => std::mem::take(own),
            _ => return Err("items appended to a dict".into()),
        };
        let before = own.len();
        let mut result = Ok(());
        for item in items {
            match self.settle(*item) {
                Ok(item) => push_joined(&mut own, 0, item),
                Err(wrong) => {
                    result = Err(wrong);
                    break;
                }
            }
        }
        let more = own.len() - before;
        if let Ok(Object::List(place)) = self.open(list) {
            *place = own;
        }
        result.and_then(|()| self.hold(more))
    }

    /// Sets the keys and values, which alternate in `entries`.
    pub(crate) fn extend_dict(&mut self, dict: Value, entries: &[Value]) -> Result<(), Wrong> {
        if entries.len() % 2 == 1 {
            return Err("a dict key without a value".into());
        }
        for pair in entries.chunks_exact(2) {
            let value = self.settle(pair[1])?;
            match self.open(dict)? {
                Object::Dict(own) => own.extend([pair[0], value]),
                _ => return Err("keys set in a list".into()),
            }
            self.hold(2)?;
        }
        Ok(())
    }

    fn open(&mut self, value: Value) -> Result<&mut Object, Wrong> {
        const USED: &str = "a list or dict is changed after it was used, which picklers never do";
        let Value::Object(id) = value else {
            return Err(match value {
                Value::Rows(..) | Value::Frame(_) | Value::Stack(_) | Value::Pair(_) => USED.into(),
                other => format!("items are added to {}", other.noun()),
            });
        };
        match &mut self.slots[id as usize].object {
            Object::Settled(_) => Err(USED.into()),
            object => Ok(object),
        }
    }

    // ---- the memo ----

    #[inline]
    pub(crate) fn memoize(&mut self, value: Value) -> Result<(), Wrong> {
        self.check_memo(self.memo.len())?;
        self.remember(value, self.memo.len());
        let packed = Packed::pack(value, &mut self.wide);
        self.memo.push(packed);
        Ok(())
    }

    #[inline]
    fn check_memo(&self, index: usize) -> Result<(), Wrong> {
        if index >= self.limits.memo || self.wide.len() >= self.limits.values {
            return Err(format!("more than {} memo entries", self.limits.memo));
        }
        Ok(())
    }

    /// Stores at `index`; the caller has checked that the index is no larger than the file.
    pub(crate) fn put(&mut self, index: usize, value: Value) -> Result<(), Wrong> {
        self.check_memo(index)?;
        if index >= self.memo.len() {
            self.memo.resize(index, Packed::EMPTY);
            return self.memoize(value);
        }
        self.remember(value, index);
        self.memo[index] = Packed::pack(value, &mut self.wide);
        Ok(())
    }

    fn remember(&mut self, value: Value, index: usize) {
        if let Value::Object(id) = value {
            let slot = &mut self.slots[id as usize];
            match u32::try_from(index + 1) {
                Ok(at) if slot.memo == 0 => slot.memo = at,
                _ => slot.flags |= SHARED,
            }
        }
    }

    #[inline]
    pub(crate) fn get(&mut self, index: usize) -> Option<Value> {
        let value = self.memo.get(index)?.unpack(&self.wide)?;
        if let Value::Object(id) = value {
            let slot = &mut self.slots[id as usize];
            if let Object::Settled(value) = slot.object {
                return Some(value);
            }
            slot.flags |= SHARED;
        }
        Some(value)
    }

    // ---- collapsing ----

    /// The settled form of `value`, which is whole now and becomes part of another value.
    pub(crate) fn settle(&mut self, value: Value) -> Result<Value, Wrong> {
        let Value::Object(id) = value else { return Ok(value) };
        let slot = &mut self.slots[id as usize];
        let plain = slot.flags & PLAIN != 0;
        match &mut slot.object {
            Object::Settled(value) => Ok(*value),
            _ if plain => Ok(value),
            Object::List(items) => {
                if !matches!(items.first(), Some(Value::Frame(_))) {
                    return Ok(value);
                }
                let items = std::mem::take(items);
                self.let_go(items.len());
                let stack = self.stack_of(&items)?;
                Ok(self.close(id, Value::Stack(stack)))
            }
            Object::Dict(entries) => {
                let entries = std::mem::take(entries);
                match self.collapse(&entries)? {
                    Some(settled) => {
                        self.let_go(entries.len());
                        Ok(self.close(id, settled))
                    }
                    None => {
                        let slot = &mut self.slots[id as usize];
                        slot.object = Object::Dict(entries);
                        slot.flags |= PLAIN;
                        Ok(value)
                    }
                }
            }
        }
    }

    fn close(&mut self, id: u32, settled: Value) -> Value {
        let slot = &mut self.slots[id as usize];
        if slot.flags & SHARED != 0 {
            // The caller counts off its values, and they go.
            slot.object = Object::Settled(settled);
            return settled;
        }
        let memo = std::mem::take(&mut slot.memo) as usize;
        slot.object = Object::List(Vec::new());
        self.spare.push(id);
        if memo > 0 {
            let own = Packed::pack(Value::Object(id), &mut self.wide);
            // The entry may have been overwritten since.
            if self.memo[memo - 1] == own {
                self.memo[memo - 1] = Packed::pack(settled, &mut self.wide);
            }
        }
        settled
    }

    /// Drops a value that no other needs, with the values that only it holds.
    fn discard(&mut self, value: Value) {
        let mut left = vec![value];
        while let Some(value) = left.pop() {
            let Value::Object(id) = value else { continue };
            let slot = &mut self.slots[id as usize];
            if slot.flags & SHARED != 0 {
                continue;
            }
            if let Object::List(items) | Object::Dict(items) = &mut slot.object {
                let count = items.len();
                left.append(items);
                self.let_go(count);
            }
            self.close(id, Value::Ignored);
        }
    }

    fn stack_of(&mut self, items: &[Value]) -> Result<StackId, Wrong> {
        let mut frames = std::mem::take(&mut self.scratch);
        frames.clear();
        for item in items {
            match item {
                Value::Frame(id) => frames.push(*id),
                other => return Err(format!("a list of frames holds {}", other.noun())),
            }
        }
        let stack = self.rows.stack(&frames);
        self.scratch = frames;
        stack
    }

    /// A list of strings, outermost first as Python prints stacks, as a stack.
    fn stack_of_texts(&mut self, value: Value) -> Result<Value, Wrong> {
        // Another event may have named the list, and made a stack of it, since this one did.
        if let Some(Slot { object: Object::Settled(stack), .. }) = self.slot(value) {
            return Ok(*stack);
        }
        let Some(items) = self.list(value) else { return Ok(value) };
        if !matches!(items.first(), Some(Value::Str(_))) {
            return Ok(value);
        }
        let texts = items.to_vec();
        let mut frames = Vec::with_capacity(texts.len());
        for text in texts.iter().rev() {
            if let Value::Str(id) = text {
                frames.push(self.rows.frame_of_text(*id)?);
            }
        }
        let stack = Value::Stack(self.rows.stack(&frames)?);
        if let Value::Object(id) = value {
            self.let_go(texts.len());
            self.close(id, stack);
        }
        Ok(stack)
    }

    /// The row of a dict with these keys and values; `None` if it is of no known kind.
    fn collapse(&mut self, entries: &[Value]) -> Result<Option<Value>, Wrong> {
        let Some(kind) = kind_of(entries) else { return Ok(None) };
        let pairs = entries.chunks_exact(2).map(|pair| (key(pair[0]), pair[1]));
        let settled = match kind {
            Kind::Event => {
                let mut draft = EventDraft::default();
                for (key, mut value) in pairs {
                    if key == Name::ForwardFrames {
                        value = self.stack_of_texts(value)?;
                    } else if key == Name::UserMetadata && matches!(value, Value::Object(_)) {
                        let text = metadata::text(self, value);
                        let text = Value::Str(self.rows.intern(text.as_bytes())?);
                        draft.set(&mut self.rows, key, text)?;
                        self.discard(value);
                        continue;
                    }
                    draft.set(&mut self.rows, key, value)?;
                    self.discard(value);
                }
                match draft.finish(&mut self.rows, self.limits.events)? {
                    EventRow::Event(row) => Value::row(Table::Events, row),
                    EventRow::Note(row) => Value::row(Table::Notes, row),
                    EventRow::Unknown => Value::Ignored,
                }
            }
            Kind::Frame => {
                let mut draft = FrameDraft::default();
                for (key, value) in pairs {
                    draft.set(key, value);
                    self.discard(value);
                }
                Value::Frame(self.rows.frames.intern(draft.frame))
            }
            Kind::Block => {
                let mut draft = BlockDraft::default();
                for (key, value) in pairs {
                    if key == Name::History
                        && let Some(Value::Rows(Table::Past, first, _)) =
                            self.list(value).and_then(|items| items.first().copied())
                    {
                        draft.set_past(&self.rows, first);
                    }
                    draft.set(&mut self.rows, key, value)?;
                    self.discard(value);
                }
                Value::row(Table::Blocks, draft.finish(&mut self.rows, self.limits.blocks)?)
            }
            Kind::Segment => {
                let mut draft = SegmentDraft::default();
                for (key, value) in pairs {
                    draft.set(&mut self.rows, key, value)?;
                    if key != Name::Blocks {
                        self.discard(value);
                    }
                }
                self.shorten(&mut draft.blocks);
                Value::row(Table::Segments, draft.finish(&mut self.rows, self.limits.blocks)?)
            }
            Kind::Annotation => {
                let mut draft = AnnotationDraft::default();
                for (key, value) in pairs {
                    draft.set(key, value)?;
                    self.discard(value);
                }
                let row = draft.finish(&mut self.rows, self.limits.events)?;
                row.map_or(Value::Ignored, |row| Value::row(Table::Annotations, row))
            }
            Kind::Past => {
                let mut row = PastRow { real_size: Default::default(), stack: StackId::NONE };
                for (key, value) in pairs {
                    match (key, value) {
                        (Name::RealSize, value) => row.real_size = size(value, "real_size")?,
                        (Name::Frames, Value::Stack(id)) => row.stack = id,
                        _ => self.discard(value),
                    }
                }
                if self.rows.past.len() as u64 >= self.limits.events.min(u64::from(u32::MAX)) {
                    return Err(format!("more than {} history entries", self.limits.events));
                }
                self.rows.past.push(row);
                Value::row(Table::Past, self.rows.past.len() as u32 - 1)
            }
        };
        Ok(Some(settled))
    }

    /// A list of blocks that is one run of rows needs no object.
    fn shorten(&mut self, blocks: &mut Value) {
        if let Some([run @ Value::Rows(Table::Blocks, ..)]) = self.list(*blocks) {
            let run = *run;
            self.discard(*blocks);
            *blocks = run;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Event,
    Segment,
    Block,
    Annotation,
    Frame,
    Past,
}

#[inline]
pub(crate) fn key(value: Value) -> Name {
    if let Value::Str(id) = value { Name::of(id) } else { Name::Other }
}

/// The kind of a dict, by the key that only such dicts have.
fn kind_of(entries: &[Value]) -> Option<Kind> {
    entries
        .chunks_exact(2)
        .filter_map(|pair| {
            Some(match key(pair[0]) {
                Name::Action => Kind::Event,
                Name::TotalSize | Name::Blocks => Kind::Segment,
                Name::State => Kind::Block,
                Name::Stage => Kind::Annotation,
                Name::Filename => Kind::Frame,
                Name::RealSize => Kind::Past,
                _ => return None,
            })
        })
        .min()
}
