//! `gapless fleet advise`: requests that could be lower, from recorded peaks.

use super::opened;
use crate::cli::fleet::{AdviseArgs, AdviseFormat};
use crate::{Answer, output, sizes};
use anyhow::Result;
use gapless_fleet::advise::{Advice, Verdict, advise, read};
use gapless_trace::Bytes;
use gapless_trace::numbers::plural;
use serde_json::{Value, json};
use std::fmt::Write;

pub(super) fn run(args: &AdviseArgs) -> Result<Answer> {
    let gpu = args.gpu_memory.as_deref().map(|text| sizes::memory("--gpu-memory", text)).transpose()?;
    let records = opened(&args.file, |input| read(input))?;
    let all = advise(&records, gpu.map(|size| size.0));
    match args.format {
        AdviseFormat::Text => output::write_text(args.output.as_deref(), &text(&all))?,
        AdviseFormat::Json => {
            let list: Vec<Value> = all.iter().map(as_json).collect();
            let document = json!({"schema": "gapless.fleet-advice/1", "groups": list});
            output::write_to(args.output.as_deref(), |out| Ok(writeln!(out, "{document:#}")?))?;
        }
    }
    Ok(Answer::Yes)
}

fn text(all: &[Advice]) -> String {
    let mut out = String::new();
    let freed: u64 = all.iter().map(|advice| advice.freed).sum();
    let groups = plural(all.len() as u64, "group");
    let _ = writeln!(out, "{groups} · one pod of each would free {}\n", Bytes(freed));
    for advice in all {
        let what = match advice.verdict {
            Verdict::Lower(bytes) => format!("lower to {}, frees {}", Bytes(bytes), Bytes(advice.freed)),
            Verdict::Raise(bytes) => format!("raise to at least {}", Bytes(bytes)),
            Verdict::Keep => "keep".to_owned(),
            Verdict::TooFewRuns => "too few runs to lower it".to_owned(),
        };
        let name: String =
            advice.group.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        let _ = writeln!(out, "  {name}");
        let _ = writeln!(
            out,
            "    {what}\n    asks for {}, peak {} in {}, confidence {:.0} %",
            Bytes(advice.requested),
            Bytes(advice.peak),
            plural(advice.runs as u64, "run"),
            advice.confidence()
        );
        if let Some((before, after)) = advice.sharing.filter(|(before, after)| after > before) {
            let _ = writeln!(out, "    {after} such pods could share a GPU; now {before}");
        }
    }
    out
}

fn as_json(advice: &Advice) -> Value {
    let (verdict, bytes) = match advice.verdict {
        Verdict::Lower(bytes) => ("lower", Some(bytes)),
        Verdict::Raise(bytes) => ("raise", Some(bytes)),
        Verdict::Keep => ("keep", None),
        Verdict::TooFewRuns => ("too-few-runs", None),
    };
    json!({
        "group": advice.group,
        "runs": advice.runs,
        "requested": advice.requested,
        "peak": advice.peak,
        "verdict": verdict,
        "advised": bytes,
        "freed": advice.freed,
        "confidence": advice.confidence(),
        "pods_on_a_gpu": advice.sharing.map(|(before, after)| json!({"now": before, "then": after})),
    })
}
