//! The Python lines that led to a request, through Python's public C API, found in the running process.
//!
//! PyTorch lets go of Python's lock before it asks for memory, so it is taken here, as PyTorch's own recorder does;
//! only by threads that Python knows, and rarely by those that run no Python, such as those of a backward pass. A stack
//! is known by its code objects and instructions; names and line numbers are asked for when it is first seen. A code
//! object that was seen is kept for the life of the process, so that its address names it. No lock is held while Python
//! runs: reading a name may run a finalizer, and that may allocate.

use crate::cxx::find_global;
use crate::interpreter::DOOR;
use gapless_cuda::locks::{Lock, SetOnce};
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Frames of a stack that are kept, innermost first.
const DEPTH: usize = 32;
/// Stacks and code objects that are remembered. A program that makes code without end must not fill memory.
const MOST: usize = 1 << 18;

type Object = *mut c_void;
type Get = unsafe extern "C" fn() -> Object;
type Of = unsafe extern "C" fn(Object) -> Object;
type Number = unsafe extern "C" fn(Object) -> c_int;
type Use = unsafe extern "C" fn(Object);
type Named = unsafe extern "C" fn(Object, *const c_char) -> Object;
type Text = unsafe extern "C" fn(Object) -> *const c_char;
type TakeLock = unsafe extern "C" fn() -> c_int;
type LeaveLock = unsafe extern "C" fn(c_int);

/// What of Python is called.
struct Python {
    this_thread: Get,
    current_thread: Get,
    take_lock: TakeLock,
    leave_lock: LeaveLock,
    error: Get,
    clear_error: unsafe extern "C" fn(),
    frame: Get,
    code: Of,
    back: Of,
    line: Number,
    /// Cheaper than the line; Python 3.11 and later.
    instruction: Option<Number>,
    attribute: Named,
    text: Text,
    keep: Use,
    release: Use,
}

fn python() -> Option<&'static Python> {
    static FOUND: SetOnce<Option<Python>> = SetOnce::new();
    FOUND.get_or_init(look_up).as_ref()
}

fn look_up() -> Option<Python> {
    let find = |name: &CStr| find_global(&[], name);
    macro_rules! function {
        ($name:literal, $kind:ty) => {
            // SAFETY: these names have these types in Python's headers, in all versions since 3.9.
            unsafe { std::mem::transmute::<*mut c_void, $kind>(find($name)?) }
        };
    }
    let current_thread =
        find(c"PyThreadState_GetUnchecked").or_else(|| find(c"_PyThreadState_UncheckedGet"))?;
    Some(Python {
        this_thread: function!(c"PyGILState_GetThisThreadState", Get),
        // SAFETY: as above.
        current_thread: unsafe { std::mem::transmute::<*mut c_void, Get>(current_thread) },
        take_lock: function!(c"PyGILState_Ensure", TakeLock),
        leave_lock: function!(c"PyGILState_Release", LeaveLock),
        error: function!(c"PyErr_Occurred", Get),
        clear_error: function!(c"PyErr_Clear", unsafe extern "C" fn()),
        frame: function!(c"PyEval_GetFrame", Get),
        code: function!(c"PyFrame_GetCode", Of),
        back: function!(c"PyFrame_GetBack", Of),
        line: function!(c"PyFrame_GetLineNumber", Number),
        instruction: find(c"PyFrame_GetLasti").map(|found| {
            // SAFETY: as above.
            unsafe { std::mem::transmute::<*mut c_void, Number>(found) }
        }),
        attribute: function!(c"PyObject_GetAttrString", Named),
        text: function!(c"PyUnicode_AsUTF8", Text),
        keep: function!(c"Py_IncRef", Use),
        release: function!(c"Py_DecRef", Use),
    })
}

/// A line of a stack, as it is told to the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Index of the code among those that were told.
    pub code: u32,
    pub line: u32,
}

/// What the writer has to know before the events that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The next code: its function and file.
    Code { name: String, file: String },
    /// The next stack, innermost line first; numbers count from 1.
    Stack(Vec<Line>),
}

/// Stacks that were seen.
#[derive(Debug, Default)]
struct Seen {
    /// By code objects and instructions, one word each in turn.
    stacks: FxHashMap<Box<[u64]>, u32>,
    codes: FxHashMap<u64, u32>,
}

/// Taken by threads that have Python's lock, so nobody waits for it.
static SEEN: Lock<Option<Seen>> = Lock::new(|| None);
/// For the writer, in order. Taken after `SEEN`.
static NEWS: Lock<Vec<News>> = Lock::new(Vec::new);

/// Requests of a thread that ran no Python, before it is looked at again.
const RARELY: u32 = 15;

thread_local! {
    static IDLE: Cell<u32> = const { Cell::new(0) };
}

/// Whether this process has a Python that can be asked.
#[must_use]
pub fn can_look() -> bool {
    python().is_some()
}

/// The number of the stack that this thread stands in; 0: none, or not known.
#[must_use]
pub fn current() -> u32 {
    let Some(python) = python() else { return 0 };
    // SAFETY: the first two calls need nothing; they agree where this thread has the lock. A thread that Python knows
    // may take it: no lock of ours is held. An error that is being handled is left alone.
    unsafe {
        let thread = (python.this_thread)();
        if thread.is_null() {
            return 0;
        }
        if thread == (python.current_thread)() {
            return python.stack().unwrap_or(0);
        }
        if let left @ 1.. = IDLE.get() {
            IDLE.set(left - 1);
            return 0;
        }
        let Some(_visit) = DOOR.enter() else { return 0 };
        let state = (python.take_lock)();
        let found = python.stack();
        (python.leave_lock)(state);
        if found.is_none() {
            IDLE.set(RARELY);
        }
        found.unwrap_or(0)
    }
}

/// A line of Python.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub name: String,
    pub file: String,
    pub line: u32,
}

/// The lines that this thread stands in, innermost first, whether stacks are kept or not: for a request that failed. No
/// lock of ours may be held.
#[must_use]
pub fn here() -> Vec<Place> {
    let Some(python) = python() else { return Vec::new() };
    // SAFETY: as in `current`.
    unsafe {
        let thread = (python.this_thread)();
        if thread.is_null() {
            return Vec::new();
        }
        if thread == (python.current_thread)() {
            return python.places();
        }
        let Some(_visit) = DOOR.enter() else { return Vec::new() };
        let state = (python.take_lock)();
        let found = python.places();
        (python.leave_lock)(state);
        found
    }
}

/// What is new since the last call.
pub fn take_news() -> Vec<News> {
    std::mem::take(&mut *NEWS.lock())
}

impl Python {
    /// # Safety
    /// This thread has Python's lock.
    unsafe fn stack(&self) -> Option<u32> {
        let mut key = [0u64; 2 * DEPTH];
        let mut lines = [0u32; DEPTH];
        let mut depth = 0;
        // SAFETY: frames are live while they are held: the first by its thread, the others by us. Every new reference
        // is given back, except those to code objects that are kept.
        unsafe {
            let innermost = (self.frame)();
            if innermost.is_null() || !(self.error)().is_null() {
                return None;
            }
            (self.keep)(innermost);
            let mut frame = innermost;
            while !frame.is_null() && depth < DEPTH {
                let code = (self.code)(frame);
                let place = match self.instruction {
                    Some(instruction) => instruction(frame),
                    None => (self.line)(frame),
                };
                key[2 * depth] = code as u64;
                key[2 * depth + 1] = place as u64;
                depth += 1;
                // The frame holds it.
                (self.release)(code);
                let back = (self.back)(frame);
                (self.release)(frame);
                frame = back;
            }
            if !frame.is_null() {
                (self.release)(frame);
            }
            let key = &key[..2 * depth];
            if let Some(number) = known(key) {
                return Some(number);
            }
            self.line_numbers(&mut lines[..depth]);
            self.add(key, &lines[..depth])
        }
    }

    /// # Safety
    /// As [`Python::stack`].
    #[cold]
    unsafe fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        // SAFETY: as in `stack`; a code object is held while its names are read.
        unsafe {
            let mut frame = (self.frame)();
            if frame.is_null() || !(self.error)().is_null() {
                return places;
            }
            (self.keep)(frame);
            while !frame.is_null() && places.len() < DEPTH {
                let code = (self.code)(frame);
                let (name, file) = self.names(code);
                (self.release)(code);
                places.push(Place { name, file, line: (self.line)(frame).max(0) as u32 });
                let back = (self.back)(frame);
                (self.release)(frame);
                frame = back;
            }
            if !frame.is_null() {
                (self.release)(frame);
            }
        }
        places
    }

    /// # Safety
    /// As [`Python::stack`].
    unsafe fn line_numbers(&self, lines: &mut [u32]) {
        // SAFETY: as in `stack`.
        unsafe {
            let mut frame = (self.frame)();
            (self.keep)(frame);
            for line in lines {
                *line = (self.line)(frame).max(0) as u32;
                let back = (self.back)(frame);
                (self.release)(frame);
                frame = back;
            }
            if !frame.is_null() {
                (self.release)(frame);
            }
        }
    }

    /// # Safety
    /// As [`Python::stack`]; the code objects of `key` are live.
    #[cold]
    unsafe fn add(&self, key: &[u64], lines: &[u32]) -> Option<u32> {
        // Names first, without the table: reading them may run a finalizer.
        let mut names = Vec::with_capacity(lines.len());
        for code in key.iter().step_by(2) {
            let known = SEEN.lock().as_ref().is_some_and(|seen| seen.codes.contains_key(code));
            // SAFETY: as the caller says.
            names.push(if known { None } else { Some(unsafe { self.names(*code as Object) }) });
        }
        let mut seen = SEEN.lock();
        let seen = seen.get_or_insert_with(Seen::default);
        // A finalizer may have stood on the same lines.
        if let Some(&number) = seen.stacks.get(key) {
            return Some(number);
        }
        let mut news = NEWS.lock();
        if seen.stacks.len() >= MOST || seen.codes.len() >= MOST {
            return None;
        }
        let mut told = Vec::with_capacity(lines.len());
        for ((code, names), &line) in key.iter().step_by(2).zip(names).zip(lines) {
            let next = seen.codes.len() as u32;
            let number = *seen.codes.entry(*code).or_insert(next);
            if number == next {
                let (name, file) = names?;
                news.push(News::Code { name, file });
                // SAFETY: live, as the caller says; from here on for good.
                unsafe { (self.keep)(*code as Object) };
            }
            told.push(Line { code: number, line });
        }
        news.push(News::Stack(told));
        let number = seen.stacks.len() as u32 + 1;
        seen.stacks.insert(key.into(), number);
        Some(number)
    }

    /// Function and file of a code object.
    ///
    /// # Safety
    /// As [`Python::stack`]; a live code object.
    unsafe fn names(&self, code: Object) -> (String, String) {
        // SAFETY: as the caller says.
        unsafe {
            let name =
                self.attribute_text(code, c"co_qualname").or_else(|| self.attribute_text(code, c"co_name"));
            let file = self.attribute_text(code, c"co_filename");
            (name.unwrap_or_default(), file.unwrap_or_default())
        }
    }

    /// # Safety
    /// As [`Python::names`].
    unsafe fn attribute_text(&self, object: Object, name: &CStr) -> Option<String> {
        // SAFETY: as the caller says; the text lives as long as its string object, which is held.
        unsafe {
            let value = (self.attribute)(object, name.as_ptr());
            if value.is_null() {
                (self.clear_error)();
                return None;
            }
            let text = (self.text)(value);
            let found = (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned());
            if text.is_null() {
                (self.clear_error)();
            }
            (self.release)(value);
            found
        }
    }
}

fn known(key: &[u64]) -> Option<u32> {
    SEEN.lock().as_ref().and_then(|seen| seen.stacks.get(key).copied())
}
