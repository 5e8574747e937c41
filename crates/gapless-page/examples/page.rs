//! Writes the page of a made-up run, and its report as JSON beside it: `cargo run --example page -- out.html 20000`.

#[path = "../tests/support/synthetic.rs"]
mod synthetic;

use gapless_page::{Page, PageDevice};
use gapless_trace::{Bytes, History, Meter, Moment};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "page.html".into());
    let wanted = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let run = synthetic::run(wanted, "</script><img src=x onerror=document.title='owned'>");
    let device = &run.trace.devices[0];
    let history = History::rebuild(&run.trace, device).map_err(std::io::Error::other)?;
    let json = report(&run, &history);
    let mut out = std::io::BufWriter::new(std::fs::File::create(&path)?);
    let started = std::time::Instant::now();
    let page = Page {
        title: "A made-up run",
        report_json: &json,
        trace: &run.trace,
        devices: vec![PageDevice {
            device,
            history: &history,
            kinds: &run.kinds,
            steps: &run.steps,
            places: None,
        }],
        kind_names: &synthetic::KINDS,
    };
    gapless_page::write(&mut out, &page)?;
    out.flush()?;
    println!(
        "{path}: {} allocations, {} events, {}, in {:?}",
        history.allocations.len(),
        device.events.len(),
        Bytes(std::fs::metadata(&path)?.len()),
        started.elapsed()
    );
    std::fs::write(format!("{path}.json"), json)
}

/// The members of the report that the page and its tests read.
fn report(run: &synthetic::Run, history: &History) -> String {
    let usage = &history.usage;
    let moment = Moment::at(history, usage.allocated.peak_at);
    let reserved = Moment::at(history, usage.reserved.peak_at);
    let mut kinds = [0u64; synthetic::KINDS.len()];
    let mut holders: BTreeMap<u32, (u64, u64, u8)> = BTreeMap::new();
    for id in history.allocations.active_at(moment.tick) {
        let allocation = history.allocations.get(id);
        let kind = run.kinds[id.0 as usize];
        kinds[kind as usize] += allocation.block.0;
        let holder = holders.entry(allocation.stack.0).or_default();
        holder.2 = kind;
        holder.0 += allocation.block.0;
        holder.1 += 1;
    }
    let mut ranked: Vec<_> = holders.into_iter().collect();
    ranked.sort_by_key(|(key, (bytes, ..))| (std::cmp::Reverse(*bytes), *key));
    let mut listed = String::new();
    for (rank, (stack, (bytes, count, kind))) in ranked.iter().take(10).enumerate() {
        let frames: Vec<String> = run
            .trace
            .stacks
            .get(gapless_trace::StackId(*stack))
            .iter()
            .map(|&id| {
                let frame = run.trace.frames.get(id);
                let (name, file) = (run.trace.strings.get(frame.name), run.trace.strings.get(frame.file));
                format!("{{\"name\":{name:?},\"file\":{file:?},\"line\":{}}}", frame.line)
            })
            .collect();
        let _ = write!(
            listed,
            "{}{{\"rank\":{},\"bytes\":{bytes},\"count\":{count},\"share\":{},\"kind\":{:?},\"stack\":[{}]}}",
            if rank > 0 { "," } else { "" },
            rank + 1,
            *bytes as f64 / moment.figures.allocated.0 as f64,
            synthetic::KINDS[*kind as usize],
            frames.join(",")
        );
    }
    let at = |meter: &Meter| format!("{{\"tick\":{}}}", meter.peak_at.0);
    let losses = |m: &Moment| {
        let l = &m.losses;
        format!(
            "{{\"tick\":{},\"losses\":{{\"internal\":{},\"external\":{},\"stranded\":{},\"pending\":{},\"largest_gap\":{}}}}}",
            m.tick, l.internal.0, l.external.0, l.stranded.0, l.pending.0, l.largest_gap.0
        )
    };
    let composition: Vec<String> =
        synthetic::KINDS.iter().zip(kinds).map(|(name, bytes)| format!("{name:?}:{bytes}")).collect();
    format!(
        "{{\"schema\":\"gapless.report/1\",\"tool\":{{\"name\":\"gapless\",\"version\":\"0\"}},\"source\":{{\"path\":\"made-up.pickle\",\
         \"format\":\"made up\",\"notes\":[{{\"code\":\"made-up\",\"text\":\"no run left this behind\"}}]}},\"settings\":{{\"conf\":\"\",\
         \"max_split_size\":null,\"expandable_segments\":false}},\"devices\":[{{\"device\":0,\"events\":{},\"allocations\":{},\
         \"peak_allocated\":{},\"peak_active\":{},\"peak_reserved\":{},\"fragmentation\":{},\"peak_at\":{{\"allocated\":{},\"reserved\":{}}},\
         \"at_peak_allocated\":{},\"at_peak_reserved\":{},\"kinds\":{{\"inferred\":true,\"at_peak\":{{{}}}}},\"holders\":[{listed}],\
         \"steps\":{{\"count\":{}}}}}],\"findings\":[{{\"code\":\"G000\",\"severity\":\"warning\",\"headline\":\"A finding\",\
         \"evidence\":[\"a line of evidence\"],\"help\":\"What to do next.\",\"device\":0}}]}}",
        run.trace.devices[0].events.len(),
        history.allocations.len(),
        usage.allocated.peak.0,
        usage.active.peak.0,
        usage.reserved.peak.0,
        usage.fragmentation().unwrap_or(0.0),
        at(&usage.allocated),
        at(&usage.reserved),
        losses(&moment),
        losses(&reserved),
        composition.join(","),
        run.steps.len(),
    )
}
