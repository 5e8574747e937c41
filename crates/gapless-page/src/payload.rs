//! The page's binary data: columns, coded so that deflate does well, one raw-deflate stream a section.
//! `web/src/payload.ts` reads what this module writes; change both together and raise [`VERSION`].
//!
//! A number is a LEB128 varint: seven bits a byte, lowest first, high bit set on all but the last. A signed number is
//! zigzagged first (0, -1, 1, -2 ... become 0, 1, 2, 3 ...). A string is its length in bytes and its UTF-8.
//!
//!   section `tables`                              once a page
//!     version                                     5
//!     n, n x string                               strings; 0 is the empty one
//!     n, n x {name, file, line, origin}           frames; name and file are strings; origin: 0 user, 1 library,
//!                                                 2 torch and the standard library, 3 not Python
//!     n, n x {shared, own, own x frame}           stacks, innermost frame first; the last `shared` frames are those of
//!                                                 the stack before. Stack 0 is "none recorded" and not written: stacks
//!                                                 count from 1
//!     a label a stack                             the names that text and JSON use, a string each
//!     n, n x string                               names of the kinds
//!
//!   section `rects.D`                             device D, all that the first picture needs
//!     n, last tick, unit, given, lanes            allocations; y, addresses and blocks are multiples of unit; given: 1
//!                                                 if y is an offset of a plan; lanes of the ruler, so that the page
//!                                                 need not move when the rest comes: 1 for steps, 2 a depth of scopes,
//!                                                 at most two
//!     n x delta                                   start, from the one before
//!     n x life                                    end - start; 0: never ended (end = last tick + 1)
//!     recency(n)                                  requested
//!     n x signed                                  block / unit - ceil(requested / unit)
//!     recency(n)                                  y / unit, if given is 1; else the page finds y itself
//!     recency(n)                                  stack
//!     runs(n)                                     kind + 1, 0 if none is known
//!
//!   section `detail.D`                            what tooltips, curves and segments need
//!     n, n x id                                   streams (string)
//!     n, n x id                                   pools (string)
//!     base                                        lowest address, a string of hexadecimal digits: it may pass 2^53
//!     n x pending                                 end - freed
//!     recency(n)                                  (address - base) / unit
//!     runs(n) x 3                                 stream, pool, class (0 large, 1 small)
//!     s, s x {start delta, life, address - base, size, stream, pool, flags}     segment spans by start; life as above;
//!                                                 flags: 1 small, 2 expandable
//!     clock, t0, e x signed                       clock 0: none, nothing follows; 1: e = last tick times of events,
//!                                                 first against t0, t0 a string of decimal digits
//!     n, n x {start, end}                         steps, ticks
//!     n, n x {start delta (signed), duration, depth, name}       scopes by start, microseconds from t0; name is a
//!                                                                string
//!     n, n x string                               texts of notes, each once
//!     n, n x {allocation delta, text}             notes that the program made on its blocks, by allocation
//!     n, n x {tick, asked, device free, stack}    requests that failed
//!
//!   recency(n): n x {distance back to the last row with the same value; 0: a value not seen before follows}
//!   runs(n):    pairs {value, how often} until n rows are covered

use super::{Page, PageDevice};
use gapless_trace::naming::Names;
use gapless_trace::{Action, DeviceTrace, Event, History, SizeClass, StackId, StringId, Tick, Trace, scopes};
use rustc_hash::{FxHashMap, FxHashSet};

/// The version of the layout above.
pub const VERSION: u64 = 5;

/// The stacks that a page shows, numbered by first use: so that frequent stacks get small numbers.
#[derive(Debug)]
pub(crate) struct StackNumbers {
    numbers: Vec<u32>,
    order: Vec<StackId>,
}

impl StackNumbers {
    pub(crate) fn of(page: &Page<'_>) -> StackNumbers {
        let mut own = StackNumbers { numbers: vec![0; page.trace.stacks.len()], order: Vec::new() };
        for device in &page.devices {
            for &stack in device.history.allocations.columns().stacks {
                own.see(StackId(stack));
            }
            for (_, failed) in failures(device.device) {
                own.see(failed.stack);
            }
        }
        own
    }

    fn see(&mut self, stack: StackId) {
        if !stack.is_none()
            && let Some(number) = self.numbers.get_mut(stack.0 as usize)
            && *number == 0
        {
            self.order.push(stack);
            *number = self.order.len() as u32;
        }
    }

    fn get(&self, stack: StackId) -> u64 {
        self.numbers.get(stack.0 as usize).map_or(0, |&n| u64::from(n))
    }
}

/// Section `tables`.
pub(crate) fn tables(page: &Page<'_>, stacks: &StackNumbers) -> Vec<u8> {
    let trace = page.trace;
    let mut strings = Texts::new(trace);
    let mut frame_numbers: FxHashMap<u32, u64> = FxHashMap::default();
    let mut frames = Bytes::default();
    let mut lists = Bytes::default();
    let mut before: &[_] = &[];
    let names = Names::of(trace);
    let mut labels = Bytes::default();
    for &stack in &stacks.order {
        labels.string(&names.label(stack).map_or_else(String::new, |label| label.text));
        let ids = trace.stacks.get(stack);
        let shared = ids.iter().rev().zip(before.iter().rev()).take_while(|(a, b)| a == b).count();
        lists.number(shared as u64);
        lists.number((ids.len() - shared) as u64);
        for id in &ids[..ids.len() - shared] {
            let next = frame_numbers.len() as u64;
            let number = *frame_numbers.entry(id.0).or_insert_with(|| {
                let frame = trace.frames.get(*id);
                frames.number(strings.number(frame.name));
                frames.number(strings.number(frame.file));
                frames.number(u64::from(frame.line));
                frames.number(names.origin(*id) as u64);
                next
            });
            lists.number(number);
        }
        before = ids;
    }
    let mut out = Bytes::default();
    out.number(VERSION);
    strings.write(&mut out);
    out.number(frame_numbers.len() as u64);
    out.0.extend_from_slice(&frames.0);
    out.number(stacks.order.len() as u64);
    out.0.extend_from_slice(&lists.0);
    out.0.extend_from_slice(&labels.0);
    out.number(page.kind_names.len() as u64);
    for name in page.kind_names {
        out.string(name);
    }
    out.0
}

/// The unit of addresses and sizes in both sections of a device: 512 bytes if everything is a multiple of it, as in
/// PyTorch's allocator.
pub(crate) fn unit(device: &PageDevice<'_>) -> u64 {
    let columns = device.history.allocations.columns();
    let all = columns.addrs.iter().chain(columns.blocks).fold(0, |all, bytes| all | bytes);
    if all.is_multiple_of(512) { 512 } else { 1 }
}

/// Section `rects.D`.
pub(crate) fn rects(trace: &Trace, device: &PageDevice<'_>, stacks: &StackNumbers) -> Vec<u8> {
    let all = device.history.allocations.columns();
    let n = all.starts.len();
    let unit = unit(device);
    let forever = device.history.forever().0;
    let mut out = Bytes(Vec::with_capacity(n * 12 + 64));
    out.number(n as u64);
    out.number(u64::from(device.history.last_tick.0));
    out.number(unit);
    out.number(u64::from(device.places.is_some()));
    let depths = scopes::of(trace, device.device).iter().map(|scope| scope.depth + 1).max().unwrap_or(0);
    out.number(u64::from(!device.steps.is_empty()) + 2 * depths.min(2));
    let mut before = 0;
    for &start in all.starts {
        out.number(u64::from(start.saturating_sub(before)));
        before = start;
    }
    for (&start, &end) in all.starts.iter().zip(all.ends) {
        out.number(life(Tick(start), Tick(end), forever));
    }
    out.recency(all.requested.iter().copied());
    for (block, requested) in all.blocks.iter().zip(all.requested) {
        out.signed((block / unit) as i64 - requested.div_ceil(unit) as i64);
    }
    if let Some(places) = device.places {
        out.recency((0..n).map(|i| places.get(i).map_or(0, |y| y / unit)));
    }
    out.recency(all.stacks.iter().map(|&stack| stacks.get(StackId(stack))));
    let kinds = device.kinds;
    out.runs((0..n).map(|i| kinds.get(i).map_or(0, |&kind| u64::from(kind) + 1)));
    out.0
}

/// Section `detail.D`.
pub(crate) fn detail(trace: &Trace, device: &PageDevice<'_>, stacks: &StackNumbers) -> Vec<u8> {
    let history = device.history;
    let all = history.allocations.columns();
    let forever = history.forever().0;
    let unit = unit(device);
    let mut out = Bytes(Vec::with_capacity(all.starts.len() * 4 + device.device.events.len() * 2 + 64));

    let columns = device.device;
    out.number(columns.streams.len() as u64);
    for stream in &columns.streams {
        out.string(&stream.to_string());
    }
    out.number(columns.pools.len() as u64);
    for pool in &columns.pools {
        out.string(&pool.to_string());
    }
    let lowest = all.addrs.iter().copied().chain(history.segments.iter().map(|s| s.addr.0)).min();
    // Rounded down to the unit, so that differences stay multiples of it.
    let base = lowest.unwrap_or(0) / unit * unit;
    out.string(&format!("{base:x}"));
    for (end, &freed) in all.ends.iter().zip(all.freed) {
        out.number(u64::from(end.saturating_sub(freed)));
    }
    out.recency(all.addrs.iter().map(|addr| (addr - base) / unit));
    out.runs(all.streams.iter().map(|&stream| u64::from(stream)));
    out.runs(all.pools.iter().map(|&pool| u64::from(pool)));
    out.runs(all.small.iter().map(|&small| u64::from(small)));

    let mut spans: Vec<_> = history.segments.iter().collect();
    spans.sort_by_key(|s| (s.start, s.addr));
    out.number(spans.len() as u64);
    let mut before = 0;
    for s in spans {
        out.number(u64::from(s.start.0 - before));
        before = s.start.0;
        out.number(life(s.start, s.end, forever));
        out.number(s.addr.0 - base);
        out.number(s.size.0);
        out.number(u64::from(s.stream));
        out.number(u64::from(s.pool));
        out.number(u64::from(s.class == SizeClass::Small) | u64::from(s.expandable) << 1);
    }

    let start = columns.events.time_at(Tick(0)).0;
    if columns.events.has_times() {
        out.number(1);
        out.string(&start.to_string());
        let mut before = start;
        for i in columns.events.indices() {
            let time = columns.events.time(i).0;
            out.signed(time.wrapping_sub(before) as i64);
            before = time;
        }
    } else {
        out.number(0);
    }
    out.number(device.steps.len() as u64);
    for &(from, to) in device.steps {
        out.number(u64::from(from.0));
        out.number(u64::from(to.0));
    }
    let scopes = scopes::of(trace, columns);
    out.number(scopes.len() as u64);
    let mut before = start;
    for scope in scopes {
        out.signed(scope.start.wrapping_sub(before) as i64);
        before = scope.start;
        out.number(scope.duration);
        out.number(scope.depth);
        out.string(trace.strings.get(scope.name));
    }
    notes(&mut out, trace, history);
    let failed: Vec<_> = failures(columns).collect();
    out.number(failed.len() as u64);
    for (tick, event) in failed {
        out.number(u64::from(tick.0));
        out.number(event.size.0);
        out.number(event.addr.0);
        out.number(stacks.get(event.stack));
    }
    out.0
}

/// The requests that failed, with the tick after each.
fn failures(device: &DeviceTrace) -> impl Iterator<Item = (Tick, Event)> + '_ {
    let events = &device.events;
    let failed = events.indices().filter(|&i| events.action(i) == Action::Oom);
    failed.take(events.count(Action::Oom)).map(|i| (Tick(i.0 + 1), events.get(i)))
}

fn notes(out: &mut Bytes, trace: &Trace, history: &History) {
    let mut numbers: FxHashMap<StringId, u64> = FxHashMap::default();
    let mut texts: Vec<StringId> = Vec::new();
    let (mut rows, mut count, mut before) = (Bytes::default(), 0, 0);
    for (id, text) in history.block_notes.iter() {
        let number = *numbers.entry(text).or_insert_with(|| {
            texts.push(text);
            texts.len() as u64 - 1
        });
        rows.number(u64::from(id.0 - before));
        rows.number(number);
        (count, before) = (count + 1, id.0);
    }
    out.number(texts.len() as u64);
    for text in texts {
        out.string(trace.strings.get(text));
    }
    out.number(count);
    out.0.extend_from_slice(&rows.0);
}

fn life(start: Tick, end: Tick, forever: u32) -> u64 {
    if end.0 >= forever { 0 } else { u64::from(end.0.saturating_sub(start.0)) }
}

/// Strings in use, numbered by first use; 0 is the empty one.
struct Texts<'a> {
    trace: &'a Trace,
    numbers: FxHashMap<StringId, u64>,
    order: Vec<StringId>,
}

impl<'a> Texts<'a> {
    fn new(trace: &'a Trace) -> Texts<'a> {
        let mut texts = Texts { trace, numbers: FxHashMap::default(), order: Vec::new() };
        texts.number(StringId(0));
        texts
    }

    fn number(&mut self, id: StringId) -> u64 {
        let next = self.order.len() as u64;
        *self.numbers.entry(id).or_insert_with(|| {
            self.order.push(id);
            next
        })
    }

    fn write(&self, out: &mut Bytes) {
        out.number(self.order.len() as u64);
        for &id in &self.order {
            out.string(self.trace.strings.get(id));
        }
    }
}

/// True if at least one in eight of the first values is a repetition; true for a short column.
fn comes_back(values: impl Iterator<Item = u64>) -> bool {
    const LOOKED_AT: usize = 1 << 16;
    let mut seen = FxHashSet::default();
    let mut rows = 0;
    for value in values.take(LOOKED_AT) {
        rows += 1;
        seen.insert(value);
    }
    rows < LOOKED_AT || (rows - seen.len()) * 8 >= rows
}

/// Bytes being written.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    #[inline]
    fn number(&mut self, value: u64) {
        if value < 0x80 {
            self.0.push(value as u8);
        } else if value < 1 << 56 {
            self.groups(value);
        } else {
            self.long_number(value);
        }
    }

    /// A number of two to eight groups of seven bits, without a branch on their number, which is almost random in
    /// columns of sizes and times.
    #[inline]
    fn groups(&mut self, value: u64) {
        // Two halves of 28 bits, four quarters of 14, eight groups of 7, each in as many whole bytes.
        let halves = value & 0x0fff_ffff | (value & 0xff_ffff_f000_0000) << 4;
        let quarters = halves & 0x0000_3fff_0000_3fff | (halves & 0x0fff_c000_0fff_c000) << 2;
        let bytes = quarters & 0x007f_007f_007f_007f | (quarters & 0x3f80_3f80_3f80_3f80) << 1;
        let count = (64 - value.leading_zeros() as usize).div_ceil(7);
        let more = 0x8080_8080_8080_8080 & ((1 << (8 * (count - 1))) - 1);
        self.0.extend_from_slice(&(bytes | more).to_le_bytes());
        self.0.truncate(self.0.len() - 8 + count);
    }

    fn long_number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    #[inline]
    fn signed(&mut self, value: i64) {
        self.number(((value << 1) ^ (value >> 63)) as u64);
    }

    fn string(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Addresses, places and sizes recur, because training repeats its steps. On recorded runs the distance to the
    /// last equal value takes a third less than the values or their differences do. If the first rows hardly repeat,
    /// each value is written as a new one, which is then shorter and needs no table.
    fn recency(&mut self, values: impl Iterator<Item = u64> + Clone) {
        if !comes_back(values.clone()) {
            for value in values {
                self.number(0);
                self.number(value);
            }
            return;
        }
        let mut last: FxHashMap<u64, u64> = FxHashMap::default();
        // The row before is not in the table yet, so that runs of one value need no look-up.
        let mut before: Option<u64> = None;
        for (row, value) in (1u64..).zip(values) {
            if before == Some(value) {
                self.number(1);
                continue;
            }
            if let Some(before) = before.replace(value) {
                last.insert(before, row - 1);
            }
            match last.get(&value) {
                Some(before) => self.number(row - before),
                None => {
                    self.number(0);
                    self.number(value);
                }
            }
        }
    }

    fn runs(&mut self, values: impl Iterator<Item = u64>) {
        let mut run: Option<(u64, u64)> = None;
        for value in values {
            match &mut run {
                Some((of, length)) if *of == value => *length += 1,
                _ => {
                    if let Some((of, length)) = run.replace((value, 1)) {
                        self.number(of);
                        self.number(length);
                    }
                }
            }
        }
        if let Some((of, length)) = run {
            self.number(of);
            self.number(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn a_number_is_its_groups_of_seven_bits_whatever_its_length() {
        let around = |n: u64| {
            [n.wrapping_sub(1), n, n.wrapping_add(1), n ^ 0x5a5a_5a5a_5a5a_5a5a & (n.wrapping_sub(1))]
        };
        for value in (0..64).flat_map(|bit| around(1 << bit)).chain([0, u64::MAX]) {
            let (mut own, mut plain, mut rest) = (Bytes(vec![9]), vec![9], value);
            own.number(value);
            while rest >= 0x80 {
                plain.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            plain.push(rest as u8);
            assert_eq!(own.0, plain, "{value:#x}");
        }
    }
}
