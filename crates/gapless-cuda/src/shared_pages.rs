//! Pages of a card that other processes were told of: their numbers, and files of them that stay open.

use crate::locks::{Guard, Lock};
use gapless_pool::PageHandle;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// What other processes call a page: no other page of this process ever has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedPage(pub u64);

/// One of them.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) number: SharedPage,
    pub(crate) size: u64,
    /// Kept for readers that take it out of this process themselves.
    pub(crate) file: Option<KeptFile>,
}

/// Files of pages that are open now. A forked child has copies, which would keep the card's memory.
static KEPT: Lock<Vec<RawFd>> = Lock::new(Vec::new);

/// A file of a page that is listed in [`KEPT`] as long as it is open.
#[derive(Debug)]
pub(crate) struct KeptFile(OwnedFd);

impl KeptFile {
    pub(crate) fn new(file: OwnedFd) -> KeptFile {
        KEPT.lock().push(file.as_raw_fd());
        KeptFile(file)
    }

    pub(crate) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Another descriptor of the same file; `None`: this process has too many.
    pub(crate) fn copy(&self) -> Option<OwnedFd> {
        self.0.try_clone().ok()
    }
}

/// Whether the files that are kept are a quarter of those that this process may have open: the rest is the program's.
pub(crate) fn keeps_many() -> bool {
    /// `struct rlimit`.
    #[repr(C)]
    struct Limit {
        soft: u64,
        hard: u64,
    }
    const OPEN_FILES: i32 = 7;
    unsafe extern "C" {
        fn getrlimit(what: i32, limit: *mut Limit) -> i32;
    }
    let mut limit = Limit { soft: 1024, hard: 1024 };
    // SAFETY: an out-pointer of our own; it keeps what it has where the kernel refuses.
    let _ = unsafe { getrlimit(OPEN_FILES, &raw mut limit) };
    let kept = KEPT.lock().len();
    kept as u64 >= limit.soft / 4
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        let file = self.0.as_raw_fd();
        KEPT.lock().retain(|kept| *kept != file);
    }
}

/// Closes a forked child's copies of this process's files. Where another thread of the parent had the list at that
/// moment, the copies stay.
pub fn close_in_forked_child() {
    for &file in KEPT.lock().iter() {
        // SAFETY: the child has its own copy of each, and nobody in it uses them.
        drop(unsafe { OwnedFd::from_raw_fd(file) });
    }
}

/// Pages of a card that others were told of, until they are released.
///
/// They have a lock of their own, which is taken after the card's and held while one is exported: readers in other
/// processes get theirs while a thread of this one has the card and waits for its work.
#[derive(Clone, Debug)]
pub(crate) struct SharedPages {
    told: Arc<Lock<HashMap<u64, Shared>>>,
    /// Whether somebody who was told of a page has it.
    pub(crate) is_held: fn(SharedPage) -> bool,
}

impl Default for SharedPages {
    /// Who does not know takes every page for held.
    fn default() -> SharedPages {
        SharedPages { told: Arc::new(Lock::with(HashMap::new(), HashMap::new)), is_held: |_| true }
    }
}

impl SharedPages {
    pub(crate) fn told(&self) -> Guard<'_, HashMap<u64, Shared>> {
        self.told.lock()
    }

    /// The driver may use its handle for another page from now on.
    pub(crate) fn release(&self, page: PageHandle) {
        self.told().remove(&page.0);
    }
}
