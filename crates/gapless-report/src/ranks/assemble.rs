//! From the summaries of all files to the report on the ranks.

use super::excess::Excess;
use super::model::{
    Difference, Divergence, Group, OddHolder, OddRank, RankId, RankRow, Ranks, SCHEMA, Timeline, Waiting,
};
use super::odd::{self, Cause, Facts, Why};
use super::replicas::{Replicas, step_pace};
use super::robust::median;
use super::summary::Summary;
use super::text::ranges;
use super::{Run, divergence, groups, summary};
use crate::model::Tool;
use crate::text::{bytes, count, duration, percent, plural, verb};
use rustc_hash::FxHashSet;

/// Points of all timelines together, and the least and most of one.
const POINTS: usize = 1 << 16;
const FEWEST: usize = 64;
const MOST: usize = 512;
/// The most ranks that are listed as missing: a file's name may hold any number, and the list must stay short.
const MISSING: usize = 1 << 16;

/// A device of a rank that could be read.
struct Member<'a> {
    id: RankId,
    summary: &'a Summary,
}

/// The report on all ranks of `run`.
#[must_use]
pub fn report(run: &Run) -> Ranks {
    let mut members: Vec<Member<'_>> = run
        .files
        .iter()
        .flat_map(|file| {
            file.devices
                .iter()
                .map(|summary| Member { id: RankId { rank: file.rank, device: summary.device }, summary })
        })
        .collect();
    let others = summary::comparable(&members.iter().map(|member| member.summary).collect::<Vec<_>>());
    for (member, other) in members.iter_mut().zip(others.iter().flatten()) {
        member.summary = other;
    }
    let summaries: Vec<&Summary> = members.iter().map(|member| member.summary).collect();
    let groups = groups::groups(&summaries);
    let found: Vec<Found> =
        groups.iter().enumerate().map(|(i, g)| compare(i as u32, g, &members, &summaries)).collect();
    let (worst, middle) = ends(&members);
    let mut odd_ranks: Vec<OddRank> = found.iter().flat_map(|f| f.odd.iter().cloned()).collect();
    odd_ranks.sort_by_key(|odd| (std::cmp::Reverse(odd.bytes), odd.rank, odd.device));
    Ranks {
        schema: SCHEMA,
        tool: Tool::this(),
        path: run.path.clone(),
        files: run.files.len() as u64,
        numbering: run.numbering.clone(),
        world_size: run.world_size,
        ranks: rows(run, &groups),
        missing_ranks: missing(run),
        duplicate_ranks: duplicates(run),
        skipped_files: run.skipped.clone(),
        worst_rank: worst,
        median_rank: middle,
        imbalance: imbalance(&summaries),
        imbalance_of: if summaries.iter().any(|s| s.peak_reserved.is_none()) {
            "allocated"
        } else {
            "reserved"
        },
        first_divergence: first_divergence(&found, &groups, &members),
        groups: found.iter().map(|f| f.group.clone()).collect(),
        differences: found.iter().filter_map(|f| f.difference.clone()).collect(),
        waiting: found.iter().flat_map(|f| f.waiting.iter().cloned()).collect(),
        not_compared: found.iter().filter_map(|f| f.not_compared.clone()).collect(),
        timelines: timelines(&members),
        odd_ranks,
    }
}

/// Results for one group.
struct Found {
    group: Group,
    /// With the position in the group, for the divergence.
    odd: Vec<OddRank>,
    odd_at: Vec<(usize, Cause)>,
    difference: Option<Difference>,
    waiting: Vec<Waiting>,
    not_compared: Option<String>,
}

fn compare(number: u32, group: &[usize], members: &[Member<'_>], run: &[&Summary]) -> Found {
    let summaries: Vec<&Summary> = group.iter().map(|&at| members[at].summary).collect();
    let id = |at: usize| members[group[at]].id;
    let (mut odd, mut odd_at, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    let replicas = Replicas::new(summaries.clone());
    let all: Vec<(usize, Vec<Cause>)> = (0..group.len())
        .map(|at| (at, odd::causes(&replicas, at, run)))
        .filter(|(_, causes)| !causes.is_empty())
        .collect();
    // If a third of the replicas are odd, none is: the group then has several kinds of ranks, as the imbalance shows.
    let several = 3 * all.len() > group.len() && all.len() > 1;
    for (at, causes) in all {
        if several && !matches!(causes[0].why, Why::OutOfMemory | Why::Settings) {
            continue;
        }
        for cause in &causes {
            if let Facts::Slower { us, peers_us, stepwise: true } = cause.facts {
                waiting.push(wait(number, id(at), us - peers_us, at, &summaries));
            }
        }
        odd.push(odd_rank(number, id(at), &causes, group.len() - 1));
        odd_at.extend(causes.into_iter().next().map(|main| (at, main)));
    }
    let elsewhere: Vec<u32> = replicas.evidence.elsewhere().map(|at| id(at).rank).collect();
    let difference =
        (group.len() == 2 && elsewhere.is_empty()).then(|| two(number, [id(0), id(1)], &replicas));
    let unlike: Vec<u32> = replicas.evidence.unlike().map(|at| id(at).rank).collect();
    Found {
        not_compared: match group.len() {
            ..=1 => None,
            replicas if !elsewhere.is_empty() => Some(other_parts(&elsewhere, replicas)),
            replicas => (!unlike.is_empty()).then(|| not_compared(&unlike, replicas)),
        },
        group: group_row(group, members),
        difference: difference.filter(|d| odd.is_empty() && d.holders.iter().any(|rows| !rows.is_empty())),
        odd,
        odd_at,
        waiting,
    }
}

fn odd_rank(group: u32, id: RankId, causes: &[Cause], peers: usize) -> OddRank {
    let main = &causes[0];
    let mut also: Vec<Why> =
        causes[1..].iter().map(|cause| cause.why).filter(|&why| why != main.why).collect();
    also.dedup();
    OddRank {
        rank: id.rank,
        device: id.device,
        group,
        bytes: main.bytes,
        why: main.why,
        also,
        sentence: sentence(main, peers),
        holders: main.holders.iter().map(holder).collect(),
    }
}

fn holder(row: &Excess) -> OddHolder {
    OddHolder {
        label: row.label.clone(),
        kind: row.kind.to_owned(),
        bytes: row.bytes,
        peer_bytes: row.peers,
        count: row.count,
    }
}

fn sentence(cause: &Cause, peers: usize) -> String {
    let others = plural(peers as u64, "replica");
    let not = verb(peers as u64, "does not", "do not");
    match &cause.facts {
        Facts::Failed { times, asked, device_free } => format!(
            "a request of {} failed here ({}), with {} free on the device; on most other ranks none failed",
            bytes(*asked),
            if *times == 1 { "once".to_owned() } else { format!("{times} times") },
            bytes(*device_free)
        ),
        Facts::Set { here, peers } => {
            format!("its allocator settings are {here}; those of most other ranks are {peers}")
        }
        Facts::Leaks { per_step, steps } => format!(
            "it keeps {} more of each step than its {others}, over {}",
            bytes(*per_step),
            plural(*steps as u64, "step")
        ),
        Facts::Holds { more, lasting: true } => {
            format!("it holds {} that its {others} {not} hold, until the end", bytes(*more))
        }
        Facts::Holds { more, lasting: false } => {
            format!("it holds {} within a step that its {others} {not} hold", bytes(*more))
        }
        Facts::Larger { share, step } => {
            let when = step.map_or_else(String::new, |step| format!(", most in step {step}"));
            format!("what it needs within a step is {} larger than on its {others}{when}", percent(*share))
        }
        Facts::Slower { us, peers_us, stepwise } => {
            let (what, those) = if *stepwise { ("steps take", "those") } else { ("run takes", "that") };
            let (here, there) = (duration(*us as u64), duration(*peers_us as u64));
            format!("its {what} {here}, {those} of its {others} {there}, with the same memory")
        }
        Facts::Stopped { steps, peers } => {
            format!("it stopped after {}, its {others} after {}", plural(*steps, "step"), count(*peers))
        }
    }
}

fn wait(group: u32, slow: RankId, us: f64, at: usize, summaries: &[&Summary]) -> Waiting {
    let held: Vec<f64> = summaries
        .iter()
        .enumerate()
        .filter(|&(i, _)| i != at)
        .map(|(_, s)| median(&s.steps.iter().map(|step| step.end as f64).collect::<Vec<_>>()))
        .collect();
    Waiting {
        group,
        for_rank: slow.rank,
        for_device: slow.device,
        ranks: held.len() as u64,
        us_per_step: us,
        held_bytes: median(&held) as u64,
    }
}

/// A sentence on parts left out of the comparison of a group of `replicas` ranks whose recordings differ.
fn not_compared(unlike: &[u32], replicas: usize) -> String {
    let which = match unlike {
        [one] => format!("rank {one} was recorded otherwise than its replicas"),
        all if all.len() == replicas => format!("ranks {} were recorded in different ways", ranges(all)),
        some => format!("ranks {} were recorded otherwise than their replicas", ranges(some)),
    };
    format!(
        "{which} (with stacks, without, or with other frames): who holds what is compared by the size of requests there, \
         and times and the number of steps are not compared"
    )
}

/// The same if their recordings begin at other moments of the run.
fn other_parts(elsewhere: &[u32], replicas: usize) -> String {
    let which = match elsewhere {
        [one] => format!("rank {one} was recorded from another moment on than its replicas"),
        all if all.len() == replicas => {
            format!("ranks {} were recorded from different moments on", ranges(all))
        }
        some => format!("ranks {} were recorded from other moments on than their replicas", ranges(some)),
    };
    format!(
        "{which}, or without a history: only failed requests and settings are compared there; record all ranks from \
         the start, with the same max_entries"
    )
}

fn two(group: u32, ranks: [RankId; 2], pair: &Replicas<'_>) -> Difference {
    let rows = |at: usize| odd::differences(pair, at).iter().map(holder).collect();
    Difference {
        group,
        ranks,
        peaks: [pair.ranks[0].peak(), pair.ranks[1].peak()],
        holders: [rows(0), rows(1)],
    }
}

fn group_row(group: &[usize], members: &[Member<'_>]) -> Group {
    let summaries: Vec<&Summary> = group.iter().map(|&at| members[at].summary).collect();
    let peaks: Vec<f64> = summaries.iter().map(|s| s.peak() as f64).collect();
    let worst = group.iter().rev().max_by_key(|&&at| members[at].summary.peak());
    let paces: Vec<f64> = summaries.iter().filter_map(|s| step_pace(s)).collect();
    Group {
        ranks: group.iter().map(|&at| members[at].id).collect(),
        worst_rank: worst.map_or(0, |&at| members[at].id.rank),
        max_peak: summaries.iter().map(|s| s.peak()).max().unwrap_or(0),
        median_peak: median(&peaks) as u64,
        min_peak: summaries.iter().map(|s| s.peak()).min().unwrap_or(0),
        imbalance: imbalance(&summaries).unwrap_or(0.0),
        step_us: (!paces.is_empty()).then(|| median(&paces)),
        comparable: group.len() >= 3,
    }
}

/// Highest peak / mean peak - 1: of reserved bytes, or of allocated ones if a rank does not know the others.
pub(crate) fn imbalance(summaries: &[&Summary]) -> Option<f64> {
    let reserved: Option<Vec<u64>> = summaries.iter().map(|s| s.peak_reserved).collect();
    let peaks = reserved.unwrap_or_else(|| summaries.iter().map(|s| s.peak_allocated).collect());
    let most = *peaks.iter().max()?;
    let mean = peaks.iter().map(|&peak| peak as f64).sum::<f64>() / peaks.len() as f64;
    Some(if mean > 0.0 { most as f64 / mean - 1.0 } else { 0.0 })
}

/// The ranks with the highest peak and with the middle one.
fn ends(members: &[Member<'_>]) -> (Option<u32>, Option<u32>) {
    let mut order: Vec<&Member<'_>> = members.iter().collect();
    order.sort_by_key(|member| (std::cmp::Reverse(member.summary.peak()), member.id.rank));
    (order.first().map(|m| m.id.rank), order.get(order.len() / 2).map(|m| m.id.rank))
}

fn first_divergence(found: &[Found], groups: &[Vec<usize>], members: &[Member<'_>]) -> Option<Divergence> {
    let summaries =
        |group: &[usize]| -> Vec<&Summary> { group.iter().map(|&at| members[at].summary).collect() };
    let any_odd = found.iter().any(|f| !f.odd_at.is_empty());
    let mut all: Vec<(f64, Divergence)> = Vec::new();
    for (number, (group, f)) in groups.iter().zip(found).enumerate() {
        let ranks = summaries(group);
        let places: Vec<divergence::Found> = if any_odd {
            f.odd_at.iter().map(|(at, cause)| divergence::of_rank(&ranks, *at, cause)).collect()
        } else {
            divergence::of_group(&ranks).into_iter().collect()
        };
        for place in places {
            let id = members[group[place.at]].id;
            let share = f64::from(place.when.tick) / ranks[place.at].events.max(1) as f64;
            let divergence = Divergence {
                rank: id.rank,
                device: id.device,
                group: number as u32,
                of: place.of,
                step: place.when.step,
                tick: place.when.tick,
                time_us: place.when.time_us,
                bytes: place.bytes as u64,
                peer_bytes: place.typical as u64,
                sentence: place.sentence(id.rank),
            };
            all.push((share, divergence));
        }
    }
    // Clocks differ between ranks, so the share of the run that has passed orders them.
    all.sort_by(|(a, x), (b, y)| a.total_cmp(b).then_with(|| x.rank.cmp(&y.rank)));
    all.into_iter().next().map(|(_, divergence)| divergence)
}

fn rows(run: &Run, groups: &[Vec<usize>]) -> Vec<RankRow> {
    let mut of_member: Vec<u32> = vec![0; groups.iter().map(Vec::len).sum()];
    for (number, group) in groups.iter().enumerate() {
        for &at in group {
            of_member[at] = number as u32;
        }
    }
    let mut next = 0;
    let mut rows = Vec::new();
    for file in &run.files {
        if file.devices.is_empty() {
            let error = file.error.clone().unwrap_or_else(|| "the trace has no device".to_owned());
            let row = RankRow { rank: file.rank, file: file.file.clone(), ..RankRow::default() };
            rows.push(RankRow { error: Some(error), ..row });
        }
        for summary in &file.devices {
            rows.push(row(file.rank, &file.file, summary, of_member[next]));
            next += 1;
        }
    }
    rows
}

fn row(rank: u32, file: &str, s: &Summary, group: u32) -> RankRow {
    RankRow {
        rank,
        file: file.to_owned(),
        device: Some(s.device),
        group: Some(group),
        events: Some(s.events),
        peak_allocated: Some(s.peak_allocated),
        peak_reserved: s.peak_reserved,
        fragmentation: s.fragmentation,
        peak_allocated_at: Some(s.allocated_at),
        peak_reserved_at: s.peak_reserved.map(|_| s.reserved_at),
        steps: Some(s.step_count),
        step_us: step_pace(s),
        growth_per_step: s.growth_per_step,
        kinds: Some(s.kinds),
        ooms: s.ooms.clone(),
        notes: s.notes.clone(),
        error: None,
    }
}

fn missing(run: &Run) -> Vec<u32> {
    let have: FxHashSet<u32> = run.files.iter().map(|file| file.rank).collect();
    let (Some(&least), Some(&most)) = (have.iter().min(), have.iter().max()) else { return Vec::new() };
    // Some launchers count ranks from one.
    let from = if least == 1 && have.len() as u32 == most { 1 } else { 0 };
    let to = run.world_size.map_or(most, |size| most.max(size.saturating_sub(1)));
    (from..=to).filter(|rank| !have.contains(rank)).take(MISSING).collect()
}

fn duplicates(run: &Run) -> Vec<u32> {
    let mut seen = FxHashSet::default();
    let mut twice: Vec<u32> =
        run.files.iter().map(|file| file.rank).filter(|&rank| !seen.insert(rank)).collect();
    twice.sort_unstable();
    twice.dedup();
    twice
}

fn timelines(members: &[Member<'_>]) -> Vec<Timeline> {
    let points = (POINTS / members.len().max(1)).clamp(FEWEST, MOST);
    members.iter().map(|member| timeline(member, points)).collect()
}

fn timeline(member: &Member<'_>, points: usize) -> Timeline {
    let curve = &member.summary.curve;
    let each = curve.len().div_ceil(points).max(1);
    let mut line = Timeline { rank: member.id.rank, device: member.id.device, ..Timeline::default() };
    for stretch in curve.chunks(each) {
        line.ticks.push(stretch[0].tick);
        line.time_us.extend(stretch[0].time_us);
        line.allocated.push(stretch.iter().map(|p| p.allocated).max().unwrap_or(0));
        line.reserved.push(stretch.iter().map(|p| p.reserved).max().unwrap_or(0));
    }
    line
}
