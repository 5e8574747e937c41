//! The format of the weights that are not trained: the checkpoint's, the published one of a name, or the one that was
//! asked for.

use super::asked::Asked;
use super::error::AskError;
use crate::eager::Run;
use crate::formulas::cache;
use crate::formulas::weights::Format;
use crate::hardware::Gpu;
use crate::model::{Architecture, Model};
use crate::settings::Precision;
use crate::stored::{Layout, Origin, Stored};
use crate::weigh::{Beside, beside, width};
use std::sync::Arc;

/// The format found, module by module, and the bytes that the engine adds.
pub(super) struct Kept {
    pub format: Format,
    pub stored: Option<Arc<Stored>>,
    pub beside: Beside,
}

/// Methods whose weights transformers keeps as they are below adapters; it dequantises the others as it loads.
const TRAINED_BELOW: [&str; 15] = [
    "gptq",
    "awq",
    "nf4",
    "nf4-double",
    "fp4",
    "bitsandbytes int8",
    "hqq",
    "aqlm",
    "eetq",
    "quanto",
    "w4a16",
    "w8a16",
    "torchao int8",
    "torchao int4",
    "int8",
];

/// The weights of a question.
pub(super) fn weights(
    path: &str,
    model: &Model,
    architecture: &Architecture,
    asked: &Asked,
    gpu: &Gpu,
    notes: &mut Vec<String>,
) -> Result<Kept, AskError> {
    let half = Kept { format: Format::Half, stored: None, beside: Beside::default() };
    let said = match asked.adapters {
        Some(adapters) => (adapters.base != Format::Half).then_some(adapters.base),
        None => asked.quantize.or(asked.fp8.then_some(Format::Fp8)),
    };
    let held = model.stored.as_ref();
    if !asked.infer && asked.adapters.is_none() {
        if let Some(held) = held {
            notes.push(format!(
                "the checkpoint is quantised ({}): training takes its weights in the run's own precision",
                held.words
            ));
        }
        return Ok(half);
    }
    let fp32 = asked.precision == Some(Precision::Fp32);
    let Some(format) = said else {
        let Some(held) = held else {
            let plain = Format::F32;
            let stored = if asked.sparse { Stored::asked(Format::Half, true).map(Arc::new) } else { None };
            return Ok(Kept { format: if fp32 { plain } else { Format::Half }, stored, ..half });
        };
        let (what, who) = (&held.words, origin(held, path));
        if asked.adapters.is_some() && !TRAINED_BELOW.contains(&held.method) {
            notes.push(format!(
                "{who} in {what}: transformers keeps it in 16 bits to train adapters on it; base=nf4 takes 4"
            ));
            return Ok(half);
        }
        let width = if fp32 { 4 } else { width(architecture).min(2) };
        let beside = beside(held, architecture, asked.engine, gpu, width);
        notes.push(format!("{who} in {what}"));
        notes.extend(beside.notes.iter().cloned());
        if beside.dequantised {
            return Ok(Kept { beside, ..half });
        }
        let bits = (held.bits() * 1000.0).round() as u32;
        let format = Format::Stored { name: held.method, bits };
        return Ok(Kept { format, stored: Some(Arc::new(held.clone())), beside });
    };
    if let Some(held) = held.filter(|held| held.origin == Origin::Checkpoint && format != Format::Half) {
        return Err(AskError::new(
            format!(
                "{path}: the weights are quantised already ({}), and {} was asked for",
                held.words,
                format.name()
            ),
            "leave the format out; or give the original checkpoint",
        ));
    }
    if let Some(held) = held {
        notes.push(format!(
            "{}, and {} is asked for",
            origin(held, path) + " in " + &held.words,
            format.name()
        ));
    }
    let stored = match asked.adapters {
        Some(_) => below(architecture, format),
        None => Stored::asked(format, asked.sparse),
    };
    let experts = matches!(architecture, Architecture::Decoder(d) if d.moe.is_some());
    if experts && asked.adapters.is_some() && stored.as_ref().is_some_and(|stored| stored.experts.is_none()) {
        notes.push(
            "bitsandbytes quantises linear layers: the experts stay in 16 bits in transformers 5".to_owned(),
        );
    }
    let beside = stored
        .as_ref()
        .map_or_else(Beside::default, |stored| beside(stored, architecture, asked.engine, gpu, 2));
    notes.extend(beside.notes.iter().cloned());
    if beside.dequantised {
        return Ok(Kept { beside, ..half });
    }
    Ok(Kept { format, stored: stored.map(Arc::new), beside })
}

/// Frozen weights below adapters, as transformers makes them while it loads.
pub(super) fn below(architecture: &Architecture, format: Format) -> Option<Stored> {
    let mut stored = Stored::asked(format, false)?;
    if format == Format::Int8 {
        stored.linears = Some(Layout::Bits8);
    }
    // bitsandbytes takes linear layers; experts are single tensors in transformers 5, and stay.
    let experts = matches!(architecture, Architecture::Decoder(d) if d.moe.is_some());
    if experts && matches!(format, Format::Nf4 | Format::Nf4Double | Format::Int8) {
        stored.experts = None;
    }
    Some(stored)
}

fn origin(held: &Stored, path: &str) -> String {
    match held.origin {
        Origin::Released => format!("{path} was published"),
        Origin::Checkpoint | Origin::Asked => "the checkpoint is stored".to_owned(),
    }
}

/// Bytes of the cache that was asked for, beyond what one pass over the batch keeps.
pub(super) fn more_cache(architecture: &Architecture, asked: &Asked, run: &Run) -> u64 {
    let (Some(tokens), Architecture::Decoder(d)) = (asked.kv_tokens, architecture) else { return 0 };
    let width = run.precision.weights().bytes() as f64;
    let of = |tokens: u64| cache::total(d, 1, tokens, width, 1, 1).value;
    of(tokens).saturating_sub(of(run.batch.saturating_mul(run.length)))
}
