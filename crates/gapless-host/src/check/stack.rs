//! The origin of a call in the program: return addresses by the unwinder, names by the loader.

use crate::text::say;
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Frames that a stack keeps.
pub const DEPTH: usize = 14;
/// Frames of the allocator itself are left out, so this many more are requested.
const SKIPPED: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
pub struct Stack {
    frames: [usize; DEPTH],
}

thread_local! {
    /// The unwinder may allocate. Such a block has no stack.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

struct Walk {
    frames: [usize; DEPTH + SKIPPED],
    count: usize,
}

extern "C" fn visit(context: *mut c_void, argument: *mut c_void) -> c_int {
    // SAFETY: `here` passes its `Walk`, which nothing else uses during the call.
    let walk = unsafe { &mut *argument.cast::<Walk>() };
    if walk.count == walk.frames.len() {
        return 5; // the end of the stack, as the unwinder calls it
    }
    // SAFETY: the unwinder passes its own context.
    walk.frames[walk.count] = unsafe { _Unwind_GetIP(context) };
    walk.count += 1;
    0
}

impl Stack {
    /// The stack of this call, without the allocator's own frames.
    #[must_use]
    pub fn here() -> Stack {
        let mut stack = Stack::default();
        if BUSY.with(|busy| busy.replace(true)) {
            return stack;
        }
        let mut walk = Walk { frames: [0; DEPTH + SKIPPED], count: 0 };
        // SAFETY: `visit` gets the walk, which lives until the call is done.
        unsafe { _Unwind_Backtrace(visit, (&raw mut walk).cast()) };
        let own = own_object();
        let outside = walk.frames[..walk.count].iter().filter(|frame| !own.contains(frame));
        for (to, from) in stack.frames.iter_mut().zip(outside) {
            *to = *from;
        }
        BUSY.with(|busy| busy.set(false));
        stack
    }

    /// The address that called the allocator; 0 if unknown.
    #[must_use]
    pub fn caller(&self) -> usize {
        self.frames[0]
    }

    /// Writes one line for each frame to standard error.
    pub fn say(&self) {
        if self.frames[0] == 0 {
            say(format_args!("      (the stack is not known)\n"));
        }
        for frame in self.frames.iter().take_while(|frame| **frame != 0) {
            say_frame(*frame);
        }
    }
}

fn find(address: usize) -> Option<libc::Dl_info> {
    // SAFETY: valid when zero.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is valid for writing, and the loader accepts any address.
    let known = unsafe { libc::dladdr(address as *const c_void, &raw mut found) };
    (known != 0).then_some(found)
}

/// The addresses of the object that contains this code. They are looked up once, because to ask the loader for each
/// frame (`dladdr`) goes through all symbols of the frame's object, and node has 100,000 of them.
fn own_object() -> Range<usize> {
    static START: AtomicUsize = AtomicUsize::new(0);
    static END: AtomicUsize = AtomicUsize::new(0);
    if END.load(Ordering::Acquire) == 0 {
        let found = object_around(own_object as *const () as usize);
        START.store(found.start, Ordering::Relaxed);
        END.store(found.end.max(1), Ordering::Release);
    }
    START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)
}

/// The addresses of the object that contains an address; empty if no object contains it.
#[must_use]
pub fn object_around(address: usize) -> Range<usize> {
    let mut search = (address, 0..0);
    // SAFETY: `visit_object` gets the search, which lives until the call is done.
    unsafe { libc::dl_iterate_phdr(Some(visit_object), (&raw mut search).cast()) };
    search.1
}

unsafe extern "C" fn visit_object(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader passes the description of an object, and the search of `object_around`.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<(usize, Range<usize>)>()) };
    // SAFETY: the object's own headers, which stay while it is loaded.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let base = info.dlpi_addr as usize;
    let start = loaded().map(|header| base + header.p_vaddr as usize).min().unwrap_or(0);
    let end = loaded().map(|header| base + (header.p_vaddr + header.p_memsz) as usize).max().unwrap_or(0);
    if !(start..end).contains(&search.0) {
        return 0;
    }
    search.1 = start..end;
    1
}

fn text<'a>(start: *const libc::c_char) -> &'a str {
    if start.is_null() {
        return "?";
    }
    // SAFETY: the loader's texts end in a zero, and stay while the object is loaded.
    unsafe { CStr::from_ptr(start) }.to_str().unwrap_or("?")
}

fn say_frame(frame: usize) {
    // A return address lies behind the call, so the byte before it is inside of the call.
    let Some(found) = find(frame - 1) else {
        say(format_args!("      {frame:#x}\n"));
        return;
    };
    let file = text(found.dli_fname);
    let offset = frame - 1 - found.dli_fbase as usize;
    if found.dli_sname.is_null() {
        say(format_args!("      {file}+{offset:#x}\n"));
    } else {
        let name = text(found.dli_sname);
        let inside = frame - found.dli_saddr as usize;
        say(format_args!("      {name}+{inside:#x}  ({file}+{offset:#x})\n"));
    }
}
