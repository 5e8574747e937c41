//! The odd one out: each rank against the other replicas of its group.
//!
//! A rank is odd if it is above its peers by more than their own spread explains (six standard deviations, estimated
//! from the median distance; among few peers also twice their range) and by more than a floor below which a
//! difference does not matter. Categories (a failed request, another setting) need no spread. Causes are tried in the
//! order of [`Why`]; the first that holds is named, the others are listed behind it. Of two replicas the one is named
//! that failed, holds more or is slower, by larger floors because there is no spread to judge by; another setting is
//! not named, because neither of two is the usual one. Reserved bytes are not compared, because fragmentation of the
//! cache differs a lot between runs that do the same.

use super::evidence::is_stacked;
use super::excess::{self, Excess};
use super::replicas::{KeptRows, LEAST, LEAST_SHARE, Replicas, pace, step_pace, transient};
use super::robust::{Against, against, median};
use super::summary::Summary;
use super::{groups, sizes, stretches};
use serde::Serialize;

/// The cause for which a rank is odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// A request failed here and not on most peers.
    OutOfMemory,
    /// The allocator is set differently.
    Settings,
    /// It keeps something more of every step.
    Leak,
    /// It holds something that its peers do not.
    ExtraBuffer,
    /// Most of its transient requests are larger: more samples, or longer ones.
    LargerBatch,
    /// Its steps take longer with the same memory.
    Straggler,
    /// It stopped before its peers.
    FewerSteps,
}

impl Why {
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Why::OutOfMemory => "out-of-memory",
            Why::Settings => "settings",
            Why::Leak => "leak",
            Why::ExtraBuffer => "extra-buffer",
            Why::LargerBatch => "larger-batch",
            Why::Straggler => "straggler",
            Why::FewerSteps => "fewer-steps",
        }
    }
}

/// One cause, with its bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cause {
    pub(crate) why: Why,
    pub(crate) bytes: u64,
    pub(crate) facts: Facts,
    pub(crate) holders: Vec<Excess>,
}

/// The figures of the sentence for people.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Facts {
    Failed {
        times: usize,
        asked: u64,
        device_free: u64,
    },
    Set {
        here: String,
        peers: String,
    },
    Leaks {
        per_step: u64,
        steps: usize,
    },
    Holds {
        more: u64,
        lasting: bool,
    },
    Larger {
        share: f64,
        step: Option<u32>,
    },
    /// A typical step, or without steps the whole run.
    Slower {
        us: f64,
        peers_us: f64,
        stepwise: bool,
    },
    Stopped {
        steps: u64,
        peers: u64,
    },
}

/// A step belongs to a leak if it keeps at least this share of the smallest leak.
const LEAST_LEAK_STEP: f64 = 1.0 / 32.0;
/// Three gains are of one leak if they differ by less than this factor.
const ALIKE: f64 = 1.5;
/// Transient bytes vary with the data: up to this share above the peers is noise.
const LARGER: f64 = 0.08;
/// The same for one step against the same step of the peers.
const LARGER_STEP: f64 = 0.15;
/// From this factor on, requests are larger and not just more.
const LARGER_REQUESTS: f64 = 1.05;
/// Steps that last this share longer are not noise.
const SLOWER: f64 = 0.10;
/// The factor on floors between two replicas.
const PAIR: f64 = 3.0;
/// Requests of one of two replicas are larger from here on, as a logarithm, and by this share of the bytes.
const PAIR_SIZES: f64 = 0.2;
const PAIR_BYTES: f64 = 0.25;
/// Holders that are named for a rank.
const NAMED: usize = 5;

/// The causes for which the rank at `at` is odd, the one to name first; none if it is like its peers.
///
/// `all` are the ranks of the run. Settings, and failures of a rank without replicas, are compared with theirs.
pub(crate) fn causes(replicas: &Replicas<'_>, at: usize, all: &[&Summary]) -> Vec<Cause> {
    let view = View { group: &replicas.ranks, replicas, at };
    let mut found = Vec::new();
    found.extend(view.out_of_memory(all));
    found.extend(view.settings(all));
    if view.group.len() < 2 {
        return found;
    }
    if !replicas.evidence.covers(at) {
        // Memory that it does not hold may have gone, or come, while it was not recorded.
        return found;
    }
    if found.first().is_some_and(|cause| cause.why == Why::OutOfMemory) {
        // The rank ended at its failed request, so its other figures cannot be compared with runs that went on.
        return found;
    }
    let kept = view.kept();
    let transient = view.larger_batch(kept.is_some());
    let explained = kept.is_some() || transient.is_some();
    found.extend(kept);
    found.extend(transient);
    if !explained {
        found.extend(view.new_holder());
    }
    // Recorder settings change the time of a step, and a user may have ended such a recording by hand.
    if replicas.evidence.is_alike(at) {
        found.extend(view.straggler());
        found.extend(view.fewer_steps());
    }
    found.sort_by_key(|cause| cause.why);
    found
}

/// The largest differences of the rank at `at` from the other one of two: reported if neither is the odd one.
pub(crate) fn differences(pair: &Replicas<'_>, at: usize) -> Vec<Excess> {
    let most = pair.ranks.iter().map(|rank| rank.peak_live).max().unwrap_or(0);
    let least = LEAST.max(LEAST_SHARE * most as f64);
    let mut rows = pair.beyond(at);
    rows.retain(|row| row.bytes as f64 >= least);
    rows.truncate(NAMED);
    rows
}

struct View<'a> {
    replicas: &'a Replicas<'a>,
    group: &'a [&'a Summary],
    at: usize,
}

impl View<'_> {
    fn own(&self) -> &Summary {
        self.group[self.at]
    }

    fn peers(&self) -> impl Iterator<Item = &Summary> {
        self.group.iter().enumerate().filter(|&(i, _)| i != self.at).map(|(_, &peer)| peer)
    }

    fn against(&self, value: impl Fn(&Summary) -> f64) -> Against {
        against(&self.group.iter().map(|rank| value(rank)).collect::<Vec<f64>>(), self.at)
    }

    /// Bytes that matter at all.
    fn least(&self) -> f64 {
        self.floor(self.replicas.least)
    }

    fn floor(&self, floor: f64) -> f64 {
        if self.is_pair() { PAIR * floor } else { floor }
    }

    fn is_pair(&self) -> bool {
        self.group.len() == 2
    }

    fn beyond(&self) -> Vec<Excess> {
        self.replicas.beyond(self.at)
    }

    /// The holders to name: those of `wanted`, and others only if there are none.
    fn named(&self, wanted: impl Fn(&Excess) -> bool) -> Vec<Excess> {
        let all = self.beyond();
        let some: Vec<Excess> = all.iter().filter(|row| wanted(row)).cloned().collect();
        let mut rows = if some.is_empty() { all } else { some };
        // Holders of less than a hundredth of the first are noise.
        let least = rows.first().map_or(0, |row| row.bytes / 100);
        rows.retain(|row| row.bytes > least);
        rows.truncate(NAMED);
        rows
    }

    fn out_of_memory(&self, all: &[&Summary]) -> Option<Cause> {
        let last = self.own().ooms.last()?;
        let ranks = if self.group.len() < 2 { all } else { self.group };
        let failed = ranks.iter().filter(|rank| !rank.ooms.is_empty()).count();
        if 2 * (failed - 1) >= ranks.len() - 1 {
            return None;
        }
        let (times, asked, device_free) = (self.own().ooms.len(), last.asked, last.device_free);
        let least = self.least();
        let mut holders = self.named(|_| true);
        holders.retain(|row| row.bytes as f64 >= least);
        Some(Cause {
            why: Why::OutOfMemory,
            bytes: asked,
            facts: Facts::Failed { times, asked, device_free },
            holders,
        })
    }

    fn settings(&self, all: &[&Summary]) -> Option<Cause> {
        if all.len() < 3 {
            return None;
        }
        let own = conf(self.own());
        let mut all: Vec<String> = all.iter().map(|rank| conf(rank)).collect();
        let here = all.iter().position(|conf| *conf == own)?;
        all.remove(here);
        let usual = all.iter().max_by_key(|conf| (all.iter().filter(|c| c == conf).count(), *conf))?;
        let agree = all.iter().filter(|conf| *conf == usual).count();
        if own == *usual || 3 * agree < 2 * all.len() {
            return None;
        }
        let reserved = self.against(|rank| rank.peak() as f64);
        Some(Cause {
            why: Why::Settings,
            bytes: reserved.excess.abs() as u64,
            facts: Facts::Set { here: own, peers: usual.clone() },
            holders: Vec::new(),
        })
    }

    /// Memory kept until the end: a leak or a buffer.
    fn kept(&self) -> Option<Cause> {
        let kept = |rank: &Summary| rank.kept_by_part.last().copied().unwrap_or(0) as f64;
        let total = self.against(kept);
        let leak = self.leak();
        if let Some((per_step, steps, bytes)) = leak {
            return Some(Cause {
                why: Why::Leak,
                bytes,
                facts: Facts::Leaks { per_step, steps },
                holders: self.named(|row| row.lasting),
            });
        }
        if total.excess <= self.least().max(total.allowed) {
            return None;
        }
        // A part of the model that only this rank has is not an extra buffer: a replica would hold it too.
        let base = self.against(|rank| sizes::total(&rank.base) as f64).excess;
        let trained = self.against(|rank| rank.trained as f64).excess;
        if base >= 0.2 * total.excess && groups::is_model(base, trained) {
            return None;
        }
        let more = total.excess as u64;
        Some(Cause {
            why: Why::ExtraBuffer,
            bytes: more,
            facts: Facts::Holds { more, lasting: true },
            holders: self.named(|row| row.lasting),
        })
    }

    /// Bytes a step, steps, and total bytes that this rank keeps beyond its peers, if the excess grows step after step.
    fn leak(&self) -> Option<(u64, usize, u64)> {
        let kept = KeptRows::of(self.group, self.at);
        let rows = kept.rows;
        let last = kept.against(self.group, self.at, rows.saturating_sub(1));
        let least_leak = self.floor(self.replicas.least_leak);
        if rows < 3 || last.excess <= least_leak.max(last.allowed) {
            return None;
        }
        let mut above: Vec<f64> =
            (0..rows).map(|row| kept.against(self.group, self.at, row).excess).collect();
        // A temporary excess means that the peers take the same bytes a little later, so it does not count.
        for row in (1..rows).rev() {
            above[row - 1] = above[row - 1].min(above[row]);
        }
        let gains: Vec<f64> = above.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let gained: f64 = gains.iter().map(|gain| gain.max(0.0)).sum();
        let least = (LEAST_LEAK_STEP * least_leak).max(0.2 * gained / gains.len() as f64);
        let growing: Vec<f64> = gains.iter().copied().filter(|&gain| gain >= least).collect();
        let places: Vec<usize> = (0..gains.len()).filter(|&at| gains[at] >= least).collect();
        let first = *places.first()?;
        let most = growing.iter().copied().fold(0.0, f64::max);
        let needed = if gains.len() <= 3 { 2 } else { 3 };
        let since = gains.len() - first;
        let steady = growing.len() >= needed
            && most <= 0.6 * gained
            && (3 * growing.len() >= since || growing.len() >= 8 || is_regular(&places, &gains))
            && gained >= 0.5 * last.excess;
        steady.then(|| {
            let sum: f64 = growing.iter().sum();
            ((sum / growing.len() as f64) as u64, growing.len(), sum as u64)
        })
    }

    /// Transient bytes above those of the peers: larger requests throughout, or one buffer more.
    fn larger_batch(&self, kept: bool) -> Option<Cause> {
        let found = if self.is_pair() { self.larger_of_two() } else { self.larger_peak() };
        let (bytes, share, step) = found.or_else(|| self.larger_step()).or_else(|| self.larger_stretch())?;
        // A new buffer that outlives its step counts as transient too if the rank keeps nothing.
        let comes_and_goes = |row: &Excess| !row.lasting || !kept && row.new;
        let rows: Vec<Excess> = self.beyond().into_iter().filter(comes_and_goes).collect();
        let top = rows.first().map_or(0, |row| row.bytes);
        let concentrated = top as f64 >= 0.6 * bytes as f64;
        let (why, facts) = if concentrated && !self.all_larger() {
            (Why::ExtraBuffer, Facts::Holds { more: bytes, lasting: false })
        } else {
            (Why::LargerBatch, Facts::Larger { share, step })
        };
        Some(Cause { why, bytes, facts, holders: self.named(comes_and_goes) })
    }

    /// The highest transient bytes of the run.
    fn larger_peak(&self) -> Option<(u64, f64, Option<u32>)> {
        let swing = self.against(|rank| transient(rank).0);
        // With few peers that happen to agree, the spread is unknown, so the floor is higher.
        let share = if self.group.len() < 4 { 2.0 * LARGER } else { LARGER };
        let floor = self.least().max(share * swing.typical);
        // More transient bytes show at the peak as well, unless this rank's steps were cut at other places.
        let shows = self.against(|rank| rank.peak_live as f64).excess >= 0.5 * swing.excess;
        (shows && swing.excess > floor.max(swing.allowed)).then(|| {
            let share = swing.excess / swing.typical.max(1.0);
            (swing.excess as u64, share, transient(self.own()).1)
        })
    }

    /// A step whose transient bytes are far above those of the same step elsewhere.
    fn larger_step(&self) -> Option<(u64, f64, Option<u32>)> {
        let steps = self.replicas.steps.as_ref().filter(|_| self.group.len() >= 4)?;
        let found = against(&self.replicas.largest, self.at);
        if found.excess <= LARGER_STEP.max(found.allowed) {
            return None;
        }
        let (share, row) = steps.largest(self.own(), self.least());
        let step = self.own().steps.get(row).map(|step| step.step);
        Some(((share * steps.typical(row)) as u64, share, step))
    }

    /// A stretch of the run whose requests are larger than those of the peers, whether or not steps are known.
    fn larger_stretch(&self) -> Option<(u64, f64, Option<u32>)> {
        let own = *self.replicas.larger.get(self.at).filter(|_| !self.is_pair())?;
        let is_more = own.share > LARGER_STEP && own.bytes > self.least();
        (is_more && self.larger_sizes()).then_some((own.bytes as u64, own.share, None))
    }

    /// True if requests of a stretch are larger than those of the peers, by more than the peers' own maximum.
    fn larger_sizes(&self) -> bool {
        if self.is_pair() {
            let (up, down) = stretches::pair(&self.own().pieces, &self.group[1 - self.at].pieces);
            return up.most > PAIR_SIZES.max(2.0 * down.most);
        }
        let all: Vec<f64> = self.replicas.larger.iter().map(|larger| larger.most).collect();
        let found = (!all.is_empty()).then(|| against(&all, self.at));
        found.is_some_and(|found| found.excess > self.replicas.threshold.0.max(found.allowed))
    }

    /// True if requests of a stretch are larger than usual; `None` if requests cannot be compared.
    fn larger_anywhere(&self) -> Option<bool> {
        let all: Vec<f64> = self.replicas.larger.iter().map(|larger| larger.most).collect();
        let (least, alone) = self.replicas.threshold;
        if !alone {
            // Joined requests can prove that requests are larger, but not that they are not.
            return self.larger_sizes().then_some(true);
        }
        if all.is_empty() {
            return None;
        }
        Some(if self.is_pair() { self.larger_sizes() } else { against(&all, self.at).excess > least })
    }

    /// The same between two replicas: the only measure of noise is the other's excess.
    fn larger_of_two(&self) -> Option<(u64, f64, Option<u32>)> {
        let (up, _) = stretches::pair(&self.own().pieces, &self.group[1 - self.at].pieces);
        let is_more = up.share > PAIR_BYTES && up.bytes > self.least();
        (is_more && self.larger_sizes()).then_some((up.bytes as u64, up.share, None))
    }

    /// True if requests are larger throughout, not just more of them.
    fn all_larger(&self) -> bool {
        if let Some(larger) = self.larger_anywhere() {
            return larger;
        }
        if self.replicas.evidence.is_alike(self.at) && is_stacked(self.own()) {
            let rows = self.beyond();
            let transient: Vec<&Excess> = rows.iter().filter(|row| !row.lasting && !row.new).collect();
            let known: f64 = self.own().held.iter().filter(|h| !h.lasting).map(|h| h.bytes as f64).sum();
            let grown: f64 = transient
                .iter()
                .filter(|row| row.bytes as f64 > 0.05 * row.peers as f64)
                .map(|row| row.peers as f64 + row.bytes as f64)
                .sum();
            return grown >= 0.4 * known;
        }
        let own = &self.own().largest;
        let factors: Vec<f64> = self.peers().map(|peer| excess::request_growth(own, &peer.largest)).collect();
        median(&factors) > LARGER_REQUESTS
    }

    /// An origin of this rank alone whose bytes hide in the spread of transient ones.
    fn new_holder(&self) -> Option<Cause> {
        let rows: Vec<Excess> = self.beyond().into_iter().filter(|row| row.new).collect();
        let bytes: u64 = rows.iter().map(|row| row.bytes).sum();
        if bytes as f64 <= self.least() {
            return None;
        }
        // The peers may each have origins of their own as well. A sample of peers gives the usual amount.
        let own_of = |at: usize| -> f64 {
            let rows = self.replicas.beyond(at);
            rows.iter().filter(|row| row.new).map(|row| row.bytes as f64).sum()
        };
        let step = (self.group.len() / 16).max(1);
        let sample = (0..self.group.len()).step_by(step).filter(|&i| i != self.at).map(own_of);
        let values: Vec<f64> = sample.chain([bytes as f64]).collect();
        let found = against(&values, values.len() - 1);
        if found.excess <= self.least().max(found.allowed) {
            return None;
        }
        let lasting = rows.first().is_some_and(|row| row.lasting);
        let holders = rows.into_iter().take(NAMED).collect();
        Some(Cause { why: Why::ExtraBuffer, bytes, facts: Facts::Holds { more: bytes, lasting }, holders })
    }

    fn straggler(&self) -> Option<Cause> {
        if self.group.iter().any(|rank| pace(rank).is_none()) {
            return None;
        }
        let stepwise = self.group.iter().all(|rank| step_pace(rank).is_some());
        let of = |rank: &Summary| {
            let found = if stepwise { step_pace(rank) } else { pace(rank) };
            found.unwrap_or(0.0)
        };
        let found = self.against(of);
        let floor = self.floor(if stepwise { SLOWER } else { 1.5 * SLOWER }) * found.typical;
        if found.typical <= 0.0 || found.excess <= floor.max(found.allowed) {
            return None;
        }
        let times = if stepwise { 1.0 } else { self.own().events as f64 };
        let (us, peers_us) = (times * (found.typical + found.excess), times * found.typical);
        let facts = Facts::Slower { us, peers_us, stepwise };
        Some(Cause { why: Why::Straggler, bytes: 0, facts, holders: Vec::new() })
    }

    fn fewer_steps(&self) -> Option<Cause> {
        let of = |value: fn(&Summary) -> u64| {
            median(&self.peers().map(|peer| value(peer) as f64).collect::<Vec<_>>())
        };
        let (steps, events) = (of(|s| s.step_count), of(|s| s.events));
        let own = self.own();
        let fewer = steps >= 2.0
            && (own.step_count as f64) <= 0.75 * steps
            && (own.events as f64) <= 0.8 * events
            && self.peers().all(|peer| peer.events as f64 > 0.8 * events);
        let facts = Facts::Stopped { steps: own.step_count, peers: steps as u64 };
        fewer.then(|| Cause { why: Why::FewerSteps, bytes: 0, facts, holders: Vec::new() })
    }
}

/// True if gains come regularly until the end: at four or more places, or three of similar size, evenly spaced.
fn is_regular(places: &[usize], gains: &[f64]) -> bool {
    let ends = places.iter().copied().skip(1).chain([gains.len()]);
    let gaps: Vec<f64> = places.iter().zip(ends).map(|(from, to)| (to - from) as f64).collect();
    let longest = gaps.iter().copied().fold(0.0, f64::max);
    let most = places.iter().map(|&at| gains[at]).fold(f64::MIN, f64::max);
    let least = places.iter().map(|&at| gains[at]).fold(f64::MAX, f64::min);
    let enough = places.len() >= 4 || places.len() == 3 && most <= ALIKE * least;
    enough && longest <= 2.0 * median(&gaps) + 1.0
}

/// The settings as text, with the evidence of the events if they were not recorded.
fn conf(rank: &Summary) -> String {
    let Some(settings) = &rank.settings else {
        return if rank.expandable_seen { "expandable segments (seen)" } else { "not recorded" }.to_owned();
    };
    let mut parts: Vec<String> = Vec::new();
    if settings.expandable_segments {
        parts.push("expandable_segments:True".to_owned());
    } else if rank.expandable_seen {
        parts.push("expandable segments (seen)".to_owned());
    }
    if let Some(bytes) = settings.max_split_size {
        parts.push(format!("max_split_size_mb:{}", bytes >> 20));
    }
    if settings.garbage_collection_threshold > 0.0 {
        parts.push(format!("garbage_collection_threshold:{}", settings.garbage_collection_threshold));
    }
    let rounds = settings.roundup_power2_divisions;
    if rounds.iter().any(|&n| n > 1) {
        let same = rounds.iter().all(|n| *n == rounds[0]);
        let list: Vec<String> = rounds.iter().map(u32::to_string).collect();
        let value = if same { rounds[0].to_string() } else { format!("[{}]", list.join(",")) };
        parts.push(format!("roundup_power2_divisions:{value}"));
    }
    // Settings of the configuration beyond those above.
    let known = [
        "expandable_segments",
        "max_split_size_mb",
        "garbage_collection_threshold",
        "roundup_power2_divisions",
    ];
    for pair in settings.conf.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let name = pair.split(':').next().unwrap_or(pair);
        let part_of_list = !pair.contains(':') || pair.contains('[') || pair.contains(']');
        if !known.contains(&name) && !part_of_list {
            parts.push(pair.to_owned());
        }
    }
    parts.sort();
    if parts.is_empty() { "defaults".to_owned() } else { parts.join(",") }
}
