//! Every system call of the crate, behind typed functions. None of them allocates from `malloc`.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub const PAGE: usize = 4096;

/// A type that is valid when all its bytes are zero.
///
/// # Safety
/// The implementer upholds exactly that.
pub unsafe trait Zeroed: Copy {}

// SAFETY: integers.
unsafe impl Zeroed for u32 {}
// SAFETY: integers.
unsafe impl Zeroed for u64 {}

/// A list of fixed length in memory of its own, zero until it is written. The kernel supplies only what is touched.
#[derive(Debug)]
pub struct Table<T: Zeroed> {
    start: *mut T,
    length: usize,
    owns: PhantomData<T>,
}

// SAFETY: the table owns its memory, and hands out copies only.
unsafe impl<T: Zeroed + Send> Send for Table<T> {}

impl<T: Zeroed> Table<T> {
    #[must_use]
    pub fn new(length: usize) -> Option<Table<T>> {
        let start = map(length.checked_mul(size_of::<T>())?)?;
        Some(Table { start: start.cast(), length, owns: PhantomData })
    }

    #[must_use]
    pub fn get(&self, at: usize) -> T {
        if at >= self.length {
            damaged();
        }
        // SAFETY: inside of the table, which is mapped, aligned to a page, and valid when zero.
        unsafe { self.start.add(at).read() }
    }

    /// Where a value lies.
    #[must_use]
    pub fn place(&self, at: usize) -> *const T {
        if at >= self.length {
            damaged();
        }
        // SAFETY: inside of the table.
        unsafe { self.start.add(at) }
    }

    pub fn set(&mut self, at: usize, value: T) {
        if at >= self.length {
            damaged();
        }
        // SAFETY: as in `get`, and `&mut self` keeps others out.
        unsafe { self.start.add(at).write(value) }
    }
}

impl<T: Zeroed> Table<T> {
    /// Gives up the end of the table, from `length` on.
    pub fn shorten(&mut self, length: usize) {
        if length >= self.length {
            return;
        }
        let pages = |length: usize| (length * size_of::<T>()).next_multiple_of(PAGE);
        let (kept, all) = (pages(length.max(1)), pages(self.length));
        if kept < all {
            // SAFETY: inside of the table; nobody reads behind its length.
            unmap(unsafe { self.start.cast::<u8>().add(kept) }, all - kept);
        }
        self.length = length;
    }
}

impl<T: Zeroed> Drop for Table<T> {
    fn drop(&mut self) {
        unmap(self.start.cast(), self.length * size_of::<T>());
    }
}

/// The allocator's own tables are wrong, which a stray write can do: to go on would hand out memory twice.
pub fn damaged() -> ! {
    crate::text::say(format_args!(
        "gapless: the allocator's tables are damaged: the program wrote where it must not\n  \
         run it with GAPLESS_HOST_CHECK=1 to find the write\n"
    ));
    abort()
}

pub fn abort() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

pub fn exit(code: i32) -> ! {
    // SAFETY: ends the process without running what it registered: nothing of the program has begun.
    unsafe { libc::_exit(code) }
}

/// Zeroed memory that counts only where it is touched.
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

/// Zeroed memory at these addresses. False: they are somebody's, or the kernel refuses.
#[must_use]
pub fn map_at(start: *mut u8, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping that replaces none.
    let got = unsafe { libc::mmap(start.cast(), bytes, rights, flags, -1, 0) };
    if got == libc::MAP_FAILED || got == start.cast() {
        return got != libc::MAP_FAILED;
    }
    // A kernel that does not know the flag took another place.
    unmap(got.cast(), bytes);
    false
}

/// Bytes that this process may map, or may map for data, where there is such a limit (`ulimit -v`, `ulimit -d`).
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

/// Memory that forked children share.
#[must_use]
pub fn map_shared(bytes: usize) -> Option<*mut u8> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start.cast())
}

/// A file that other processes map too, `bytes` long.
#[must_use]
pub fn map_file(path: &CStr, bytes: usize) -> Option<*mut u8> {
    // SAFETY: `path` ends in a zero; the descriptor is closed below.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW) };
    if file < 0 {
        return None;
    }
    // SAFETY: `file` is open; the size is set before it is mapped, so that no access lies behind its end.
    let start = unsafe {
        if libc::ftruncate(file, bytes as libc::off_t) == 0 {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file, 0)
        } else {
            libc::MAP_FAILED
        }
    };
    // SAFETY: `file` is open, and a mapping does not need it.
    unsafe { libc::close(file) };
    (start != libc::MAP_FAILED).then_some(start.cast())
}

pub fn unmap(start: *mut u8, bytes: usize) {
    // SAFETY: the callers own what they mapped.
    unsafe { libc::munmap(start.cast(), bytes) };
}

/// The machine's memory in bytes; 16 GiB where the kernel does not say.
#[must_use]
pub fn memory() -> usize {
    let mut buffer = [0; 4096];
    kib_line(read_file(c"/proc/meminfo", &mut buffer), b"MemTotal:").unwrap_or(1 << 34) as usize
}

/// Addresses without memory, at a multiple of `alignment`.
#[must_use]
pub fn reserve(bytes: usize, alignment: usize) -> Option<*mut u8> {
    let all = bytes.checked_add(alignment)?;
    let start = map_with(all, libc::PROT_NONE)?;
    let lead = start.align_offset(alignment);
    // SAFETY: `lead < alignment`, so both are inside of what was mapped.
    let (first, behind) = unsafe { (start.add(lead), start.add(lead + bytes)) };
    if lead > 0 {
        unmap(start, lead);
    }
    if alignment > lead {
        unmap(behind, alignment - lead);
    }
    Some(first)
}

/// Makes reserved addresses usable. False: the kernel refuses, as it does where it never overcommits.
#[must_use]
pub fn commit(start: *mut u8, bytes: usize) -> bool {
    protect(start, bytes, libc::PROT_READ | libc::PROT_WRITE) == 0
}

/// `mprotect` itself: the function of that name is the program's way to it, and passes through `gapless-malloc`.
#[must_use]
pub fn protect(start: *mut u8, bytes: usize, rights: i32) -> i32 {
    // SAFETY: the range is the caller's reservation, or the program's own.
    unsafe { libc::syscall(libc::SYS_mprotect, start.addr(), bytes, rights) as i32 }
}

/// Gives the memory back. The addresses stay, and read as zeros. False: the kernel refuses (locked memory).
#[must_use]
pub fn discard(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the range is memory of the caller's that nobody uses.
    unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) == 0 }
}

/// Whether the page at an address has memory; false where the kernel does not say.
#[must_use]
pub fn is_resident(page: *mut u8) -> bool {
    let mut answer = 0u8;
    // SAFETY: asks about one page, with room for one byte.
    unsafe { libc::mincore(page.cast(), PAGE, &raw mut answer) == 0 && answer & 1 == 1 }
}

/// Asks for huge pages, or for none.
pub fn advise_huge(start: *mut u8, bytes: usize, wanted: bool) {
    let advice = if wanted { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: advice does not change what memory contains.
    unsafe { libc::madvise(start.cast(), bytes, advice) };
}

/// Moves the pages of `[from, from + bytes)` to `to`, where what was before is lost. The old addresses stay, and read
/// as zeros. False: nothing was moved.
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
    // SAFETY: only the address is used.
    keep_errno(|| unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, most);
    });
}

/// `free` must leave `errno` as it is (POSIX 2024), whatever the kernel answers on the way.
pub fn keep_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the address of this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; it stays valid while the thread runs.
    let before = unsafe { errno.read() };
    let result = work();
    // SAFETY: as above.
    unsafe { errno.write(before) };
    result
}

pub fn set_errno(value: i32) {
    // SAFETY: the address of this thread's `errno`.
    unsafe { libc::__errno_location().write(value) };
}

#[must_use]
pub fn errno() -> i32 {
    // SAFETY: the address of this thread's `errno`.
    unsafe { libc::__errno_location().read() }
}

/// Copies memory of this process that may not be there. Gives how many bytes could be read.
#[must_use]
pub fn peek(from: usize, into: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: from as *mut c_void, iov_len: into.len() };
    // SAFETY: writes to `into`; the kernel checks the other addresses.
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

/// The beginning of a file, as much as fits; empty where it cannot be read. By plain system calls: the C library's
/// functions end a thread that was asked to (`pthread_cancel`), and `malloc` must not.
pub fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: `path` ends in a zero; the descriptor is closed below.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if file < 0 {
        return &[];
    }
    let mut length = 0;
    while length < buffer.len() {
        let rest = &mut buffer[length..];
        // SAFETY: `rest` is valid for writing.
        let read = unsafe { libc::syscall(libc::SYS_read, file, rest.as_mut_ptr(), rest.len()) };
        if read <= 0 {
            break;
        }
        length += read as usize;
    }
    // SAFETY: `file` is open.
    unsafe { libc::syscall(libc::SYS_close, file) };
    &buffer[..length]
}

/// Runs this without an end of the thread by `pthread_cancel` in it.
pub fn uncancelled<T>(work: impl FnOnce() -> T) -> T {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
    }
    const DISABLE: i32 = 1;
    let mut before = 0;
    // SAFETY: the C library's function, with a variable of this function.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    let result = work();
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}

/// A variable of the environment.
#[must_use]
pub fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: `name` ends in a zero. The text stays until somebody changes the variable, and is read at the start only.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: `getenv` gives a text that ends in a zero.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes()).filter(|text| !text.is_empty())
}

/// When a process started, in the kernel's ticks; `None` where there is none, or where it has ended.
#[must_use]
pub fn process_start(pid: u32) -> Option<u64> {
    use std::fmt::Write as _;
    let mut name = crate::text::Text::<32>::default();
    let _ = write!(name, "/proc/{pid}/stat\0");
    let mut buffer = [0; 1024];
    let text = keep_errno(|| read_file(CStr::from_bytes_until_nul(name.bytes()).unwrap_or(c""), &mut buffer));
    // The name before it is in brackets, and may contain some.
    let rest = &text[text.iter().rposition(|&b| b == b')')? + 1..];
    let mut fields = rest.split(|&b| b == b' ').filter(|field| !field.is_empty());
    let state = fields.next()?;
    if matches!(state, b"Z" | b"X") {
        return None;
    }
    number(fields.nth(18)?)
}

#[must_use]
pub fn pid() -> u32 {
    // SAFETY: cannot fail.
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
