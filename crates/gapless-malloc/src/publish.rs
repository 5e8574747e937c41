//! Writes the figures of the process's memory into its statistics file, for `gapless top` and `gapless metrics`. The
//! helper calls it about twice a second, without a lock of the allocator, so it may allocate like any other code.
//!
//! The file is written through a mapping. The program could close an open descriptor and use its number again; what is
//! written to it would then land in a file of the program.

use gapless_host::stats;
use gapless_host::sys::{self, OwnFile};
use gapless_stats::host::{self, CLASSES, Figures, HostStatistics, LARGEST};
use gapless_stats::{Folder, Process, folder, process};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Mutex;

struct Open {
    /// The address of the mapped page.
    page: usize,
    path: PathBuf,
    process: Process,
}

/// The file's length, in whole pages.
const ROOM: usize = LARGEST.next_multiple_of(sys::PAGE);

/// `None` before the first call. If a folder cannot be used, it is not tried again.
static OPEN: Mutex<Option<Option<Open>>> = Mutex::new(None);

/// Writes the file, which the first call makes. A forked child makes one of its own.
pub(crate) fn publish() {
    // No thread holds it around a fork, because the helper is stopped first.
    let Ok(mut open) = OPEN.try_lock() else { return };
    let is_other =
        |open: &Option<Open>| open.as_ref().is_some_and(|open| open.process.pid != std::process::id());
    if open.as_ref().is_none_or(is_other) {
        if let Some(Some(before)) = open.take() {
            // The parent's page, which a child has too.
            sys::unmap(before.page as *mut u8, ROOM);
        }
        *open = Some(create());
    }
    let Some(Some(Open { page, process, .. })) = open.as_mut() else { return };
    let mut classes = Vec::with_capacity(CLASSES);
    stats::each_class(|size, live| classes.push((size, live)));
    let statistics =
        HostStatistics { process: process.clone(), time: process::now(), figures: figures(), classes };
    let bytes = host::encode(&statistics);
    // SAFETY: the page is mapped, has `ROOM` bytes, and only this function writes to it. A reader that sees only a part
    // of a write finds a wrong sum.
    unsafe { (*page as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(ROOM)) };
}

fn create() -> Option<Open> {
    let process = Process::current(concat!("gapless-host ", env!("CARGO_PKG_VERSION")))?;
    let folder = Folder::make(&folder::candidates()).ok()?;
    let path = host::path(&folder, &process);
    // A file of this name can only be an old one of this very process.
    let _ = std::fs::remove_file(&path);
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    let page = OwnFile::create(&name, 0o600).and_then(|file| file.map(0, ROOM)).ok()?;
    Some(Open { page: page as usize, path, process })
}

fn figures() -> Figures {
    let s = stats::now();
    Figures {
        large_live: s.large_live,
        large_peak: s.large_most,
        kept: s.large_kept,
        small: s.small_held,
        allocations: s.allocations,
        frees: s.frees,
        handed_out: s.handed_out,
        reused: s.reused,
        given_back: s.given_back,
        huge_pages: u64::from(s.huge_pages),
        limit: s.limit,
        budget_held: s.total,
        refused: s.refused,
        // The reader gets it from the kernel, because here it would take a descriptor.
        resident: 0,
        faults: faults(),
        small_live: s.small_live,
        lists_kept: s.lists_kept,
        threads: s.threads,
        lists_most: s.lists_most,
        pinned: s.pinned,
        pinned_kept: s.pinned_kept,
    }
}

/// Page faults of this process.
fn faults() -> u64 {
    // SAFETY: valid when zero.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writing.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    usage.ru_minflt.unsigned_abs() + usage.ru_majflt.unsigned_abs()
}

/// Called when the process ends: removes its file.
pub(crate) fn end() {
    if let Ok(open) = OPEN.try_lock()
        && let Some(Some(open)) = open.as_ref()
        && open.process.pid == std::process::id()
    {
        let _ = std::fs::remove_file(&open.path);
    }
}
