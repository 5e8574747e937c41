//! Writes a page of many ranks, one of which leaks, its JSON beside it, the page that compares two of them, and the one
//! that compares the run with an earlier one without the leak:
//! `cargo run --example ranks_page -- out.html 64`. The ranks are made from a recorded run.

#[path = "rank_cases/generate.rs"]
#[allow(dead_code)] // the tests of ranks use the rest
mod generate;

use gapless_report::ranks::{self, RankFile, Run, Summary};
use gapless_report::{Analysis, diff};
use gapless_trace::{Action, BlockNote, Tick, Trace};
use generate::{Base, Fault, Noise};
use std::io::{BufWriter, Write};
use std::path::Path;

const NOISE: Noise = Noise { sizes: 0.02, each: 0.0, times: 0.03, logging: 1 << 20, stage: 1.0, bare: false };

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "ranks.html".into());
    let count: u32 = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(64);
    let odd = count / 3;
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    let base = Base::open(&traces.join("gpt2_train_stacks.pickle.gz"));
    let fault = |rank: u32| (rank == odd).then_some(Fault::Leak(300 << 20));
    let trace = |rank: u32| noted(base.rank(rank, 7, NOISE, fault(rank), true));
    let name = |rank: u32| format!("rank{rank}.pickle");
    let files = (0..count).map(|rank| {
        // The last one cannot be read.
        if rank + 1 == count {
            return RankFile {
                file: name(rank),
                rank,
                error: Some("the file ends at byte 7".into()),
                ..RankFile::default()
            };
        }
        let devices = Summary::of(&Analysis::of(&trace(rank)).expect("a run that can be"));
        RankFile { file: name(rank), rank, devices, error: None }
    });
    let run = Run {
        path: "run".to_owned(),
        files: files.collect(),
        numbering: "made up".to_owned(),
        ..Run::default()
    };
    let report = ranks::report(&run);
    let json = ranks::json(&report).map_err(std::io::Error::other)?;
    std::fs::write(format!("{path}.json"), &json)?;
    let mut page =
        gapless_page::ranks::Writer::new(BufWriter::new(std::fs::File::create(&path)?), "run", &json)?;
    for rank in ranks::shown(&report) {
        let own = trace(rank);
        let analysis = Analysis::of(&own).map_err(std::io::Error::other)?;
        let report =
            gapless_report::json(&analysis.report(&name(rank), 10)).map_err(std::io::Error::other)?;
        page.rank(rank, &analysis.page("run", &report))?;
    }
    page.finish()?;
    let (first, second) = (trace(0), trace(odd));
    let (before, after) = (
        Analysis::of(&first).map_err(std::io::Error::other)?,
        Analysis::of(&second).map_err(std::io::Error::other)?,
    );
    let compared = diff::compare(&before, &name(0), &after, &name(odd));
    let mut out = std::fs::File::create(format!("{path}.diff.html"))?;
    out.write_all(diff::page(&compared, &before, &after).as_bytes())?;
    let json = diff::json(&compared).map_err(std::io::Error::other)?;
    std::fs::write(format!("{path}.diff.json"), json)?;
    // The same run before the leak, and the page of both.
    let clean = |file: RankFile| {
        if file.rank != odd {
            return file;
        }
        let own = noted(base.rank(odd, 7, NOISE, None, true));
        RankFile { devices: Summary::of(&Analysis::of(&own).expect("a run that can be")), ..file }
    };
    let earlier = Run {
        path: "earlier".to_owned(),
        files: run.files.iter().cloned().map(clean).collect(),
        ..run.clone()
    };
    let compared = ranks::diff::compare(&earlier, &run);
    let (first, second) = (noted(base.rank(odd, 7, NOISE, None, true)), trace(odd));
    let (before, after) = (
        Analysis::of(&first).map_err(std::io::Error::other)?,
        Analysis::of(&second).map_err(std::io::Error::other)?,
    );
    let body = diff::body(&diff::compare(&before, &name(odd), &after, &name(odd)), &before, &after);
    std::fs::write(format!("{path}.ranks-diff.html"), ranks::diff_page::page(&compared, &body))?;
    let json = ranks::diff::json(&compared).map_err(std::io::Error::other)?;
    std::fs::write(format!("{path}.ranks-diff.json"), json)
}

/// The run with a note on its first block, as a program writes one after an allocation.
fn noted(mut trace: Trace) -> Trace {
    let text = trace.strings.intern("encoder.blocks.7.annotated");
    let device = &mut trace.devices[0];
    let first = device.events.indices().find(|&i| device.events.action(i) == Action::Alloc);
    let first = first.expect("an allocation");
    device.notes.push(BlockNote { tick: Tick(first.0 + 1), addr: device.events.addr(first), text });
    trace
}
