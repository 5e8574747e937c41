//! Every system call of the crate, behind typed functions. None of them allocates from `malloc`.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
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

/// A list of fixed length in memory of its own, zero until it is written. The kernel supplies only what is touched. A
/// long list ([`Table::lazy`]) is reserved, and becomes writable from its start as it is used: pages that a process may
/// write count for limits and for its commit charge, even untouched.
#[derive(Debug)]
pub struct Table<T: Zeroed> {
    start: *mut T,
    length: usize,
    /// Entries from the start that are writable. Those behind are zero.
    open: usize,
    owns: PhantomData<T>,
}

// SAFETY: the table owns its memory, and hands out copies only.
unsafe impl<T: Zeroed + Send> Send for Table<T> {}

impl<T: Zeroed> Table<T> {
    #[must_use]
    pub fn new(length: usize) -> Option<Table<T>> {
        let start = map(length.checked_mul(size_of::<T>())?)?;
        Some(Table { start: start.cast(), length, open: length, owns: PhantomData })
    }

    /// A list that becomes writable as it is used: see [`Table::reach`].
    #[must_use]
    pub fn lazy(length: usize) -> Option<Table<T>> {
        let start = map_with(length.checked_mul(size_of::<T>())?.next_multiple_of(PAGE), libc::PROT_NONE)?;
        Some(Table { start: start.cast(), length, open: 0, owns: PhantomData })
    }

    /// Makes the first `count` entries writable, or as many as there are. False: there is no memory for them.
    #[must_use]
    pub fn reach(&mut self, count: usize) -> bool {
        let count = count.min(self.length);
        count <= self.open || self.open_to(count)
    }

    #[cold]
    fn open_to(&mut self, count: usize) -> bool {
        // Each time a quarter more: a table of gigabytes takes some dozen calls.
        let bytes = (count * size_of::<T>()).next_multiple_of(PAGE);
        let more = (bytes + (bytes / 4).clamp(OPENED, OPENED << 4)).next_multiple_of(PAGE);
        let all = (self.length * size_of::<T>()).next_multiple_of(PAGE);
        let made =
            [more.min(all), bytes].into_iter().find(|bytes| keep_errno(|| commit(self.start.cast(), *bytes)));
        self.open = made.map_or(self.open, |bytes| (bytes / size_of::<T>()).min(self.length));
        made.is_some()
    }

    #[must_use]
    pub fn get(&self, at: usize) -> T {
        if at >= self.open {
            return self.behind(at);
        }
        // SAFETY: inside of the table, which is mapped, aligned to a page, and valid when zero.
        unsafe { self.start.add(at).read() }
    }

    #[cold]
    fn behind(&self, at: usize) -> T {
        if at >= self.length {
            damaged();
        }
        // SAFETY: the type is valid when zero.
        unsafe { std::mem::zeroed() }
    }

    /// Where a value lies. For tables that are not lazy.
    #[must_use]
    pub fn place(&self, at: usize) -> *const T {
        if at >= self.open {
            damaged();
        }
        // SAFETY: inside of the table.
        unsafe { self.start.add(at) }
    }

    pub fn set(&mut self, at: usize, value: T) {
        // Callers of lazy tables reached so far before, where they could still refuse.
        if at >= self.open && (at >= self.length || !self.open_to(at + 1)) {
            damaged();
        }
        // SAFETY: as in `get`, and `&mut self` keeps others out.
        unsafe { self.start.add(at).write(value) }
    }
}

/// Bytes of a lazy table that become writable at once, at least.
const OPENED: usize = 64 << 10;

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
        self.open = self.open.min(length);
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
///
/// The address is a wish, which the kernel follows where the place is free. `MAP_FIXED_NOREPLACE` would say the same,
/// and ends a process whose sandbox does not know it (Chromium's).
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

/// Drops the memory of a range and makes the range one mapping with its neighbours again: pages that were moved there
/// or away leave mappings of their own, of which a process may have 65,530. False: the kernel refuses.
#[must_use]
pub fn map_anew(start: *mut u8, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is memory of the caller's that nobody uses.
    unsafe { libc::mmap(start.cast(), bytes, rights, flags, -1, 0) == start.cast() }
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

/// Which file a descriptor or a path means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(ask: impl FnOnce(*mut libc::stat) -> i32) -> Option<FileId> {
        // SAFETY: valid when zero.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        (ask(&raw mut stat) == 0).then_some(FileId { device: stat.st_dev, inode: stat.st_ino })
    }

    #[must_use]
    pub fn of_path(path: &CStr) -> Option<FileId> {
        // SAFETY: `path` ends in a zero; the other is valid for writing.
        FileId::of(|stat| unsafe { libc::lstat(path.as_ptr(), stat) })
    }
}

/// Descriptors of ours lie from here on, where programs that close and open theirs by number meet none.
const FIRST_FILE: i32 = 512;

/// A file of ours while something is done with it. Descriptors are the program's: it may close any of them, or put
/// another file in its place. So none is kept open, and each is moved up and compared before it is used.
#[derive(Debug)]
pub struct OwnFile {
    descriptor: i32,
    pub id: FileId,
}

impl OwnFile {
    /// A new file; in place of none. An error is the kernel's number.
    pub fn create(path: &CStr, mode: u32) -> Result<OwnFile, i32> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        // SAFETY: `path` ends in a zero.
        let file = unsafe { libc::open(path.as_ptr(), flags, mode) };
        if file < 0 {
            return Err(errno());
        }
        let id = FileId::of_path(path).ok_or_else(errno)?;
        OwnFile::lift(file, id)
    }

    /// The file that was made before, if the path still means it.
    pub fn open(path: &CStr, id: FileId) -> Result<OwnFile, i32> {
        // SAFETY: `path` ends in a zero.
        let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW) };
        if file < 0 { Err(errno()) } else { OwnFile::lift(file, id) }
    }

    fn lift(file: i32, id: FileId) -> Result<OwnFile, i32> {
        // SAFETY: takes numbers only.
        let lifted = unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, FIRST_FILE) };
        let own = OwnFile { descriptor: if lifted < 0 { file } else { lifted }, id };
        if !own.is_same() {
            // The number means the program's file by now: only what was made from it is ours.
            let mut own = std::mem::ManuallyDrop::new(own);
            if lifted >= 0 {
                own.close();
            }
            return Err(libc::ESTALE);
        }
        if lifted >= 0 {
            // SAFETY: opened above.
            unsafe { libc::close(file) };
        }
        Ok(own)
    }

    fn is_same(&self) -> bool {
        // SAFETY: the second is valid for writing.
        FileId::of(|stat| unsafe { libc::fstat(self.descriptor, stat) }) == Some(self.id)
    }

    fn close(&mut self) {
        // SAFETY: takes a number only, which is ours.
        unsafe { libc::close(self.descriptor) };
    }

    /// Reserves blocks of the disk, and maps them: a full disk is an error here, and no signal later.
    pub fn map(&self, origin: u64, bytes: usize) -> Result<*mut u8, i32> {
        if !self.is_same() {
            return Err(libc::ESTALE);
        }
        let at = origin as libc::off_t;
        // SAFETY: takes numbers only.
        let mut wrong = unsafe { libc::posix_fallocate(self.descriptor, at, bytes as libc::off_t) };
        if wrong == libc::EOPNOTSUPP || wrong == libc::EINVAL {
            let end = at + bytes as libc::off_t;
            // SAFETY: as above.
            wrong = if unsafe { libc::ftruncate(self.descriptor, end) } == 0 { 0 } else { errno() };
        }
        if wrong != 0 {
            return Err(wrong);
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that is long enough.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, libc::MAP_SHARED, self.descriptor, at) };
        if start == libc::MAP_FAILED { Err(errno()) } else { Ok(start.cast()) }
    }

    /// Gives the file its length.
    pub fn cut(&self, length: u64) {
        if self.is_same() {
            // SAFETY: takes numbers only.
            unsafe { libc::ftruncate(self.descriptor, length as libc::off_t) };
        }
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        if self.is_same() {
            self.close();
        }
    }
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

/// Which of the pages from `start` on are resident, one byte each; false where the kernel does not say. A page that is
/// not may still be swapped out.
#[must_use]
pub fn residence(start: *mut u8, pages: &mut [u8]) -> bool {
    // SAFETY: asks about pages, with room for a byte for each.
    unsafe { libc::mincore(start.cast(), pages.len() * PAGE, pages.as_mut_ptr()) == 0 }
}

/// Whether a request is for more than the machine has, so that the kernel refuses it to everybody: with memory and swap
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
    // SAFETY: valid when zero.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is valid for writing.
    let result = keep_errno(|| unsafe { libc::sysinfo(&raw mut info) });
    let mut buffer = [0; 16];
    let mode = keep_errno(|| number(read_file(c"/proc/sys/vm/overcommit_memory", &mut buffer)));
    let unit = u64::from(info.mem_unit.max(1));
    let bytes = info.totalram.saturating_add(info.totalswap).saturating_mul(unit);
    let grants_all = result != 0 || mode == Some(1);
    let most = if grants_all { usize::MAX } else { bytes as usize };
    MOST.store(most, Ordering::Relaxed);
    most
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
