//! A plan as JSON: `gapless.fit-into/1`.

use crate::simulate::Mode;
use crate::solve::Plan;
use crate::step::Step;
use serde::Serialize;
use std::collections::BTreeMap;

pub const SCHEMA: &str = "gapless.fit-into/1";

#[derive(Debug, Serialize)]
pub struct Answer {
    pub schema: &'static str,
    pub budget: u64,
    pub fits: bool,
    pub peak: u64,
    pub time_us: f64,
    /// No plan is faster within the budget; none: no plan is within the budget.
    pub bound_us: Option<f64>,
    /// No plan has a lower peak.
    pub least: u64,
    pub kept: Kept,
    /// Values that leave the device in their gap, or are made again as sources.
    pub again: Vec<u32>,
    pub held: Vec<u32>,
    /// Operators that run again: (which, before which).
    pub replays: Vec<(u32, u32)>,
    pub dropped_bytes: u64,
    /// Saved values by the part that they play, most bytes first.
    pub groups: Vec<Group>,
    /// The plan for people, from told().
    pub text: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frontier: Vec<Point>,
}

/// The step with everything kept.
#[derive(Debug, Serialize)]
pub struct Kept {
    pub peak: u64,
    pub time_us: f64,
}

#[derive(Debug, Serialize)]
pub struct Point {
    pub budget: u64,
    pub fits: bool,
    pub peak: u64,
    pub time_us: f64,
    pub bound_us: Option<f64>,
}

impl Answer {
    #[must_use]
    pub fn new(step: &Step, budget: u64, plan: &Plan, frontier: &[(u64, Plan)]) -> Answer {
        let dropped = |v: &u32| step.values[*v as usize].drop;
        let again: Vec<u32> =
            (0..step.values.len() as u32).filter(|&v| plan.choice[v as usize] == Mode::Again).collect();
        let finite = |time: f64| time.is_finite().then_some(time);
        Answer {
            schema: SCHEMA,
            budget,
            fits: plan.fits,
            peak: plan.outcome.peak,
            time_us: plan.outcome.time_us,
            bound_us: finite(plan.bound.time_us),
            least: plan.bound.peak,
            kept: Kept { peak: step.peak(), time_us: step.time_us },
            groups: groups(step, plan),
            text: String::new(),
            dropped_bytes: again.iter().filter(|v| dropped(v)).map(|&v| step.values[v as usize].size).sum(),
            again,
            held: plan.outcome.held.clone(),
            replays: plan.outcome.replays.clone(),
            frontier: frontier
                .iter()
                .map(|(budget, plan)| Point {
                    budget: *budget,
                    fits: plan.fits,
                    peak: plan.outcome.peak,
                    time_us: plan.outcome.time_us,
                    bound_us: finite(plan.bound.time_us),
                })
                .collect(),
        }
    }
}

/// Saved values that play the same part in blocks that repeat.
#[derive(Debug, Serialize)]
pub struct Group {
    pub place: String,
    pub op: String,
    pub bytes: u64,
    pub values: usize,
    pub dropped_bytes: u64,
    pub dropped: usize,
    /// Microseconds to make a GiB of it again, without its sources.
    pub us_per_gib: f64,
    /// Why none of it can be dropped, if that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stays: Option<&'static str>,
}

fn groups(step: &Step, plan: &Plan) -> Vec<Group> {
    let mut by: BTreeMap<(&str, &str, u32, bool), Group> = BTreeMap::new();
    for (v, value) in step.values.iter().enumerate() {
        if value.need.is_none() || value.natural >= value.need.unwrap_or(0) {
            continue;
        }
        let op = &step.ops[value.birth as usize];
        let can = step.can_drop(v as u32);
        let group = by.entry((&op.place, &op.name, value.alike, can)).or_insert_with(|| Group {
            place: op.place.clone(),
            op: op.name.clone(),
            bytes: 0,
            values: 0,
            dropped_bytes: 0,
            dropped: 0,
            us_per_gib: step.cost(value.birth) / (value.size.max(1) as f64 / f64::from(1 << 30)),
            stays: (!can).then_some(if op.again { "too small" } else { "cannot be made again" }),
        });
        group.bytes += value.size;
        group.values += 1;
        if can && plan.choice[v] == Mode::Again {
            group.dropped_bytes += value.size;
            group.dropped += 1;
        }
    }
    let mut list: Vec<Group> = by.into_values().collect();
    list.sort_by(|a, b| {
        b.bytes.cmp(&a.bytes).then_with(|| a.place.cmp(&b.place)).then_with(|| a.op.cmp(&b.op))
    });
    list
}
