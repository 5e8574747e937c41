//! `gapless weights quantize`: the error of each layer and reasons for layers that were left, as a table or as JSON.

use super::{failed, manner, shrunk};
use crate::Answer;
use crate::cli::PlainFormat;
use crate::cli::weights::QuantizeArgs;
use crate::{failure, output};
use anyhow::Result;
use gapless_weights::quantize::scheme::Scheme;
use gapless_weights::quantize::{Done, Options};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

pub(crate) fn run(args: &QuantizeArgs) -> Result<Answer> {
    let scheme = args.scheme;
    let work = manner(args.threads, args.limit_rate.as_deref())?;
    let options = Options { scheme, ignore: args.ignore.clone(), experts: args.experts.into(), work };
    let done =
        gapless_weights::quantize(&args.input, &args.output, &options).map_err(|error| failed(&error))?;
    match args.format {
        PlainFormat::Json => {
            let text = serde_json::to_string_pretty(&as_json(&done, scheme))?;
            output::write_to(None, |out| Ok(std::io::Write::write_all(out, (text + "\n").as_bytes())?))?;
        }
        PlainFormat::Text => output::write_text(None, &as_text(&done, scheme))?,
    }
    for pattern in &done.unmatched {
        failure::note(&format!("--ignore {pattern} matches no tensor"));
    }
    for path in &done.not_copied {
        failure::note(&format!("{} is not copied: it is a folder, or too large", path.display()));
    }
    for note in &done.notes {
        failure::note(note);
    }
    if scheme.is_sparse() {
        failure::note(
            "few engines load sparse models: vLLM has dropped 2:4, and compressed-tensors after 0.11 may not read them",
        );
    }
    if !done.has_config {
        let what =
            "there is no config.json: add quantization_config to the model's, as --format json prints it";
        failure::note(what);
    }
    Ok(Answer::Yes)
}

fn as_text(done: &Done, scheme: Scheme) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}  {}  {} matrices quantised, {} left as they are, {} other tensors",
        scheme.name(),
        shrunk(done.before, done.after),
        done.layers.len(),
        done.left.len(),
        done.others
    );
    let _ = writeln!(text, "\n  relative RMS error  shape           layer");
    for layer in &done.layers {
        let shape = format!("[{}, {}]", layer.rows, layer.columns);
        let _ = writeln!(text, "  {:>16.3} %  {shape:14}  {}", 100.0 * layer.error, layer.name);
    }
    if let Some(worst) = done.worst() {
        let _ = writeln!(text, "\n  worst: {} with {:.3} %", worst.name, 100.0 * worst.error);
    }
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for left in &done.left {
        reasons.entry(&left.why).or_default().push(&left.name);
    }
    for (why, names) in reasons {
        let _ = writeln!(text, "\n  left as it is: {why}");
        for name in names {
            let _ = writeln!(text, "    {name}");
        }
    }
    text
}

fn as_json(done: &Done, scheme: Scheme) -> Value {
    let layers: Vec<Value> = done
        .layers
        .iter()
        .map(|layer| {
            json!({
                "name": layer.name, "dtype": layer.dtype, "shape": [layer.rows, layer.columns],
                "relative_rms_error": layer.error,
            })
        })
        .collect();
    let left: Vec<Value> =
        done.left.iter().map(|left| json!({"name": left.name, "reason": left.why})).collect();
    json!({
        "schema": "gapless.weights-quantize/1",
        "scheme": scheme.name(),
        "bytes_before": done.before,
        "bytes_after": done.after,
        "shards": done.shards,
        "layers": layers,
        "worst": done.worst().map(|layer| &layer.name),
        "left": left,
        "other_tensors": done.others,
        "unmatched_patterns": done.unmatched,
        "notes": done.notes,
        "quantization_config": done.config,
        "config_written": done.has_config,
    })
}
