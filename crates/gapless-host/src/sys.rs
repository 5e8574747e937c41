//! Every system call of the crate, behind typed functions. None of them allocates from `malloc`.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

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
    // SAFETY: the range is the caller's reservation.
    unsafe { libc::mprotect(start.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

/// Gives the memory back. The addresses stay, and read as zeros. False: the kernel refuses (locked memory).
#[must_use]
pub fn discard(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the range is memory of the caller's that nobody uses.
    unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) == 0 }
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

/// The beginning of a file, as much as fits; empty where it cannot be read.
pub fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: `path` ends in a zero; the descriptor is closed below.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return &[];
    }
    let mut length = 0;
    while length < buffer.len() {
        let rest = &mut buffer[length..];
        // SAFETY: `rest` is valid for writing.
        let read = unsafe { libc::read(file, rest.as_mut_ptr().cast(), rest.len()) };
        if read <= 0 {
            break;
        }
        length += read as usize;
    }
    // SAFETY: `file` is open.
    unsafe { libc::close(file) };
    &buffer[..length]
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
