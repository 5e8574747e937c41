//! One card under check: the work at each request and each free, with the card's lock held.

use super::place::Place;
use super::report::{Finding, Record};
use super::shadow::{Shadow, State};
use crate::card::Card;
use crate::queued;
use gapless_cuda::CudaDevice;
use gapless_cuda::mapped::Piece;
use gapless_cuda::scrub::Scrubber;
use gapless_pool::StreamHandle;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait of a free for the device. Work may wait for this very thread's next step, as a receive waits for a
/// later send. Then the block is left as it is, and the next waits are shorter until one succeeds.
const PATIENCE: Duration = Duration::from_secs(2);
const IMPATIENCE: Duration = Duration::from_millis(1);
/// Frees that are remembered, so that a second free can name the first.
const REMEMBERED: usize = 1 << 16;

/// Bytes that were filled at a free, read back at a request, or skipped; and the number of findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub filled: u64,
    pub verified: u64,
    pub skipped: u64,
    pub findings: u64,
}

/// The checker of one card.
#[derive(Debug)]
pub struct Checker {
    device: i32,
    /// The most bytes of a block that are filled: half at its beginning, half at its end.
    most: u64,
    /// `None` if the driver gave none, or was not asked yet.
    scrubber: Option<Scrubber>,
    shadow: Shadow,
    /// Live blocks, by address.
    live: FxHashMap<u64, Arc<Record>>,
    /// Freed blocks, newest last.
    freed: VecDeque<Arc<Record>>,
    /// A stream that captures without torch's knowledge.
    captured: Option<StreamHandle>,
    patience: Duration,
    pub counts: Counts,
}

impl Checker {
    #[must_use]
    pub fn new(device: i32, most: u64) -> Checker {
        Checker {
            device,
            most,
            scrubber: None,
            shadow: Shadow::default(),
            live: FxHashMap::default(),
            freed: VecDeque::new(),
            captured: None,
            patience: PATIENCE,
            counts: Counts::default(),
        }
    }

    /// Checks a block that was handed out. A block with a finding goes back.
    ///
    /// # Errors
    /// The finding.
    pub(super) fn handed_out(&mut self, card: &mut Card, addr: u64, who: &Place) -> Result<(), Finding> {
        let Some(view) = card.pool.allocation_at(addr) else { return Ok(()) };
        let (size, stream, allocated) = (view.size, view.stream, who.clone());
        let now = Arc::new(Record { device: self.device, addr, size, stream, allocated, freed: None });
        self.look_for_captures(card.pool.device(), stream);
        let is_quiet = self.is_quiet(card);
        let pieces = self.pieces(card, addr, size);
        let behind: u64 = pieces.iter().map(|piece| piece.size).sum();
        let mut wrong = (behind < size).then(|| Finding::Unmapped { now: now.clone(), bytes: size - behind });
        for piece in &pieces {
            for range in self.shadow.take(piece.page, piece.offset, piece.offset + piece.size) {
                let (at, bytes) = (piece.addr + (range.from - piece.offset), range.to - range.from);
                match range.state {
                    State::Live(holder) => {
                        self.shadow.put(piece.page, range.from, range.to, State::Live(holder.clone()));
                        wrong.get_or_insert(Finding::Shared { holder, now: now.clone(), bytes });
                    }
                    State::Filled(_) if is_quiet => self.counts.skipped += bytes,
                    State::Filled(before) => {
                        // A failing driver call is skipped here: the program gets the driver's error itself.
                        let change =
                            self.scrubber(card).and_then(|s| s.change(card.pool.device(), at, bytes).ok());
                        match change {
                            Some(None) => self.counts.verified += bytes,
                            Some(Some(change)) => {
                                let now = now.clone();
                                wrong.get_or_insert(Finding::Written { before, now, addr: at, change });
                            }
                            None => self.counts.skipped += bytes,
                        }
                    }
                }
            }
        }
        if let Some(finding) = wrong {
            self.counts.findings += 1;
            card.free(addr);
            return Err(finding);
        }
        // Replays may write to a private pool's memory at any time, and its blocks come back without a request.
        if !view.pool.is_private() {
            for piece in &pieces {
                let (from, to) = (piece.offset, piece.offset + piece.size);
                self.shadow.put(piece.page, from, to, State::Live(now.clone()));
            }
        }
        self.live.insert(addr, now);
        Ok(())
    }

    /// Checks the block at `addr`, if it is live, before it is freed.
    ///
    /// # Errors
    /// The finding.
    pub(super) fn about_to_free(&mut self, card: &mut Card, addr: u64, who: &Place) -> Result<(), Finding> {
        let Some(view) = card.pool.allocation_at(addr).filter(|view| view.is_live) else { return Ok(()) };
        // A block that a graph's pool restored was never handed out.
        let Some(record) = self.live.remove(&addr) else { return Ok(()) };
        let record = Arc::new(Record { freed: Some(who.clone()), ..Record::clone(&record) });
        if self.freed.len() == REMEMBERED {
            self.freed.pop_front();
        }
        self.freed.push_back(record.clone());
        if view.pool.is_private() {
            return Ok(());
        }
        let pieces = self.pieces(card, addr, view.size);
        let mut own = 0;
        for piece in &pieces {
            for range in self.shadow.take(piece.page, piece.offset, piece.offset + piece.size) {
                if matches!(&range.state, State::Live(holder) if holder.addr == addr) {
                    own += range.to - range.from;
                }
            }
        }
        if own < view.size {
            self.counts.findings += 1;
            return Err(Finding::Moved { record });
        }
        if self.is_quiet(card) || !self.settle(card) {
            self.counts.skipped += view.size;
            return Ok(());
        }
        let end = addr + view.size;
        for piece in &pieces {
            for (from, to) in parts(addr, end, self.most) {
                let (from, to) = (from.max(piece.addr), to.min(piece.addr + piece.size));
                if from < to {
                    self.fill(card, piece, from, to, &record);
                }
            }
        }
        Ok(())
    }

    /// Fills `[from, to)`, which lies in `piece`.
    fn fill(&mut self, card: &Card, piece: &Piece, from: u64, to: u64, record: &Arc<Record>) {
        let filled = self.scrubber(card).and_then(|s| s.fill(card.pool.device(), from, to - from).ok());
        if filled.is_none() {
            self.counts.skipped += to - from;
            return;
        }
        self.counts.filled += to - from;
        let start = piece.offset + (from - piece.addr);
        self.shadow.put(piece.page, start, start + (to - from), State::Filled(record.clone()));
    }

    /// Explains a free of an address that holds no block. `None` if nothing is known of it.
    pub(super) fn not_there(&mut self, addr: u64, who: &Place) -> Option<Finding> {
        let by = who.clone();
        let holder = self.live.values().find(|record| record.holds(addr)).cloned();
        let found = match holder {
            Some(holder) => Finding::FreedInside { holder, addr, by },
            None => {
                let before = self.freed.iter().rev().find(|record| record.addr == addr).cloned()?;
                Finding::FreedTwice { before, by }
            }
        };
        self.counts.findings += 1;
        Some(found)
    }

    /// The pages behind a block, from the record of driver calls.
    fn pieces(&mut self, card: &mut Card, addr: u64, size: u64) -> Vec<Piece> {
        let Some(mapped) = &mut card.pool.device_mut().mapped else { return Vec::new() };
        for page in mapped.take_released() {
            self.shadow.forget(page);
        }
        mapped.pieces(addr, size)
    }

    fn scrubber(&mut self, card: &Card) -> Option<&mut Scrubber> {
        if self.scrubber.is_none() {
            self.scrubber = Scrubber::new(card.pool.device()).ok();
        }
        self.scrubber.as_mut()
    }

    /// True if a capture may be under way.
    fn is_quiet(&self, card: &Card) -> bool {
        card.routings.has_capture() || self.captured.is_some()
    }

    /// A capture without torch's knowledge is seen when the program asks for memory. Until it asks again, on the same
    /// stream, it may still capture.
    fn look_for_captures(&mut self, device: &CudaDevice, stream: StreamHandle) {
        if device.is_captured(stream) {
            self.captured = Some(stream);
        } else if self.captured == Some(stream) {
            self.captured = None;
        }
    }

    /// Waits until the device has done all queued work. False if it has not in time.
    fn settle(&mut self, card: &mut Card) -> bool {
        // This thread has the card's lock, so the waiter is started with the meter and need not take the lock.
        let Some(queued) = queued::with(self.device, card.pool.device().meter()) else { return false };
        let is_done = queued::wait(self.device, queued, self.patience);
        self.patience = if is_done { PATIENCE } else { (self.patience / 2).max(IMPATIENCE) };
        is_done
    }
}

/// The first and the last bytes of `[from, to)`, `most` together.
fn parts(from: u64, to: u64, most: u64) -> Vec<(u64, u64)> {
    // Blocks have whole words, so both halves must too: half of a multiple of eight.
    let half = most / 8 * 4;
    if to - from <= most || half == 0 {
        return vec![(from, to)];
    }
    vec![(from, from + half), (to - half, to)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_leaves_the_beginning_and_the_end_of_a_block() {
        assert_eq!(parts(0, 4096, u64::MAX), [(0, 4096)]);
        assert_eq!(parts(0, 4096, 4096), [(0, 4096)]);
        assert_eq!(parts(512, 4608, 1024), [(512, 1024), (4096, 4608)]);
        assert_eq!(parts(0, 4096, 1030), [(0, 512), (3584, 4096)]);
    }
}
