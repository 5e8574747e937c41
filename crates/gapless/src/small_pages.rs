//! Memory in small pages: for commands that take and free many vectors, and whose process ends soon.

/// Takes no huge pages from now on. If this cannot be set, the command only needs more time or memory.
///
/// * `fit` takes milliseconds and a few megabytes, in vectors of many sizes. With huge pages, the kernel would zero
///   two megabytes for each of these: a quarter of all its time.
/// * `report` frees columns while it takes others. A huge page stays whole while any part of it is in use: on 900,000
///   events of random sizes that is a sixth of the process's peak memory.
pub(crate) fn take() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
