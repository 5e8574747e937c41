//! Groups of ranks that are replicas of each other. Replicas hold the same model, judged by the sizes of memory that
//! is there from before the first step until the end. Ranks that hold other parts of a model (pipeline stages) are
//! other groups. Ranks are compared only within their group.
//!
//! A rank that holds all that a group holds and more belongs to that group, because the extra may be its fault. It
//! does not if the extra is trained as well (it has optimizer state of its own), as an embedding on the first stage
//! is. A rank on which a request failed may have ended before it held everything: it belongs to the group that holds
//! all its memory. Stages with equal weights differ in how many micro-batches they keep: a group is cut where its
//! transient bytes jump, if at least two ranks lie on either side.

use super::sizes::{self, BySize};
use super::summary::Summary;

/// The share of their memory in which two replicas must agree.
const SAME: f64 = 0.97;
/// The share of a group's model that a member must hold.
const CONTAINED: f64 = 0.9;
/// Extra memory is trained if its optimizer state is at least this share of it.
const TRAINED: f64 = 0.5;
/// A stage holds at least this much more than another one, as a share. Less is a workspace or a buffer.
const STAGE: f64 = 0.1;
/// A small group may join a larger one of which it is at most this share.
const JOINS: f64 = 0.25;
/// A jump of transient bytes that separates stages.
const JUMP: f64 = 1.15;
/// The largest ratio between transient bytes of one stage.
const CLOSE: f64 = 1.07;

/// Groups of positions in `ranks`: each in order, and by their first member.
#[must_use]
pub fn groups(ranks: &[&Summary]) -> Vec<Vec<usize>> {
    let mut found: Vec<Vec<usize>> = Vec::new();
    for (at, rank) in ranks.iter().enumerate() {
        let home = found.iter_mut().find(|group| is_replica(ranks[group[0]], rank));
        match home {
            Some(group) => group.push(at),
            None => found.push(vec![at]),
        }
    }
    join(ranks, &mut found);
    pair(ranks, &mut found);
    let mut cut: Vec<Vec<usize>> = found.into_iter().flat_map(|group| stages(ranks, group)).collect();
    for group in &mut cut {
        group.sort_unstable();
    }
    cut.sort_by_key(|group| group[0]);
    cut
}

/// The first step may be found at different places on different ranks. So ranks that keep the same until the
/// end are replicas too.
fn is_replica(a: &Summary, b: &Summary) -> bool {
    let agree = |a: &BySize, b: &BySize| {
        let most = sizes::total(a).max(sizes::total(b));
        sizes::common(a, b) as f64 >= SAME * most as f64
    };
    agree(&a.base, &b.base) || !a.kept.is_empty() && agree(&a.kept, &b.kept)
}

/// True if `rank` holds all that `member` does, and no more of a model.
fn belongs(rank: &Summary, member: &Summary) -> bool {
    let common = sizes::common(&rank.base, &member.base) as f64;
    if !rank.ooms.is_empty()
        && member.ooms.is_empty()
        && common >= CONTAINED * sizes::total(&rank.base) as f64
    {
        return true;
    }
    let trained = rank.trained.saturating_sub(member.trained) as f64;
    let holds = |own: &BySize, wanted: &BySize, share: f64| {
        let more = sizes::total(own).saturating_sub(sizes::total(wanted)) as f64;
        let wanted_bytes = sizes::total(wanted) as f64;
        let is_stage = more > STAGE * wanted_bytes && is_model(more, trained);
        sizes::common(own, wanted) as f64 >= share * wanted_bytes && !is_stage
    };
    holds(&rank.base, &member.base, CONTAINED)
        || !member.kept.is_empty() && holds(&rank.kept, &member.kept, SAME)
}

/// True if bytes that are there from the beginning are part of a model: they come with optimizer state.
pub(crate) fn is_model(bytes: f64, optimizer_state: f64) -> bool {
    bytes > 0.0 && optimizer_state >= TRAINED * bytes
}

/// Small groups join the largest group whose model they hold.
fn join(ranks: &[&Summary], found: &mut Vec<Vec<usize>>) {
    let mut at = 0;
    while at < found.len() {
        let size = found[at].len();
        let host = (0..found.len())
            .filter(|&other| other != at)
            .filter(|&other| {
                let larger = found[other].len();
                larger >= 2 && (size == 1 || size as f64 <= JOINS * larger as f64) && size < larger
            })
            .filter(|&other| belongs(ranks[found[at][0]], ranks[found[other][0]]))
            .max_by_key(|&other| found[other].len());
        match host {
            Some(host) => {
                let joining = std::mem::take(&mut found[at]);
                found[host].extend(joining);
                found.remove(at);
                at = 0;
            }
            None => at += 1,
        }
    }
}

/// In a run of two ranks, they are replicas if one holds all that the other does, and little more.
fn pair(ranks: &[&Summary], found: &mut Vec<Vec<usize>>) {
    if ranks.len() != 2 || found.len() != 2 {
        return;
    }
    let little = |at: usize| {
        let (own, wanted) = (ranks[at], ranks[1 - at]);
        let more = sizes::total(&own.base).saturating_sub(sizes::total(&wanted.base));
        more as f64 <= JOINS * sizes::total(&own.base).max(own.peak_live) as f64
    };
    if (0..2).any(|at| belongs(ranks[at], ranks[1 - at]) && little(at)) {
        *found = vec![vec![0, 1]];
    }
}

/// Cuts a group where its transient bytes jump.
fn stages(ranks: &[&Summary], group: Vec<usize>) -> Vec<Vec<usize>> {
    let swing = |at: usize| ranks[at].swing.max(1) as f64;
    let mut order = group.clone();
    order.sort_by(|&a, &b| swing(a).total_cmp(&swing(b)).then(a.cmp(&b)));
    let mut parts: Vec<Vec<usize>> = Vec::new();
    for at in order {
        match parts.last_mut() {
            Some(part) if swing(at) < JUMP * swing(part[part.len() - 1]) => part.push(at),
            _ => parts.push(vec![at]),
        }
    }
    // A single rank is no stage. It joins the stage below it, in which it then shows as odd.
    let mut stages: Vec<Vec<usize>> = Vec::new();
    let mut alone: Vec<usize> = Vec::new();
    for part in parts {
        if part.len() == 1 {
            match stages.last_mut() {
                Some(below) => below.push(part[0]),
                None => alone.extend(part),
            }
        } else if swing(part[part.len() - 1]) <= CLOSE * swing(part[0]) {
            stages.push(part);
        } else {
            // Values without a clear gap are one group, however far they spread.
            return vec![group];
        }
    }
    // With many ranks below all stages, the jumps do not separate stages.
    if stages.len() < 2 || 4 * alone.len() > group.len() {
        return vec![group];
    }
    stages[0].extend(alone);
    stages
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn rank(weights: &[u64], swing: u64) -> Summary {
        let mut base: Vec<(u16, u64)> = weights.iter().map(|&w| (sizes::class(w), w)).collect();
        base.sort_unstable();
        Summary { base, swing, ..Summary::default() }
    }

    fn grouped(ranks: &[Summary]) -> Vec<Vec<usize>> {
        groups(&ranks.iter().collect::<Vec<_>>())
    }

    #[test]
    fn replicas_are_one_group_and_stages_are_others() {
        let (first, middle) = ([2 * GIB, GIB, 100 << 20], [3 * GIB, 200 << 20]);
        let ranks = [rank(&first, GIB), rank(&middle, GIB), rank(&first, GIB), rank(&middle, GIB)];
        assert_eq!(grouped(&ranks), [[0, 2], [1, 3]]);
    }

    #[test]
    fn a_rank_with_an_extra_buffer_stays_with_its_replicas_wherever_it_stands() {
        for odd in 0..4 {
            let mut ranks: Vec<Summary> = (0..4).map(|_| rank(&[GIB], GIB)).collect();
            ranks[odd] = rank(&[GIB, 5 * GIB], GIB);
            assert_eq!(grouped(&ranks).len(), 1, "{odd}");
        }
    }

    #[test]
    fn of_two_ranks_one_with_a_buffer_is_a_replica_and_another_stage_is_not() {
        assert_eq!(grouped(&[rank(&[4 * GIB], GIB), rank(&[4 * GIB, 500 << 20], GIB)]).len(), 1);
        assert_eq!(grouped(&[rank(&[4 * GIB], GIB), rank(&[4 * GIB, 3 * GIB], GIB)]).len(), 2);
        assert_eq!(grouped(&[rank(&[4 * GIB], GIB), rank(&[3 * GIB, 200 << 20], GIB)]).len(), 2);
    }

    #[test]
    fn ranks_that_keep_the_same_are_replicas_wherever_their_first_step_begins() {
        let mut ranks: Vec<Summary> = (0..4).map(|_| rank(&[GIB, 2 * GIB], GIB)).collect();
        for rank in &mut ranks {
            rank.kept = rank.base.clone();
        }
        ranks[1].base.clear();
        ranks[2].base.truncate(1);
        assert_eq!(grouped(&ranks).len(), 1);
    }

    #[test]
    fn an_embedding_that_is_trained_makes_a_stage() {
        let with_state = |weights: &[u64]| {
            let mut summary = rank(weights, GIB);
            summary.trained = 2 * weights.iter().sum::<u64>();
            summary
        };
        let mut ranks: Vec<Summary> = (0..6).map(|_| with_state(&[4 * GIB])).collect();
        ranks[0] = with_state(&[4 * GIB, 2 * GIB]);
        assert_eq!(grouped(&ranks), vec![vec![0], vec![1, 2, 3, 4, 5]]);
    }

    #[test]
    fn replicas_stay_together_whatever_was_taken_for_optimizer_state() {
        let mut ranks: Vec<Summary> = (0..4).map(|_| rank(&[4 * GIB], GIB)).collect();
        (ranks[1].trained, ranks[2].trained) = (8 * GIB, 5 * GIB);
        assert_eq!(grouped(&ranks).len(), 1);
    }

    #[test]
    fn a_rank_that_failed_early_stays_with_its_replicas() {
        let mut ranks: Vec<Summary> = (0..4).map(|_| rank(&[4 * GIB, 2 * GIB], GIB)).collect();
        ranks[3] = rank(&[2 * GIB], GIB);
        assert_eq!(grouped(&ranks).len(), 2);
        ranks[3].ooms.push(crate::model::OomInfo { tick: 9, asked: GIB, device_free: 0 });
        assert_eq!(grouped(&ranks).len(), 1);
    }

    #[test]
    fn stages_of_equal_weights_are_told_by_their_transient_bytes_and_one_rank_alone_is_none() {
        let mut ranks: Vec<Summary> =
            [4, 4, 4, 4, 2, 2, 2, 2].iter().map(|n| rank(&[GIB], n * GIB)).collect();
        assert_eq!(grouped(&ranks), vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        ranks[1].swing = 6 * GIB;
        assert_eq!(grouped(&ranks), vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        let one: Vec<Summary> = [10, 10, 10, 14].iter().map(|n| rank(&[GIB], n * GIB)).collect();
        assert_eq!(grouped(&one).len(), 1);
    }
}
