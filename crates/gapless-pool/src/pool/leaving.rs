//! Addresses that leave: nobody will use them again, but work that is queued may. They are unmapped once a fence says
//! that it is done, in the order in which they left. So a page is released behind every window that had it mapped.

use super::Pool;
use crate::device::{Device, PageHandle};
use crate::heap::Page;
use crate::ids::{Fence, HeapId, PageId};
use crate::mutants::{self, Mutant};
use std::collections::VecDeque;

/// What leaves.
#[derive(Clone, Copy, Debug)]
enum What {
    /// A window, whose addresses can be used again.
    Window,
    /// A page's home in a heap. The page itself goes back to the device, or lives on elsewhere.
    Home { heap: HeapId, page: Option<PageHandle> },
}

#[derive(Clone, Copy, Debug)]
struct Gone {
    fence: Fence,
    addr: u64,
    size: u64,
    what: What,
}

/// Invariant: fences rise.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    queue: VecDeque<Gone>,
    /// Bytes of pages that will be released: held until then.
    pub(super) bytes: u64,
}

impl Leaving {
    /// Whether a window is among them.
    pub(super) fn has_windows(&self) -> bool {
        self.queue.iter().any(|gone| matches!(gone.what, What::Window))
    }

    /// The fence that the last one waits for.
    pub(super) fn last(&self) -> Option<Fence> {
        self.queue.back().map(|gone| gone.fence)
    }
}

impl<D: Device> Pool<D> {
    /// A window's addresses leave: it is in no set any more. Fence `freed` covers all work that used it.
    pub(super) fn window_leaves(&mut self, addr: u64, size: u64, freed: Fence) {
        let fence = if mutants::is(Mutant::RetireUnderWork) { Fence::PAST } else { freed };
        self.leave(Gone { fence, addr, size, what: What::Window });
    }

    /// The home of a page leaves: its heap has given it up. With `page`, that goes back to the device; without, it was
    /// mapped elsewhere, and the log has both.
    pub(super) fn home_leaves(&mut self, heap: HeapId, at: PageId, page: Option<PageHandle>) {
        let home = self.heap_mut(heap).page_mut(at);
        home.is_leaving = true;
        let Page { addr, size, freed, .. } = *home;
        if page.is_some() {
            self.leaving.bytes += size;
            self.log_pages(heap, addr, size, false);
        }
        let fence = if mutants::is(Mutant::MoveUnderWork) { Fence::PAST } else { freed };
        self.leave(Gone { fence, addr, size, what: What::Home { heap, page } });
    }

    fn leave(&mut self, gone: Gone) {
        let fence = self.leaving.last().map_or(gone.fence, |last| last.max(gone.fence));
        self.leaving.queue.push_back(Gone { fence, ..gone });
        self.unmap_leaving();
    }

    /// Unmaps what no work uses any more.
    pub(super) fn unmap_leaving(&mut self) {
        while let Some(&Gone { fence, addr, size, what }) = self.leaving.queue.front() {
            if !self.fences.is_done(fence) {
                return;
            }
            // A driver that refuses is asked again later: a page may not go while it is mapped.
            if self.device.unmap(addr, size).is_err() {
                return;
            }
            self.leaving.queue.pop_front();
            match what {
                What::Window => {
                    if !mutants::is(Mutant::AddressesLeak) {
                        self.windows.ranges.give(addr, size);
                    }
                }
                What::Home { heap, page } => {
                    if let Some(at) = self.heap(heap).page_of(addr) {
                        self.heap_mut(heap).page_mut(at).is_leaving = false;
                    }
                    if let Some(page) = page {
                        self.leaving.bytes -= size;
                        self.device.release(page, size);
                        self.count_page_out(heap, size);
                        self.stats.device_frees += 1;
                    }
                    self.heap_mut(heap).draw_in();
                }
            }
        }
    }
}
