//! A plan in the report's own timeline: each buffer a rectangle at its offset.

use super::Planned;
use anyhow::Result;
use gapless_report::html::{self, Page, PageDevice};
use gapless_report::{Analysis, Report};
use gapless_trace::{Action, Bytes, DeviceAddr, DeviceTrace, Event, Micros, StreamId, Trace};
use std::io::Write;

/// Writes the page.
pub(super) fn write(out: &mut dyn Write, planned: &Planned) -> Result<()> {
    let (trace, places) = as_trace(planned);
    let analysis = Analysis::of(&trace)?;
    let report = Report { findings: Vec::new(), ..analysis.report(&planned.name, 10) };
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
    Ok(html::write(out, &page)?)
}

/// The plan as a run that allocates each buffer at its offset, and the offsets in the order of births. A gap within a
/// lifetime is a free and a new birth.
fn as_trace(planned: &Planned) -> (Trace, Vec<u64>) {
    let first = planned.problem.buffers().iter().map(|b| b.lifetime.start).min().unwrap_or(0);
    // (time, birth, buffer): at one time what ends goes before what begins.
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
