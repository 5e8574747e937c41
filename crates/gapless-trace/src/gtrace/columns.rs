//! The payload of an events block: one control byte an event, and columns for everything that the control bytes do not
//! say.
//!
//! ```text
//!      byte address shift, byte size shift, byte time mode (0: differences >= 0 as v, 1: as z),
//!      v lengths in bytes of the eight columns after the control bytes
//!      control      count bytes: bits 0-3 the action; 4 the address is that of the event before; 5 size, stream, pool
//!                   and stack are those that the memo holds for this address; 6 the time is that of the event before;
//!                   7 (only without 5) stream and pool are those of the event before
//!      addresses    z (address less the one before) >> shift
//!      sizes        v size >> shift
//!      streams      v stream, v pool
//!      times        difference to the time before
//!      stacks       v
//!      compile contexts, user metadata, forward stacks: absent (length 0), or count x v
//! ```
//!
//! The memo is a table of 4096 slots by address, empty at the start of each block and written after each event. A free
//! names the block of an alloc, and a step repeats the requests of the last step, so most events need no more than an
//! address and a time. "The event before" the first is all zeros.

use super::encoding::{Cursor, Fault, put, zigzag};
use crate::events::{Action, Event};
use crate::stacks::StackId;
use crate::strings::StringId;
use crate::words::{Bytes, DeviceAddr, Micros};

const SAME_ADDR: u8 = 1 << 4;
const IN_MEMO: u8 = 1 << 5;
const SAME_TIME: u8 = 1 << 6;
const SAME_STREAM: u8 = 1 << 7;
const ACTION: u8 = 0x0f;

const MEMO_BITS: u32 = 12;

/// The last event at an address. `block` tells entries of earlier blocks apart, so that nothing is cleared.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    addr: u64,
    size: u64,
    stack: u32,
    block: u32,
    stream: u16,
    pool: u16,
}

#[derive(Debug)]
pub(super) struct Memo {
    seen: Box<[Seen]>,
    block: u32,
}

impl Default for Memo {
    fn default() -> Self {
        Memo { seen: vec![Seen::default(); 1 << MEMO_BITS].into_boxed_slice(), block: 0 }
    }
}

impl Memo {
    fn start_block(&mut self) {
        self.block = self.block.wrapping_add(1);
        if self.block == 0 {
            self.seen.fill(Seen::default());
            self.block = 1;
        }
    }

    #[inline]
    fn slot(&mut self, addr: u64) -> &mut Seen {
        // Addresses are multiples of 512: the multiplication brings their upper bits to the top.
        let at = addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - MEMO_BITS);
        &mut self.seen[at as usize]
    }
}

/// The largest id in use of each kind, for the check against the tables.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MaxIds {
    pub(super) stream: u16,
    pub(super) pool: u16,
    pub(super) stack: u32,
    pub(super) string: u32,
}

/// Turns events into a payload. Kept between blocks for its buffers.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    memo: Memo,
    control: Vec<u8>,
    addrs: Vec<u64>,
    sizes: Vec<u64>,
    times: Vec<u64>,
    columns: [Vec<u8>; 8],
}

impl Encoder {
    /// Writes the payload of `events` to `out`.
    ///
    /// # Errors
    /// When an event cannot be in a trace: sizes past [`Bytes::LIMIT`], a range past the end of the addresses.
    pub(super) fn encode(
        &mut self,
        events: impl Iterator<Item = Event>,
        out: &mut Vec<u8>,
    ) -> Result<MaxIds, Fault> {
        self.memo.start_block();
        self.control.clear();
        self.addrs.clear();
        self.sizes.clear();
        self.times.clear();
        for column in &mut self.columns {
            column.clear();
        }
        let [addrs, sizes, streams, times, stacks, contexts, metadata, forwards] = &mut self.columns;
        let epoch = self.memo.block;
        let mut max = MaxIds::default();
        let mut before = Event::default();
        let (mut addr_bits, mut size_bits, mut ascending) = (0u64, 0u64, true);
        for event in events {
            check(&event)?;
            let mut control = event.action as u8;
            if event.addr == before.addr {
                control |= SAME_ADDR;
            } else {
                let difference = event.addr.0.wrapping_sub(before.addr.0);
                addr_bits |= difference;
                self.addrs.push(difference);
            }
            let seen = self.memo.slot(event.addr.0);
            let now = Seen {
                addr: event.addr.0,
                size: event.size.0,
                stack: event.stack.0,
                block: epoch,
                stream: event.stream,
                pool: event.pool,
            };
            if seen.is(&now) {
                control |= IN_MEMO;
            } else {
                *seen = now;
                size_bits |= event.size.0;
                self.sizes.push(event.size.0);
                put(stacks, u64::from(event.stack.0));
                if (event.stream, event.pool) == (before.stream, before.pool) {
                    control |= SAME_STREAM;
                } else {
                    put(streams, u64::from(event.stream));
                    put(streams, u64::from(event.pool));
                }
            }
            if event.time == before.time {
                control |= SAME_TIME;
            } else {
                ascending &= event.time > before.time;
                self.times.push(event.time.0.wrapping_sub(before.time.0));
            }
            self.control.push(control);
            let count = self.control.len();
            put_optional(contexts, count, event.compile_context.0);
            put_optional(metadata, count, event.user_metadata.0);
            put_optional(forwards, count, event.forward_stack.0);
            max.stream = max.stream.max(event.stream);
            max.pool = max.pool.max(event.pool);
            max.stack = max.stack.max(event.stack.0).max(event.forward_stack.0);
            max.string = max.string.max(event.compile_context.0).max(event.user_metadata.0);
            before = event;
        }
        if max.stack == 0 {
            stacks.clear();
        }
        let addr_shift = addr_bits.trailing_zeros() % 64;
        let size_shift = size_bits.trailing_zeros() % 64;
        for &difference in &self.addrs {
            put(addrs, zigzag(((difference as i64) >> addr_shift) as u64));
        }
        for &size in &self.sizes {
            put(sizes, size >> size_shift);
        }
        for &difference in &self.times {
            put(times, if ascending { difference } else { zigzag(difference) });
        }
        out.extend_from_slice(&[addr_shift as u8, size_shift as u8, u8::from(!ascending)]);
        for column in &self.columns {
            put(out, column.len() as u64);
        }
        out.extend_from_slice(&self.control);
        for column in &self.columns {
            out.extend_from_slice(column);
        }
        Ok(max)
    }
}

impl Seen {
    #[inline]
    fn is(&self, other: &Seen) -> bool {
        (self.addr, self.size, self.stack, self.block, self.stream, self.pool)
            == (other.addr, other.size, other.stack, other.block, other.stream, other.pool)
    }
}

/// Appends to a column that stays empty until a value other than 0 comes.
#[inline]
fn put_optional(column: &mut Vec<u8>, count: usize, value: u32) {
    if !column.is_empty() {
        put(column, u64::from(value));
    } else if value != 0 {
        column.resize(count - 1, 0);
        put(column, u64::from(value));
    }
}

/// Checks the invariants of every event, written or read.
#[inline]
fn check(event: &Event) -> Result<(), Fault> {
    if event.size > Bytes::LIMIT {
        return Err(format!("an event of {} bytes: sizes end at 2^60", event.size.0));
    }
    // The address of an OOM event is a number of free bytes.
    if event.addr.0.checked_add(event.size.0).is_none() && event.action != Action::Oom {
        return Err(format!("{} bytes at {} reach past the end of the addresses", event.size.0, event.addr));
    }
    Ok(())
}

/// Turns a payload back into events. Kept between blocks for its memo.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    memo: Memo,
}

impl Decoder {
    /// Hands the `count` events in `payload` to `sink`, in order.
    pub(super) fn decode(
        &mut self,
        payload: &[u8],
        count: u32,
        mut sink: impl FnMut(Event) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.memo.start_block();
        let epoch = self.memo.block;
        let mut front = Cursor::new(payload);
        let [addr_shift, size_shift, time_mode] = front.array()?;
        if addr_shift >= 64 || size_shift >= 64 || time_mode > 1 {
            return Err("the events' column settings are out of range".to_owned());
        }
        let mut lengths = [0u64; 8];
        for length in &mut lengths {
            *length = front.varint()?;
        }
        let control = front.bytes(count as usize)?;
        let mut columns = [Cursor::default(); 8];
        for (column, length) in columns.iter_mut().zip(lengths) {
            *column = Cursor::new(front.bytes(length.min(MAX) as usize)?);
        }
        front.finish()?;
        let [addrs, sizes, streams, times, stacks, contexts, metadata, forwards] = &mut columns;
        let has = [!stacks.is_empty(), !contexts.is_empty(), !metadata.is_empty(), !forwards.is_empty()];
        let optional = |used: bool, column: &mut Cursor<'_>| if used { column.varint32() } else { Ok(0) };

        let mut event = Event::default();
        for &control in control {
            event.action = Action::from_u8(control & ACTION)
                .ok_or_else(|| format!("{} is not the number of an action", control & ACTION))?;
            if control & SAME_ADDR == 0 {
                let difference = addrs.zigzag()? << addr_shift;
                event.addr = DeviceAddr(event.addr.0.wrapping_add(difference));
            }
            let seen = self.memo.slot(event.addr.0);
            if control & IN_MEMO != 0 {
                if seen.addr != event.addr.0 || seen.block != epoch || control & SAME_STREAM != 0 {
                    return Err(format!(
                        "an event refers to an earlier one at {}, and there is none",
                        event.addr
                    ));
                }
                event.size = Bytes(seen.size);
                event.stack = StackId(seen.stack);
                event.stream = seen.stream;
                event.pool = seen.pool;
            } else {
                event.size = Bytes(unshift(sizes.varint()?, size_shift)?);
                event.stack = StackId(optional(has[0], stacks)?);
                if control & SAME_STREAM == 0 {
                    event.stream = index(streams.varint()?)?;
                    event.pool = index(streams.varint()?)?;
                }
                *seen = Seen {
                    addr: event.addr.0,
                    size: event.size.0,
                    stack: event.stack.0,
                    block: epoch,
                    stream: event.stream,
                    pool: event.pool,
                };
            }
            if control & SAME_TIME == 0 {
                let difference = if time_mode == 0 { times.varint()? } else { times.zigzag()? };
                event.time = Micros(event.time.0.wrapping_add(difference));
            }
            event.compile_context = StringId(optional(has[1], contexts)?);
            event.user_metadata = StringId(optional(has[2], metadata)?);
            event.forward_stack = StackId(optional(has[3], forwards)?);
            check(&event)?;
            sink(event)?;
        }
        columns.iter().try_for_each(Cursor::finish)
    }
}

const MAX: u64 = super::layout::MAX_RAW as u64;

#[inline]
fn unshift(value: u64, shift: u8) -> Result<u64, Fault> {
    let whole = value << shift;
    if whole >> shift == value { Ok(whole) } else { Err("a size is longer than 64 bits".to_owned()) }
}

#[inline]
fn index(value: u64) -> Result<u16, Fault> {
    u16::try_from(value).map_err(|_| format!("{value} is not the number of a stream or pool"))
}
