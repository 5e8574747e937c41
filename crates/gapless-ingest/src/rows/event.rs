//! The draft of an event: most dicts of a snapshot are events, so its methods stay in registers on the fast path.

use super::checked::{address, optional_text, size, stack, stream, text, time};
use super::{EventRow, NoteRow, Rows, Wrong, field};
use crate::features::Feature;
use crate::names::Name;
use crate::value::Value;
use gapless_trace::{Action, Bytes, DeviceAddr, Event, Events, Micros, StackId, StreamId, StringId};

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
    pub(super) fn event(&self, action: Action) -> Event {
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
