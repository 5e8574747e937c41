//! Pages of a card that other processes know of: their numbers, and their files that stay open.

use crate::locks::{Guard, Lock};
use gapless_pool::PageHandle;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a page for other processes. It is never reused in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedPage(pub u64);

/// A page that other processes know of.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) number: SharedPage,
    /// Kept open for readers that copy it out of this process themselves.
    pub(crate) file: Option<KeptFile>,
}

/// Files of pages that are open now. A forked child has copies of them, which would keep the card's memory.
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
}

/// True if the kept files are a quarter of the files that this process may have open: the rest is for the program.
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
    // SAFETY: an out-pointer of our own, which keeps its values if the kernel refuses.
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

/// Closes a forked child's copies of this process's files. If another thread of the parent held the list at the fork,
/// the copies stay.
pub fn close_in_forked_child() {
    for &file in KEPT.lock().iter() {
        // SAFETY: each is the child's own copy, which no other code in it uses.
        drop(unsafe { OwnedFd::from_raw_fd(file) });
    }
}

/// Pages by the driver's handles, and these handles by the pages' numbers.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) by_page: HashMap<u64, Shared>,
    by_number: HashMap<SharedPage, u64>,
}

impl Told {
    /// The number of a page for other processes, which it gets now if it has none.
    pub(crate) fn number_of(&mut self, page: u64) -> SharedPage {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let shared = self.by_page.entry(page).or_insert_with(|| {
            let number = SharedPage(LAST.fetch_add(1, Ordering::Relaxed) + 1);
            self.by_number.insert(number, page);
            Shared { number, file: None }
        });
        shared.number
    }

    pub(crate) fn get(&self, number: SharedPage) -> Option<(u64, &Shared)> {
        let page = *self.by_number.get(&number)?;
        Some((page, self.by_page.get(&page)?))
    }
}

/// True if this process may open one more file.
pub(crate) fn has_room_for_a_file() -> bool {
    unsafe extern "C" {
        fn eventfd(value: u32, flags: i32) -> i32;
    }
    const CLOSE_ON_EXEC: i32 = 0x8_0000;
    // SAFETY: the arguments are numbers.
    let file = unsafe { eventfd(0, CLOSE_ON_EXEC) };
    if file >= 0 {
        // SAFETY: `eventfd` opened this descriptor, which nothing else owns.
        drop(unsafe { OwnedFd::from_raw_fd(file) });
    }
    file >= 0
}

/// Pages of a card that other processes know of, until they are released.
///
/// They have a lock of their own, which is taken after the card's and held while a page is exported. So readers in
/// other processes get pages while a thread of this one has the card and waits for its work.
#[derive(Clone, Debug)]
pub(crate) struct SharedPages {
    told: Arc<Lock<Told>>,
    /// Returns true if a process that knows of a page has it.
    pub(crate) is_held: fn(SharedPage) -> bool,
}

impl Default for SharedPages {
    /// Without a better answer, every page counts as held.
    fn default() -> SharedPages {
        SharedPages { told: Arc::new(Lock::with(Told::default(), Told::default)), is_held: |_| true }
    }
}

impl SharedPages {
    pub(crate) fn told(&self) -> Guard<'_, Told> {
        self.told.lock()
    }

    /// Forgets a page, because the driver may use its handle for another one from now on.
    pub(crate) fn release(&self, page: PageHandle) {
        let mut told = self.told();
        if let Some(gone) = told.by_page.remove(&page.0) {
            told.by_number.remove(&gone.number);
        }
    }
}
