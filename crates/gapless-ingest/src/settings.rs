//! The allocator's settings out of a snapshot's dict.

use crate::builder::{Builder, key};
use crate::names::Name;
use crate::value::Value;
use gapless_trace::{AllocatorSettings, Bytes};

/// Settings kept as text at most: real snapshots have a dozen.
const MOST: usize = 256;

/// The settings in `value`; `None` if it is no dict.
pub(crate) fn read(builder: &Builder, value: Value) -> Option<AllocatorSettings> {
    let entries = builder.dict(value)?;
    let mut settings = AllocatorSettings::default();
    for pair in entries.chunks_exact(2) {
        let value = pair[1];
        match (key(pair[0]), value) {
            (Name::Conf | Name::NewConf, Value::Str(id)) => {
                builder.rows.strings.get(id).clone_into(&mut settings.conf);
            }
            (Name::MaxSplitSize, Value::Int(n)) => {
                settings.max_split_size = u64::try_from(n).ok().filter(|&n| n <= Bytes::LIMIT.0).map(Bytes);
            }
            (Name::GcThreshold, Value::Float(x)) => settings.garbage_collection_threshold = x,
            (Name::GcThreshold, Value::Int(n)) => settings.garbage_collection_threshold = n as f64,
            (Name::ExpandableSegments, Value::Bool(on)) => settings.expandable_segments = on,
            (name @ (Name::MaxRoundThreshold | Name::MaxCachedSize), Value::Int(n)) => {
                let text = u64::try_from(n).map_or("no limit".to_owned(), |n| Bytes(n).to_string());
                settings.other.push((name.text().to_owned(), text));
            }
            (Name::RoundupPower2Divisions, value) => {
                divisions(builder, value, &mut settings.roundup_power2_divisions);
            }
            _ => {
                if let Value::Str(id) = pair[0]
                    && settings.other.len() < MOST
                {
                    let name = builder.rows.strings.get(id).to_owned();
                    settings.other.push((name, text(builder, value, 0)));
                }
            }
        }
    }
    Some(settings)
}

/// A dict from MiB (a power of two, as text or number) to divisions, or the sixteen numbers in order.
fn divisions(builder: &Builder, value: Value, slots: &mut [u32; 16]) {
    let number = |value| if let Value::Int(n) = value { u32::try_from(n).ok() } else { None };
    for pair in builder.dict(value).unwrap_or_default().chunks_exact(2) {
        let mib: Option<u64> = match pair[0] {
            Value::Str(id) => builder.rows.strings.get(id).parse().ok(),
            Value::Int(n) => u64::try_from(n).ok(),
            _ => None,
        };
        if let Some(mib) = mib
            && mib.is_power_of_two()
            && let Some(slot) = slots.get_mut(mib.ilog2() as usize)
            && let Some(n) = number(pair[1])
        {
            *slot = n;
        }
    }
    for (slot, value) in slots.iter_mut().zip(builder.list(value).unwrap_or_default()) {
        if let Some(n) = number(*value) {
            *slot = n;
        }
    }
}

/// A value as people would write it; deep or long ones are cut.
fn text(builder: &Builder, value: Value, depth: u32) -> String {
    let inner = |values: &[Value]| -> Vec<String> {
        values.iter().take(32).map(|v| text(builder, *v, depth + 1)).collect()
    };
    match value {
        Value::None => "none".into(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Big(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Str(id) => builder.rows.strings.get(id).chars().take(1000).collect(),
        Value::Pair(pair) => {
            let (a, b) = builder.rows.pairs.get(pair as usize).copied().unwrap_or_default();
            format!("({a}, {b})")
        }
        Value::Object(_) if depth < 3 => match (builder.list(value), builder.dict(value)) {
            (Some(items), _) => format!("[{}]", inner(items).join(", ")),
            (_, Some(entries)) => {
                let pairs: Vec<String> =
                    inner(entries).chunks_exact(2).map(|pair| format!("{}: {}", pair[0], pair[1])).collect();
                format!("{{{}}}", pairs.join(", "))
            }
            _ => "...".into(),
        },
        _ => "...".into(),
    }
}
