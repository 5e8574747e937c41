//! The Python lines that led to a request, from Python's public C API, which is looked up in the running process.
//!
//! PyTorch releases Python's lock before it asks for memory, so it is taken here, as PyTorch's own recorder does. Only
//! threads that Python knows take it, and rarely those that run no Python, such as a backward pass's. A stack is
//! identified by its code objects and instructions; names and line numbers are read when it is first seen. A code
//! object that was seen is kept for the life of the process, so that its address stays unique. No lock of ours is held
//! while Python runs: reading a name may run a finalizer, which may allocate.

use crate::cxx::find_global;
use crate::interpreter::DOOR;
use gapless_cuda::locks::{Lock, SetOnce};
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};

/// The most frames of a stack that are kept, innermost first.
const DEPTH: usize = 32;
/// The most stacks and code objects that are remembered. A program that creates code without end must not fill memory.
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

/// The functions of Python that we call.
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
    /// Cheaper to read than the line; Python 3.11 and later.
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
        // SAFETY: both names have this type in Python's headers, in the versions that have them.
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
            // SAFETY: this name has this type in Python's headers, since 3.11.
            unsafe { std::mem::transmute::<*mut c_void, Number>(found) }
        }),
        attribute: function!(c"PyObject_GetAttrString", Named),
        text: function!(c"PyUnicode_AsUTF8", Text),
        keep: function!(c"Py_IncRef", Use),
        release: function!(c"Py_DecRef", Use),
    })
}

/// A line of a stack, in the form for the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Index of the code among those that the writer got.
    pub code: u32,
    pub line: u32,
}

/// Data that the writer needs before the events that use it.
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
    /// By code object and instruction, one word each in turn.
    stacks: FxHashMap<Box<[u64]>, u32>,
    codes: FxHashMap<u64, u32>,
}

/// Threads take it with Python's lock, so it has no contention.
static SEEN: Lock<Option<Seen>> = Lock::new(|| None);
/// News for the writer, in order. Taken after `SEEN`.
static NEWS: Lock<Vec<News>> = Lock::new(Vec::new);

/// Requests that a thread skips after one in which it ran no Python.
const RARELY: u32 = 15;

thread_local! {
    static IDLE: Cell<u32> = const { Cell::new(0) };
}

/// True if this process has a Python that can be asked.
#[must_use]
pub fn can_look() -> bool {
    python().is_some()
}

/// The number of this thread's present stack; 0 if it has none, or if it is unknown.
#[must_use]
pub fn current() -> u32 {
    let Some(python) = python() else { return 0 };
    // SAFETY: any thread may make the first two calls, which return the same if it has the lock. A thread that Python
    // knows may take the lock, because it holds no lock of ours. `stack` leaves a pending Python error alone.
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

/// This thread's present lines, innermost first, for a failed request, kept stacks or not. No lock of ours may be held.
#[must_use]
pub fn here() -> Vec<Place> {
    let Some(python) = python() else { return Vec::new() };
    // SAFETY: any thread may make the first two calls, which return the same if it has the lock. A thread that Python
    // knows may take the lock, because it holds no lock of ours.
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

/// The news since the last call.
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
        // SAFETY: this thread has Python's lock. The thread itself keeps the first frame alive, and we keep the others.
        // Every new reference is released, except those to code objects that are kept.
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
                // The frame keeps it alive.
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
        // SAFETY: this thread has Python's lock; frames are live as in `stack`. A code object is held for its names.
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
        // SAFETY: this thread has Python's lock; frames are live as in `stack`, which saw at least as many.
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
        // Names first, without the table's lock: reading them may run a finalizer.
        let mut names = Vec::with_capacity(lines.len());
        for code in key.iter().step_by(2) {
            let known = SEEN.lock().as_ref().is_some_and(|seen| seen.codes.contains_key(code));
            // SAFETY: this thread has Python's lock, and frames of its stack keep these code objects alive.
            names.push(if known { None } else { Some(unsafe { self.names(*code as Object) }) });
        }
        let mut seen = SEEN.lock();
        let seen = seen.get_or_insert_with(Seen::default);
        // A finalizer may have recorded the same stack meanwhile.
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
                // SAFETY: a frame of this stack keeps the code object alive; from here on our reference does.
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
        // SAFETY: this thread has Python's lock, and our caller holds the code object.
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
        // SAFETY: this thread has Python's lock, and our caller holds the object. The text lives as long as its string
        // object, which is held until it is copied.
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
