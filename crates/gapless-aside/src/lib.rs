//! Work with files outside of a program's descriptor table.
//!
//! The program owns its descriptors: any of its threads may close one by its number, or put another file in its place,
//! at any moment. A library that opens a file in this table, even for an instant and at any number, may write to a file
//! of the program, and a program that closes 3 to get 3 may find that the library was faster. So a library uses files
//! in a place that the program cannot see:
//!
//! * [`own_table`] gives a thread of the library an empty descriptor table, for good. Nothing that needs the program's
//!   descriptors, such as a driver, may run in that thread.
//! * [`run`] does one piece of work in a process that shares the caller's memory and has a copy of the table, while the
//!   calling thread waits. It costs about 0.1 ms, and closes the copies, so use it rarely.
//!
//! If the kernel has neither (`close_range` came with Linux 5.9) or a sandbox refuses, the work is done in place.
#![cfg(target_os = "linux")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Gives the calling thread an empty descriptor table. False if it still shares the program's.
///
/// Threads that it starts later share its table. It no longer has a standard error.
#[must_use]
pub fn own_table() -> bool {
    const UNSHARE: u32 = 2;
    // SAFETY: takes only numbers. The descriptors that it closes are copies.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, UNSHARE) == 0 }
}

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const WORKS: u8 = 1;
/// The new process has memory of its own (valgrind makes it a fork), or none can be made.
const FAILS: u8 = 2;

/// Does all work in place from now on, because the program may make few system calls (`seccomp`).
pub fn confine() {
    IS_CONFINED.store(true, Ordering::Relaxed);
    STATE.store(FAILS, Ordering::Relaxed);
}

static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// True if [`confine`] was called.
#[must_use]
pub fn is_confined() -> bool {
    IS_CONFINED.load(Ordering::Relaxed)
}

/// Runs `work` outside of the program's descriptor table. The work must not wait for another thread, and must not
/// panic. It sees the caller's memory and the variables of its thread, but another process number.
pub fn run<T>(work: impl FnOnce() -> T) -> T {
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        let works = aside(|| ()).is_ok();
        let _ = STATE.compare_exchange(
            UNKNOWN,
            if works { WORKS } else { FAILS },
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
    if STATE.load(Ordering::Relaxed) == FAILS {
        return work();
    }
    aside(work).unwrap_or_else(|work| work())
}

struct Task<T, W> {
    work: Option<W>,
    result: Option<T>,
}

/// Enough for system calls and for the standard library's functions for files.
const STACK: usize = 128 << 10;

/// The result, or the work if it was not done.
fn aside<T, W: FnOnce() -> T>(work: W) -> Result<T, W> {
    let mut task = Task { work: Some(work), result: None };
    let at: *mut Task<T, W> = &raw mut task;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let stack = unsafe { libc::mmap(std::ptr::null_mut(), STACK, rights, flags, -1, 0) };
    if stack != libc::MAP_FAILED {
        without_signals(|| {
            // SAFETY: the stack grows down from its end, and no other thread uses it. This thread sleeps until the
            // process has ended (`CLONE_VFORK`), so for memory and locks the two are one. No signal reports the end, so
            // a program that waits for its children does not see it.
            unsafe {
                let child = libc::clone(
                    main::<T, W>,
                    stack.byte_add(STACK),
                    libc::CLONE_VM | libc::CLONE_VFORK,
                    at.cast(),
                );
                // Plain system calls, because `waitpid` ends a thread that was cancelled.
                let none = std::ptr::null_mut::<c_int>();
                while child > 0
                    && libc::syscall(libc::SYS_wait4, child, none, libc::__WALL, none) < 0
                    && *libc::__errno_location() == libc::EINTR
                {}
            }
        });
        // SAFETY: mapped above, and the process that used it has ended.
        unsafe { libc::munmap(stack, STACK) };
    }
    // SAFETY: a variable of this function, and the process that used it has ended. It took the work and stored a
    // result, or did nothing.
    unsafe {
        match ((*at).result.take(), (*at).work.take()) {
            (Some(result), _) => Ok(result),
            (None, Some(work)) => Err(work),
            (None, None) => unreachable!("a process that took the work ended without a result"),
        }
    }
}

extern "C" fn main<T, W: FnOnce() -> T>(task: *mut c_void) -> c_int {
    // SAFETY: the variable of `aside`, which waits meanwhile.
    let task = unsafe { &mut *task.cast::<Task<T, W>>() };
    task.result = task.work.take().map(|work| work());
    0
}

/// Blocks signals, because a handler of the program must not run in a process that is not one of its threads.
fn without_signals(work: impl FnOnce()) {
    // SAFETY: valid when zero, and filled by the calls below.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both are variables of this function.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    work();
    // SAFETY: `before` is a variable of this function, filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::sync::atomic::AtomicU32;

    fn read() -> (i32, String) {
        let mut file = File::open("/proc/self/comm").expect("a file");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("its text");
        (file.as_raw_fd(), text)
    }

    /// Another thread closes and replaces every descriptor all the time, as a program may. The files that it puts there
    /// do not change, and a file that is read aside has its own contents.
    #[test]
    fn no_descriptor_of_the_program_is_used() {
        // In a process of its own, because other tests have files too.
        // SAFETY: the child takes only locks of the allocator, which the C library makes usable in a child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let fine = std::panic::catch_unwind(hostile).is_ok();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid for writing.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }

    fn hostile() {
        static ENDS: AtomicBool = AtomicBool::new(false);
        static ROUNDS: AtomicU32 = AtomicU32::new(0);
        let attacker = std::thread::spawn(|| {
            let zero = unsafe_dup(File::open("/dev/zero").expect("a file").into_raw_fd());
            while !ENDS.load(Ordering::Relaxed) {
                for number in 3..1024 {
                    if number != zero {
                        // SAFETY: descriptors of this process, whose other thread opens none of its own here.
                        let now = unsafe { libc::dup2(zero, number) };
                        // EBUSY: the C library is opening a file there, as it does to count the processors.
                        let why = std::io::Error::last_os_error();
                        assert!(now == number || why.raw_os_error() == Some(libc::EBUSY), "{number}: {why}");
                    }
                }
                ROUNDS.fetch_add(1, Ordering::Relaxed);
                for number in 3..1024 {
                    if number != zero {
                        // SAFETY: descriptors of this process, whose other thread opens none of its own here.
                        unsafe { libc::close(number) };
                    }
                }
            }
        });
        let name = std::thread::spawn(|| {
            assert!(own_table());
            let texts: Vec<_> = (0..2000).map(|_| read()).collect();
            assert!(texts.iter().all(|(file, text)| *file == 0 && !text.is_empty() && !text.contains('\0')));
        });
        name.join().expect("a thread with a table of its own");
        let mut reads = 0;
        // On a busy machine the other thread may begin late.
        while reads < 200 || (ROUNDS.load(Ordering::Relaxed) < 2 && !attacker.is_finished()) {
            let (_, text) = run(read);
            assert!(!text.is_empty() && !text.contains('\0'), "{text:?}");
            reads += 1;
        }
        ENDS.store(true, Ordering::Relaxed);
        attacker.join().expect("a thread");
    }

    fn unsafe_dup(file: i32) -> i32 {
        // SAFETY: takes only a number.
        let high = unsafe { libc::fcntl(file, libc::F_DUPFD, 1100) };
        if high < 0 { file } else { high }
    }

    #[test]
    fn a_result_comes_back_and_what_the_work_changed_is_changed() {
        let mut count = 0;
        let own = std::process::id();
        let text = run(|| {
            count += 1;
            format!("{} {}", std::process::id() == own, count)
        });
        assert!(text == "false 1" || text == "true 1", "{text}");
        assert_eq!(count, 1);
        // No child is left behind.
        // SAFETY: a null status is allowed.
        assert_eq!(unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WCLONE) }, -1);
    }
}
