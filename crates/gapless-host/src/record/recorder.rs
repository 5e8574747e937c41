//! The recorder's state, under one lock, and the records that it writes.

use super::journal::{Journal, Kind};
use super::names::{own_path, program};
use super::pace::Pace;
use super::python::{self, Place, Python};
use super::slots::Slots;
use super::stacks::{self, Modules, Numbers, Range};
use crate::lock::Lock;
use crate::options::Config;
use crate::sampler;
use crate::sys;
use crate::text::say;
use crate::units::LARGE as EXACT;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(super) struct Recorder {
    pub(super) config: Option<Config>,
    pub(super) journal: Option<Journal>,
    /// True if the file could not be made, or is full. Reported once.
    pub(super) failed: bool,
    /// True in a forked child, whose file has its number in the name.
    pub(super) is_child: bool,
    pub(super) slots: Slots,
    pub(super) stacks: Numbers,
    pub(super) codes: Numbers,
    pub(super) modules: Modules,
    pub(super) python: Option<Python>,
    /// Code of this library, of the interpreter's loop, and of all of the interpreter.
    pub(super) own: Range,
    pub(super) interpreter: Range,
    pub(super) around: Range,
    /// Part of the numbers of stacks, because addresses may belong to other code after a library was unloaded.
    pub(super) epoch: u64,
    /// The time of the last statistics, in microseconds.
    pub(super) told: u64,
    pub(super) pace: Pace,
}

/// Room for the names of a code object and its line table.
const NAMES: usize = 96 << 10;
/// Microseconds between two records of the process's memory.
const TELL: u64 = 200_000;

pub(super) static RECORDER: Lock<Recorder> = Lock::new(Recorder {
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
/// Used by the thread that has the recorder's lock.
static WORDS: Lock<[u8; NAMES]> = Lock::new([0; NAMES]);
/// Allocations that should have been recorded but were not.
pub(super) static LOST: AtomicU64 = AtomicU64::new(0);
/// Sampled blocks that were freed while their thread was inside: a list through the blocks.
pub(super) static FREED_INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Facts that are unknown, which the reader reports.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum Unknown {
    PythonFrames = 1,
}

impl Recorder {
    /// Opens the journal when it is first needed. False if that failed.
    pub(super) fn open(&mut self) -> bool {
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
            // SAFETY: takes no argument and cannot fail.
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

    pub(super) fn note(&mut self, what: Unknown) {
        if let Some(journal) = self.journal.as_mut() {
            journal.write(Kind::Note, 4, |body| body.u32(what as u32));
        }
    }

    /// The number of this thread's stack.
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
        if !self.modules.know(native, now) {
            let began = sys::thread_time();
            self.modules.tell(now, journal);
            self.pace.spend(sys::thread_time().saturating_sub(began).as_nanos() as u64);
        }
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

    /// Writes an allocation at time `now`, in microseconds. `interval` is 0 if each one of this size is recorded.
    pub(super) fn allocated(
        &mut self,
        block: *mut u8,
        size: usize,
        interval: u64,
        native: &[u64],
        places: &[Place],
        now: u64,
    ) {
        if !self.open() {
            LOST.fetch_add(1, Ordering::Relaxed);
            return;
        }
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
    pub(super) fn freed(&mut self, block: *mut u8) {
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

    pub(super) fn state(&mut self, now: u64) {
        self.told = now;
        let stats = crate::stats::now();
        let resident = resident();
        let words = [
            now,
            stats.large_live,
            stats.large_kept,
            stats.small_held,
            resident,
            sampler::interval(sampler::Kind::Small),
            LOST.load(Ordering::Relaxed),
        ];
        if let Some(journal) = self.journal.as_mut() {
            journal.write(Kind::State, 56, |body| words.iter().for_each(|word| body.u64(*word)));
        }
    }

    /// Closes the file, which cannot grow any more. Its records stay readable.
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

    /// Frees blocks that were freed while their threads were inside.
    pub(super) fn take_freed(&mut self) {
        let mut next = FREED_INSIDE.swap(0, Ordering::Acquire);
        while next != 0 {
            let block = next as *mut usize;
            // SAFETY: a freed slot of ours, into which `free_inside` wrote the address of the next.
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
        libc::ESTALE => "it was moved, removed or replaced meanwhile",
        _ => "the system refuses it",
    };
    say(format_args!(
        "gapless: the recording {} cannot be written: {why} (error {wrong})\n  GAPLESS_HOST_RECORD must name a file in \
         a folder that can be written, for example run.gtrace\n",
        path.to_bytes().escape_ascii()
    ));
}

/// A number that no two threads share at the same time.
fn thread() -> u32 {
    // SAFETY: takes no argument and cannot fail.
    (unsafe { libc::pthread_self() } >> 8) as u32
}

fn resident() -> u64 {
    let mut buffer = [0; 128];
    let text = sys::keep_errno(|| sys::read_file(c"/proc/self/statm", &mut buffer));
    let pages = text.split(|byte| *byte == b' ').nth(1).and_then(sys::number).unwrap_or(0);
    pages * 4096
}
