//! The flight recorder: every request and free of this process, and what was mapped and unmapped for them, as a
//! `.gtrace` file.
//!
//! Threads push entries into a [`ring`] under the lock that orders the events, so entries are in the order of the
//! events. A thread of its own, the [`scribe`], pops them and appends blocks to the file. It starts with the first
//! card, so a program without GPU work leaves no file. If the ring is full, entries are dropped and counted, and the
//! scribe corrects its state from the cards themselves. A forked child records nothing.

pub mod clock;
pub mod frames;
pub mod held;
pub mod lines;
pub mod modules;
pub(crate) mod process;
pub mod recent;
pub mod ring;
pub mod scribe;

use crate::background;
use crate::watcher::{Caller, Event, Watcher};
use clock::Clock;
use gapless_cuda::locks::{Lock, SetOnce};
use gapless_pool::{Change, PoolKey, StreamHandle};
use gapless_trace::{Action, Process, Stage};
use lines::Lines;
use recent::Recent;
use ring::{Ring, Words};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Entries that can wait for the scribe: 8 MiB. A training process makes them in bursts of 10 ms, and a disk may pause
/// for half a second.
const SLOTS: usize = 1 << 17;
/// Marks that can wait for the scribe.
const MARKS: usize = 1 << 16;
/// The longest wait of the process's end for the file.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest wait of a failed request for the file.
const HURRY: Duration = Duration::from_secs(3);

/// The settings of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub path: PathBuf,
    /// True if the callers' Python lines are kept.
    pub stacks: bool,
    /// The most bytes of all files together; 0: no limit.
    pub limit: u64,
}

/// One entry of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub action: Action,
    pub device: u8,
    /// Number of the stack in [`frames`]; 0: none.
    pub stack: u32,
    /// Number of the module in [`modules`]; 0: none.
    pub module: u16,
    pub addr: u64,
    pub size: u64,
    pub stream: StreamHandle,
    pub pool: PoolKey,
    /// Microseconds since the Unix epoch.
    pub time: u64,
}

impl Entry {
    #[inline]
    fn words(&self) -> Words {
        let head = u64::from(self.action as u8)
            | u64::from(self.device) << 8
            | u64::from(self.module) << 16
            | u64::from(self.stack) << 32;
        [head, self.addr, self.size, self.stream.0, self.pool.0, self.pool.1, self.time]
    }

    fn of([head, addr, size, stream, first, second, time]: Words) -> Option<Entry> {
        Some(Entry {
            action: Action::from_u8(head as u8)?,
            device: (head >> 8) as u8,
            stack: (head >> 32) as u32,
            module: (head >> 16) as u16,
            addr,
            size,
            stream: StreamHandle(stream),
            pool: PoolKey(first, second),
            time,
        })
    }
}

/// The beginning or end of a named scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub name: String,
    pub stage: Stage,
    pub device: u32,
    pub time: u64,
}

/// The data that the threads of a process share with its scribe.
#[derive(Debug)]
pub struct Recorder {
    pub config: Config,
    /// The process that the path belongs to.
    owner: u32,
    /// The file's description of this process.
    process: Process,
    pub clock: Clock,
    ring: Ring,
    marks: Lock<Vec<Mark>>,
    /// Names and blocks of modules, from Python.
    pub modules: modules::Modules,
    /// The requesting lines of live blocks, if stacks are kept. The scribe takes the lock for a moment; others take it
    /// under a card's lock.
    lines: Lock<Lines>,
    /// The last entries that the scribe popped.
    recent: Lock<Recent>,
    /// Number of requests for a complete file, and the last one that was fulfilled.
    asked: AtomicU64,
    answered: AtomicU64,
    /// Entries and marks for which there was no room.
    lost: AtomicU64,
    /// Events that are in the file.
    written: AtomicU64,
    ending: AtomicBool,
}

impl Recorder {
    #[must_use]
    pub fn new(config: Config, slots: usize) -> Recorder {
        Recorder {
            config,
            owner: std::process::id(),
            process: process::describe(),
            clock: Clock::default(),
            ring: Ring::new(slots),
            marks: Lock::with(Vec::new(), Vec::new),
            modules: modules::Modules::default(),
            lines: Lock::with(Lines::default(), Lines::default),
            recent: Lock::with(Recent::default(), Recent::default),
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            written: AtomicU64::new(0),
            ending: AtomicBool::new(false),
        }
    }

    #[inline]
    pub fn push(&self, entry: &Entry) {
        if !self.ring.push(entry.words()) {
            self.lose(1);
        }
    }

    #[cold]
    fn lose(&self, entries: u64) {
        // Events after the end are not part of the recording.
        if !self.ending.load(Ordering::Relaxed) {
            self.lost.fetch_add(entries, Ordering::Relaxed);
        }
    }

    pub fn mark(&self, mark: Mark) {
        let mut marks = self.marks.lock();
        if marks.len() < MARKS {
            marks.push(mark);
        } else {
            self.lose(1);
        }
    }

    /// The path of the file. A child that was forked before it used a card has its own.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let (path, process) = (&self.config.path, std::process::id());
        if process == self.owner { path.clone() } else { scribe::beside(path, &process.to_string()) }
    }

    /// Number of entries and marks that the file lacks.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Number of events that stay in the file if this process is killed.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Entries that wait for the scribe.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.ring.len()
    }

    /// Passes the last entries and marks to `look`.
    pub fn recent<T>(&self, look: impl FnOnce(&[Entry], &[Mark]) -> T) -> T {
        let mut recent = self.recent.lock();
        let (entries, marks) = recent.both();
        look(entries, marks)
    }

    /// Asks the scribe to write everything pushed so far. Returns the number for [`Recorder::is_complete`].
    pub fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    #[must_use]
    pub fn is_complete(&self, asked: u64) -> bool {
        self.answered.load(Ordering::Acquire) >= asked
    }

    /// Asks the scribe to finish.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }
}

// ---- the recorder of this process ----

static ON: AtomicBool = AtomicBool::new(false);
static RECORDER: SetOnce<Recorder> = SetOnce::new();
static SCRIBE: Lock<Option<JoinHandle<()>>> = Lock::new(|| None);
static STARTED: AtomicBool = AtomicBool::new(false);

/// True if requests are recorded.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// True if pools log their changes for a recording, even if it is over.
#[must_use]
pub fn is_set() -> bool {
    RECORDER.get().is_some()
}

/// The recorder, if requests are recorded.
#[inline]
#[must_use]
pub fn on() -> Option<&'static Recorder> {
    if is_on() { RECORDER.get() } else { None }
}

/// Begins to record. Called before the first card is used.
///
/// # Errors
/// If another recording is set already.
pub fn set(config: Config) -> Result<(), String> {
    let recorder = RECORDER.get_or_init(|| Recorder::new(config.clone(), SLOTS));
    if recorder.config != config {
        return Err(format!("{} is being recorded already", recorder.config.path.display()));
    }
    ON.store(true, Ordering::Release);
    Ok(())
}

/// Called in a forked child, whose events do not belong to this recording.
pub fn forked() {
    ON.store(false, Ordering::Relaxed);
}

/// Starts the scribe, because a card is about to be used. `look` returns the state of every card at one moment, and
/// calls its argument then.
pub fn start(look: fn(&dyn Fn()) -> Vec<held::Picture>) {
    let Some(recorder) = on() else { return };
    if STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    match background::spawn("gapless-recorder", move || write(recorder, look)) {
        Ok(thread) => *SCRIBE.lock() = Some(thread),
        Err(error) => {
            ON.store(false, Ordering::Release);
            eprintln!("gapless: nothing is recorded: no thread can be started ({error})");
        }
    }
    // For a program that ends without Python's own end.
    background::at_exit(|| {
        finish();
    });
}

fn write(recorder: &Recorder, look: fn(&dyn Fn()) -> Vec<held::Picture>) {
    if let Err(error) = scribe::run(recorder, look) {
        ON.store(false, Ordering::Release);
        eprintln!("gapless: the recording ends here: {}: {error}", recorder.path().display());
    }
}

/// Ends the recording and waits until the file is complete. Returns the number of lost entries.
pub fn finish() -> u64 {
    let Some(recorder) = on() else { return RECORDER.get().map_or(0, Recorder::lost) };
    ON.store(false, Ordering::Release);
    recorder.end();
    let thread = SCRIBE.lock().take();
    if let Some(thread) = thread {
        thread.thread().unpark();
        let began = Instant::now();
        while !thread.is_finished() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
    recorder.lost()
}

/// Waits until the file has everything so far, and returns its path, or an error after too long. `None` if nothing is
/// recorded. No card may be locked, because the scribe may have to look at it.
pub fn catch_up() -> Option<Result<PathBuf, String>> {
    let recorder = on()?;
    let asked = recorder.ask();
    if let Some(thread) = SCRIBE.lock().as_ref() {
        thread.thread().unpark();
    }
    let began = Instant::now();
    while !recorder.is_complete(asked) {
        if !is_on() || began.elapsed() > HURRY {
            return Some(Err(format!("{} is not written to the end yet", recorder.path().display())));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(Ok(recorder.path()))
}

/// The number of this thread's stack, if stacks are kept. No lock of ours may be held, because this asks Python.
#[inline]
#[must_use]
pub fn stack() -> u32 {
    match on() {
        Some(recorder) if recorder.config.stacks => frames::current(),
        _ => 0,
    }
}

/// Passes the requesting lines of live blocks to `look`; `None` if no lines are kept.
pub fn with_lines<T>(look: impl FnOnce(&Lines) -> T) -> Option<T> {
    let recorder = RECORDER.get().filter(|recorder| recorder.config.stacks)?;
    Some(look(&recorder.lines.lock()))
}

/// Records an event of a block or a request, under the lock that orders it.
#[inline]
fn note(action: Action, device: i32, stack: u32, Event { addr, size, stream, pool }: Event) {
    if let Some(recorder) = on() {
        let module = if matches!(action, Action::Alloc | Action::Oom) { modules::current() } else { 0 };
        recorder.push(&Entry {
            action,
            device: device as u8,
            stack,
            module,
            addr,
            size,
            stream,
            pool,
            time: recorder.clock.now(),
        });
    }
}

/// The recorder as a card's watcher. It has no data, because all cards and lanes write to one recording.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flight;

impl Flight {
    /// [`Watcher::allocated`] of a lane that served the request without the card, under the lane's lock.
    #[inline]
    pub fn allocated_at_front(device: i32, what: Event, line: u32) {
        note(Action::Alloc, device, line, what);
    }

    /// A lane takes back a block that can be reused at once, under the lane's lock.
    #[inline]
    pub fn freed_at_front(device: i32, what: Event) {
        note(Action::FreeCompleted, device, 0, what);
    }
}

impl Watcher for Flight {
    fn is_on(&self) -> bool {
        is_on()
    }

    fn allocated(&mut self, device: i32, what: Event, by: &Caller<'_>) {
        note(Action::Alloc, device, by.line, what);
    }

    fn given_back(&mut self, device: i32, what: Event, _by: &Caller<'_>, is_free: bool) {
        // If the memory can be reused at once, the completion is the only event.
        if !is_free {
            note(Action::FreeRequested, device, 0, what);
        }
    }

    fn changed(&mut self, device: i32, changes: &[Change], _by: &Caller<'_>) {
        for change in changes {
            let (action, addr, size, stream, pool) = match *change {
                Change::Completed { addr, requested, stream, pool } => {
                    (Action::FreeCompleted, addr, requested, stream, pool)
                }
                Change::Mapped { addr, size, stream, pool } => (Action::SegmentMap, addr, size, stream, pool),
                Change::Unmapped { addr, size, stream, pool } => {
                    (Action::SegmentUnmap, addr, size, stream, pool)
                }
            };
            note(action, device, 0, Event { addr, size, stream, pool });
        }
    }

    fn failed(&mut self, device: i32, what: Event, by: &Caller<'_>) {
        note(Action::Oom, device, by.line, what);
    }

    fn restored(&mut self, device: i32, what: Event) {
        note(Action::Alloc, device, 0, what);
    }
}

/// Records the beginning or end of a scope; "stage" is PyTorch's word.
pub fn mark(name: &str, stage: Stage, device: u32) {
    if let Some(recorder) = on() {
        recorder.mark(Mark { name: name.to_owned(), stage, device, time: recorder.clock.now() });
    }
}
