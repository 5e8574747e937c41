//! The Python frames of this thread, read without Python's help.
//!
//! `malloc` may be called at any point of the interpreter, so none of its functions that make objects can be used here.
//! Instead its structures are read, at the offsets of each release, with a system call that fails at addresses at which
//! an ordinary load would crash ([`sys::peek`]). Types of code objects, names and line tables are checked, and a
//! structure with another type is ignored. After some walks without such an error, a thread that holds the
//! interpreter's lock reads its own frames without the system call, because no other thread changes them then. Builds
//! without the interpreter's lock, and releases that are not in the table, are not read.
//!
//! A code object is identified by its address and by the objects to which it refers, so that another one at the same
//! address is told apart. The reader of the recording turns instructions into lines.

use crate::sys;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

/// At most this many frames of a stack are kept, innermost first.
pub const DEPTH: usize = 24;
/// This many bytes of a code object are read.
const CODE: usize = 144;

/// The offsets of the fields that are read, in one release of CPython.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    minor: u32,
    /// From the thread's state to the innermost frame; in 3.11 and 3.12 to a structure that has it at `through`.
    frame: usize,
    through: Option<usize>,
    previous: usize,
    code: usize,
    instruction: usize,
    /// The offset of the instructions in a code object, if the frame has an address; `Err` with a factor if the frame
    /// has a number of instructions.
    instructions: Result<usize, u32>,
    first_line: usize,
    file: usize,
    name: usize,
    table: usize,
    /// Bytes before the text of an ASCII string, and of another string.
    text: (usize, usize),
}

const fn old(minor: u32, instruction: usize, unit: u32) -> Layout {
    Layout {
        minor,
        frame: 24,
        through: None,
        previous: 24,
        code: 32,
        instruction,
        instructions: Err(unit),
        first_line: 40,
        file: 104,
        name: 112,
        table: 120,
        text: (48, 72),
    }
}

const fn new(minor: u32, frame: usize, instructions: usize) -> Layout {
    Layout {
        minor,
        frame,
        through: None,
        previous: 8,
        code: 0,
        instruction: 56,
        instructions: Ok(instructions),
        first_line: 68,
        file: 112,
        name: 128,
        table: 136,
        text: (40, 56),
    }
}

/// From the headers of each release. Within one, they do not change after its first candidate.
const LAYOUTS: [Layout; 6] = [
    old(9, 104, 1),
    old(10, 96, 2),
    Layout { through: Some(8), previous: 48, code: 32, first_line: 72, text: (48, 72), ..new(11, 56, 184) },
    Layout { through: Some(0), ..new(12, 56, 192) },
    new(13, 72, 200),
    new(14, 72, 208),
];

/// A frame: the identity of its code object, and the present instruction in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub code: usize,
    /// A hash of the objects to which the code object refers.
    pub tag: u64,
    pub instruction: u32,
    file: usize,
    name: usize,
    table: usize,
    pub first_line: u32,
}

/// The parts of the interpreter that are used.
#[derive(Clone, Copy, Debug)]
pub struct Python {
    layout: Layout,
    this_thread: extern "C" fn() -> *const c_void,
    /// Returns the state of the thread that holds the lock, if that is this thread.
    holder: Option<extern "C" fn() -> *const c_void>,
    code_type: usize,
    text_type: usize,
    bytes_type: usize,
}

/// The result of the search for an interpreter.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    Nothing,
    /// There is an interpreter whose structures are not known.
    Unknown,
    Known(Python),
}

fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `name` ends in a zero. Called before the program begins, when the loader's lock is free.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Looks for the interpreter among the loaded libraries, before the program begins.
#[must_use]
pub fn look() -> Found {
    if find(c"Py_GetVersion").is_none() {
        return Found::Nothing;
    }
    let Some(version) = version() else { return Found::Unknown };
    let parts = || {
        let layout = layout_of(version)?;
        // SAFETY: Python's headers give this name this type; the function only reads a variable of the thread.
        let this_thread = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_void>(find(
                c"PyGILState_GetThisThreadState",
            )?)
        };
        let holder = find(c"PyThreadState_GetUnchecked").or_else(|| find(c"_PyThreadState_UncheckedGet"));
        // SAFETY: Python's headers give both names this type; the function only reads a variable.
        let holder = holder
            .map(|at| unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_void>(at) });
        let [code_type, text_type, bytes_type] =
            [c"PyCode_Type", c"PyUnicode_Type", c"PyBytes_Type"].map(|name| find(name).map(|at| at as usize));
        Some(Python {
            layout,
            this_thread,
            holder,
            code_type: code_type?,
            text_type: text_type?,
            bytes_type: bytes_type?,
        })
    };
    parts().map_or(Found::Unknown, Found::Known)
}

/// True if there is an interpreter without its lock.
#[must_use]
pub fn is_free_threaded() -> bool {
    version().is_some_and(has_no_lock)
}

fn has_no_lock(version: &[u8]) -> bool {
    version.windows(14).any(|part| part == b"free-threading")
}

/// Python's version, as Python reports it.
fn version() -> Option<&'static [u8]> {
    let get = find(c"Py_GetVersion")?;
    // SAFETY: Python's headers give this name this type, and it may be called before Python is initialised.
    let version = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_char>(get)() };
    // SAFETY: Python returns a static text that ends in a zero.
    (!version.is_null()).then(|| unsafe { CStr::from_ptr(version) }.to_bytes())
}

/// The layout for a version such as `3.11.2 (main, ...) [GCC ...]`.
fn layout_of(version: &[u8]) -> Option<Layout> {
    if has_no_lock(version) {
        return None;
    }
    let minor = sys::number(version.strip_prefix(b"3.")?)?;
    LAYOUTS.into_iter().find(|layout| u64::from(layout.minor) == minor)
}

fn word(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, usize::from_le_bytes)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn peek_word(way: Way, at: usize) -> usize {
    let mut bytes = [0; 8];
    if way.read(at, &mut bytes) { usize::from_le_bytes(bytes) } else { 0 }
}

/// Ways to read memory of the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the kernel, which reports an error at addresses without memory.
    Asking,
    /// By an ordinary load: this thread holds the interpreter's lock, and its layout proved right.
    Trusting,
}

/// Walks without an error, of which a thread needs [`ENOUGH`] to trust the layout; [`WRONG`] after one with an error.
static PROVED: AtomicU32 = AtomicU32::new(0);
const ENOUGH: u32 = 32;
const WRONG: u32 = u32::MAX;

impl Way {
    fn read(self, at: usize, into: &mut [u8]) -> bool {
        match self {
            Way::Asking => sys::peek(at, into) == into.len(),
            Way::Trusting => {
                if at < 4096 || at >> 47 != 0 {
                    return false;
                }
                // SAFETY: the address was found from this thread's own state while it holds the interpreter's lock, so
                // the structure is there and does not change.
                unsafe { into.as_mut_ptr().copy_from_nonoverlapping(at as *const u8, into.len()) };
                true
            }
        }
    }
}

/// Learns from a walk of `found` frames, of which `codes` have a code object, if the layout is right.
fn learn(found: usize, codes: usize) {
    let proved = PROVED.load(Ordering::Relaxed);
    if proved != WRONG {
        // Frames at which C enters the interpreter have no code.
        let next = if codes == 0 && found > 0 { WRONG } else { proved + u32::from(codes > 0) };
        PROVED.store(next.min(if next == WRONG { WRONG } else { ENOUGH }), Ordering::Relaxed);
    }
}

/// Memory around the last frames that were read, because neighbours lie close to each other.
struct Near {
    start: usize,
    length: usize,
    bytes: [u8; 4096 + 128],
}

impl Near {
    /// `count` bytes at `at`.
    fn get(&mut self, at: usize, count: usize) -> Option<&[u8]> {
        let inside = |near: &Near| at >= near.start && at + count <= near.start + near.length;
        if !inside(self) {
            // A frame's caller lies below it, so most of the next frames are on the same page.
            self.start = at & !4095;
            let wanted = (at + count - self.start).min(self.bytes.len());
            self.length = sys::peek(self.start, &mut self.bytes[..wanted]);
            if !inside(self) {
                return None;
            }
        }
        self.bytes.get(at - self.start..at - self.start + count)
    }
}

impl Python {
    #[must_use]
    pub fn minor(&self) -> u32 {
        self.layout.minor
    }

    fn way(&self, thread: usize) -> Way {
        let holds = thread != 0 && self.holder.is_some_and(|holder| holder() as usize == thread);
        if holds && PROVED.load(Ordering::Relaxed) == ENOUGH { Way::Trusting } else { Way::Asking }
    }

    /// Writes the frames of this thread into `into`, innermost first. Returns their number.
    pub fn frames(&self, into: &mut [Place; DEPTH]) -> usize {
        let thread = (self.this_thread)() as usize;
        if thread == 0 {
            return 0;
        }
        match self.way(thread) {
            Way::Trusting => self.trusted(thread, into),
            Way::Asking => self.asked(thread, into),
        }
    }

    fn innermost(&self, way: Way, thread: usize) -> usize {
        let frame = peek_word(way, thread + self.layout.frame);
        match self.layout.through {
            Some(offset) if frame != 0 => peek_word(way, frame + offset),
            _ => frame,
        }
    }

    /// The place of a frame with this code object, whose words `read` returns.
    fn place(&self, code: usize, instruction: usize, read: impl Fn(usize) -> usize) -> Place {
        let layout = &self.layout;
        let [file, name, table] = [layout.file, layout.name, layout.table].map(&read);
        let first_line = read(layout.first_line) as u32;
        let parts = [code, file, name, table, first_line as usize].map(|part| part as u64);
        let tag = super::stacks::hash(super::stacks::SEED, &parts);
        let instruction = match layout.instructions {
            Ok(start) => instruction.wrapping_sub(code + start) as u32,
            Err(unit) => (instruction as u32).wrapping_mul(unit),
        };
        Place { code, tag, instruction, file, name, table, first_line }
    }

    /// The frames of a thread that holds the lock. Reads only the words that are needed, because samples are taken here
    /// many thousand times a second.
    fn trusted(&self, thread: usize, into: &mut [Place; DEPTH]) -> usize {
        let read = |at: usize| peek_word(Way::Trusting, at);
        let mut frame = self.innermost(Way::Trusting, thread);
        let (mut seen, mut kept) = (0, 0);
        while frame != 0 && frame.is_multiple_of(8) && seen < DEPTH {
            // The lowest bits may be flags of the owner.
            let code = read(frame + self.layout.code) & !7;
            let instruction = read(frame + self.layout.instruction);
            frame = read(frame + self.layout.previous);
            seen += 1;
            // Frames at which C enters the interpreter have no code.
            if code != 0 && read(code + 8) == self.code_type {
                into[kept] = self.place(code, instruction, |offset| read(code + offset));
                kept += 1;
            }
        }
        kept
    }

    #[cold]
    fn asked(&self, thread: usize, into: &mut [Place; DEPTH]) -> usize {
        let layout = &self.layout;
        let mut frame = self.innermost(Way::Asking, thread);
        let mut near = Near { start: 0, length: 0, bytes: [0; 4096 + 128] };
        let mut found = [(0, 0); DEPTH];
        let mut count = 0;
        while frame != 0 && frame.is_multiple_of(8) && count < DEPTH {
            // All fields of a frame that are read lie in its first 112 bytes.
            let Some(bytes) = near.get(frame, 112) else { break };
            found[count] = (word(bytes, layout.code) & !7, word(bytes, layout.instruction));
            frame = word(bytes, layout.previous);
            count += 1;
        }
        let codes = self.codes(&found[..count], into);
        learn(count, codes);
        codes
    }

    /// Reads the code objects of frames, and leaves out frames without one. Returns the number of frames that are left.
    fn codes(&self, found: &[(usize, usize)], into: &mut [Place; DEPTH]) -> usize {
        let mut bytes = [[0u8; CODE]; DEPTH];
        let mut local = [const { libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 } }; DEPTH];
        let mut remote = local;
        for (at, (code, _)) in found.iter().enumerate() {
            local[at] = libc::iovec { iov_base: bytes[at].as_mut_ptr().cast(), iov_len: CODE };
            remote[at] = libc::iovec { iov_base: *code as *mut c_void, iov_len: CODE };
        }
        // SAFETY: the call writes to `bytes` only; the kernel checks the other addresses.
        let read = sys::keep_errno(|| unsafe {
            let most = found.len() as libc::c_ulong;
            libc::process_vm_readv(libc::getpid(), local.as_ptr(), most, remote.as_ptr(), most, 0)
        });
        let whole = usize::try_from(read).unwrap_or(0) / CODE;
        let mut kept = 0;
        for (at, (code, instruction)) in found.iter().enumerate() {
            let bytes = &mut bytes[at];
            // The call stops at the first address that cannot be read. The others are then read one by one.
            if at >= whole && sys::peek(*code, bytes) != CODE {
                continue;
            }
            if word(bytes, 8) == self.code_type {
                into[kept] = self.place(*code, *instruction, |offset| word(bytes, offset));
                kept += 1;
            }
        }
        kept
    }

    /// Function, file and line table of a code object; empty if they have the wrong type. Returns their lengths.
    pub fn names(&self, place: &Place, into: &mut [u8]) -> [usize; 3] {
        let way = self.way((self.this_thread)() as usize);
        let name = self.text(way, place.name, &mut into[..512]);
        let file = self.text(way, place.file, &mut into[name..name + 4096]);
        let table = self.bytes(way, place.table, &mut into[name + file..]);
        [name, file, table]
    }

    /// A string in UTF-8, as much of it as fits.
    fn text(&self, way: Way, at: usize, into: &mut [u8]) -> usize {
        let mut head = [0; 40];
        if !way.read(at, &mut head) || word(&head, 8) != self.text_type {
            return 0;
        }
        let (length, state) = (word(&head, 16), half(&head, 32));
        let (kind, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1 == 1, state >> 6 & 1 == 1);
        if !is_compact || !matches!(kind, 1 | 2 | 4) {
            return 0;
        }
        let start = at + if is_ascii { self.layout.text.0 } else { self.layout.text.1 };
        let mut raw = [0; 4096];
        let wanted = length.saturating_mul(kind as usize).min(raw.len()) / kind as usize * kind as usize;
        if !way.read(start, &mut raw[..wanted]) {
            return 0;
        }
        let mut written = 0;
        for unit in raw[..wanted].chunks_exact(kind as usize) {
            let code = unit.iter().rev().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
            let letter = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
            let mut buffer = [0; 4];
            let letter = letter.encode_utf8(&mut buffer).as_bytes();
            if written + letter.len() > into.len() {
                break;
            }
            into[written..written + letter.len()].copy_from_slice(letter);
            written += letter.len();
        }
        written
    }

    /// The contents of a `bytes` object; empty if they do not fit, because half a table would give wrong lines.
    fn bytes(&self, way: Way, at: usize, into: &mut [u8]) -> usize {
        let mut head = [0; 24];
        if !way.read(at, &mut head) || word(&head, 8) != self.bytes_type {
            return 0;
        }
        let length = word(&head, 16);
        if length > into.len() || !way.read(at + 32, &mut into[..length]) {
            return 0;
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_known_by_their_number_and_others_are_left_alone() {
        let minor = |text: &str| layout_of(text.as_bytes()).map(|layout| layout.minor);
        assert_eq!(minor("3.9.2 (default, Feb 28 2021)"), Some(9));
        assert_eq!(minor("3.14.0 (main, Oct  7 2025) [GCC 14]"), Some(14));
        assert_eq!(minor("3.13.1 experimental free-threading build (main)"), None);
        for unknown in ["3.8.10", "3.15.0a1", "2.7.18", "4.0", "", "3."] {
            assert_eq!(minor(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn memory_that_is_not_there_is_not_read() {
        let mut bytes = [0; 8];
        assert_eq!(sys::peek(16, &mut bytes), 0);
        assert_eq!(peek_word(Way::Asking, usize::MAX - 3), 0);
        let value = 77usize;
        assert_eq!(peek_word(Way::Asking, &raw const value as usize), 77);
    }
}
