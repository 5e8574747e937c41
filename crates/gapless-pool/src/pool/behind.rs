//! The memory behind an allocation, for callers that map the same memory elsewhere.

use super::{Place, Pool};
use crate::device::{Device, PageHandle};
use crate::heap::Heap;

/// The memory behind an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Pages side by side, each with its size. The allocation begins `offset` bytes into the first one.
    Pages { offset: u64, pages: Vec<(PageHandle, u64)> },
    /// A segment from the pool's supplier. The allocation begins `offset` bytes into it.
    Segment { addr: u64, offset: u64 },
}

impl<D: Device> Pool<D> {
    /// The memory behind the allocation at `addr`. It stays there until the allocation is freed.
    pub fn behind(&self, addr: u64) -> Option<Behind> {
        let allocation = self.allocation(self.find(addr)?);
        let (start, end) = (allocation.addr, allocation.addr + allocation.size);
        match allocation.place {
            Place::Home { heap, .. } => {
                let heap: &Heap = self.heap(heap);
                let touched = heap.pages_between(start, end);
                let first = touched.first()?.addr;
                let pages =
                    touched.iter().map(|page| Some((page.handle?, page.size))).collect::<Option<_>>()?;
                Some(Behind::Pages { offset: start - first, pages })
            }
            // Its memory was given back to the device or is about to be.
            Place::Asleep { .. } => None,
            Place::Window { window, .. } => {
                let window = self.windows.get(window);
                let mut at = window.base();
                let (mut first, mut pages) = (None, Vec::new());
                for &(heap, page) in window.pages() {
                    let page = self.heap(heap).page(page);
                    if at < end && at + page.size > start {
                        first.get_or_insert(at);
                        pages.push((page.handle?, page.size));
                    }
                    at += page.size;
                }
                Some(Behind::Pages { offset: start - first?, pages })
            }
            Place::Supplied { .. } => {
                let (addr, _) = self
                    .supplied
                    .segments()
                    .find(|(addr, segment)| (*addr..*addr + segment.size).contains(&start))?;
                Some(Behind::Segment { addr, offset: start - addr })
            }
        }
    }
}
