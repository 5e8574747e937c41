//! The pieces that a window takes, and proof that reading the lists in order finds the same as looking at everything.

use super::naive::Pieces;
use super::{GRANULE, Piece};
use crate::device::StreamHandle;
use crate::ids::{LaneId, PageId};
use crate::options::Options;
use crate::pool::missing::Whose;
use crate::pool::{Pool, PoolKey};
use crate::sim::SimDevice;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn whole(page: usize, granules: u64) -> Piece {
    Piece::page(LaneId::new(0).large(), PageId::new(page), granules * GRANULE)
}

fn front(page: usize, page_size: u64, size: u64) -> Piece {
    Piece { size, ..Piece::page(LaneId::new(0).large(), PageId::new(page), page_size) }
}

fn back(page: usize, page_size: u64, size: u64) -> Piece {
    Piece {
        from: page_size - size,
        size,
        ..Piece::page(LaneId::new(0).large(), PageId::new(page), page_size)
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

/// In every case a window has its size, lies in free memory and uses no page twice. One is found whenever whole pages
/// and one pair of ends are enough.
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

#[test]
fn what_is_listed_in_order_is_what_looking_at_everything_finds() {
    let (mut compared, mut lent, mut windows) = (0, 0, 0);
    for seed in 0..12 {
        let mut state = seed;
        let mut below = |most: u64| {
            state =
                u64::wrapping_mul(state, 6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let mut device = SimDevice::new(if seed % 3 == 0 { 256 * MIB } else { 4 << 30 });
        device.instant = seed % 4 == 1;
        let mut pool = Pool::new(device, Options { slack: 0, largest_page: 8 << 20, ..Options::default() });
        let mut live = Vec::new();
        for _ in 0..300 {
            match below(12) {
                0 => {
                    pool.device_mut().finish_all();
                    pool.poll();
                }
                1 if below(20) == 0 => drop(pool.trim()),
                2..=6 if live.len() < 70 => {
                    let most = if below(4) == 0 { 40 * MIB } else { 3 * MIB };
                    let key = if below(9) == 0 { PoolKey(0, 7) } else { PoolKey(0, 0) };
                    live.extend(pool.alloc(1 + below(most), StreamHandle(below(3)), key));
                }
                _ if !live.is_empty() => {
                    let at = below(live.len() as u64) as usize;
                    pool.free(live.swap_remove(at)).expect("live");
                }
                _ => {}
            }
            if below(3) > 0 {
                continue;
            }
            for lane in pool.lanes.ids() {
                pool.take_stock(lane, true);
                pool.check().expect("the invariants hold");
                for whose in [None, Some(Whose::Lent), Some(Whose::LentLater)] {
                    let mut naive = pool.pieces(lane, Whose::Own);
                    if let Some(whose) = whose {
                        let others = pool.pieces(lane, whose);
                        lent += others.pages.len() + others.fronts.len();
                        naive.add(others);
                    }
                    let reach = pool.within_reach(lane, whose);
                    assert_eq!(reach.most(), naive.most(), "seed {seed}");
                    for size in [1 + below(8 * MIB), 1 + below(60 * MIB), naive.most()] {
                        let size = size.div_ceil(512).max(1) * 512;
                        assert_eq!(reach.choose(size, &[]), naive.choose(size), "seed {seed}, {size} bytes");
                        compared += 1;
                    }
                }
            }
        }
        windows += pool.stats().windows_made;
    }
    assert!(compared > 3000 && lent > 100 && windows > 30, "{compared} {lent} {windows}");
}
