//! Replays many settings over one script, on all cores.

use crate::allocator::Stats;
use crate::device::Placement;
use crate::machine::{Drive, Machine, TorchMachine};
use crate::run::{Failure, Watch};
use crate::script::Script;
use crate::torch::{TorchSettings, TorchVersion};
use gapless_trace::{Bytes, Tick};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Settings to try.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub settings: TorchSettings,
    /// Number of settings that differ from those of the run.
    pub changes: u32,
}

/// The result of a candidate.
#[derive(Clone, Debug)]
pub struct Trial {
    pub candidate: Candidate,
    pub stats: Stats,
    pub failure: Option<Failure>,
    /// True if the last request that failed in the recording was served.
    pub served_last: bool,
}

impl Trial {
    #[must_use]
    pub fn survived(&self) -> bool {
        self.failure.is_none()
    }
}

const MIB: u64 = 1 << 20;
const MAX_SPLITS: [u64; 7] = [20, 32, 64, 128, 256, 512, 1024];
const DIVISIONS: [u32; 4] = [2, 4, 8, 16];
const LARGE_SEGMENTS: [u64; 4] = [20, 32, 64, 128];

/// Settings to try besides `recorded`, which comes first: every combination of those that move blocks. Collection is
/// left as it was: it works only under a cap, and only by giving memory back early that a retry would give back when
/// needed.
#[must_use]
pub fn candidates(recorded: &TorchSettings, version: TorchVersion) -> Vec<Candidate> {
    let expandable = [recorded.base.expandable_segments, !recorded.base.expandable_segments];
    let mut splits = vec![recorded.base.max_split_size, None];
    splits.extend(MAX_SPLITS.map(|mib| Some(Bytes(mib * MIB))));
    let mut divisions = vec![recorded.base.roundup_power2_divisions, [0; 16]];
    divisions.extend(DIVISIONS.map(|n| [n; 16]));
    let mut segments = vec![recorded.large_segment];
    if version.has_large_segment_size() {
        segments.extend(LARGE_SEGMENTS.map(|mib| mib * MIB));
    }
    dedup(&mut splits);
    dedup(&mut divisions);
    dedup(&mut segments);
    let mut all = Vec::with_capacity(2 * splits.len() * divisions.len() * segments.len());
    for (a, &expandable) in expandable.iter().enumerate() {
        for (b, &split) in splits.iter().enumerate() {
            for (c, divisions) in divisions.iter().enumerate() {
                for (d, &large) in segments.iter().enumerate() {
                    // PyTorch refuses to split below the size of a large segment.
                    if split.is_some_and(|s| s.0 < large) {
                        continue;
                    }
                    let mut settings = recorded.clone();
                    settings.base.expandable_segments = expandable;
                    settings.base.max_split_size = split;
                    settings.base.roundup_power2_divisions = *divisions;
                    if large != recorded.large_segment {
                        settings.large_segment = large;
                        settings.max_non_split_rounding = large;
                    }
                    let changes = [a, b, c, d].iter().filter(|&&i| i > 0).count() as u32;
                    all.push(Candidate { settings, changes });
                }
            }
        }
    }
    all.extend(without_reserve(&all));
    all
}

/// A shorter range of addresses saves no memory, but a request may be too large for it: if the run sets one (2.15),
/// the candidates come again without.
fn without_reserve(candidates: &[Candidate]) -> Vec<Candidate> {
    let reserved = |c: &&Candidate| c.settings.base.expandable_segments && c.settings.reserves.all.is_some();
    let mut others: Vec<Candidate> = candidates.iter().filter(reserved).cloned().collect();
    for candidate in &mut others {
        candidate.settings.reserves.all = None;
        candidate.changes += 1;
    }
    others
}

/// Keeps the first of equals.
fn dedup<T: PartialEq + Copy>(values: &mut Vec<T>) {
    let mut seen: Vec<T> = Vec::new();
    values.retain(|&v| {
        let new = !seen.contains(&v);
        if new {
            seen.push(v);
        }
        new
    });
}

/// The flag that stops a sweep, and the call for its progress.
#[derive(Clone, Copy, Default)]
pub struct Progress<'a> {
    pub cancel: Option<&'a AtomicBool>,
    /// Called with the number of finished candidates, from any thread.
    pub done: Option<&'a (dyn Fn(usize) + Sync)>,
}

impl std::fmt::Debug for Progress<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Progress").field("cancel", &self.cancel).field("done", &self.done.is_some()).finish()
    }
}

/// Replays `script` with each candidate on a card of `capacity` bytes. In the order of the candidates, whatever the
/// threads do; those not reached when it was cancelled are missing at the end.
#[must_use]
pub fn sweep(
    script: &Script,
    version: TorchVersion,
    candidates: &[Candidate],
    capacity: Bytes,
    threads: usize,
    progress: Progress<'_>,
) -> Vec<Trial> {
    let done = AtomicUsize::new(0);
    let work = |at: usize| {
        if progress.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            return None;
        }
        let trial = trial(script, version, &candidates[at], capacity, Placement::Lowest);
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(tell) = progress.done {
            tell(done);
        }
        Some(trial)
    };
    let trials = gapless_threads::each("sweep", threads, candidates.len(), work);
    trials.into_iter().flatten().collect()
}

/// One candidate.
#[must_use]
pub fn trial(
    script: &Script,
    version: TorchVersion,
    candidate: &Candidate,
    capacity: Bytes,
    placement: Placement,
) -> Trial {
    let settings = candidate.settings.clone();
    let machine = Machine::Torch(TorchMachine { version, settings, recorded: false });
    let mut last = LastServed::default();
    let driven = machine.drive(script, Drive { placement, ..Drive::on(capacity.0) }, &mut last);
    let last_failed = script.ops.iter().rposition(|op| matches!(op, crate::script::Op::Failed { .. }));
    Trial {
        candidate: candidate.clone(),
        stats: driven.stats,
        failure: driven.failure,
        served_last: last_failed.is_some() && last.op.map(|op| op as usize) == last_failed,
    }
}

/// The last failed request that was served after all.
#[derive(Default)]
struct LastServed {
    op: Option<u32>,
}

impl Watch for LastServed {
    fn served(&mut self, op: u32, _tick: Tick) {
        self.op = Some(op);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confs(conf: &str, minor: u32) -> Vec<String> {
        let version = TorchVersion(2, minor);
        let recorded = TorchSettings::parse(conf, version).expect(conf);
        candidates(&recorded, version).iter().map(|c| c.settings.to_conf()).collect()
    }

    #[test]
    fn only_settings_that_the_release_has_are_tried() {
        for minor in [4, 8, 11, 12, 13, 14, 15] {
            for conf in confs("", minor) {
                let read = TorchSettings::parse(&conf, TorchVersion(2, minor));
                assert!(read.is_ok(), "{conf} in 2.{minor}: {read:?}");
                assert!(!conf.contains("reserve"), "{conf}: it saves no memory");
            }
        }
    }

    #[test]
    fn a_run_with_a_reserve_is_also_tried_without() {
        let all = confs("expandable_segments:True,expandable_segments_reserve:0.25", 15);
        assert_eq!(all[0], "expandable_segments:True,expandable_segments_reserve:0.25");
        assert!(all.contains(&"expandable_segments:True".to_owned()));
    }
}
