//! Writes what the process holds into its statistics file, for `gapless top` and `gapless metrics`. The helper calls it
//! about twice a second, so it may allocate like any other code: it holds no lock of the allocator's.

use gapless_host::stats;
use gapless_stats::host::{CLASSES, Figures, HostStatistics, HostWriter};
use gapless_stats::{Folder, Process, folder, process};
use std::sync::Mutex;

struct Open {
    writer: HostWriter,
    process: Process,
}

/// `None` before the first time. A folder that cannot be used is not tried again.
static OPEN: Mutex<Option<Option<Open>>> = Mutex::new(None);

/// Writes the file, which is made at the first time. A forked child makes one of its own.
pub(crate) fn publish() {
    // Around a fork nobody holds it: the helper is stopped first.
    let Ok(mut open) = OPEN.try_lock() else { return };
    let is_other =
        |open: &Option<Open>| open.as_ref().is_some_and(|open| open.process.pid != std::process::id());
    if open.as_ref().is_none_or(is_other) {
        *open = Some(create());
    }
    let Some(Some(Open { writer, process })) = open.as_mut() else { return };
    let mut classes = Vec::with_capacity(CLASSES);
    stats::each_class(|size, live| classes.push((size, live)));
    let statistics =
        HostStatistics { process: process.clone(), time: process::now(), figures: figures(), classes };
    let _ = writer.write(&statistics);
}

fn create() -> Option<Open> {
    let process = Process::current(concat!("gapless-host ", env!("CARGO_PKG_VERSION")))?;
    let folder = Folder::make(&folder::candidates()).ok()?;
    let writer = HostWriter::create(&folder, &process).ok()?;
    Some(Open { writer, process })
}

fn figures() -> Figures {
    let s = stats::now();
    let (resident, faults) = kernel();
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
        resident,
        faults,
        small_live: s.small_live,
        lists_kept: s.lists_kept,
        threads: s.threads,
        lists_most: s.lists_most,
        pinned: s.pinned,
        pinned_kept: s.pinned_kept,
    }
}

/// Resident bytes and page faults of this process.
fn kernel() -> (u64, u64) {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    // SAFETY: valid when zero.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writing.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    (pages * 4096, usage.ru_minflt.unsigned_abs() + usage.ru_majflt.unsigned_abs())
}

/// The process ends: its file goes with it.
pub(crate) fn end() {
    if let Ok(open) = OPEN.try_lock()
        && let Some(Some(open)) = open.as_ref()
        && open.process.pid == std::process::id()
    {
        let _ = std::fs::remove_file(open.writer.path());
    }
}
