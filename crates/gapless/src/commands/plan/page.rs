//! A plan as a page: the peak and the proven bound, and each buffer as a rectangle at its offset.

use super::{Planned, gap, show};
use anyhow::Result;
use gapless_page::{Page, PageDevice};
use gapless_report::headline::{Bar, Headline, List, Part, Tile, Tone};
use gapless_report::text::count;
use gapless_report::{Analysis, Report};
use gapless_trace::{Action, Bytes, DeviceAddr, DeviceTrace, Event, Micros, StreamId, Trace};
use std::io::Write;

/// Writes the page.
pub(super) fn write(out: &mut dyn Write, planned: &Planned) -> Result<()> {
    let (trace, places) = as_trace(planned);
    let analysis = Analysis::of(&trace)?;
    let headline = Some(headline(planned));
    let report = Report { headline, findings: Vec::new(), ..analysis.report(&planned.name, 10) };
    let json = serde_json::to_string(&report)?;
    let devices = analysis
        .devices
        .iter()
        .map(|d| PageDevice {
            device: d.device,
            history: &d.history,
            kinds: &[],
            steps: &[],
            places: Some(&places),
        })
        .collect();
    let name = planned.name.rsplit('/').next().unwrap_or(&planned.name);
    let title = format!("plan of {name}");
    let page = Page { title: &title, report_json: &json, trace: &trace, devices, kind_names: &[] };
    Ok(gapless_page::write(out, &page)?)
}

/// The plan as a run that allocates each buffer at its offset, and the offsets in the order of births. A gap within a
/// lifetime is a free and a new birth.
fn as_trace(planned: &Planned) -> (Trace, Vec<u64>) {
    let first = planned.problem.buffers().iter().map(|b| b.lifetime.start).min().unwrap_or(0);
    // (time, birth, buffer): at equal times ends sort before births.
    let mut changes: Vec<(i64, bool, usize)> = Vec::new();
    for (index, buffer) in planned.problem.buffers().iter().enumerate() {
        for piece in buffer.pieces() {
            changes.push((piece.start, true, index));
            changes.push((piece.end, false, index));
        }
    }
    changes.sort_unstable();
    let mut device = DeviceTrace::new(0);
    device.stream_index(StreamId(0));
    let mut places = Vec::new();
    for (time, birth, index) in changes {
        let offset = planned.solution.plan.offsets[index].0;
        let size = planned.problem.buffers()[index].size;
        device.events.push(Event {
            action: if birth { Action::Alloc } else { Action::FreeCompleted },
            addr: DeviceAddr(offset),
            size: Bytes(size.0),
            time: Micros(time.abs_diff(first) + 1),
            ..Event::default()
        });
        if birth {
            places.push(offset);
        }
    }
    let mut trace = Trace { devices: vec![device], ..Trace::default() };
    "a plan".clone_into(&mut trace.source.format);
    (trace, places)
}

/// Longer conflicts are shown in the JSON only.
const LONGEST: usize = 50;

/// The answer: the peak, its distance from the bound, the verdict, and the question.
fn headline(planned: &Planned) -> Headline {
    let (problem, solution) = (&planned.problem, &planned.solution);
    let (peak, bound) = (solution.plan.peak, solution.lower_bound);
    let exact = |bytes: Bytes| format!("{} B", count(bytes.0));
    let gap = gap(&solution.plan, bound);
    let proof = if solution.proven_optimal() {
        "proven optimal: no plan has a lower peak".to_owned()
    } else {
        format!("not proven: the lowest peak lies between {bound} and {peak}")
    };
    let mut tiles = vec![
        Tile::new("Peak", peak.to_string(), exact(peak)).strong(),
        Tile::new("Lower bound", bound.to_string(), exact(bound)).strong(),
        Tile::new("Gap", gap, proof.clone()).strong(),
    ];
    if let Some(capacity) = planned.capacity {
        let left = if peak <= capacity {
            format!("{} left", capacity - peak)
        } else {
            format!("{} too little", peak - capacity)
        };
        tiles.push(Tile::new("Capacity", capacity.to_string(), left).strong());
    }
    tiles.push(Tile::new("Buffers", count(problem.len() as u64), kinds_of_buffers(planned)));
    let method = if planned.moved.is_some() {
        "an earlier plan, changed as little as possible".to_owned()
    } else {
        format!("search of {} nodes and steps", count(solution.effort))
    };
    tiles.push(Tile::new("Time", format!("{:.1} ms", planned.took.as_secs_f64() * 1e3), method));
    if let Some(moved) = planned.moved {
        tiles.push(Tile::new("Moved", moved.to_string(), format!("of {}", show::buffers(problem.len()))));
    }
    let (title, tone) = match (planned.capacity, solution.fits) {
        (None, _) if solution.proven_optimal() => (format!("peak {peak}, {proof}"), Tone::Good),
        (None, _) => (format!("peak {peak}; {proof}"), Tone::Plain),
        (Some(capacity), Some(true)) => (format!("fits into {capacity}: peak {peak}"), Tone::Good),
        (Some(capacity), Some(false)) => {
            (format!("does not fit into {capacity}, and no plan can: at least {bound} are needed"), Tone::Bad)
        }
        (Some(capacity), None) => (
            format!("no plan within {capacity} was found in time, and no proof that there is none"),
            Tone::Care,
        ),
    };
    let bar = planned.capacity.map(|capacity| Bar {
        parts: vec![Part { name: "the plan".to_owned(), bytes: peak.0 }],
        limit: capacity.0,
        of: "the capacity".to_owned(),
    });
    Headline { title, tone, tiles, bar, lists: conflict(planned).into_iter().collect(), notes: Vec::new() }
}

/// Counts the buffers with a required place or alignment.
fn kinds_of_buffers(planned: &Planned) -> String {
    let buffers = planned.problem.buffers();
    let fixed = buffers.iter().filter(|buffer| buffer.fixed.is_some()).count();
    let aligned = buffers.iter().filter(|buffer| buffer.alignment.0 > 1).count();
    let most = buffers.iter().map(|buffer| buffer.alignment).max().unwrap_or(Bytes(1));
    match (fixed, aligned) {
        (0, 0) => "none is fixed or aligned".to_owned(),
        (fixed, 0) => format!("{fixed} fixed"),
        (0, aligned) => format!("{aligned} aligned, to {most} at most"),
        (fixed, aligned) => format!("{fixed} fixed; {aligned} aligned, to {most} at most"),
    }
}

/// The buffers that cannot lie in the capacity together, if the planner found such a set.
fn conflict(planned: &Planned) -> Option<List> {
    let all = &planned.solution.conflict;
    if all.is_empty() {
        return None;
    }
    let rows = all.iter().take(LONGEST).map(|&index| {
        let buffer = &planned.problem.buffers()[index];
        let life = format!("[{}, {})", buffer.lifetime.start, buffer.lifetime.end);
        vec![planned.problem.name(index).to_string(), buffer.size.to_string(), life]
    });
    let title = match all.len() {
        1 => "This buffer cannot lie in the capacity".to_owned(),
        many if many > LONGEST => {
            format!("These {many} buffers cannot lie in the capacity together; {LONGEST} of them")
        }
        many => format!("These {many} buffers cannot lie in the capacity together"),
    };
    let columns = ["buffer", "size", "alive in"].map(str::to_owned).to_vec();
    Some(List { title, columns, rows: rows.collect() })
}
