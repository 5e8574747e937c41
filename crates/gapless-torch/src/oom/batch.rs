//! Estimates the batch that would have fit: the recorded tail is replayed as live bytes, with the blocks that steps
//! allocate for themselves made smaller.
//!
//! Blocks that are born and freed within a step are assumed to grow with the batch. Blocks that outlive a step are not,
//! nor are blocks of the same size as one of these (the gradients of weights). The estimate is given only if steps are
//! marked and their own blocks are the cause.

use crate::recorder::{Entry, Mark};
use gapless_trace::{Action, Stage};
use rustc_hash::{FxHashMap, FxHashSet};

/// A block of the tail: its size, the step of its birth, and if it grows with the batch.
#[derive(Clone, Copy)]
struct Block {
    size: u64,
    step: usize,
    is_scaled: bool,
}

/// The largest share of the batch, in hundredths below 100, for which `most` bytes would have been enough. `None` if no
/// steps are known, or if no share is small enough. `active` is the bytes in blocks after the last entry, when `size`
/// bytes more were requested.
#[must_use]
pub fn share(
    device: u8,
    entries: &[Entry],
    marks: &[Mark],
    active: u64,
    size: u64,
    most: u64,
) -> Option<u64> {
    let steps = boundaries(device, marks);
    if steps.is_empty() {
        return None;
    }
    let (blocks, changes) = blocks(device, entries, &steps, size);
    let grown: i64 = changes
        .iter()
        .map(|&(at, born)| if born { blocks[at].size as i64 } else { -(blocks[at].size as i64) })
        .sum();
    let before = active.checked_sub(u64::try_from(grown.max(0)).ok()?).unwrap_or(active);
    let request = *blocks.last()?;
    let fits = |share: u64| peak(before, &blocks, &changes, request, share) <= u128::from(most) * 100;
    if fits(100) || !fits(1) {
        return None;
    }
    // The peak grows with the share, so a binary search finds it.
    let (mut low, mut high) = (1u64, 100u64);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}

/// The times at which steps begin: the program's marks, or else the ends of an optimizer's steps.
fn boundaries(device: u8, marks: &[Mark]) -> Vec<u64> {
    let of = |is_it: fn(&Mark) -> bool| -> Vec<u64> {
        marks
            .iter()
            .filter(|mark| mark.device == u32::from(device) && is_it(mark))
            .map(|mark| mark.time)
            .collect()
    };
    let own = of(|mark| mark.name == "gapless.step" && mark.stage == Stage::Start);
    if own.is_empty() {
        of(|mark| mark.name.starts_with("Optimizer.step#") && mark.stage == Stage::End)
    } else {
        own
    }
}

/// Blocks of the tail, and their births and ends in order. The last block is the failed request.
fn blocks(device: u8, entries: &[Entry], steps: &[u64], size: u64) -> (Vec<Block>, Vec<(usize, bool)>) {
    let step_at = |time: u64| steps.partition_point(|&begin| begin <= time);
    let last = steps.len();
    let mut blocks: Vec<Block> = Vec::new();
    let mut changes = Vec::new();
    let mut live: FxHashMap<u64, usize> = FxHashMap::default();
    let mut staying: FxHashSet<u64> = FxHashSet::default();
    for entry in entries.iter().filter(|entry| entry.device == device) {
        let step = step_at(entry.time);
        match entry.action {
            Action::Alloc => {
                live.insert(entry.addr, blocks.len());
                changes.push((blocks.len(), true));
                blocks.push(Block { size: entry.size, step, is_scaled: false });
            }
            Action::FreeCompleted => {
                if let Some(at) = live.remove(&entry.addr) {
                    changes.push((at, false));
                    let block = &mut blocks[at];
                    block.is_scaled = block.step == step && step > 0;
                    if block.step != step {
                        staying.insert(block.size);
                    }
                }
            }
            _ => {}
        }
    }
    for &at in live.values() {
        if blocks[at].step < last {
            staying.insert(blocks[at].size);
        }
    }
    for &at in live.values() {
        let block = &mut blocks[at];
        block.is_scaled = block.step == last && !staying.contains(&block.size);
    }
    blocks.push(Block { size, step: last, is_scaled: !staying.contains(&size) });
    (blocks, changes)
}

/// The most live bytes, in hundredths of bytes, with `share` hundredths of the blocks that grow with the batch.
fn peak(before: u64, blocks: &[Block], changes: &[(usize, bool)], request: Block, share: u64) -> u128 {
    let bytes = |block: Block| u128::from(block.size) * u128::from(if block.is_scaled { share } else { 100 });
    let mut live = u128::from(before) * 100;
    let mut peak = live;
    for &(at, born) in changes {
        if born {
            live += bytes(blocks[at]);
            peak = peak.max(live);
        } else {
            live -= bytes(blocks[at]);
        }
    }
    peak.max(live + bytes(request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_pool::{PoolKey, StreamHandle};

    #[derive(Default)]
    struct Run {
        entries: Vec<Entry>,
        marks: Vec<Mark>,
        time: u64,
        live: u64,
    }

    impl Run {
        fn entry(&mut self, action: Action, addr: u64, size: u64) {
            self.time += 1;
            let (stream, pool) = (StreamHandle(0), PoolKey(0, 0));
            self.entries.push(Entry {
                action,
                device: 0,
                stack: 0,
                module: 0,
                addr,
                size,
                stream,
                pool,
                time: self.time,
            });
        }

        fn alloc(&mut self, addr: u64, size: u64) {
            self.live += size;
            self.entry(Action::Alloc, addr, size);
        }

        fn free(&mut self, addr: u64, size: u64) {
            self.live -= size;
            self.entry(Action::FreeCompleted, addr, size);
        }

        fn step(&mut self) {
            self.time += 1;
            let (name, stage) = ("Optimizer.step#AdamW.step".to_owned(), Stage::End);
            self.marks.push(Mark { name, stage, device: 0, time: self.time });
        }

        /// A model of 100 bytes, its gradients, and 10 activations for each unit of the batch.
        fn training(batch: u64, steps: u64) -> Run {
            let mut run = Run::default();
            run.alloc(1, 100);
            for step in 0..steps {
                if step > 0 {
                    run.free(2, 100);
                }
                run.alloc(3, 10 * batch);
                run.alloc(4, 10 * batch + 1);
                run.alloc(2, 100);
                run.free(4, 10 * batch + 1);
                run.free(3, 10 * batch);
                run.step();
            }
            run.free(2, 100);
            run
        }

        fn share(&self, size: u64, most: u64) -> Option<u64> {
            share(0, &self.entries, &self.marks, self.live, size, most)
        }
    }

    #[test]
    fn the_share_is_the_largest_with_which_the_recorded_steps_fit() {
        let mut run = Run::training(10, 3);
        // A batch of 20 asks for its second activation.
        run.alloc(3, 200);
        let share = run.share(201, 450).expect("steps are marked");
        // 100 of the model and 401 of the step: the gradients come before any activation is freed.
        assert_eq!(share, 87);
        assert!(100 + 401 * share / 100 <= 450 && 100 + 401 * (share + 1) / 100 > 450);
        assert_eq!(run.share(201, 501), None, "it fits");
        assert_eq!(run.share(201, 90), None, "the model alone does not");
    }

    #[test]
    fn what_has_the_size_of_what_stays_does_not_shrink() {
        let mut run = Run::training(11, 3);
        run.alloc(3, 130);
        run.alloc(4, 131);
        // The request for the model's gradients fails.
        assert_eq!(run.share(100, 430), Some(88), "100 + 100 + 261 * 0.88 = 429.68");
    }

    #[test]
    fn without_marks_nothing_is_said() {
        let mut run = Run::training(10, 3);
        run.marks.clear();
        run.alloc(3, 200);
        assert_eq!(run.share(201, 450), None);
        assert_eq!(share(0, &[], &[], 0, 1, 1), None);
    }
}
