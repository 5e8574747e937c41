//! Addresses that leave: no request will get them again, but queued work may still use them. They are unmapped once a
//! fence of their lane is done. A page is released only after every window that has it mapped.

use super::Pool;
use crate::device::{Device, PageHandle};
use crate::heap::Page;
use crate::ids::{Fence, HeapId, LaneId, PageId};
use crate::mutants::{self, Mutant};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// The kind of addresses that leave.
#[derive(Clone, Debug)]
enum What {
    /// A window and the pages that it has mapped. Its addresses can be used again.
    Window(Vec<PageHandle>),
    /// A page's home in a heap. With `page`, the page goes back to the device; without, it is mapped elsewhere.
    Home { heap: HeapId, page: Option<PageHandle> },
}

/// Addresses that are settled once this fence of this lane is done. The one fence is enough: these addresses served
/// only requests of the lane, and lent memory in them was settled before it was free.
#[derive(Clone, Debug)]
struct Gone {
    lane: LaneId,
    fence: Fence,
    addr: u64,
    size: u64,
    what: What,
}

/// Invariant: `in_windows[page]` counts the windows in `queue` that have the page mapped.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    queue: VecDeque<Gone>,
    in_windows: FxHashMap<PageHandle, u32>,
    /// Bytes of pages that will be released and are still held.
    pub(super) bytes: u64,
}

impl Leaving {
    /// True if a window is among them.
    pub(super) fn has_windows(&self) -> bool {
        self.queue.iter().any(|gone| matches!(gone.what, What::Window(_)))
    }

    /// The fences that they wait for.
    pub(super) fn fences(&self) -> impl Iterator<Item = (LaneId, Fence)> + '_ {
        self.queue.iter().map(|gone| (gone.lane, gone.fence))
    }

    /// True if addresses of the lane are among them.
    pub(super) fn has(&self, lane: LaneId) -> bool {
        self.queue.iter().any(|gone| gone.lane == lane)
    }

    fn add(&mut self, gone: Gone) {
        if let What::Window(pages) = &gone.what {
            for &page in pages {
                *self.in_windows.entry(page).or_default() += 1;
            }
        }
        self.queue.push_back(gone);
    }

    fn take(&mut self, at: usize) -> Option<Gone> {
        let gone = self.queue.remove(at)?;
        if let What::Window(pages) = &gone.what {
            for page in pages {
                if let Some(count) = self.in_windows.get_mut(page) {
                    *count -= 1;
                    if *count == 0 {
                        self.in_windows.remove(page);
                    }
                }
            }
        }
        Some(gone)
    }

    /// True if a window that leaves still has this page mapped.
    fn is_held(&self, gone: &Gone) -> bool {
        let What::Home { page: Some(page), .. } = gone.what else { return false };
        self.in_windows.contains_key(&page) && !mutants::is(Mutant::ReleaseBeforeWindows)
    }
}

impl<D: Device> Pool<D> {
    /// Lets the addresses of a lane's window leave. The window is in no set any more, and fence `freed` of the lane
    /// covers all work that used it.
    pub(super) fn window_leaves(
        &mut self,
        lane: LaneId,
        (addr, size): (u64, u64),
        freed: Fence,
        pages: Vec<PageHandle>,
    ) {
        let fence = if mutants::is(Mutant::RetireUnderWork) { Fence::PAST } else { freed };
        self.leave(Gone { lane, fence, addr, size, what: What::Window(pages) });
    }

    /// Lets the home of a page leave, which its heap has given up. With `page`, the page goes back to the device;
    /// without, it was mapped elsewhere, and both are in the log.
    pub(super) fn home_leaves(&mut self, heap: HeapId, at: PageId, page: Option<PageHandle>) {
        self.heap_mut(heap).set_leaving(at, true);
        let Page { addr, size, freed, .. } = *self.heap(heap).page(at);
        if page.is_some() {
            self.leaving.bytes += size;
            self.log_pages(heap, addr, size, false);
        }
        let fence = if mutants::is(Mutant::MoveUnderWork) { Fence::PAST } else { freed };
        self.leave(Gone { lane: heap.lane(), fence, addr, size, what: What::Home { heap, page } });
    }

    fn leave(&mut self, gone: Gone) {
        if self.is_uncovered(gone.lane, gone.fence) {
            self.lanes.shard_mut(gone.lane).turn_is_wanted = true;
        }
        self.leaving.add(gone);
        self.unmap_leaving();
    }

    /// Unmaps addresses that no work uses any more.
    pub(super) fn unmap_leaving(&mut self) {
        let mut at = 0;
        while let Some(gone) = self.leaving.queue.get(at) {
            let Gone { lane, fence, addr, size, .. } = *gone;
            if !self.fences.is_done(lane, fence) || self.leaving.is_held(gone) {
                at += 1;
                continue;
            }
            // If the driver refuses, the pool asks again later, because a page may not be released while it is mapped.
            if self.device.unmap(addr, size).is_err() {
                return;
            }
            let Some(gone) = self.leaving.take(at) else { return };
            match gone.what {
                What::Window(_) => {
                    if !mutants::is(Mutant::AddressesLeak) {
                        self.windows.ranges.give(addr, size);
                    }
                    // A page in the queue that waited for this window may stand before it.
                    at = 0;
                }
                What::Home { heap, page } => {
                    if let Some(at) = self.heap(heap).page_of(addr) {
                        self.heap_mut(heap).set_leaving(at, false);
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
