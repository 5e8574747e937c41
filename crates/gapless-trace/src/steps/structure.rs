//! Steps from structure alone: recurring allocations.
//!
//! Every allocation gets a key. A hypothesis says "every m-th occurrence of key K begins a step"; it is as good as the
//! number of keys that then occur equally often in every step. Layers are a worse hypothesis than steps (allocations
//! outside of the layers do not recur with them), two steps at once are no better than one, and in random allocations
//! no hypothesis explains much. The winner must also repeat the *order* of its keys well beyond chance.
//!
//! The search looks at a window at the end, where a run is steady, and at a larger one only if that one shows nothing.

mod numbered;

use self::numbered::{ONCE, numbered};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// The first window, in allocations; each next one is four times as large.
const WINDOW: usize = 1 << 15;
/// Occurrences of keys that a window samples, per power of two of the keys' frequency.
const SAMPLE: usize = 1 << 12;
/// The most often that an anchor may occur in a step.
const MAX_PER_STEP: usize = 64;
/// Keys that may vote for a length, and lengths that are tried, in one window.
const MAX_ANCHORS: usize = 160;
const MAX_LENGTHS: usize = 12;

/// The best hypothesis has at least a score of 1, and a finer one that takes its place at least this share of it.
const FINER: f64 = 0.85;

/// The recurring allocations.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pattern {
    /// One position in each step, always the same point of the program, over the whole trace.
    pub(crate) beats: Vec<u32>,
    /// Allocations from one beat to the next: the median.
    pub(crate) length: u32,
    /// The keys that recur equally often in each step, with their number; by key.
    pub(crate) recurring: Vec<(u64, u32)>,
    /// The share of the allocations in the window that have such keys.
    pub(crate) share: f64,
    /// The number of recurring keys, weighed by how firmly they recur: compares patterns of different keys.
    pub(crate) score: f64,
}

/// Finds the pattern of `keys[first..]`; `transient` are the bytes in use before each.
pub(crate) fn find(keys: &[u64], transient: &[u64], first: usize) -> Option<Pattern> {
    let n = keys.len();
    if n < first + 12 {
        return None;
    }
    let mut size = WINDOW;
    loop {
        let from = n.saturating_sub(size).max(first);
        if let Some(pattern) = Window::new(keys, transient, from).find() {
            // Layers of one long step look like steps if the window is shorter than the step: the rest of the trace
            // contradicts them.
            let span = (pattern.beats.len() as f64) * f64::from(pattern.length);
            if from == first || span >= 0.6 * (n - first) as f64 {
                return Some(pattern);
            }
        }
        if from == first {
            return None;
        }
        size *= 4;
    }
}

struct Window<'a> {
    keys: &'a [u64],
    /// From the window's beginning.
    transient: &'a [u64],
    /// The most of `transient`.
    peak: u64,
    from: usize,
    /// The keys by number, in order of first sight; the first stands for those that occur once.
    names: Vec<u64>,
    /// The window as numbers of keys, or [`ONCE`].
    tokens: Vec<u32>,
    /// `at[starts[k]..starts[k + 1]]`: the places of key k, from the window's beginning.
    starts: Vec<u32>,
    at: Vec<u32>,
    /// The sampled keys, the rarest first.
    sample: Vec<u32>,
}

/// A length that steps may have: the votes for it, and each voter's weight, key and number a step.
#[derive(Default)]
struct Length {
    votes: f64,
    voters: Vec<(f64, u32, usize)>,
}

/// Steps begin at these positions of the window.
struct Trial {
    bounds: Vec<u32>,
    score: f64,
}

impl<'a> Window<'a> {
    fn new(keys: &'a [u64], transient: &'a [u64], from: usize) -> Window<'a> {
        let (names, tokens) = numbered(&keys[from..]);
        let mut starts = vec![0u32; names.len() + 1];
        for &t in tokens.iter().filter(|&&t| t != ONCE) {
            starts[t as usize + 1] += 1;
        }
        for k in 0..names.len() {
            starts[k + 1] += starts[k];
        }
        let mut next = starts.clone();
        let mut at = vec![0u32; starts[names.len()] as usize];
        for (i, &t) in tokens.iter().enumerate().filter(|(_, t)| **t != ONCE) {
            at[next[t as usize] as usize] = i as u32;
            next[t as usize] += 1;
        }
        let mut window = Window {
            keys,
            transient: &transient[from..],
            peak: transient[from..].iter().copied().max().unwrap_or(0).max(1),
            from,
            names,
            tokens,
            starts,
            at,
            sample: Vec::new(),
        };
        window.choose_sample();
        window
    }

    fn occurrences(&self, key: u32) -> &[u32] {
        &self.at[self.starts[key as usize] as usize..self.starts[key as usize + 1] as usize]
    }

    /// Keys that come back over a good part of the window, of every frequency, up to a budget.
    fn choose_sample(&mut self) {
        let wide = self.tokens.len() as u32 / 4;
        let mut wanted: Vec<u32> = (0..self.names.len() as u32)
            .filter(|&k| {
                let at = self.occurrences(k);
                at.len() >= 2 && at[at.len() - 1] - at[0] >= wide
            })
            .collect();
        wanted.sort_by_key(|&k| self.occurrences(k).len());
        let mut spent = [0usize; 33];
        wanted.retain(|&k| {
            let count = self.occurrences(k).len();
            let class = count.ilog2() as usize;
            spent[class] += count;
            spent[class] <= SAMPLE.max(count.min(4 * SAMPLE))
        });
        self.sample = wanted;
    }

    fn find(&self) -> Option<Pattern> {
        let trial = self.best()?;
        let (recurring, _) = self.recurring(&trial.bounds);
        if self.order(&trial.bounds, &recurring) < 0.4 {
            return None;
        }
        let covered: usize = recurring.iter().map(|&(k, _)| self.occurrences(k).len()).sum();
        let share = covered as f64 / self.tokens.len() as f64;
        let evidence = recurring.len() * (trial.bounds.len() - 2).max(1);
        if evidence < 6 || share < 0.05 {
            return None;
        }
        let (beats, length) = self.beats(&trial.bounds, &recurring);
        let mut recurring: Vec<(u64, u32)> =
            recurring.into_iter().map(|(k, c)| (self.names[k as usize], c)).collect();
        recurring.sort_unstable();
        Some(Pattern { beats, length, recurring, share, score: trial.score })
    }

    fn best(&self) -> Option<Trial> {
        let tries = self.hypotheses();
        if tries.is_empty() {
            return self.best_of_two();
        }
        let trials: Vec<Trial> = tries
            .into_iter()
            .map(|bounds| {
                let (recurring, mut score) = self.recurring(&bounds);
                // Order and valleys cost a pass each. They only lower a score: one that is too low already stays so.
                if score >= FINER {
                    score *= self.order(&bounds, &recurring);
                }
                if score >= FINER {
                    score *= self.levelness(&bounds);
                }
                Trial { score, bounds }
            })
            .collect();
        let best = trials
            .iter()
            .max_by(|a, b| a.score.total_cmp(&b.score).then(a.bounds.len().cmp(&b.bounds.len())))?;
        if best.score < 1.0 {
            return self.best_of_two();
        }
        // If all counts share a factor, the hypothesis holds several steps at once; take the finer one if there is one.
        let (counts, _) = self.recurring(&best.bounds);
        let finer = trials
            .iter()
            .filter(|t| t.score >= best.score * FINER && t.bounds.len() > best.bounds.len() + 1)
            .filter(|t| {
                let factor = (t.bounds.len() as f64 / best.bounds.len() as f64).round() as u32;
                let multiples = counts.iter().filter(|&&(_, c)| c % factor.max(1) == 0).count();
                factor >= 2 && multiples * 100 >= counts.len() * 95
            })
            .max_by_key(|t| t.bounds.len());
        let chosen = finer.unwrap_or(best);
        Some(Trial { bounds: chosen.bounds.clone(), score: chosen.score })
    }

    /// Bounds worth a trial. The m-th next occurrence of a key is always about one step away if the key occurs m times
    /// a step, whatever the phase: keys vote for lengths in this way, and the lengths with most votes are tried.
    fn hypotheses(&self) -> Vec<Vec<u32>> {
        let mut with_count: FxHashMap<usize, u32> = FxHashMap::default();
        // By length, in classes of 5 %: votes, and each voter's weight.
        let mut classes: BTreeMap<u32, Length> = BTreeMap::new();
        let mut anchors = 0;
        for &key in &self.sample {
            let at = self.occurrences(key);
            let alike = with_count.entry(at.len()).or_default();
            *alike += 1;
            if *alike > 6 || anchors == MAX_ANCHORS || at.len() < 3 {
                continue;
            }
            anchors += 1;
            let steady = &at[at.len() / 4..];
            let mut voted: Option<u32> = None;
            for per_step in 1..=MAX_PER_STEP.min((at.len() - 1) / 2) {
                let Some((length, even)) = evenness(steady, per_step) else { continue };
                let class = (f64::from(length).ln() * 20.0).round() as u32;
                if even < 0.7 || voted == Some(class) {
                    continue;
                }
                voted = Some(class);
                let length = classes.entry(class).or_default();
                length.votes += even;
                length.voters.push((even, key, per_step));
            }
        }
        let mut classes: Vec<Length> = classes.into_values().collect();
        // A stable sort: of equals the shorter length comes first.
        classes.sort_by(|a, b| b.votes.total_cmp(&a.votes));
        classes.truncate(MAX_LENGTHS);
        let mut tries = Vec::new();
        for Length { mut voters, .. } in classes {
            voters.sort_by(|a, b| b.0.total_cmp(&a.0));
            for (_, key, per_step) in voters.into_iter().take(3) {
                // From the end, because the run is steady there.
                let mut bounds: Vec<u32> =
                    self.occurrences(key).iter().rev().step_by(per_step).copied().collect();
                bounds.reverse();
                tries.push(bounds);
            }
        }
        tries
    }

    /// Two steps only: the window's second half repeats its first.
    fn best_of_two(&self) -> Option<Trial> {
        let end = self.tokens.len() as u32;
        let mut best: Option<Trial> = None;
        for &key in self.sample.iter().take(64) {
            let at = self.occurrences(key);
            if at.len() > MAX_PER_STEP {
                break;
            }
            for per_step in 1..=at.len() / 2 {
                let second = at[at.len() - per_step];
                let first = at[at.len() - 2 * per_step];
                let length = second - first;
                if length < 16 || end - second < length - length / 50 {
                    continue;
                }
                let bounds = vec![first, second, (second + length).min(end)];
                let (recurring, score) = self.recurring(&bounds);
                let covered: u32 = recurring.iter().map(|&(_, c)| c).sum();
                let covers = covered * 10 >= length * 7;
                if covers && recurring.len() >= 8 && best.as_ref().is_none_or(|b| b.score < score) {
                    best = Some(Trial { bounds, score });
                }
            }
        }
        best
    }

    /// The keys that occur equally often in nearly all intervals between bounds, and their number. The earliest
    /// intervals may differ: a first step creates allocations that later ones find.
    fn recurring(&self, bounds: &[u32]) -> (Vec<(u32, u32)>, f64) {
        let intervals = bounds.len() - 1;
        let skip = skipped(intervals);
        let scored = intervals - skip;
        let (low, high) = (bounds[skip], bounds[intervals]);
        let ends = &bounds[skip + 1..];
        let spared = scored * 3 / 20;
        let needed = scored - spared;
        let (mut found, mut score) = (Vec::new(), 0.0);
        // The rarest come first: those that occur too seldom to agree anywhere are passed over as one.
        let rare = self.sample.partition_point(|&key| self.occurrences(key).len() < needed);
        for &key in &self.sample[rare..] {
            let at = self.occurrences(key);
            let from = at.partition_point(|&p| p < low);
            let to = at.partition_point(|&p| p < high);
            let total = to - from;
            let count = (total + scored / 2) / scored;
            if count == 0 || total < needed {
                continue;
            }
            // Most keys disagree in too many intervals soon: the others need not be looked at. Each interval holds
            // about one occurrence or more, so that going through the ends costs no more than the occurrences do.
            let (mut agree, mut run, mut interval) = (0, 0, 0);
            for &p in &at[from..to] {
                while p >= ends[interval] {
                    agree += usize::from(run == count);
                    (run, interval) = (0, interval + 1);
                }
                if interval - agree > spared {
                    break;
                }
                run += 1;
            }
            agree += usize::from(run == count);
            if agree >= needed {
                found.push((key, count as u32));
                // Agreement of two intervals is cheap to come by, of twenty it is not.
                score += (agree as f64 - 1.0) / (agree as f64 + 1.0);
            }
        }
        (found, score)
    }

    /// The degree to which the order of the recurring keys is the same in neighbouring steps: 0 as by chance, 1
    /// entirely. Counts alone cannot tell a step from intervals that drift through it.
    fn order(&self, bounds: &[u32], recurring: &[(u32, u32)]) -> f64 {
        let total: f64 = recurring.iter().map(|&(_, c)| f64::from(c)).sum();
        let chance: f64 = recurring.iter().map(|&(_, c)| (f64::from(c) / total).powi(2)).sum();
        let intervals = bounds.len() - 1;
        let members = Members::of(self, recurring);
        let mut agreements: Vec<f64> = Vec::new();
        let mut before: Vec<u32> = Vec::new();
        for i in skipped(intervals)..intervals {
            let now = members.between(self, bounds[i], bounds[i + 1]);
            if !before.is_empty() && !now.is_empty() {
                let same = before.iter().zip(&now).filter(|(a, b)| a == b).count();
                agreements.push(same as f64 / before.len().max(now.len()) as f64);
            }
            before = now;
        }
        agreements.sort_by(f64::total_cmp);
        let median = agreements.get(agreements.len() / 2).copied().unwrap_or(0.0);
        // If nearly all have one key, an order means nothing.
        if chance < 0.9 { ((median - chance) / (1.0 - chance)).max(0.0) } else { 0.0 }
    }

    /// 1 if the lowest points of all intervals are equally low, as between steps; layers climb and descend.
    fn levelness(&self, bounds: &[u32]) -> f64 {
        let intervals = bounds.windows(2).skip(skipped(bounds.len() - 1));
        let lows =
            intervals.filter_map(|w| self.transient[w[0] as usize..w[1] as usize].iter().min().copied());
        let mut lows: Vec<u64> = lows.collect();
        lows.sort_unstable();
        let Some(last) = lows.len().checked_sub(1) else { return 0.0 };
        let spread = lows[last - last / 10] - lows[last / 10];
        (1.0 - spread as f64 / self.peak as f64).powi(3)
    }

    /// One point of every step over the whole trace: the occurrences of the key that tells steps apart best. That is
    /// one that occurs once a step, or whose occurrences leave the longest pause, and that keeps time to the end.
    fn beats(&self, bounds: &[u32], recurring: &[(u32, u32)]) -> (Vec<u32>, u32) {
        let intervals = bounds.len() - 1;
        let (low, high) = (bounds[skipped(intervals)], bounds[intervals]);
        let mut gaps: Vec<u32> = bounds[skipped(intervals)..].windows(2).map(|w| w[1] - w[0]).collect();
        gaps.sort_unstable();
        let length = gaps[(gaps.len() - 1) / 2];
        // Candidates: how clear the pause is, the pause, the key.
        let mut candidates: Vec<(f64, u32, u32)> = Vec::new();
        for &(key, count) in recurring {
            let at = self.occurrences(key);
            let steady = &at[at.partition_point(|&p| p < low)..at.partition_point(|&p| p < high)];
            let steps = steady.len() / count as usize;
            if count == 1 {
                candidates.push((f64::MAX, length / 2, key));
            } else if steps >= 2 {
                let mut pauses: Vec<u32> = steady.windows(2).map(|w| w[1] - w[0]).collect();
                pauses.sort_unstable_by(|a, b| b.cmp(a));
                // `steps - 1` pauses separate steps, the others are within one.
                let (between, within) = (pauses[steps - 2], pauses.get(steps - 1).copied().unwrap_or(0));
                if between > within + within / 8 {
                    let clear = f64::from(between) / f64::from(within.max(1));
                    candidates.push((clear, between - (between - within) / 2, key));
                }
            }
        }
        candidates.sort_by(|a, b| b.0.total_cmp(&a.0));
        // Evenly from the front: keys that occur once a step may be many, and lie in one corner of it.
        let stride = candidates.len().div_ceil(12).max(1);
        let chosen: Vec<(f64, u32, u32)> =
            candidates.iter().take(6).chain(candidates.iter().step_by(stride)).copied().collect();
        let mut index: FxHashMap<u64, usize> = FxHashMap::default();
        for (i, c) in chosen.iter().enumerate() {
            index.entry(self.names[c.2 as usize]).or_insert(i);
        }
        let mut beats: Vec<(Vec<u32>, u32)> = vec![(Vec::new(), 0); chosen.len()];
        for (position, key) in self.keys.iter().enumerate() {
            let Some(&i) = index.get(key) else { continue };
            let (beats, last) = &mut beats[i];
            if beats.is_empty() || position as u32 - *last > chosen[i].1 {
                beats.push(position as u32);
            }
            *last = position as u32;
        }
        beats.push((bounds.iter().map(|&b| b + self.from as u32).collect(), 0));
        let even = |beats: &[u32]| {
            let regular = |w: &&[u32]| (w[1] - w[0]).abs_diff(length) <= length / 6;
            let gaps = beats.windows(2);
            2 * beats.windows(2).filter(regular).count() as i64 - gaps.len() as i64
        };
        // The first of equals, so that a key is preferred to the bounds of the trial.
        let best = beats.iter().rev().max_by_key(|(beats, _)| even(beats)).map(|(b, _)| b.clone());
        (fill(&best.unwrap_or_default(), length), length)
    }
}

/// Finds the occurrences of some keys in order of position.
enum Members {
    /// Rare keys: their positions and numbers, by position.
    Few(Vec<(u32, u32)>),
    /// True for each key that is one of them: the window is gone through.
    Many(Vec<bool>),
}

impl Members {
    fn of(window: &Window<'_>, keys: &[(u32, u32)]) -> Members {
        let occurrences: usize = keys.iter().map(|&(key, _)| window.occurrences(key).len()).sum();
        if occurrences * 16 < window.tokens.len() {
            let at = |&(key, _): &(u32, u32)| window.occurrences(key).iter().map(move |&p| (p, key));
            let mut places: Vec<(u32, u32)> = keys.iter().flat_map(at).collect();
            places.sort_unstable();
            return Members::Few(places);
        }
        let mut member = vec![false; window.names.len()];
        for &(key, _) in keys {
            member[key as usize] = true;
        }
        Members::Many(member)
    }

    /// The keys between two positions, in order.
    fn between(&self, window: &Window<'_>, from: u32, to: u32) -> Vec<u32> {
        match self {
            Members::Few(places) => {
                let first = places.partition_point(|&(p, _)| p < from);
                places[first..].iter().take_while(|&&(p, _)| p < to).map(|&(_, key)| key).collect()
            }
            Members::Many(member) => {
                let tokens = &window.tokens[from as usize..to as usize];
                tokens.iter().copied().filter(|&t| member[t as usize]).collect()
            }
        }
    }
}

/// A beat that is missing between two others, a whole number of lengths apart, is put in.
fn fill(beats: &[u32], length: u32) -> Vec<u32> {
    let mut filled: Vec<u32> = Vec::with_capacity(beats.len());
    for &beat in beats {
        if let Some(&last) = filled.last() {
            let gap = beat - last;
            let steps = (f64::from(gap) / f64::from(length)).round() as u32;
            if (2..=4).contains(&steps) && gap.abs_diff(steps * length) <= steps * length / 12 {
                filled.extend((1..steps).map(|i| last + gap * i / steps));
            }
        }
        filled.push(beat);
    }
    filled
}

/// The number of first intervals that are not judged.
fn skipped(intervals: usize) -> usize {
    match intervals {
        0..=2 => 0,
        3 => 1,
        4..=7 => 2,
        n => n / 4,
    }
}

/// The median distance to the `ahead`-th next position, and the share of positions for which it is within 8 % of that.
fn evenness(at: &[u32], ahead: usize) -> Option<(u32, f64)> {
    let pairs = at.len().checked_sub(ahead)?;
    if pairs == 0 {
        return None;
    }
    // A spread sample: every frequency costs the same.
    let stride = pairs.div_ceil(96);
    let mut distances = [0u32; 96];
    let mut n = 0;
    for i in (0..pairs).step_by(stride) {
        distances[n] = at[i + ahead] - at[i];
        n += 1;
    }
    let distances = &mut distances[..n];
    let (_, &mut median, _) = distances.select_nth_unstable(n / 2);
    let near =
        distances.iter().filter(|&&d| u64::from(d.abs_diff(median)) * 100 <= u64::from(median) * 8).count();
    (median >= 4).then(|| (median, near as f64 / n as f64))
}
