//! Our files in a process whose descriptors belong to the program.
//!
//! The helper has a descriptor table of its own ([`gapless_aside::own_table`]). Other threads use [`privately`]. Only
//! if the process has one thread do they work in the program's table, because no other thread can see what they open
//! and close then.

use super::errno;
use crate::local;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The C library's variable that is set while the process has one thread.
static IS_ALONE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// Called before the program begins.
pub fn begin_files() {
    // SAFETY: the name ends in a zero. The C library has it since 2.32.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    IS_ALONE.store(found.cast(), Ordering::Release);
}

/// True if the process has one thread, according to the C library.
#[must_use]
pub fn is_alone() -> bool {
    let alone = IS_ALONE.load(Ordering::Acquire);
    // SAFETY: null, or a variable of the C library, which changes it only in a thread that is alone.
    !alone.is_null() && unsafe { alone.read_volatile() } != 0
}

/// Runs `work`, which opens and closes files, so that the program's threads do not see its descriptors.
pub fn privately<T>(work: impl FnOnce() -> T) -> T {
    if local::has_own_files() || is_alone() {
        return work();
    }
    gapless_aside::run(work)
}

/// Maps a file that other processes map too, with `bytes` bytes. An error is the kernel's number.
pub fn map_file(path: &CStr, bytes: usize) -> Result<*mut u8, i32> {
    privately(|| map_file_here(path, bytes))
}

fn map_file_here(path: &CStr, bytes: usize) -> Result<*mut u8, i32> {
    // SAFETY: `path` ends in a zero; the descriptor is closed below.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW) };
    if file < 0 {
        return Err(errno());
    }
    // SAFETY: `file` is open. Its size is set before it is mapped, so no access lies behind its end.
    let start = unsafe {
        if libc::ftruncate(file, bytes as libc::off_t) == 0 {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file, 0)
        } else {
            libc::MAP_FAILED
        }
    };
    let wrong = errno();
    // SAFETY: `file` is open, and a mapping does not need it.
    unsafe { libc::close(file) };
    if start == libc::MAP_FAILED { Err(wrong) } else { Ok(start.cast()) }
}

/// The identity of a file, from a descriptor or a path.
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
        // SAFETY: `path` ends in a zero; `stat` is valid for writing.
        FileId::of(|stat| unsafe { libc::lstat(path.as_ptr(), stat) })
    }

    /// The file to which a link leads.
    #[must_use]
    pub fn behind(path: &CStr) -> Option<FileId> {
        // SAFETY: `path` ends in a zero; `stat` is valid for writing.
        FileId::of(|stat| unsafe { libc::stat(path.as_ptr(), stat) })
    }

    #[must_use]
    pub fn inode(self) -> u64 {
        self.inode
    }
}

/// Our descriptors lie from here on, because programs that close and open theirs by number use lower ones.
const FIRST_FILE: i32 = 512;

/// A file of ours while it is being used, which happens [`privately`]. If the kernel lets no thread work aside, the
/// program may close or replace the descriptor, so it is moved up, and compared before each use.
#[derive(Debug)]
pub struct OwnFile {
    descriptor: i32,
    pub id: FileId,
}

impl OwnFile {
    /// Makes a new file; fails if there is one. An error is the kernel's number.
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

    /// Opens the file that was made before, if the path still leads to it.
    pub fn open(path: &CStr, id: FileId) -> Result<OwnFile, i32> {
        // SAFETY: `path` ends in a zero.
        let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW) };
        if file < 0 { Err(errno()) } else { OwnFile::lift(file, id) }
    }

    fn lift(file: i32, id: FileId) -> Result<OwnFile, i32> {
        // SAFETY: takes only numbers.
        let lifted = unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, FIRST_FILE) };
        let own = OwnFile { descriptor: if lifted < 0 { file } else { lifted }, id };
        if !own.is_same() {
            // The number belongs to a file of the program by now: only the copy is ours.
            let mut own = std::mem::ManuallyDrop::new(own);
            if lifted >= 0 {
                own.close();
            }
            return Err(libc::ESTALE);
        }
        if lifted >= 0 {
            // SAFETY: opened above, and not used again.
            unsafe { libc::close(file) };
        }
        Ok(own)
    }

    fn is_same(&self) -> bool {
        // SAFETY: `stat` is valid for writing.
        FileId::of(|stat| unsafe { libc::fstat(self.descriptor, stat) }) == Some(self.id)
    }

    fn close(&mut self) {
        // SAFETY: takes only a number: of a copy that `lift` made, or of a file that `is_same` recognised.
        unsafe { libc::close(self.descriptor) };
    }

    /// Reserves blocks of the disk and maps them, so that a full disk is an error here, and not a signal later.
    pub fn map(&self, origin: u64, bytes: usize) -> Result<*mut u8, i32> {
        if !self.is_same() {
            return Err(libc::ESTALE);
        }
        let at = origin as libc::off_t;
        // SAFETY: takes only numbers.
        let mut wrong = unsafe { libc::posix_fallocate(self.descriptor, at, bytes as libc::off_t) };
        if wrong == libc::EOPNOTSUPP || wrong == libc::EINVAL {
            let end = at + bytes as libc::off_t;
            // SAFETY: takes only numbers.
            wrong = if unsafe { libc::ftruncate(self.descriptor, end) } == 0 { 0 } else { errno() };
        }
        if wrong != 0 {
            return Err(wrong);
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses, of a file that is long enough.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, libc::MAP_SHARED, self.descriptor, at) };
        if start == libc::MAP_FAILED { Err(errno()) } else { Ok(start.cast()) }
    }

    /// Cuts the file to its length.
    pub fn cut(&self, length: u64) {
        if self.is_same() {
            // SAFETY: takes only numbers.
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

/// The beginning of a file, as much as fits; empty if it cannot be read. Uses plain system calls, because the C
/// library's functions end a thread after `pthread_cancel`, which `malloc` must not.
pub fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    let length = privately(|| read_here(path, buffer));
    &buffer[..length]
}

fn read_here(path: &CStr, buffer: &mut [u8]) -> usize {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: `path` ends in a zero; the descriptor is closed below.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if file < 0 {
        return 0;
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
    // SAFETY: `file` was opened above and is not used again.
    unsafe { libc::syscall(libc::SYS_close, file) };
    length
}
