//! Free memory for windows, in pieces: whole pages, and the free fronts and backs of pages that others use. A window is
//! a back, whole pages and a front. Which of them it takes decides how many pages stay wholly free.

use crate::heap::GRANULE;
use crate::ids::{HeapId, PageId};

/// Fronts and backs that are looked at for the ends of a window: the largest.
const ENDS: usize = 128;

/// Free memory that a window can take: a page, or the free front or back of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) heap: HeapId,
    pub(super) page: PageId,
    /// Of the page.
    pub(super) page_size: u64,
    /// Where the free bytes begin in it, and how many there are.
    pub(super) from: u64,
    pub(super) size: u64,
    /// The size of the free block around.
    pub(super) block: u64,
}

/// What there is to take.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    /// Wholly free pages.
    pub(super) pages: Vec<Piece>,
    /// Free fronts of pages that others hold the back of: they can end a window.
    pub(super) fronts: Vec<Piece>,
    /// Free backs: they can begin one.
    pub(super) backs: Vec<Piece>,
}

/// How a window begins and ends: in pages that are free in part, and how much of that it takes.
#[derive(Clone, Copy, Debug)]
struct Ends<'a> {
    back: Option<&'a Piece>,
    from_back: u64,
    front: Option<&'a Piece>,
    from_front: u64,
}

impl Piece {
    /// A wholly free page.
    pub(super) fn page(heap: HeapId, page: PageId, size: u64, block: u64) -> Piece {
        Piece { heap, page, page_size: size, from: 0, size, block }
    }
}

impl Pieces {
    pub(super) fn add(&mut self, other: Pieces) {
        self.pages.extend(other.pages);
        self.fronts.extend(other.fronts);
        self.backs.extend(other.backs);
        self.fronts.sort_by_key(|p| (p.size, p.heap, p.page));
        self.backs.sort_by_key(|p| (p.size, p.heap, p.page));
    }

    /// The most bytes that one window over them can hold.
    pub(super) fn most(&self) -> u64 {
        let largest = |pieces: &[Piece]| pieces.iter().map(|p| p.size).max().unwrap_or(0);
        self.pages.iter().map(|p| p.size).sum::<u64>() + largest(&self.fronts) + largest(&self.backs)
    }

    /// Pieces for `size` bytes, in the order of a window: a free back of a page, whole pages, and a free front. Whole
    /// pages are taken as they come while they are not too large; see [`Pieces::ends`] for the rest.
    pub(super) fn choose(&self, size: u64) -> Option<Vec<Piece>> {
        let Ends { back, from_back, front, from_front } = self.ends(size)?;
        let mut left = size - from_back - from_front;
        let cut =
            |back: &Piece| Piece { from: back.from + (back.size - from_back), size: from_back, ..*back };
        let mut chosen: Vec<Piece> = back.map(cut).into_iter().collect();
        let mut rest: Option<Piece> = None;
        for page in &self.pages {
            if page.size <= left {
                left -= page.size;
                chosen.push(*page);
            } else {
                rest = rest.filter(|rest| rest.size <= page.size).or(Some(*page));
            }
        }
        let mut end = left + from_front;
        if left > 0 {
            // Only larger pages are there: one of them is the end, or comes before it.
            let page = rest?;
            chosen.push(Piece { size: end.min(page.size), ..page });
            end = end.saturating_sub(page.size);
        }
        if end > 0 {
            chosen.push(Piece { size: end, ..*front? });
        }
        Some(chosen)
    }

    /// How a window of `size` bytes begins and ends best; `None`: there is not enough for it. Whole pages serve any
    /// window, and parts of pages only its ends. So the best ends leave most whole pages free; of these, the ends lie
    /// in the smallest pages and leave the smallest hole, since what they pin is no whole page for longest.
    fn ends(&self, size: u64) -> Option<Ends<'_>> {
        let whole: u64 = self.pages.iter().map(|page| page.size).sum();
        let some = |pieces: &[Piece]| pieces.len().min(ENDS);
        let backs = &self.backs[self.backs.len() - some(&self.backs)..];
        let fronts = &self.fronts[self.fronts.len() - some(&self.fronts)..];
        let mut best: Option<(Ends<'_>, (u64, u64, u64))> = None;
        for back in backs.iter().map(Some).chain([None]) {
            let from_back = back.map_or(0, |back| back.size.min(size));
            let needed = size - from_back;
            for front in fronts.iter().map(Some).chain([None]) {
                if back.zip(front).is_some_and(|(b, f)| (b.heap, b.page) == (f.heap, f.page)) {
                    continue;
                }
                let there = front.map_or(0, |front| front.size);
                // Whole pages are for the rest, and they come in granules.
                let from_front = match there.min(needed).checked_sub(needed % GRANULE) {
                    Some(beyond) => needed % GRANULE + beyond / GRANULE * GRANULE,
                    None if front.is_none() => 0,
                    None => continue,
                };
                let from_pages = (needed - from_front).div_ceil(GRANULE) * GRANULE;
                let hole = there - from_front + back.map_or(0, |back| back.size - from_back);
                let pinned = [back, front].into_iter().flatten().map(|piece| piece.page_size).sum::<u64>();
                let rank = (from_pages, pinned + hole, hole);
                if from_pages <= whole && best.is_none_or(|(_, least)| rank < least) {
                    best = Some((Ends { back, from_back, front, from_front }, rank));
                }
            }
        }
        best.map(|(ends, _)| ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LaneId;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn whole(page: usize, granules: u64) -> Piece {
        Piece::page(LaneId::new(0).large(), PageId::new(page), granules * GRANULE, granules * GRANULE)
    }

    fn front(page: usize, page_size: u64, size: u64) -> Piece {
        Piece { size, ..Piece::page(LaneId::new(0).large(), PageId::new(page), page_size, size) }
    }

    fn back(page: usize, page_size: u64, size: u64) -> Piece {
        Piece {
            from: page_size - size,
            size,
            ..Piece::page(LaneId::new(0).large(), PageId::new(page), page_size, size)
        }
    }

    fn sizes(pieces: &Pieces, size: u64) -> Option<Vec<u64>> {
        Some(pieces.choose(size)?.iter().map(|piece| piece.size).collect())
    }

    #[test]
    fn both_ends_together_spare_a_whole_page() {
        let pieces = Pieces {
            pages: vec![whole(0, 1), whole(1, 1)],
            fronts: vec![front(2, GRANULE, MIB)],
            backs: vec![back(3, GRANULE, 1536 * KIB)],
        };
        assert_eq!(sizes(&pieces, 4352 * KIB), Some(vec![1536 * KIB, GRANULE, 768 * KIB]));
    }

    #[test]
    fn of_ends_that_spare_as_much_those_in_small_pages_are_taken() {
        let pieces = Pieces {
            pages: vec![whole(0, 1)],
            fronts: vec![front(1, GRANULE, MIB), front(2, 16 * GRANULE, MIB)],
            backs: Vec::new(),
        };
        let chosen = pieces.choose(3 * MIB).expect("enough is there");
        assert_eq!(chosen.iter().map(|piece| piece.page.index()).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn front_and_back_of_one_page_exclude_each_other() {
        let pieces = Pieces {
            pages: Vec::new(),
            fronts: vec![front(0, 2 * GRANULE, MIB)],
            backs: vec![back(0, 2 * GRANULE, MIB)],
        };
        assert_eq!(pieces.choose(2 * MIB).map(|chosen| chosen.len()), None);
    }

    #[test]
    fn a_page_too_many_ends_a_window_where_no_end_fits() {
        let pieces = Pieces { pages: vec![whole(0, 4), whole(1, 1)], ..Pieces::default() };
        assert_eq!(sizes(&pieces, 3 * MIB), Some(vec![GRANULE, MIB]));
        assert_eq!(sizes(&pieces, 11 * MIB), None);
    }

    /// Whatever there is: a window has its size, lies in free memory, and uses no page twice; one is found wherever
    /// whole pages and one pair of ends are enough.
    #[test]
    fn random_pieces_make_windows_of_free_memory() {
        let mut random = 7u64;
        let mut below = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % most
        };
        let (mut made, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut pieces = Pieces::default();
            for page in 0..below(8) as usize {
                let granules = 1 << below(4);
                let size = granules * GRANULE;
                match below(4) {
                    0 => pieces.fronts.push(front(page, size, 512 * (1 + below(size / 512 - 1)))),
                    1 => pieces.backs.push(back(page, size, 512 * (1 + below(size / 512 - 1)))),
                    _ => pieces.pages.push(whole(page, granules)),
                }
            }
            pieces.pages.sort_by_key(|piece| std::cmp::Reverse(piece.size));
            let size = 512 * (1 + below(40 * MIB / 512));
            let Some(chosen) = pieces.choose(size) else {
                assert!(pieces.most() < size, "{size} of {} bytes: {pieces:?}", pieces.most());
                refused += 1;
                continue;
            };
            made += 1;
            assert_eq!(chosen.iter().map(|piece| piece.size).sum::<u64>(), size);
            let mut pages: Vec<PageId> = chosen.iter().map(|piece| piece.page).collect();
            pages.sort_unstable();
            pages.dedup();
            assert_eq!(pages.len(), chosen.len(), "a page twice: {chosen:?}");
            for (at, piece) in chosen.iter().enumerate() {
                let all = pieces.pages.iter().chain(&pieces.fronts).chain(&pieces.backs);
                let free = all.into_iter().find(|free| free.page == piece.page).expect("a piece of them");
                let (end, free_end) = (piece.from + piece.size, free.from + free.size);
                assert!(piece.from >= free.from && end <= free_end, "{piece:?} of {free:?}");
                assert!(at == 0 || piece.from == 0, "a gap before {piece:?}");
                assert!(at + 1 == chosen.len() || end == piece.page_size, "a gap behind {piece:?}");
            }
        }
        assert!(made > 2_000 && refused > 2_000, "{made} made, {refused} refused");
    }
}
