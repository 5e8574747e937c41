//! The recorder: a sample of all allocations in a file, with where each came from (`GAPLESS_HOST_RECORD=run.gtrace`).
//!
//! ```text
//!   sampler   which allocations: every so many bytes, by chance
//!   slots     sampled blocks have addresses of their own, so `free` knows them by a comparison
//!   stacks    return addresses, and the files that they lie in
//!   python    the lines of Python, read without its help
//!   objects   Python's objects, which it takes from blocks of its own
//!   journal   the file, readable up to the moment at which the process is killed
//! ```
//!
//! All of it is under one lock, which is taken for samples only. Nothing here allocates from `malloc`. A thread that is
//! inside (a signal's handler, or the unwinder) is not recorded, and what it frees waits for the next holder of the
//! lock. Around a fork the lock is held; the child writes a file of its own, `run.PID.gtrace`, when it has a sample.

mod journal;
pub mod objects;
mod python;
mod sampler;
mod slots;
mod stacks;

use crate::core::{self, LARGE};
use crate::large::is_large;
use crate::lock::Lock;
use crate::options::Config;
use crate::sys;
use crate::text::{Text, say};
use crate::units::LARGE as EXACT;
use journal::{Journal, Kind};
use python::{Found, Place, Python};
use sampler::Busy;
use slots::Slots;
use stacks::{Modules, Numbers, Range};
use std::ffi::CStr;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub use sampler::DEFAULT as DEFAULT_INTERVAL;

struct Recorder {
    config: Option<Config>,
    journal: Option<Journal>,
    /// The file could not be made, or is full: told once.
    failed: bool,
    /// A forked child: its file has its number in the name.
    is_child: bool,
    slots: Slots,
    stacks: Numbers,
    codes: Numbers,
    modules: Modules,
    python: Option<Python>,
    /// Code of this library, of the interpreter's loop, and of all of the interpreter.
    own: Range,
    interpreter: Range,
    around: Range,
    /// Mixed into the numbers of stacks: addresses mean something else after a library was unloaded.
    epoch: u64,
    /// When statistics were written last, in microseconds.
    told: u64,
    pace: Pace,
}

/// Room for the names of a code object and its line table.
const NAMES: usize = 96 << 10;
/// Microseconds between two records of what the process holds.
const TELL: u64 = 200_000;

static RECORDER: Lock<Recorder> = Lock::new(Recorder {
    config: None,
    journal: None,
    failed: false,
    is_child: false,
    slots: Slots::new(),
    stacks: Numbers::new(),
    codes: Numbers::new(),
    modules: Modules::new(),
    python: None,
    own: Range { start: 0, end: 0 },
    interpreter: Range { start: 0, end: 0 },
    around: Range { start: 0, end: 0 },
    epoch: 0,
    told: 0,
    pace: Pace::new(),
});
/// Used by the holder of the recorder's lock.
static WORDS: Lock<[u8; NAMES]> = Lock::new([0; NAMES]);
/// Allocations that should have been recorded and were not.
static LOST: AtomicU64 = AtomicU64::new(0);
/// Sampled blocks that were freed while their thread was inside: a list through the blocks.
static FREED_INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Keeps the cost of samples at about one hundredth of the time, and the file from growing without end.
#[derive(Debug)]
struct Pace {
    is_fixed: bool,
    /// The finest interval: it doubles with every 64 MiB of the file.
    least: u64,
    samples: u32,
    /// Nanoseconds inside of the recorder, and when counting began.
    spent: u64,
    since: u64,
    total: u64,
}

/// Samples between two looks at the pace.
const LOOK: u32 = 32;
/// Nanoseconds that are free: a program that ends soon has samples enough.
const FREE: u64 = 3_000_000;
/// Nanoseconds of a sample with its free; and what it costs more where the unwinder had to walk, or the kernel had to
/// be asked for Python's frames. Measured; a clock would count every loss of the processor, which is no cost.
const COST: u64 = 1_500;
const COST_OF_WALK: u64 = 5_000;
const COST_OF_ASKING: u64 = 12_000;
/// Bytes of the file for each doubling of the interval.
const FILE: u64 = 64 << 20;

impl Pace {
    const fn new() -> Pace {
        Pace { is_fixed: false, least: sampler::DEFAULT, samples: 0, spent: 0, since: 0, total: 0 }
    }

    /// Counts a sample that cost about so many nanoseconds and ended now.
    fn count(&mut self, cost: u64, ended: u64, written: u64) {
        self.samples += 1;
        self.spent += cost;
        if self.is_fixed || self.samples < LOOK {
            return;
        }
        let elapsed = ended.saturating_sub(self.since).max(1);
        let now = sampler::interval();
        self.least = (sampler::DEFAULT << (written / FILE).min(12)).min(sampler::MOST);
        self.total += self.spent;
        // At most 1.2 %; finer again below a third of that.
        let next = if self.total > FREE && self.spent * 83 > elapsed {
            now * 2
        } else if self.spent * 250 < elapsed {
            now / 2
        } else {
            now
        };
        sampler::set_interval(next.clamp(self.least, sampler::MOST));
        (self.samples, self.spent, self.since) = (0, 0, ended);
    }
}

fn nanos() -> u64 {
    sys::time().as_nanos() as u64
}

/// Begins to record: before the program's own code.
pub fn begin(config: Config) {
    stacks::begin();
    let mut recorder = RECORDER.lock();
    recorder.own = stacks::code_around(begin as *const () as usize);
    let found = python::look();
    let is_unknown = matches!(found, Found::Unknown);
    if let Found::Known(python) = found {
        recorder.python = Some(python);
        recorder.interpreter = stacks::code_of(c"_PyEval_EvalFrameDefault");
        recorder.around = stacks::code_around(recorder.interpreter.start);
    }
    if let Some(interval) = config.interval {
        sampler::set_interval(interval);
        recorder.pace.is_fixed = true;
    }
    recorder.config = Some(config);
    recorder.is_child = !is_first();
    recorder.pace.since = nanos();
    // A file that cannot be made is told before the program begins.
    if !recorder.open() {
        sys::exit(2);
    }
    if is_unknown {
        recorder.note(Unknown::PythonFrames);
    }
}

/// Whether this is the program that was asked for, and none that it started: those write files of their own.
fn is_first() -> bool {
    let name = c"GAPLESS_HOST_RECORD_PID";
    let pid = sys::pid();
    match sys::variable(name).and_then(sys::number) {
        Some(first) => first == u64::from(pid),
        None => {
            let mut text = Text::<16>::default();
            let _ = write!(text, "{pid}\0");
            if let Ok(value) = CStr::from_bytes_until_nul(text.bytes()) {
                // SAFETY: both end in a zero. No other thread runs yet.
                unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
            }
            true
        }
    }
}

/// What is not known, for the reader to say.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
enum Unknown {
    PythonFrames = 1,
}

impl Recorder {
    /// The journal; made when it is first needed.
    fn open(&mut self) -> bool {
        if self.journal.is_some() {
            return true;
        }
        let Some(config) = self.config.filter(|_| !self.failed) else { return false };
        let mut name = [0u8; 4200];
        let path = own_path(config.path.to_bytes(), self.is_child, &mut name);
        match Journal::create(path) {
            Ok(journal) => self.journal = Some(journal),
            Err(wrong) => {
                self.failed = true;
                complain(path, wrong);
                return false;
            }
        }
        self.head();
        true
    }

    fn head(&mut self) {
        let Some(journal) = self.journal.as_mut() else { return };
        let python = self.python.map_or(0, |python| python.minor());
        let mut buffer = [0u8; 1024];
        let program = program(&mut buffer);
        let mut host = [0u8; 256];
        let host = sys::read_file(c"/proc/sys/kernel/hostname", &mut host).trim_ascii();
        let interval = self.config.and_then(|config| config.interval).unwrap_or(0);
        journal.write(Kind::Head, 64 + program.bytes().len() + host.len(), |body| {
            // SAFETY: cannot fail.
            let parent = unsafe { libc::getppid() } as u32;
            for word in [1, sys::pid(), parent, python] {
                body.u32(word);
            }
            for word in [sys::date(), sys::time().as_micros() as u64, interval, EXACT as u64] {
                body.u64(word);
            }
            for text in [program.bytes(), host] {
                body.u32(text.len() as u32);
                body.bytes(text);
            }
        });
    }

    fn note(&mut self, what: Unknown) {
        if let Some(journal) = self.journal.as_mut() {
            journal.write(Kind::Note, 4, |body| body.u32(what as u32));
        }
    }

    /// The number of the stack that this thread stands in.
    fn stack(&mut self, native: &[u64], places: &[Place], now: u64) -> u32 {
        let mut words = [0u64; stacks::DEPTH + 2 * python::DEPTH + 1];
        words[0] = self.epoch;
        words[1..=native.len()].copy_from_slice(native);
        let mut count = native.len() + 1;
        for place in places {
            words[count] = place.tag;
            words[count + 1] = u64::from(place.instruction);
            count += 2;
        }
        let words = &words[..count];
        let key = (stacks::hash(stacks::SEED, words), stacks::hash(!stacks::SEED, words));
        let Some((number, is_new)) = self.stacks.number(key) else { return 0 };
        if is_new {
            self.tell_stack(number, native, places, now);
        }
        number
    }

    #[cold]
    fn tell_stack(&mut self, number: u32, native: &[u64], places: &[Place], now: u64) {
        let mut codes = [0u32; python::DEPTH];
        for (code, place) in codes.iter_mut().zip(places) {
            *code = self.code(place);
        }
        let Some(journal) = self.journal.as_mut() else { return };
        self.modules.tell(native, now, journal);
        journal.write(Kind::Stack, 12 + 8 * (native.len() + places.len()), |body| {
            for word in [number, native.len() as u32, places.len() as u32] {
                body.u32(word);
            }
            native.iter().for_each(|address| body.u64(*address));
            for (code, place) in codes.iter().zip(places) {
                body.u32(*code);
                body.u32(place.instruction);
            }
        });
    }

    fn code(&mut self, place: &Place) -> u32 {
        let key = (place.tag, place.code as u64);
        let Some((number, is_new)) = self.codes.number(key) else { return 0 };
        if let (true, Some(python), Some(journal)) = (is_new, self.python, self.journal.as_mut()) {
            let mut words = WORDS.lock();
            let lengths = python.names(place, &mut *words);
            let total = lengths.iter().sum();
            let names = &words[..total];
            journal.write(Kind::Code, 20 + total, |body| {
                body.u32(number);
                body.u32(place.first_line);
                lengths.iter().for_each(|length| body.u32(*length as u32));
                body.bytes(names);
            });
        }
        number
    }

    /// Writes an allocation. `interval` 0: every one of this size is recorded.
    fn allocated(&mut self, block: *mut u8, size: usize, interval: u64, native: &[u64], places: &[Place]) {
        if !self.open() {
            LOST.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let now = sys::time().as_micros() as u64;
        let stack = self.stack(native, places, now);
        let Some(journal) = self.journal.as_mut() else { return };
        let is_written = journal.write(Kind::Alloc, 40, |body| {
            for word in [block as u64, size as u64, interval, now] {
                body.u64(word);
            }
            body.u32(stack);
            body.u32(thread());
        });
        if !is_written {
            self.full();
        } else if now > self.told + TELL {
            self.state(now);
        }
    }

    /// Writes a free, before the block can be used again.
    fn freed(&mut self, block: *mut u8) {
        let now = sys::time().as_micros() as u64;
        if let Some(journal) = self.journal.as_mut() {
            let is_written = journal.write(Kind::Free, 16, |body| {
                body.u64(block as u64);
                body.u64(now);
            });
            if !is_written {
                self.full();
            }
        }
    }

    fn state(&mut self, now: u64) {
        self.told = now;
        let stats = crate::stats::now();
        let resident = resident();
        let words = [
            now,
            stats.large_live,
            stats.large_kept,
            stats.small_held,
            resident,
            sampler::interval(),
            LOST.load(Ordering::Relaxed),
        ];
        if let Some(journal) = self.journal.as_mut() {
            journal.write(Kind::State, 56, |body| words.iter().for_each(|word| body.u64(*word)));
        }
    }

    /// The file cannot grow: what it has stays readable.
    #[cold]
    fn full(&mut self) {
        if let Some(mut journal) = self.journal.take() {
            let wrong = journal.failed().unwrap_or(0);
            journal.end();
            self.failed = true;
            let mut name = [0u8; 4200];
            if let Some(config) = self.config {
                complain(own_path(config.path.to_bytes(), self.is_child, &mut name), wrong);
            }
        }
    }

    /// Blocks that were freed while their threads were inside.
    fn take_freed(&mut self) {
        let mut next = FREED_INSIDE.swap(0, Ordering::Acquire);
        while next != 0 {
            let block = next as *mut usize;
            // SAFETY: a freed slot of ours; `free_inside` wrote the address of the next.
            next = unsafe { block.read() };
            self.freed(block.cast());
            self.slots.give(block.cast());
        }
    }
}

fn complain(path: &CStr, wrong: i32) {
    let why = match wrong {
        libc::ENOENT => "its folder does not exist",
        libc::EACCES | libc::EPERM | libc::EROFS => "the file cannot be written there",
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => "the disk is full",
        libc::EISDIR => "it is a folder",
        _ => "the system refuses it",
    };
    say(format_args!(
        "gapless: the recording {} cannot be written: {why} (error {wrong})\n  GAPLESS_HOST_RECORD must name a file in \
         a folder that can be written, for example run.gtrace\n",
        path.to_bytes().escape_ascii()
    ));
}

/// `run.gtrace`, or `run.PID.gtrace`. What is too long is cut off, and then refused by the kernel.
fn own_path<'a>(path: &[u8], with_pid: bool, into: &'a mut [u8; 4200]) -> &'a CStr {
    let path = &path[..path.len().min(4096)];
    let name = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let dot = path[name..].iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0);
    let stem = dot.map_or(path.len(), |at| name + at);
    let mut pid = Text::<16>::default();
    if with_pid {
        let _ = write!(pid, ".{}", sys::pid());
    }
    let mut length = 0;
    for part in [&path[..stem], pid.bytes(), &path[stem..]] {
        into[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    into[length] = 0;
    CStr::from_bytes_until_nul(&into[..=length]).unwrap_or(c"")
}

/// The program's name without its arguments, which may hold secrets; of Python also the script.
fn program(buffer: &mut [u8; 1024]) -> Text<512> {
    let line = sys::read_file(c"/proc/self/cmdline", buffer);
    let mut words = line.split(|byte| *byte == 0);
    let mut text = Text::<512>::default();
    let first = base(words.next().unwrap_or_default());
    let _ = text.write_str(first);
    if first.starts_with("python") {
        let script = words.next().unwrap_or_default();
        let shown = match script {
            b"-m" => words.next().unwrap_or_default(),
            other if other.first() == Some(&b'-') => b"",
            other => other,
        };
        if !shown.is_empty() {
            let _ = write!(text, "{}{}", if script == b"-m" { " -m " } else { " " }, base(shown));
        }
    }
    text
}

/// The last part of a path.
fn base(word: &[u8]) -> &str {
    let at = word.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    std::str::from_utf8(&word[at..]).unwrap_or("?")
}

/// A number that threads which run at one time do not share.
fn thread() -> u32 {
    // SAFETY: cannot fail.
    (unsafe { libc::pthread_self() } >> 8) as u32
}

fn resident() -> u64 {
    let mut buffer = [0; 128];
    let text = sys::keep_errno(|| sys::read_file(c"/proc/self/statm", &mut buffer));
    let pages = text.split(|byte| *byte == b' ').nth(1).and_then(sys::number).unwrap_or(0);
    pages * 4096
}

// ---- what the heap calls ----

/// The alignment of a request that names none.
pub const ANY: usize = 1;

/// A block; null where there is no memory.
#[inline]
pub fn allocate(size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
    if is_large(size, alignment) {
        return large(size, alignment, zeroed);
    }
    if sampler::passes(size.max(1)) {
        return sample(size, alignment, zeroed, Plain);
    }
    plain(size, alignment, zeroed)
}

#[inline]
fn plain(size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
    if alignment == ANY {
        core::allocate(size, zeroed)
    } else {
        core::allocate_aligned(size, alignment, zeroed)
    }
}

/// Who gives a block that is not recorded after all.
trait Otherwise {
    /// Whether the blocks are objects of Python.
    const OBJECTS: bool = false;
    fn allocate(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8;
}

struct Plain;

impl Otherwise for Plain {
    fn allocate(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
        plain(size, alignment, zeroed)
    }
}

/// The sampler stopped at this allocation.
#[cold]
#[inline(never)]
fn sample<O: Otherwise>(size: usize, alignment: usize, zeroed: bool, otherwise: O) -> *mut u8 {
    let inside = Busy::enter();
    let drawn = inside.as_ref().and_then(|busy| sampler::draw(size.max(1), busy));
    let Some(interval) = drawn else { return otherwise.allocate(size, alignment, zeroed) };
    let mut frames = Frames::new();
    frames.look(<O as Otherwise>::OBJECTS);
    // Rounded up to 64 KiB. A budget may make it wait, so it comes before the lock.
    let mut block =
        if size > slots::MOST { LARGE.allocate(size, alignment, zeroed) } else { std::ptr::null_mut() };
    let mut recorder = RECORDER.lock();
    recorder.take_freed();
    if size <= slots::MOST
        && let Some(slot) = recorder.slots.take(size, alignment)
    {
        block = slot;
        if zeroed {
            // SAFETY: a slot of at least this size.
            unsafe { block.write_bytes(0, size) };
        }
    }
    if block.is_null() {
        drop(recorder);
        LOST.fetch_add(1, Ordering::Relaxed);
        return otherwise.allocate(size, alignment, zeroed);
    }
    sys::keep_errno(|| recorder.allocated(block, size, interval, frames.native(), frames.places()));
    let written = recorder.journal.as_ref().map_or(0, Journal::written);
    recorder.pace.count(frames.cost, nanos(), written);
    block
}

/// Every large buffer is recorded.
#[cold]
fn large(size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
    let block = core::allocate_aligned(size, alignment, zeroed);
    tell_large(block, size);
    block
}

fn tell_large(block: *mut u8, size: usize) {
    if !LARGE.contains(block) {
        return;
    }
    let Some(_busy) = Busy::enter() else {
        LOST.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let mut frames = Frames::new();
    frames.look(false);
    let mut recorder = RECORDER.lock();
    recorder.take_freed();
    sys::keep_errno(|| recorder.allocated(block, size, 0, frames.native(), frames.places()));
}

/// Where this thread stands.
struct Frames {
    native: [u64; stacks::DEPTH],
    natives: usize,
    places: [Place; python::DEPTH],
    count: usize,
    /// Nanoseconds that a sample with them costs, about.
    cost: u64,
}

impl Frames {
    fn new() -> Frames {
        let none = Place::default();
        Frames { native: [0; stacks::DEPTH], natives: 0, places: [none; python::DEPTH], count: 0, cost: COST }
    }

    /// `is_object`: an object of Python, whose line says all.
    fn look(&mut self, is_object: bool) {
        // Set before the program began, and never changed.
        // SAFETY: read without the lock; `begin` wrote these before any other thread was there.
        let (own, stop, around, python) = unsafe {
            let recorder = &*RECORDER.value();
            (recorder.own, recorder.interpreter, recorder.around, recorder.python)
        };
        sys::keep_errno(|| {
            if let Some(python) = python {
                let (count, has_asked) = python.frames(&mut self.places);
                self.count = count;
                self.cost += if has_asked { COST_OF_ASKING } else { 0 };
            }
            if self.count == 0 {
                self.natives = self.walk(own, Range::default());
            } else if !is_object {
                // Functions of the interpreter say nothing beside its frames.
                let found = self.walk(own, stop);
                for at in 0..found {
                    let address = self.native[at];
                    self.native[self.natives] = address;
                    self.natives += usize::from(!around.has(address as usize));
                }
            }
        });
    }

    fn walk(&mut self, own: Range, stop: Range) -> usize {
        let (found, has_walked) = stacks::here(own, stop, &mut self.native);
        self.cost += if has_walked { COST_OF_WALK } else { 0 };
        found
    }

    fn native(&self) -> &[u64] {
        &self.native[..self.natives]
    }

    fn places(&self) -> &[Place] {
        &self.places[..self.count]
    }
}

/// # Safety
/// `block` is null, or came from here or from the core and was not freed.
#[inline]
pub unsafe fn free(block: *mut u8) {
    if slots::contains(block) {
        free_slot(block);
        return;
    }
    if LARGE.contains(block) {
        tell_freed(block);
    }
    // SAFETY: as the caller says.
    unsafe { core::free(block) }
}

#[cold]
fn tell_freed(block: *mut u8) {
    if let Some(_busy) = Busy::enter() {
        let mut recorder = RECORDER.lock();
        recorder.take_freed();
        sys::keep_errno(|| recorder.freed(block));
    }
}

#[cold]
fn free_slot(block: *mut u8) {
    if slots::usable(block).is_none() {
        say(format_args!("gapless: free({block:p}): no block begins there\n"));
        sys::abort();
    }
    let Some(_busy) = Busy::enter() else {
        free_inside(block.cast());
        return;
    };
    let mut recorder = RECORDER.lock();
    recorder.take_freed();
    sys::keep_errno(|| recorder.freed(block));
    recorder.slots.give(block);
}

/// This thread may hold the lock: the next holder does it.
fn free_inside(block: *mut usize) {
    let mut next = FREED_INSIDE.load(Ordering::Relaxed);
    loop {
        // SAFETY: a slot of ours that the program gave back.
        unsafe { block.write(next) };
        match FREED_INSIDE.compare_exchange_weak(next, block as usize, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => next = other,
        }
    }
}

/// # Safety
/// `block` came from here or from the core and was not freed.
pub unsafe fn usable(block: *mut u8) -> usize {
    if slots::contains(block) {
        return slots::usable(block).unwrap_or(0);
    }
    // SAFETY: as the caller says.
    unsafe { core::usable(block) }
}

/// # Safety
/// `block` came from here or from the core and was not freed. It is invalid afterwards, unless null is returned.
pub unsafe fn reallocate(block: *mut u8, size: usize) -> *mut u8 {
    if size > isize::MAX as usize {
        return std::ptr::null_mut();
    }
    let is_slot = slots::contains(block);
    if LARGE.contains(block) && size >= EXACT {
        return reallocate_large(block, size);
    }
    if !is_slot && !LARGE.contains(block) && size < EXACT {
        if sampler::passes(size.max(1)) {
            return sample_moved(block, size);
        }
        // SAFETY: as the caller says.
        return unsafe { core::reallocate(block, size) };
    }
    let moved = allocate(size, ANY, false);
    if !moved.is_null() {
        // SAFETY: both blocks are valid for the smaller of their lengths, and are two.
        unsafe {
            moved.copy_from_nonoverlapping(block, usable(block).min(size));
            free(block);
        }
    }
    moved
}

/// The kernel may move the pages.
#[cold]
fn reallocate_large(block: *mut u8, size: usize) -> *mut u8 {
    // Told before: afterwards another thread may have the address.
    // SAFETY: the arena has a buffer there, or the core says what is wrong.
    let old = unsafe { core::usable(block) };
    tell_freed(block);
    // SAFETY: as the caller of `reallocate` says.
    let moved = unsafe { core::reallocate(block, size) };
    if moved.is_null() {
        tell_large(block, old)
    } else {
        tell_large(moved, size)
    }
    moved
}

/// A block of the core that grows is a new one for the sampler.
#[cold]
fn sample_moved(block: *mut u8, size: usize) -> *mut u8 {
    struct Again(*mut u8);
    impl Otherwise for Again {
        fn allocate(&self, size: usize, _: usize, _: bool) -> *mut u8 {
            // SAFETY: as the caller of `reallocate` says.
            unsafe { core::reallocate(self.0, size) }
        }
    }
    let moved = sample(size, ANY, false, Again(block));
    if slots::contains(moved) || (!moved.is_null() && LARGE.contains(moved)) {
        // SAFETY: the old block is still there: the new one is of the recorder.
        unsafe {
            moved.copy_from_nonoverlapping(block, core::usable(block).min(size));
            core::free(block);
        }
    }
    moved
}

/// A step of the program begins.
pub fn step() {
    let Some(_busy) = Busy::enter() else { return };
    let mut recorder = RECORDER.lock();
    recorder.take_freed();
    let now = sys::time().as_micros() as u64;
    if recorder.open()
        && let Some(journal) = recorder.journal.as_mut()
    {
        journal.write(Kind::Step, 8, |body| body.u64(now));
        recorder.state(now);
    }
}

/// A library was unloaded: its addresses may mean something else from now on.
pub fn modules_changed() {
    let Some(_busy) = Busy::enter() else { return };
    let mut recorder = RECORDER.lock();
    recorder.epoch += 1;
    recorder.modules.forget();
    stacks::forget();
}

/// The process ends: the file gets its end.
pub fn end() {
    let Some(_busy) = Busy::enter() else { return };
    let mut recorder = RECORDER.lock();
    recorder.take_freed();
    let now = sys::time().as_micros() as u64;
    recorder.state(now);
    if let Some(mut journal) = recorder.journal.take() {
        journal.write(Kind::End, 8, |body| body.u64(now));
        journal.end();
    }
    recorder.failed = true;
}

pub fn before_fork() {
    RECORDER.acquire();
}

/// # Safety
/// [`before_fork`] was called by this thread.
pub unsafe fn after_fork() {
    // SAFETY: as the caller says.
    unsafe { RECORDER.release() };
}

/// # Safety
/// As for [`after_fork`]; in the child.
pub unsafe fn after_fork_in_child() {
    // SAFETY: this thread has the lock, and no guard is alive.
    let recorder = unsafe { &mut *RECORDER.value() };
    if let Some(mut journal) = recorder.journal.take() {
        journal.leave();
    }
    recorder.is_child = true;
    recorder.stacks = Numbers::new();
    recorder.codes = Numbers::new();
    recorder.modules.forget();
    recorder.told = 0;
    // SAFETY: as the caller says.
    unsafe { RECORDER.release() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_puts_its_number_before_the_ending() {
        let mut name = [0; 4200];
        assert_eq!(own_path(b"/a.b/run.gtrace", false, &mut name), c"/a.b/run.gtrace");
        let pid = sys::pid();
        let wanted = format!("/a.b/run.{pid}.gtrace");
        assert_eq!(own_path(b"/a.b/run.gtrace", true, &mut name).to_str(), Ok(wanted.as_str()));
        let wanted = format!("/a.b/run.{pid}");
        assert_eq!(own_path(b"/a.b/run", true, &mut name).to_str(), Ok(wanted.as_str()));
        assert_eq!(own_path(&[b'x'; 9000], false, &mut name).to_bytes().len(), 4096);
    }

    #[test]
    fn the_interval_follows_the_cost_of_samples() {
        let mut pace = Pace::new();
        let mut run = |cost: u64, gap: u64, written: u64, times: u32| {
            let mut now = pace.since;
            for _ in 0..LOOK * times {
                now += gap;
                pace.count(cost, now, written);
            }
            sampler::interval()
        };
        assert_eq!(run(5_000, 10_000, 0, 1), sampler::DEFAULT, "the first milliseconds are free");
        let busy = run(5_000, 10_000, 0, 60);
        assert_eq!(busy, sampler::MOST, "half of the time is too much, however long the interval");
        let idle = run(5_000, 90_000_000, 0, 60);
        assert_eq!(idle, sampler::DEFAULT, "finer again");
        assert_eq!(run(5_000, 700_000, 0, 20), sampler::DEFAULT, "0.7 % is right");
        assert_eq!(run(5_000, 90_000_000, 5 * FILE, 60), 32 * sampler::DEFAULT, "the file is long");
        sampler::set_interval(sampler::DEFAULT);
    }
}
