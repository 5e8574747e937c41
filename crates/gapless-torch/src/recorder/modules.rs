//! The module of a model that a thread runs, for the recording; `gapless.name_modules()` in Python reports it.
//!
//! A thread has a cell, whose address Python asks for once. While a module runs, its number stands there. A request
//! reads it from its thread's own memory, and Python makes no call. Names of numbers are set before the numbers are
//! used. Blocks that a module owns regardless of who allocated them, such as its parameters, are reported by address.

use super::on;
use gapless_cuda::locks::Lock;
use rustc_hash::FxHashMap;
use std::cell::Cell;

thread_local! {
    static RUNS: Cell<u32> = const { Cell::new(0) };
}

/// Number of the module that this thread runs; 0: none.
#[inline]
#[must_use]
pub fn current() -> u16 {
    // A thread that ends may make requests after its thread-local variables are gone.
    RUNS.try_with(Cell::get).ok().and_then(|number| u16::try_from(number).ok()).unwrap_or(0)
}

/// A block that a module owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    pub device: u32,
    pub addr: u64,
    /// Requested size: a block of another size at that address is not the module's.
    pub size: u64,
    pub module: u16,
}

/// Names and blocks since the scribe last looked.
#[derive(Debug, Default)]
pub struct Told {
    pub names: Vec<(u16, String)>,
    pub owned: Vec<Owned>,
}

/// Names and blocks that wait for the scribe.
#[derive(Debug)]
pub struct Modules(Lock<Told>);

impl Default for Modules {
    fn default() -> Modules {
        Modules(Lock::with(Told::default(), Told::default))
    }
}

impl Modules {
    pub fn name(&self, number: u16, note: &str) {
        self.0.lock().names.push((number, note.to_owned()));
    }

    pub fn own(&self, owned: Owned) {
        self.0.lock().owned.push(owned);
    }

    #[must_use]
    pub fn take(&self) -> Told {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Notes by number, as the scribe knows them.
#[derive(Debug, Default)]
pub struct Notes<T>(FxHashMap<u16, T>);

impl<T: Copy + Default> Notes<T> {
    pub fn set(&mut self, number: u16, note: T) {
        self.0.insert(number, note);
    }

    #[must_use]
    pub fn of(&self, number: u16) -> T {
        if number == 0 { T::default() } else { self.0.get(&number).copied().unwrap_or_default() }
    }
}

/// The address of this thread's number: four bytes, valid as long as the thread lives.
pub(crate) fn cell() -> *mut u32 {
    RUNS.try_with(Cell::as_ptr).unwrap_or(std::ptr::null_mut())
}

/// Sets the note for requests with this number.
pub(crate) fn name(number: u32, note: &str) {
    if let (Some(recorder), Ok(number)) = (on(), u16::try_from(number)) {
        recorder.modules.name(number, note);
    }
}

/// Notes that the module with this number owns the block at `addr`, for which `size` bytes were requested.
pub(crate) fn own(device: i32, addr: u64, size: u64, number: u32) {
    if let (Some(recorder), Ok(module), Ok(device)) = (on(), u16::try_from(number), u32::try_from(device)) {
        recorder.modules.own(Owned { device, addr, size, module });
    }
}
