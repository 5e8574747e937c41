//! The data of each thread. All of it is zero in a new thread.
//!
//! The variable lies at a fixed distance from the thread's pointer ("initial-exec"). `thread_local!` in a shared
//! library calls a function instead: 4.1 ns against 1.4.

use std::ffi::c_void;

#[derive(Debug)]
#[repr(C)]
pub struct Local {
    /// The cache of small objects that entry points may use at once. While blocks are checked it is null, unlike `own`,
    /// so that no entry point takes the short way.
    pub quick: *mut c_void,
    pub own: *mut c_void,
    /// Not 0 if this thread ends, and gets no cache any more.
    pub is_ending: u64,
    /// Not 0 while this thread is in the recorder. Its allocations there are not recorded.
    is_inside: u64,
    /// Not 0 if this thread has a descriptor table of its own.
    has_own_files: u64,
}

#[cfg(target_arch = "x86_64")]
mod place {
    use super::Local;
    use std::ffi::c_void;

    std::arch::global_asm!(
        ".pushsection .tbss.gapless_host_local,\"awT\",@nobits",
        ".globl gapless_host_local",
        ".hidden gapless_host_local",
        ".type gapless_host_local,@object",
        ".size gapless_host_local,40",
        ".balign 16",
        "gapless_host_local:",
        ".zero 40",
        ".popsection",
    );
    const _: () = assert!(size_of::<Local>() == 40 && std::mem::offset_of!(Local, quick) == 0);

    #[inline(always)]
    pub fn get() -> *mut Local {
        let place: *mut Local;
        // SAFETY: reads the thread's pointer and an entry of a table that the loader filled in.
        unsafe {
            std::arch::asm!(
                "mov {place}, qword ptr fs:[0]",
                "add {place}, qword ptr [rip + gapless_host_local@GOTTPOFF]",
                place = out(reg) place,
                options(pure, readonly, nostack),
            );
        }
        place
    }

    /// The first word.
    #[inline(always)]
    pub fn quick() -> *mut c_void {
        let cache: *mut c_void;
        // SAFETY: reads an entry of a table that the loader filled in, and this thread's own variable.
        unsafe {
            std::arch::asm!(
                "mov {cache}, qword ptr [rip + gapless_host_local@GOTTPOFF]",
                "mov {cache}, qword ptr fs:[{cache}]",
                cache = out(reg) cache,
                options(readonly, nostack, preserves_flags),
            );
        }
        cache
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod place {
    use super::Local;
    use std::cell::UnsafeCell;
    use std::ffi::c_void;
    use std::ptr::null_mut;

    const NEW: Local =
        Local { quick: null_mut(), own: null_mut(), is_ending: 0, is_inside: 0, has_own_files: 0 };

    thread_local! {
        static LOCAL: UnsafeCell<Local> =
            const { UnsafeCell::new(NEW) };
    }

    #[inline]
    pub fn get() -> *mut Local {
        LOCAL.with(UnsafeCell::get)
    }

    #[inline]
    pub fn quick() -> *mut c_void {
        // SAFETY: the pointer is to this thread's own variable.
        unsafe { (*get()).quick }
    }
}

pub use place::{get, quick};

/// True if this thread has a descriptor table of its own: then the program does not see files that it opens, and the
/// program's descriptors do not work here.
#[must_use]
pub fn has_own_files() -> bool {
    // SAFETY: the pointer is to this thread's own variable.
    unsafe { (*get()).has_own_files != 0 }
}

pub fn set_own_files(has: bool) {
    // SAFETY: the pointer is to this thread's own variable.
    unsafe { (*get()).has_own_files = u64::from(has) };
}

/// Marks this thread as inside of the recorder while it lives. [`Inside::enter`] returns `None` if it already was.
#[derive(Debug)]
pub struct Inside(());

impl Inside {
    #[must_use]
    pub fn enter() -> Option<Inside> {
        // SAFETY: the pointer is to this thread's own variable, and no other reference to it is alive.
        let local = unsafe { &mut *get() };
        // Not `then_some`: it would always make and drop an `Inside`, and the thread would count as outside.
        (std::mem::replace(&mut local.is_inside, 1) == 0).then(|| Inside(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: the pointer is to this thread's own variable.
        unsafe { (*get()).is_inside = 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_inside_of_the_recorder_does_not_enter_again() {
        let inside = Inside::enter().expect("this test is outside");
        assert!(Inside::enter().is_none());
        assert!(Inside::enter().is_none(), "to be refused changes nothing");
        drop(inside);
        assert!(Inside::enter().is_some());
    }

    #[test]
    fn each_thread_has_its_own() {
        let here = get() as usize;
        let there = std::thread::spawn(|| get() as usize).join().expect("a thread");
        assert_ne!(here, there);
        assert_eq!(here, get() as usize);
        assert!(std::thread::spawn(|| quick().is_null()).join().expect("a thread"), "zero in a new thread");
    }
}
