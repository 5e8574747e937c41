//! The origin of an allocation: the return addresses of this thread, and the file in which each of them lies.
//!
//! Stacks are numbered by a hash of 128 bits over their frames, and written once. Files come from `/proc/self/maps`:
//! the loader's functions take its lock, which a thread holds while it loads a library and allocates.

use super::journal::{Journal, Kind};
use crate::lock::Lock;
use crate::sys::{Table, Zeroed};
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// At most this many return addresses of a stack are kept, innermost first.
pub const DEPTH: usize = 28;
/// At most this many frames of the allocator itself are skipped.
const OWN: usize = 10;

pub const SEED: u64 = 0x243F_6A88_85A3_08D3;

/// A hash of numbers.
#[must_use]
pub fn hash(seed: u64, words: &[u64]) -> u64 {
    let mut sum = seed;
    for word in words {
        let wide = u128::from(sum ^ word) * 0x9E37_79B9_7F4A_7C15;
        sum = (wide >> 64) as u64 ^ wide as u64 ^ sum.rotate_left(23);
    }
    sum ^ (sum >> 29)
}

/// Addresses of code, `[start, end)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range {
    pub start: usize,
    pub end: usize,
}

impl Range {
    pub fn has(self, address: usize) -> bool {
        address >= self.start && address < self.end
    }
}

struct Walk {
    frames: [u64; DEPTH],
    /// The address of each of them on the stack.
    places: [usize; DEPTH],
    count: usize,
    seen: usize,
    own: Range,
    stop: Range,
}

unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn _Unwind_GetCFA(context: *mut c_void) -> usize;
}

extern "C" fn visit(context: *mut c_void, argument: *mut c_void) -> c_int {
    const END: c_int = 5;
    // SAFETY: `here` passes its `Walk`, which nothing else uses during the call.
    let walk = unsafe { &mut *argument.cast::<Walk>() };
    // SAFETY: the unwinder passes its own context.
    let address = unsafe { _Unwind_GetIP(context) };
    walk.seen += 1;
    if address == 0 || walk.count == DEPTH || walk.seen > DEPTH + OWN {
        return END;
    }
    if walk.count == 0 && walk.own.has(address) {
        return 0;
    }
    walk.frames[walk.count] = address as u64;
    // SAFETY: the unwinder passes its own context.
    walk.places[walk.count] = unsafe { _Unwind_GetCFA(context) }.wrapping_sub(8);
    walk.count += 1;
    // Outside of the interpreter, its own frames tell more.
    if walk.stop.has(address) { END } else { 0 }
}

/// Writes the return addresses of this thread into `into`, without the allocator's own, up to and including the
/// function in `stop`. Returns their number, and true if the unwinder had to walk.
pub fn here(own: Range, stop: Range, into: &mut [u64; DEPTH]) -> (usize, bool) {
    let mut walk = Walk { frames: [0; DEPTH], places: [0; DEPTH], count: 0, seen: 0, own, stop };
    let depth = &raw const walk as usize;
    if let Some(count) = KNOWN.try_lock().and_then(|known| known.find(depth, stop, into)) {
        return (count, false);
    }
    // SAFETY: `visit` gets the walk, which lives until the call is done.
    unsafe { _Unwind_Backtrace(visit, (&raw mut walk).cast()) };
    *into = walk.frames;
    if let Some(mut known) = KNOWN.try_lock() {
        known.add(depth, &walk);
    }
    (walk.count, true)
}

/// Stacks that were walked before. The unwinder takes microseconds, and most samples repeat an earlier stack.
///
/// A stack is the same if each of its return addresses is at the same place. They are compared from the inside: as long
/// as all are equal, the next one lies in a frame of the same function, so its place can be read.
struct Known {
    entries: Option<Table<Entry>>,
    next: usize,
}

static KNOWN: Lock<Known> = Lock::new(Known { entries: None, next: 0 });
/// An address on the stack of the first thread; 0 if unknown. Only that stack is never unmapped: the stacks of other
/// threads and of coroutines may be gone when their places are read again.
static FIRST: AtomicUsize = AtomicUsize::new(0);
const REACH: usize = 64 << 20;

/// Called by the first thread, before the program begins.
pub fn begin() {
    let here = 0u8;
    FIRST.store(&raw const here as usize, Ordering::Relaxed);
}

fn is_on_first(place: usize) -> bool {
    let first = FIRST.load(Ordering::Relaxed);
    first != 0 && place < first + (1 << 20) && place + REACH > first
}

const SETS: usize = 512;
const WAYS: usize = 4;

#[derive(Clone, Copy)]
struct Entry {
    /// The place on the stack at which the walk began; 0 if the entry is empty.
    depth: usize,
    stop: usize,
    count: usize,
    frames: [u64; DEPTH],
    places: [usize; DEPTH],
}

// SAFETY: all fields are integers.
unsafe impl Zeroed for Entry {}

fn set_of(depth: usize) -> usize {
    hash(SEED, &[depth as u64]) as usize % SETS * WAYS
}

impl Known {
    fn find(&self, depth: usize, stop: Range, into: &mut [u64; DEPTH]) -> Option<usize> {
        if !is_on_first(depth) {
            return None;
        }
        let entries = self.entries.as_ref()?;
        for at in set_of(depth)..set_of(depth) + WAYS {
            // SAFETY: an entry of the table, which is only written under the lock that the caller has.
            let entry = unsafe { &*entries.place(at) };
            let same = |at: usize| {
                // SAFETY: the place lies on the first thread's stack, above this function's frame, so it is mapped.
                entry.places[at] > depth
                    && unsafe { (entry.places[at] as *const u64).read() } == entry.frames[at]
            };
            if entry.depth == depth && entry.stop == stop.start && (0..entry.count).all(same) {
                *into = entry.frames;
                return Some(entry.count);
            }
        }
        None
    }

    fn add(&mut self, depth: usize, walk: &Walk) {
        let is_plain = |at: usize| {
            let place = walk.places[at];
            // SAFETY: the unwinder read the return address of this frame there, or elsewhere on the same stack.
            place > depth
                && (at == 0 || place > walk.places[at - 1])
                && unsafe { (place as *const u64).read() } == walk.frames[at]
        };
        // Frames of signals and of other stacks are walked each time.
        if walk.count == 0
            || !is_on_first(depth)
            || !walk.places[..walk.count].iter().all(|place| is_on_first(*place))
            || !(0..walk.count).all(is_plain)
        {
            return;
        }
        if self.entries.is_none() {
            self.entries = Table::new(SETS * WAYS);
        }
        self.next += 1;
        let at = set_of(depth) + self.next % WAYS;
        if let Some(entries) = self.entries.as_mut() {
            let (frames, places, count) = (walk.frames, walk.places, walk.count);
            entries.set(at, Entry { depth, stop: walk.stop.start, count, frames, places });
        }
    }
}

/// Forgets all stacks, because a library was unloaded and its frames may belong to another function.
pub fn forget() {
    if let Some(mut known) = KNOWN.try_lock() {
        known.entries = None;
    }
}

/// Numbers by hash, in a table with open addressing that doubles when it is half full.
#[derive(Debug)]
pub struct Numbers {
    /// Two words of the hash, then the number; 0 if the entry is empty.
    table: Option<Table<u64>>,
    room: usize,
    count: usize,
}

/// Further ones are not remembered, so that a program that makes ever new code does not fill memory.
const MOST: usize = 1 << 19;

impl Numbers {
    pub const fn new() -> Numbers {
        Numbers { table: None, room: 0, count: 0 }
    }

    /// The number of `key`, counted from 1, and true if it is new. `None` if there is no room.
    pub fn number(&mut self, key: (u64, u64)) -> Option<(u32, bool)> {
        if self.count * 2 >= self.room {
            self.grow()?;
        }
        let table = self.table.as_mut()?;
        let mut at = key.0 as usize & (self.room - 1);
        loop {
            let number = table.get(at * 3 + 2);
            if number == 0 {
                break;
            }
            if (table.get(at * 3), table.get(at * 3 + 1)) == key {
                return Some((number as u32, false));
            }
            at = (at + 1) & (self.room - 1);
        }
        if self.count == MOST {
            return None;
        }
        self.count += 1;
        table.set(at * 3, key.0);
        table.set(at * 3 + 1, key.1);
        table.set(at * 3 + 2, self.count as u64);
        Some((self.count as u32, true))
    }

    fn grow(&mut self) -> Option<()> {
        let room = (self.room * 2).max(1 << 10);
        let mut table: Table<u64> = Table::new(room * 3)?;
        for old in 0..self.room {
            let from = self.table.as_ref()?;
            let number = from.get(old * 3 + 2);
            if number == 0 {
                continue;
            }
            let mut at = from.get(old * 3) as usize & (room - 1);
            while table.get(at * 3 + 2) != 0 {
                at = (at + 1) & (room - 1);
            }
            for part in 0..3 {
                table.set(at * 3 + part, from.get(old * 3 + part));
            }
        }
        self.table = Some(table);
        self.room = room;
        Some(())
    }
}

/// Files whose code is mapped.
#[derive(Debug)]
pub struct Modules {
    /// Start and end of each.
    table: Option<Table<u64>>,
    count: usize,
    /// The time of the last query to the kernel, in microseconds, because code without a file would cause many.
    asked: u64,
}

const MOST_MODULES: usize = 1 << 14;
/// Microseconds between two queries for addresses that are in no file.
const PATIENCE: u64 = 100_000;

impl Modules {
    pub const fn new() -> Modules {
        Modules { table: None, count: 0, asked: 0 }
    }

    fn knows(&self, address: u64) -> bool {
        let Some(table) = self.table.as_ref() else { return false };
        (0..self.count).rev().any(|at| address >= table.get(at * 2) && address < table.get(at * 2 + 1))
    }

    /// Forgets all files, because a library was unloaded and another may come to its place.
    pub fn forget(&mut self) {
        self.count = 0;
        self.asked = 0;
    }

    /// True if the files of these addresses are known, or were read just now.
    pub fn know(&self, addresses: &[u64], now: u64) -> bool {
        addresses.iter().all(|&address| self.knows(address)) || now < self.asked + PATIENCE
    }

    /// Writes the files that were mapped since the last call.
    pub fn tell(&mut self, now: u64, journal: &mut Journal) {
        self.asked = now.max(1);
        each_mapping(|mapping| {
            if self.knows(mapping.start as u64) || self.count == MOST_MODULES {
                return;
            }
            let Some(table) = self.table.get_or_insert_with_option() else { return };
            table.set(self.count * 2, mapping.start as u64);
            table.set(self.count * 2 + 1, mapping.end as u64);
            self.count += 1;
            let (size, modified) = stamp(mapping.path);
            journal.write(Kind::Module, 40 + mapping.path.len(), |body| {
                for word in [mapping.start as u64, mapping.end as u64, mapping.offset, size, modified] {
                    body.u64(word);
                }
                body.bytes(mapping.path);
            });
        });
    }
}

trait Lazily {
    fn get_or_insert_with_option(&mut self) -> Option<&mut Table<u64>>;
}

impl Lazily for Option<Table<u64>> {
    fn get_or_insert_with_option(&mut self) -> Option<&mut Table<u64>> {
        if self.is_none() {
            *self = Table::new(MOST_MODULES * 2);
        }
        self.as_mut()
    }
}

/// Size and modification time of a file, so that a reader does not take names from another one.
fn stamp(path: &[u8]) -> (u64, u64) {
    let mut name = [0u8; 4097];
    if path.len() >= name.len() {
        return (0, 0);
    }
    name[..path.len()].copy_from_slice(path);
    // SAFETY: valid when zero.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends in a zero, and `found` is valid for writing.
    if unsafe { libc::stat(name.as_ptr().cast(), &raw mut found) } != 0 {
        return (0, 0);
    }
    let nanos = found.st_mtime.unsigned_abs() * 1_000_000_000 + found.st_mtime_nsec.unsigned_abs();
    (found.st_size.unsigned_abs(), nanos)
}

/// A mapping of code from a file.
struct Mapping<'a> {
    start: usize,
    end: usize,
    offset: u64,
    path: &'a [u8],
}

fn hex(text: &[u8]) -> u64 {
    text.iter().fold(0, |sum, byte| sum << 4 | u64::from((*byte as char).to_digit(16).unwrap_or(0)))
}

fn parse(line: &[u8]) -> Option<Mapping<'_>> {
    // 7f00-7f10 r-xp 00001000 08:01 1234       /usr/lib/libc.so.6
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let (range, rights, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let path = fields.nth(2)?.trim_ascii();
    let (start, end) = range.split_at(range.iter().position(|byte| *byte == b'-')?);
    (rights.get(2) == Some(&b'x') && path.first() == Some(&b'/')).then(|| Mapping {
        start: hex(start) as usize,
        end: hex(&end[1..]) as usize,
        offset: hex(offset),
        path: path.strip_suffix(b" (deleted)").unwrap_or(path),
    })
}

fn each_mapping(mut visit: impl FnMut(&Mapping<'_>)) {
    // SAFETY: the name ends in a zero.
    let file = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return;
    }
    let mut buffer = [0u8; 16 << 10];
    let mut filled = 0;
    loop {
        let rest = &mut buffer[filled..];
        // SAFETY: `rest` is valid for writing.
        let read = unsafe { libc::read(file, rest.as_mut_ptr().cast(), rest.len()) };
        if read <= 0 {
            break;
        }
        filled += read as usize;
        let whole = buffer[..filled].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        buffer[..whole].split(|byte| *byte == b'\n').filter_map(parse).for_each(|mapping| visit(&mapping));
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
        if filled == buffer.len() {
            break; // no line is that long
        }
    }
    // SAFETY: `file` was opened above and is not used again.
    unsafe { libc::close(file) };
}

/// The code of the file that contains `address`.
#[must_use]
pub fn code_around(address: usize) -> Range {
    let mut found = Range::default();
    each_mapping(|mapping| {
        let range = Range { start: mapping.start, end: mapping.end };
        if range.has(address) {
            found = range;
        }
    });
    found
}

/// The code of a function that the program exports. Asks the loader, so it must be called before the program begins.
#[must_use]
pub fn code_of(name: &CStr) -> Range {
    #[repr(C)]
    struct Symbol {
        name: u32,
        kind: u8,
        other: u8,
        section: u16,
        value: u64,
        size: u64,
    }
    unsafe extern "C" {
        fn dladdr1(
            address: *const c_void,
            info: *mut libc::Dl_info,
            more: *mut *mut c_void,
            flags: c_int,
        ) -> c_int;
    }
    const RTLD_DL_SYMENT: c_int = 1;
    // SAFETY: `name` ends in a zero.
    let start = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if start.is_null() {
        return Range::default();
    }
    // SAFETY: valid when zero.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut more: *mut c_void = std::ptr::null_mut();
    // SAFETY: both are valid for writing; the flag asks for a symbol of the loader's tables.
    let known = unsafe { dladdr1(start, &raw mut info, &raw mut more, RTLD_DL_SYMENT) };
    if known == 0 || more.is_null() {
        return Range::default();
    }
    // SAFETY: the loader's own table, which stays while the object is loaded.
    let size = unsafe { (*more.cast::<Symbol>()).size };
    Range { start: start as usize, end: start as usize + size as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read_and_others_passed_over() {
        let line = b"7f00-7f10 r-xp 00001000 08:01 1234                       /usr/lib/a b.so (deleted)";
        let mapping = parse(line).expect("a mapping of code");
        assert_eq!((mapping.start, mapping.end, mapping.offset), (0x7f00, 0x7f10, 0x1000));
        assert_eq!(mapping.path, b"/usr/lib/a b.so");
        for other in
            [&b"7f00-7f10 rw-p 0 08:01 1 /a"[..], b"7f00-7f10 r-xp 0 00:00 0 ", b"x", b"7f r-xp 0 0 0 /a"]
        {
            assert!(parse(other).is_none());
        }
    }

    #[test]
    fn this_function_is_found_in_its_own_stack_and_file() {
        let own = this_function_is_found_in_its_own_stack_and_file as *const () as usize;
        let range = code_around(own);
        assert!(range.start <= own && own < range.end);
        let mut frames = [0; DEPTH];
        let (count, _) = here(Range::default(), Range::default(), &mut frames);
        assert!(count > 1 && range.start as u64 <= frames[1] && frames[1] < range.end as u64);
        // The same stack again: on the first thread it would be known now.
        let mut walks = 0;
        for _ in 0..3 {
            let mut frames = [0; DEPTH];
            walks += usize::from(here(Range::default(), Range::default(), &mut frames).1);
        }
        assert_eq!(walks, 3, "a test runs on a thread of its own, whose stack goes with it");
    }

    #[test]
    fn each_key_keeps_its_number() {
        let mut numbers = Numbers::new();
        let key = |i: u64| (hash(SEED, &[i]), hash(!SEED, &[i]));
        for i in 0..5000 {
            assert_eq!(numbers.number(key(i)), Some((i as u32 + 1, true)));
        }
        for i in 0..5000 {
            assert_eq!(numbers.number(key(i)), Some((i as u32 + 1, false)));
        }
    }
}
