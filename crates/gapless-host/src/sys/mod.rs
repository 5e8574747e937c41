//! Every system call of the crate, behind typed functions. None of them allocates from `malloc`.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

mod files;
mod table;

pub use files::{FileId, OwnFile, begin_files, is_alone, map_file, privately, read_file};
pub use table::{Table, Zeroed};

pub const PAGE: usize = 4096;

/// Ends the process because the allocator's own tables are wrong, for example after a stray write: to go on would hand
/// out memory twice.
pub fn damaged() -> ! {
    crate::text::say(format_args!(
        "gapless: the allocator's tables are damaged: the program wrote where it must not\n  \
         run it with GAPLESS_HOST_CHECK=1 to find the write\n"
    ));
    abort()
}

pub fn abort() -> ! {
    // SAFETY: takes no argument and ends the process.
    unsafe { libc::abort() }
}

pub fn exit(code: i32) -> ! {
    // SAFETY: ends the process without its exit handlers, because nothing of the program has begun.
    unsafe { libc::_exit(code) }
}

/// Maps zeroed memory, which counts only once it is touched.
#[must_use]
pub fn map(bytes: usize) -> Option<*mut u8> {
    map_with(bytes, libc::PROT_READ | libc::PROT_WRITE)
}

fn map_with(bytes: usize, protection: i32) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start.cast())
}

/// Maps zeroed memory at these addresses. False if they are in use, or the kernel refuses.
///
/// The address is a wish, which the kernel follows if the place is free. `MAP_FIXED_NOREPLACE` would say the same, but
/// a sandbox that does not know it ends the process (Chromium's).
#[must_use]
pub fn map_at(start: *mut u8, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping that replaces none.
    let got = unsafe { libc::mmap(start.cast(), bytes, rights, flags, -1, 0) };
    if got == libc::MAP_FAILED || got == start.cast() {
        return got != libc::MAP_FAILED;
    }
    unmap(got.cast(), bytes);
    false
}

/// Drops the memory of a range and makes the range one mapping with its neighbours again. Pages that were moved there
/// or away leave mappings of their own, and a process may have 65,530. False if the kernel refuses.
#[must_use]
pub fn map_anew(start: *mut u8, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is the caller's own memory, whose contents are not needed.
    unsafe { libc::mmap(start.cast(), bytes, rights, flags, -1, 0) == start.cast() }
}

/// Bytes that this process may map, or may map for data, if there is such a limit (`ulimit -v`, `ulimit -d`).
#[must_use]
pub fn address_limit() -> Option<usize> {
    let limit = |what| {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: `limit` is valid for writing.
        unsafe { libc::getrlimit(what, &raw mut limit) };
        (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur as usize)
    };
    [limit(libc::RLIMIT_AS), limit(libc::RLIMIT_DATA)].into_iter().flatten().min()
}

/// Maps zeroed memory that is zero again in a child, even in one of the bare system call. If the kernel cannot do that
/// (before 4.14), the child gets a copy.
#[must_use]
pub fn map_for_one(bytes: usize) -> Option<*mut u8> {
    let start = map(bytes.next_multiple_of(PAGE))?;
    // SAFETY: advice on memory that was mapped here.
    keep_errno(|| unsafe {
        libc::madvise(start.cast(), bytes.next_multiple_of(PAGE), libc::MADV_WIPEONFORK)
    });
    Some(start)
}

/// Maps memory that forked children share.
#[must_use]
pub fn map_shared(bytes: usize) -> Option<*mut u8> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start.cast())
}

pub fn unmap(start: *mut u8, bytes: usize) {
    // SAFETY: the callers pass memory that they mapped and do not use any more.
    unsafe { libc::munmap(start.cast(), bytes) };
}

/// The machine's memory and swap in bytes; `None` if the kernel does not tell.
fn machine() -> Option<(usize, usize)> {
    // SAFETY: valid when zero.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is valid for writing.
    let result = keep_errno(|| unsafe { libc::sysinfo(&raw mut info) });
    let bytes = |units: libc::c_ulong| units.saturating_mul(info.mem_unit.max(1).into()) as usize;
    (result == 0).then(|| (bytes(info.totalram), bytes(info.totalswap)))
}

/// The machine's memory in bytes; 16 GiB if the kernel does not tell.
#[must_use]
pub fn memory() -> usize {
    machine().map_or(1 << 34, |(memory, _)| memory)
}

/// Reserves addresses without memory, at a multiple of `alignment`.
#[must_use]
pub fn reserve(bytes: usize, alignment: usize) -> Option<*mut u8> {
    if alignment <= PAGE {
        return map_with(bytes, libc::PROT_NONE);
    }
    let all = bytes.checked_add(alignment)?;
    let start = map_with(all, libc::PROT_NONE)?;
    let lead = start.align_offset(alignment);
    // SAFETY: `lead < alignment`, so both lie inside of the mapping.
    let (first, behind) = unsafe { (start.add(lead), start.add(lead + bytes)) };
    if lead > 0 {
        unmap(start, lead);
    }
    if alignment > lead {
        unmap(behind, alignment - lead);
    }
    Some(first)
}

/// Makes reserved addresses usable. False if the kernel refuses, as it does if it never overcommits.
#[must_use]
pub fn commit(start: *mut u8, bytes: usize) -> bool {
    protect(start, bytes, libc::PROT_READ | libc::PROT_WRITE) == 0
}

/// Calls the kernel's `mprotect`. The C library's function of that name is intercepted by `gapless-malloc`.
#[must_use]
pub fn protect(start: *mut u8, bytes: usize, rights: i32) -> i32 {
    // SAFETY: the range is the caller's reservation, or the program's own request.
    unsafe { libc::syscall(libc::SYS_mprotect, start.addr(), bytes, rights) as i32 }
}

/// Gives the memory back. The addresses stay, and read as zeros. False if the kernel refuses (locked memory).
#[must_use]
pub fn discard(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the range is the caller's own memory, whose contents are not needed.
    unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) == 0 }
}

/// Asks which pages from `start` on are resident, one byte each. False if the kernel does not tell. A page that is not
/// resident may still be swapped out.
#[must_use]
pub fn residence(start: *mut u8, pages: &mut [u8]) -> bool {
    // SAFETY: `pages` has a byte for each page; the call does not touch the pages.
    unsafe { libc::mincore(start.cast(), pages.len() * PAGE, pages.as_mut_ptr()) == 0 }
}

/// True if a request is for more than the machine has, so that the kernel refuses it always: more than memory and swap
/// together, unless it is set to grant everything.
#[must_use]
pub fn is_beyond(bytes: usize) -> bool {
    bytes >= BEYOND_LEAST && bytes > most_at_once()
}

/// No machine has less.
const BEYOND_LEAST: usize = 256 << 20;

/// The largest request that the kernel grants. Asked once.
pub fn most_at_once() -> usize {
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let known = MOST.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut buffer = [0; 16];
    let mode = keep_errno(|| number(read_file(c"/proc/sys/vm/overcommit_memory", &mut buffer)));
    let most = match machine() {
        Some((memory, swap)) if mode != Some(1) => memory.saturating_add(swap),
        _ => usize::MAX,
    };
    MOST.store(most, Ordering::Relaxed);
    most
}

/// True if a limit counts addresses that are only reserved.
static SCARCE: AtomicBool = AtomicBool::new(false);

/// Notes that a limit counts reserved addresses. It is never taken back, because the program may lower it again.
pub fn addresses_are_scarce() {
    SCARCE.store(true, Ordering::Relaxed);
}

#[must_use]
pub fn is_scarce() -> bool {
    SCARCE.load(Ordering::Relaxed)
}

/// Addresses of the allocator, at a multiple of `alignment`, and true if they are not reserved, because addresses are
/// scarce. Such a range is probably free, and is mapped part by part ([`extend`]).
#[must_use]
pub fn reserve_or_choose(bytes: usize, alignment: usize) -> Option<(*mut u8, bool)> {
    if is_scarce()
        && let Some(start) = choose(bytes, alignment)
    {
        return Some((start, true));
    }
    Some((reserve(bytes, alignment)?, false))
}

/// Programs, and what the kernel places, lie below and above these addresses.
const CHOSEN: std::ops::Range<usize> = 0x1000_0000_0000..0x2a00_0000_0000;

fn choose(bytes: usize, alignment: usize) -> Option<*mut u8> {
    static NEXT: AtomicUsize = AtomicUsize::new(CHOSEN.start);
    const TRIES: usize = 16;
    for _ in 0..TRIES {
        let mut start = 0;
        let after = |next: usize| {
            start = next.next_multiple_of(alignment);
            let end = start.checked_add(bytes)?.next_multiple_of(PAGE);
            (end <= CHOSEN.end).then_some(end)
        };
        NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).ok()?;
        let start = start as *mut u8;
        if map_at(start, PAGE) {
            unmap(start, PAGE);
            return Some(start);
        }
    }
    None
}

/// Makes the next part of a range usable, which is reserved or, if `is_chosen`, not mapped yet. False if the kernel
/// refuses.
#[must_use]
pub fn extend(start: *mut u8, bytes: usize, is_chosen: bool) -> bool {
    keep_errno(|| if is_chosen { map_at(start, bytes) } else { commit(start, bytes) })
}

/// Asks for huge pages, or for none.
pub fn advise_huge(start: *mut u8, bytes: usize, wanted: bool) {
    let advice = if wanted { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: advice does not change the contents of memory.
    unsafe { libc::madvise(start.cast(), bytes, advice) };
}

/// Moves the pages of `[from, from + bytes)` to `to`, whose former contents are lost. The old addresses stay, and read
/// as zeros. False if nothing was moved.
#[must_use]
pub fn move_pages(from: *mut u8, to: *mut u8, bytes: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: both ranges are the caller's, and do not overlap.
    unsafe { libc::mremap(from.cast(), bytes, bytes, flags, to.cast::<c_void>()) == to.cast() }
}

/// Waits while `word` is `expected`, at most this long.
pub fn wait(word: &AtomicU32, expected: u32, most: Option<Duration>) {
    let time = most.map(|most| libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(most.subsec_nanos() as i32),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` lives longer than the call; the time is null or valid.
    keep_errno(|| unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, time);
    });
}

pub fn wake(word: &AtomicU32, most: i32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses only the address.
    keep_errno(|| unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, most);
    });
}

/// Restores `errno` after `work`, because `free` must leave it as it is (POSIX 2024), whatever the system calls in it
/// return.
pub fn keep_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: returns the address of this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: that address is valid while the thread runs.
    let before = unsafe { errno.read() };
    let result = work();
    // SAFETY: that address is valid while the thread runs.
    unsafe { errno.write(before) };
    result
}

pub fn set_errno(value: i32) {
    // SAFETY: the address of this thread's `errno` is valid while it runs.
    unsafe { libc::__errno_location().write(value) };
}

#[must_use]
pub fn errno() -> i32 {
    // SAFETY: the address of this thread's `errno` is valid while it runs.
    unsafe { libc::__errno_location().read() }
}

/// Copies memory of this process that may not be mapped. Returns the number of bytes that could be read.
#[must_use]
pub fn peek(from: usize, into: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: from as *mut c_void, iov_len: into.len() };
    // SAFETY: writes to `into` only; the kernel checks the other addresses.
    let read = keep_errno(|| unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    });
    usize::try_from(read).unwrap_or(0)
}

/// Microseconds since the Unix epoch.
#[must_use]
pub fn date() -> u64 {
    clock(libc::CLOCK_REALTIME).as_micros() as u64
}

/// CPU time of this thread.
#[must_use]
pub fn thread_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of this process in nanoseconds.
#[must_use]
pub fn cpu_nanos() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID).as_nanos() as u64
}

/// Time since some moment in the past.
#[must_use]
pub fn time() -> Duration {
    clock(libc::CLOCK_MONOTONIC)
}

fn clock(which: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Runs `work`, in which `pthread_cancel` cannot end the thread.
pub fn uncancelled<T>(work: impl FnOnce() -> T) -> T {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
    }
    const DISABLE: i32 = 1;
    let mut before = 0;
    // SAFETY: `before` is valid for writing.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    let result = work();
    // SAFETY: the call accepts null for the old state.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}

/// A variable of the environment.
#[must_use]
pub fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: `name` ends in a zero. The text stays until the program changes the variable; it is read only before the
    // program begins.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: `getenv` returns a text that ends in a zero.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes()).filter(|text| !text.is_empty())
}

/// True in the process's first thread, which runs `main`.
#[must_use]
pub fn is_first_thread() -> bool {
    // SAFETY: takes no argument and cannot fail.
    unsafe { libc::gettid() == libc::getpid() }
}

#[must_use]
pub fn pid() -> u32 {
    // SAFETY: takes no argument and cannot fail.
    unsafe { libc::getpid() as u32 }
}

/// A number from `/proc/meminfo` or a file like it, in bytes: `MemTotal:  24000 kB`.
#[must_use]
pub fn kib_line(text: &[u8], name: &[u8]) -> Option<u64> {
    let line = text.split(|&b| b == b'\n').find(|line| line.starts_with(name))?;
    number(&line[name.len()..]).map(|kib| kib.saturating_mul(1024))
}

/// The first number in a text.
#[must_use]
pub fn number(text: &[u8]) -> Option<u64> {
    let start = text.iter().position(u8::is_ascii_digit)?;
    let mut digits = text[start..].iter().take_while(|b| b.is_ascii_digit());
    digits.try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}
