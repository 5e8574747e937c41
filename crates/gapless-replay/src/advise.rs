//! Advice: the settings, of hundreds, that help this run, each with the result of its own replay.
//!
//! It suggests nothing that is already set, nothing that saves less than 1 %, and nothing that saves only for a certain
//! order of addresses from the driver: it replays a suggestion with addresses handed out upward and downward, and
//! counts the worse result.

use crate::allocator::Stats;
use crate::answer::{self, ENDLESS};
use crate::device::Placement;
use crate::machine::{Machine, TorchMachine};
use crate::script::Script;
use crate::sweep::{self, Candidate, Progress, Trial};
use crate::torch::{TorchSettings, TorchVersion, settings_variable};
use gapless_trace::Bytes;

/// The answer.
#[derive(Clone, Debug)]
pub struct Advice {
    pub version: TorchVersion,
    pub capacity: Option<Bytes>,
    /// The run as it was.
    pub baseline: Tried,
    pub verdict: Verdict,
    /// The simplest first.
    pub suggestions: Vec<Suggestion>,
    /// Number of settings that were replayed.
    pub tried: usize,
    /// The most block bytes that were active at once: no allocator needs less.
    pub floor: Bytes,
}

/// One way to run, and its memory.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The settings as PyTorch reads them; empty: the defaults.
    pub conf: String,
    pub stats: Stats,
    pub survives: bool,
    /// The smallest card on which it survives.
    pub min_capacity: Bytes,
}

/// Settings that help.
#[derive(Clone, Debug)]
pub struct Suggestion {
    pub tried: Tried,
    /// Number of settings that differ from the run's.
    pub changes: u32,
    /// Peak reserved bytes less than the run's, in the worse of two placements; 0 if the run did not survive.
    pub saving: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some settings hold less memory, or survive a card on which the run would not.
    Helps,
    /// The run survives, and no setting holds noticeably less.
    Fine,
    /// The live bytes themselves exceed the card, by this much.
    TooLarge { excess: Bytes },
    /// The live bytes would fit, but no setting packs them so tightly.
    NoSetting,
}

/// A saving below this share of the peak is not worth a setting.
const LEAST_SHARE: u64 = 100;
/// Suggestions at most.
const MOST: usize = 3;
/// Events that a sweep may replay; beyond it combinations are left out, then all but the single changes.
const BUDGET: u64 = 2_000_000_000;

/// The line for the environment, with the variable that the release behind `producer` reads.
#[must_use]
pub fn environment_line(conf: &str, producer: &str) -> String {
    format!("export {}={conf}", settings_variable(producer))
}

/// Settings for the run behind `script`, on a card of `capacity` bytes if one is given.
#[must_use]
pub fn advise(
    script: &Script,
    recorded: &TorchSettings,
    version: TorchVersion,
    capacity: Option<Bytes>,
    threads: usize,
    progress: Progress<'_>,
) -> Advice {
    let candidates = candidates(script, recorded, version);
    let card = capacity.unwrap_or(ENDLESS);
    let trials = sweep::sweep(script, version, &candidates, card, threads, progress);
    let floor = Bytes(trials.iter().map(|t| t.stats.active.peak).min().unwrap_or(0));
    let asker = Asker { script, version, card };
    let fallback = sweep::trial(script, version, &candidates[0], card, Placement::Lowest);
    let as_it_was = trials.first().unwrap_or(&fallback);
    let baseline = asker.tried(as_it_was);

    let suggestions =
        if baseline.survives { asker.smaller(&trials, as_it_was) } else { asker.surviving(&trials) };
    let verdict = if !suggestions.is_empty() {
        Verdict::Helps
    } else if baseline.survives {
        Verdict::Fine
    } else {
        // On a card that is too small the replays end early, so their peaks are not the run's.
        let live = live_peak(script);
        if live > card { Verdict::TooLarge { excess: live - card } } else { Verdict::NoSetting }
    };
    let floor = if baseline.survives { floor } else { live_peak(script) };
    Advice { version, capacity, baseline, verdict, suggestions, tried: trials.len(), floor }
}

/// The most bytes that the program held at once, in blocks of 512 bytes, with the request that ended it.
#[must_use]
pub fn live_peak(script: &Script) -> Bytes {
    use crate::script::Op;
    let mut sizes = vec![0u64; script.slots as usize + 1];
    let (mut live, mut peak) = (0u64, 0u64);
    let last = script.ended_by();
    for (i, op) in (0..).zip(&script.ops) {
        match *op {
            Op::Alloc { slot, size, .. } => {
                sizes[slot as usize] = size.0.div_ceil(512).max(1) * 512;
                live += sizes[slot as usize];
                peak = peak.max(live);
            }
            Op::Failed { size, .. } if last == Some(i) => peak = peak.max(live + size.0),
            Op::Free { slot } | Op::FreeCompleted { slot } => {
                live -= std::mem::take(&mut sizes[slot as usize]);
            }
            _ => {}
        }
    }
    Bytes(peak)
}

/// The settings that are replayed: as many as the length of the run allows; the run's own always come first.
#[must_use]
pub fn candidates(script: &Script, recorded: &TorchSettings, version: TorchVersion) -> Vec<Candidate> {
    let mut candidates = sweep::candidates(recorded, version);
    let length = script.ops.len() as u64;
    for most in [2, 1] {
        if length * candidates.len() as u64 <= BUDGET {
            break;
        }
        candidates.retain(|c| c.changes <= most);
    }
    candidates
}

struct Asker<'a> {
    script: &'a Script,
    version: TorchVersion,
    card: Bytes,
}

impl Asker<'_> {
    fn machine(&self, candidate: &Candidate) -> Machine {
        let settings = candidate.settings.clone();
        Machine::Torch(TorchMachine { version: self.version, settings, recorded: false })
    }

    fn tried(&self, trial: &Trial) -> Tried {
        Tried {
            conf: trial.candidate.settings.to_conf_keeping_others(),
            stats: trial.stats,
            survives: trial.survived(),
            min_capacity: answer::min_capacity(
                self.script,
                &self.machine(&trial.candidate),
                Placement::Lowest,
            ),
        }
    }

    /// The trial again, with addresses the other way round.
    fn again(&self, trial: &Trial) -> Trial {
        sweep::trial(self.script, self.version, &trial.candidate, self.card, Placement::Highest)
    }

    /// Settings that hold less: the simplest line first, then those that hold noticeably less for more settings.
    fn smaller(&self, trials: &[Trial], baseline: &Trial) -> Vec<Suggestion> {
        let held = baseline.stats.reserved.peak;
        let saving = |t: &Trial| held.saturating_sub(t.stats.reserved.peak);
        let least = held / LEAST_SHARE;
        let mut better: Vec<(&Trial, u64)> = Vec::new();
        let mut promising: Vec<&Trial> =
            trials.iter().skip(1).filter(|t| t.survived() && saving(t) > least).collect();
        promising.sort_by_key(|t| (t.stats.reserved.peak, t.candidate.changes, t.stats.driver_ns));
        // Checked from the best down, as far as the choice below can reach: the best of each number of changes.
        for changes in 1..=4 {
            let confirmed = promising.iter().filter(|t| t.candidate.changes == changes).find_map(|&t| {
                let again = self.again(t);
                let kept = saving(t).min(saving(&again));
                (again.survived() && kept > least).then_some((t, kept))
            });
            better.extend(confirmed);
        }
        // A further setting must earn its place: a hundredth of the peak more than the simpler line before it.
        let mut chosen: Vec<(&Trial, u64)> = Vec::new();
        for (trial, saved) in better {
            let before = chosen.last().map_or(0, |(_, saved)| *saved);
            if saved > before + if chosen.is_empty() { 0 } else { least } {
                chosen.push((trial, saved));
            }
        }
        self.suggestions(chosen)
    }

    /// Settings under which the run survives: the simplest, and the one that needs the smallest card.
    fn surviving(&self, trials: &[Trial]) -> Vec<Suggestion> {
        let alive = |t: &&Trial| t.survived() && self.again(t).survived();
        let mut by_simplicity: Vec<&Trial> = trials.iter().skip(1).filter(|t| t.survived()).collect();
        by_simplicity.sort_by_key(|t| (t.candidate.changes, t.stats.driver_ns, t.stats.reserved.peak));
        let mut chosen: Vec<(&Trial, u64)> = Vec::new();
        if let Some(&simplest) = by_simplicity.iter().find(|t| alive(t)) {
            chosen.push((simplest, 0));
            // Another one if it spares much of the time in the driver: giving memory back stops the device.
            let calm = by_simplicity.iter().filter(|t| t.stats.driver_ns * 2 < simplest.stats.driver_ns);
            let calmest = calm.min_by_key(|t| (t.candidate.changes, t.stats.driver_ns));
            if let Some(&calmest) = calmest.filter(|t| alive(t)) {
                chosen.push((calmest, 0));
            }
        }
        self.suggestions(chosen)
    }

    fn suggestions(&self, mut chosen: Vec<(&Trial, u64)>) -> Vec<Suggestion> {
        chosen.truncate(MOST);
        chosen
            .into_iter()
            .map(|(trial, saved)| Suggestion {
                tried: self.tried(trial),
                changes: trial.candidate.changes,
                saving: Bytes(saved),
            })
            .collect()
    }
}
