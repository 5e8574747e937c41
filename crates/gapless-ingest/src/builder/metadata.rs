//! A dict that a user attached to an event, as one line of JSON. PyTorch writes that line itself since 2.15; other
//! writers of snapshots may leave the dict as it is.

use super::Builder;
use crate::value::Value;
use std::fmt::Write;

/// Longer texts are cut: an event is no place for a document.
const LONGEST: usize = 4096;
const DEEPEST: u32 = 8;

/// The dict or list `value` as compact JSON.
pub(crate) fn text(builder: &Builder, value: Value) -> String {
    let mut out = String::new();
    put(builder, value, 0, &mut out);
    if out.len() > LONGEST {
        let mut end = LONGEST;
        while !out.is_char_boundary(end) {
            end -= 1;
        }
        out.truncate(end);
        out.push('\u{2026}');
    }
    out
}

fn put(builder: &Builder, value: Value, depth: u32, out: &mut String) {
    // Lists may hold themselves, or one another many times over.
    if out.len() > LONGEST || depth > DEEPEST {
        out.push_str("null");
        return;
    }
    let _ = match value {
        Value::Bool(b) => write!(out, "{b}"),
        Value::Int(n) => write!(out, "{n}"),
        Value::Big(n) => write!(out, "{n}"),
        Value::Float(x) if x.is_finite() => write!(out, "{x}"),
        Value::Str(id) => {
            quote(builder.rows.strings.get(id), out);
            Ok(())
        }
        Value::Pair(pair) => {
            let (a, b) = builder.rows.pairs.get(pair as usize).copied().unwrap_or_default();
            write!(out, "[{a},{b}]")
        }
        Value::Object(_) => {
            if let Some(items) = builder.list(value) {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    separate(i, out);
                    put(builder, *item, depth + 1, out);
                    if out.len() > LONGEST {
                        break;
                    }
                }
                out.push(']');
            } else if let Some(entries) = builder.dict(value) {
                out.push('{');
                for (i, pair) in entries.chunks_exact(2).enumerate() {
                    separate(i, out);
                    match pair[0] {
                        Value::Str(id) => quote(builder.rows.strings.get(id), out),
                        Value::Int(n) => quote(&n.to_string(), out),
                        other => quote(other.noun(), out),
                    }
                    out.push(':');
                    put(builder, pair[1], depth + 1, out);
                    if out.len() > LONGEST {
                        break;
                    }
                }
                out.push('}');
            } else {
                out.push_str("null");
            }
            Ok(())
        }
        _ => {
            out.push_str("null");
            Ok(())
        }
    };
}

fn separate(i: usize, out: &mut String) {
    if i > 0 {
        out.push(',');
    }
}

fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars().take(LONGEST) {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
