//! The physical page behind each address.
//!
//! Checked mode needs this, because a page may be mapped at several addresses, and a write belongs to the page. The
//! record follows the calls of [`CudaDevice`](crate::CudaDevice) and does not use the allocator's own records, so that
//! one can be compared with the other.
//!
//! Invariant: ranges do not overlap, because the driver refuses to map over an existing mapping.

use gapless_pool::PageHandle;
use std::collections::{BTreeMap, HashMap};

/// The number of a page. Unlike handles, numbers are never reused in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageNumber(pub u64);

/// A part of a range of addresses that lies in one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub page: PageNumber,
    /// Its offset in the page.
    pub offset: u64,
    /// The address of its beginning in the requested range.
    pub addr: u64,
    pub size: u64,
}

/// The present mappings.
#[derive(Debug, Default)]
pub struct Mapped {
    /// By first address: the size of a range, and its page.
    ranges: BTreeMap<u64, (u64, PageNumber)>,
    numbers: HashMap<PageHandle, PageNumber>,
    next: u64,
    /// Pages that went back to the driver since the last question.
    released: Vec<PageNumber>,
}

impl Mapped {
    /// A whole page was mapped at `addr`.
    pub fn map(&mut self, addr: u64, size: u64, page: PageHandle) {
        let number = *self.numbers.entry(page).or_insert_with(|| {
            self.next += 1;
            PageNumber(self.next)
        });
        self.ranges.insert(addr, (size, number));
    }

    /// Ranges that begin in `[addr, addr + size)` were unmapped.
    pub fn unmap(&mut self, addr: u64, size: u64) {
        let gone: Vec<u64> = self.ranges.range(addr..addr + size).map(|(&at, _)| at).collect();
        for at in gone {
            self.ranges.remove(&at);
        }
    }

    /// The page was released. The driver may use its handle for another page from now on.
    pub fn release(&mut self, page: PageHandle) {
        self.released.extend(self.numbers.remove(&page));
    }

    /// Pages that were released since the last call.
    pub fn take_released(&mut self) -> Vec<PageNumber> {
        std::mem::take(&mut self.released)
    }

    /// The pieces behind `[addr, addr + size)`, in order of address. Their sizes add up to less than `size` if a part
    /// of it is not mapped.
    #[must_use]
    pub fn pieces(&self, addr: u64, size: u64) -> Vec<Piece> {
        let end = addr + size;
        let first = self.ranges.range(..=addr).next_back().map_or(addr, |(&at, _)| at);
        self.ranges
            .range(first..end)
            .filter_map(|(&start, &(size, page))| {
                let (from, to) = (start.max(addr), (start + size).min(end));
                (from < to).then(|| Piece { page, offset: from - start, addr: from, size: to - from })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(mapped: &Mapped, addr: u64, size: u64) -> Vec<(u64, u64, u64, u64)> {
        mapped.pieces(addr, size).iter().map(|p| (p.page.0, p.offset, p.addr, p.size)).collect()
    }

    #[test]
    fn a_page_is_itself_at_every_address() {
        let mut mapped = Mapped::default();
        mapped.map(100, 10, PageHandle(7));
        mapped.map(110, 20, PageHandle(8));
        // A window: the second page, then the first.
        mapped.map(500, 20, PageHandle(8));
        mapped.map(520, 10, PageHandle(7));
        assert_eq!(shown(&mapped, 104, 10), [(1, 4, 104, 6), (2, 0, 110, 4)]);
        assert_eq!(shown(&mapped, 515, 10), [(2, 15, 515, 5), (1, 0, 520, 5)]);
        assert_eq!(shown(&mapped, 125, 100), [(2, 15, 125, 5)], "what is not mapped is left out");
        assert_eq!(shown(&mapped, 200, 10), []);
        mapped.unmap(500, 30);
        assert_eq!(shown(&mapped, 500, 30), []);
        assert_eq!(shown(&mapped, 100, 30).len(), 2);
    }

    #[test]
    fn a_handle_that_is_used_again_names_another_page() {
        let mut mapped = Mapped::default();
        mapped.map(100, 10, PageHandle(7));
        mapped.unmap(100, 10);
        mapped.release(PageHandle(7));
        mapped.map(100, 10, PageHandle(7));
        assert_eq!(shown(&mapped, 100, 10), [(2, 0, 100, 10)]);
        assert_eq!(mapped.take_released(), [PageNumber(1)]);
        assert_eq!(mapped.take_released(), []);
    }
}
