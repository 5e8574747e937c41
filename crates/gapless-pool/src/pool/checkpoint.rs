//! A private pool's live allocations, saved and restored: recordings of consecutive graphs need this. Restoring frees
//! what is live in the pool and makes the saved allocations live again, at the same addresses. The contents are
//! whatever the pages hold.
//!
//! An allocation in a window returns to its window: windows stay mapped while their pool is used, and their pages stay
//! at home in it. If the pool was released meanwhile, other pages may lie at the same addresses, or none. So before
//! anything changes, every saved allocation is looked up as memory at home, and no two of them may share a byte.

use super::mapping::Part;
use super::windows::Window;
use super::{Place, Pool, PoolKey};
use crate::budget::Budget;
use crate::device::Device;
use crate::ids::{HeapId, LaneId, WindowId};
use crate::mutants::{self, Mutant};

/// A saved allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    pub addr: u64,
    size: u64,
    requested: u64,
    lane: LaneId,
    spot: Spot,
    budget: Option<&'static Budget>,
}

impl Saved {
    /// True if it lay in a window.
    #[must_use]
    pub fn is_in_window(&self) -> bool {
        self.spot == Spot::Window
    }
}

/// The kind of memory that it lay in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spot {
    Home(HeapId),
    Window,
}

/// Reason why a state cannot be restored. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The memory at this address was given back to the device.
    Gone { addr: u64 },
    /// The block that was freed at this address is still used by another stream.
    Pending { addr: u64 },
}

/// Memory at home that a saved allocation takes; `by` is the index of the allocation.
#[derive(Clone, Copy, Debug)]
struct Taken {
    heap: HeapId,
    addr: u64,
    size: u64,
    by: usize,
}

impl<D: Device> Pool<D> {
    /// Live allocations of a private pool, in order of address.
    pub fn save(&self, pool: PoolKey) -> Vec<Saved> {
        let mut saved: Vec<Saved> = Vec::new();
        for id in self.ids() {
            let a = self.allocation(id);
            let spot = match a.place {
                Place::Home { heap, .. } => Spot::Home(heap),
                Place::Window { .. } if !mutants::is(Mutant::SaveWithoutWindows) => Spot::Window,
                _ => continue,
            };
            if a.waits == 0 && self.lanes[a.lane].pool == pool {
                let (addr, size, requested, lane, budget) = (a.addr, a.size, a.requested, a.lane, a.budget);
                saved.push(Saved { addr, size, requested, lane, spot, budget });
            }
        }
        saved.sort_unstable_by_key(|s| s.addr);
        saved
    }

    /// Frees the live allocations of a private pool, and makes those in `saved` live again. Returns the freed
    /// addresses.
    ///
    /// # Errors
    /// If that is not possible. Then nothing has changed.
    pub fn restore(&mut self, pool: PoolKey, saved: &[Saved]) -> Result<Vec<u64>, RestoreError> {
        if !self.quiet {
            self.wait_for_pending();
        }
        let mut wanted: Vec<Taken> = Vec::new();
        let mut windows: Vec<Option<WindowId>> = Vec::with_capacity(saved.len());
        for (by, s) in saved.iter().enumerate() {
            let gone = RestoreError::Gone { addr: s.addr };
            if self.lanes[s.lane].pool != pool {
                return Err(gone);
            }
            windows.push(match s.spot {
                Spot::Home(heap) => {
                    wanted.push(Taken { heap, addr: s.addr, size: s.size, by });
                    None
                }
                Spot::Window => {
                    let is_it = |w: &Window| w.lane() == s.lane && w.addr() == s.addr && w.size() >= s.size;
                    let id = self.windows.named(is_it).ok_or(gone)?;
                    let parts = self.parts(self.windows.get(id), s.size).into_iter();
                    wanted.extend(parts.map(|Part { heap, addr, bytes, .. }| Taken {
                        heap,
                        addr,
                        size: bytes,
                        by,
                    }));
                    Some(id)
                }
            });
        }
        wanted.sort_unstable_by_key(|taken| (taken.heap, taken.addr));
        if let Some(taken) = wanted.iter().find(|taken| !self.is_backed(taken)) {
            return Err(RestoreError::Gone { addr: saved[taken.by].addr });
        }
        let meets =
            |pair: &&[Taken]| pair[0].heap == pair[1].heap && pair[0].addr + pair[0].size > pair[1].addr;
        if let Some(pair) = wanted.windows(2).find(meets).filter(|_| !mutants::is(Mutant::RestoreUnchecked)) {
            return Err(RestoreError::Gone { addr: saved[pair[1].by].addr });
        }
        let now = self.allocations_in(pool);
        if let Some(waiting) = now.iter().find(|a| !a.is_live) {
            return Err(RestoreError::Pending { addr: waiting.addr });
        }
        let freed: Vec<u64> = now.iter().map(|a| a.addr).collect();
        for &addr in &freed {
            // Work of other streams with it is part of the recorded graphs, so no wait is needed.
            let Some(id) = self.find(addr) else { continue };
            self.allocation_mut(id).uses.clear();
            self.count_free(id);
            self.uncharge(id);
            self.complete(id);
        }
        let mut blocks: Vec<Vec<(HeapId, u32)>> = vec![Vec::new(); saved.len()];
        for Taken { heap, addr, size, by } in wanted {
            if windows[by].is_some() && mutants::is(Mutant::RestoreLeavesHomesFree) {
                continue;
            }
            let home = self.heap_mut(heap);
            let block = match windows[by] {
                Some(_) => home.take_part(addr, size),
                None => home.take_at(addr, size),
            };
            let Some(block) = block else {
                return Err(RestoreError::Gone { addr: saved[by].addr });
            };
            blocks[by].push((heap, block));
        }
        for ((s, window), parts) in saved.iter().zip(windows).zip(blocks) {
            let place = match (window, parts.first()) {
                (Some(window), _) => {
                    self.windows.wake_at(window, self.clock);
                    Place::Window { window, parts }
                }
                (None, Some(&(heap, block))) => Place::Home { heap, block },
                (None, None) => continue,
            };
            self.hand_out(s.lane, s.requested, s.size, place, false, s.budget);
        }
        Ok(freed)
    }

    /// True if pages lie behind all of it.
    fn is_backed(&self, &Taken { heap, addr, size, .. }: &Taken) -> bool {
        let heap = self.heap(heap);
        if addr < heap.start() || addr >= heap.end() {
            return false;
        }
        let under = heap.pages_between(addr, addr + size).iter().take_while(|p| p.handle.is_some());
        under.last().is_some_and(|page| page.addr + page.size >= addr + size)
    }
}
