//! The recorder: writes a sample of all allocations with their origin to a file (`GAPLESS_HOST_RECORD=run.gtrace`).
//!
//! ```text
//!   blocks    entry points of the heap: they choose samples (`crate::sampler`) and place them
//!   slots     sampled blocks have addresses of their own, so `free` knows them by a comparison
//!   frames    the present stack of a thread
//!   ├─ stacks    return addresses, and their files
//!   └─ python    the lines of Python, read without its help
//!   objects   Python's objects, which it takes from blocks of its own
//!   recorder  the state, and the records
//!   ├─ pace      the frequency of samples
//!   ├─ names     of the file and of the program
//!   └─ journal   the file, readable up to the moment at which the process is killed
//! ```
//!
//! All of it is under one lock, which is taken for samples only. Nothing here allocates from `malloc`. A thread that is
//! inside of the recorder (a signal's handler, or the unwinder) is not recorded, and the blocks that it frees wait for
//! the next thread that takes the lock. Around a fork the lock is held. The child writes a file of its own,
//! `run.PID.gtrace`, when it has a sample.

mod blocks;
mod frames;
mod journal;
mod names;
pub mod objects;
mod pace;
mod python;
mod recorder;
mod slots;
mod stacks;

use crate::local::Inside;
use crate::options::Config;
use crate::sampler;
use crate::sys;
use crate::text::Text;
use journal::Kind;
use python::Found;
use recorder::{RECORDER, Unknown};
use stacks::Numbers;
use std::ffi::CStr;
use std::fmt::Write as _;

pub use blocks::{ANY, allocate, free, may_own, reallocate, usable};

/// Begins to record, before the program's own code.
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
        sampler::set_intervals([interval; 2]);
        recorder.pace.is_fixed = true;
    }
    recorder.config = Some(config);
    recorder.is_child = !is_first();
    recorder.pace.begin(sys::cpu_nanos());
    // If the file cannot be made, the user hears of it before the program begins.
    if !recorder.open() {
        sys::exit(2);
    }
    if is_unknown {
        recorder.note(Unknown::PythonFrames);
    }
}

/// True if this is the program that was asked for, and not one that it started: those write files of their own.
fn is_first() -> bool {
    let name = c"GAPLESS_HOST_RECORD_PID";
    let pid = sys::pid();
    match sys::variable(name).and_then(sys::number) {
        Some(first) => first == u64::from(pid),
        None => {
            let mut text = Text::<16>::default();
            let _ = write!(text, "{pid}\0");
            if let Ok(value) = CStr::from_bytes_until_nul(text.bytes()) {
                // SAFETY: both texts end in a zero, and no other thread runs yet.
                unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
            }
            true
        }
    }
}

/// Notes that a step of the program begins.
pub fn step() {
    let Some(_inside) = Inside::enter() else { return };
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

/// Notes that a library was unloaded: its addresses may belong to another one from now on.
pub fn modules_changed() {
    let Some(_inside) = Inside::enter() else { return };
    let mut recorder = RECORDER.lock();
    recorder.epoch += 1;
    recorder.modules.forget();
    stacks::forget();
}

/// Called when the process ends: completes the file.
pub fn end() {
    let Some(_inside) = Inside::enter() else { return };
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
/// This thread called [`before_fork`].
pub unsafe fn after_fork() {
    // SAFETY: this thread has the lock since `before_fork` (the caller's contract), and no guard of it is alive.
    unsafe { RECORDER.release() };
}

/// # Safety
/// As for [`after_fork`]; in the child.
pub unsafe fn after_fork_in_child() {
    // SAFETY: this thread has the lock since `before_fork` (the caller's contract), and no guard of it is alive.
    let recorder = unsafe { &mut *RECORDER.value() };
    if let Some(mut journal) = recorder.journal.take() {
        journal.leave();
    }
    recorder.is_child = true;
    recorder.stacks = Numbers::new();
    recorder.codes = Numbers::new();
    recorder.modules.forget();
    recorder.told = 0;
    recorder.pace.fork();
    // SAFETY: this thread still has the lock, and `recorder` is not used any more.
    unsafe { RECORDER.release() };
}
