//! The text of a `torch.OutOfMemoryError`. Pure; at most [`LINES`] lines, none wider than [`COLUMNS`] except for the
//! path of the file.
//!
//! It begins like torch's own text, because programs look for that. Then come the request and its line, the holders,
//! the reason why free memory could not serve, and the changes that would have helped.

use super::tail::Tail;
use super::words::{pool, stream};
use super::{Facts, LimitBy, advice};
use crate::holders::Holder;
use gapless_pool::{Hole, PoolKey};
use gapless_trace::Bytes;
use std::fmt::Write;

/// The most lines of the text.
pub const LINES: usize = 15;
/// The most columns of a line.
pub const COLUMNS: usize = 120;
/// The column after the labels.
const INDENT: usize = 14;

/// The text.
#[must_use]
pub fn text(facts: &Facts) -> String {
    let mut lines = vec![clipped(&headline(facts))];
    let mut say = |label: &str, what: String| {
        let label = if label.is_empty() { String::new() } else { format!("{label}:") };
        lines.push(clipped(&format!("{label:<INDENT$}{what}")));
    };
    say("asked by", asked(facts));
    say("held", held(facts));
    if let Some(refusal) = &facts.refusal {
        for (at, words) in wrapped(&plain(refusal), COLUMNS - INDENT).into_iter().take(2).enumerate() {
            say(if at == 0 { "refused" } else { "" }, words);
        }
    }
    if let Some(others) = others(facts) {
        say("others", others);
    }
    say("largest hole", hole(facts));
    let most = super::HOLDERS - usize::from(facts.refusal.is_some());
    for (at, Holder { what, bytes, .. }) in facts.holders.iter().take(most).enumerate() {
        say(
            if at == 0 { "holders" } else { "" },
            format!("{:>8}  {}", Bytes(*bytes).to_string(), plain(what)),
        );
    }
    for (at, advice) in advice::of(facts).iter().take(2).enumerate() {
        for (line, words) in wrapped(advice, COLUMNS - INDENT).iter().take(2).enumerate() {
            say(if at + line == 0 { "would help" } else { "" }, words.clone());
        }
    }
    let last = match &facts.tail {
        Tail::Off => None,
        // Paths are not clipped, because a part of a path is useless.
        Tail::Left(path) => {
            Some(format!("{:<INDENT$}{} (gapless oom reads it)", "last events:", path.display()))
        }
        Tail::Recording(path) => {
            Some(format!("{:<INDENT$}{} (gapless oom reads it)", "recording:", path.display()))
        }
        Tail::Enough(path) => {
            Some(format!("{:<INDENT$}{} (of an earlier failure)", "last events:", path.display()))
        }
        Tail::Failed(why) => {
            Some(clipped(&format!("{:<INDENT$}not written: {}", "last events:", plain(why))))
        }
    };
    lines.extend(last.map(|line| plain(&line)));
    lines.truncate(LINES);
    lines.join("\n")
}

/// Sizes as torch prints them, because programs read them.
fn as_torch(bytes: u64) -> String {
    match bytes {
        0..=1024 => format!("{bytes} bytes"),
        1025..=0xf_ffff => format!("{:.2} KiB", bytes as f64 / 1024.0),
        0x10_0000..=0x3fff_ffff => format!("{:.2} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

fn headline(facts: &Facts) -> String {
    format!(
        "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is free.",
        as_torch(facts.size),
        facts.device,
        as_torch(facts.total),
        as_torch(facts.free)
    )
}

fn asked(facts: &Facts) -> String {
    let mut out = facts.line.as_deref().map_or_else(|| "no Python line is known".to_owned(), plain);
    let _ = write!(out, ", {}", stream(facts.stream));
    if facts.pool.is_private() {
        let _ = write!(out, ", {}", pool(facts.pool));
    }
    if facts.is_quiet {
        let _ = write!(out, ", {}", open(facts));
    }
    out
}

fn held(facts: &Facts) -> String {
    let mut out = format!(
        "{} allocated, {} reserved, fragmentation {}",
        Bytes(facts.allocated),
        Bytes(facts.reserved),
        percent(facts.reserved.saturating_sub(facts.allocated), facts.reserved)
    );
    if let Some(limit) = facts.limit {
        let _ = match limit.by {
            LimitBy::Option => write!(out, "; at most {} (limit)", Bytes(limit.bytes)),
            LimitBy::Fraction(fraction) => {
                write!(out, "; at most {} (memory fraction {fraction})", Bytes(limit.bytes))
            }
        };
    }
    if let Some(code) = facts.driver {
        let _ = write!(out, "; the driver said {code}");
    }
    if facts.handlers > 0 {
        let _ = write!(out, "; {} called, without success", plural(facts.handlers as u64, "handler"));
    }
    out
}

fn others(facts: &Facts) -> Option<String> {
    let outside = facts.total.saturating_sub(facts.free).saturating_sub(facts.reserved);
    let Some(others) = &facts.others else {
        return (outside > 0)
            .then(|| format!("{} held by other processes and by CUDA itself", Bytes(outside)));
    };
    let sum: u64 = others.iter().map(|(_, bytes)| bytes).sum();
    let mut out = match others.len() {
        0 => "no other process is on the device".to_owned(),
        _ => format!("{} held by other processes:", Bytes(sum)),
    };
    for (at, (pid, bytes)) in others.iter().take(2).enumerate() {
        let _ = write!(out, "{} {} by {pid}", if at == 0 { "" } else { "," }, Bytes(*bytes));
    }
    if others.len() > 2 {
        let _ = write!(out, ", {} more", others.len() - 2);
    }
    let own = outside.saturating_sub(sum);
    if own > 0 {
        let _ = write!(out, "; {} by CUDA itself", Bytes(own));
    }
    Some(out)
}

/// The largest hole, and the reason why it could not serve.
fn hole(facts: &Facts) -> String {
    let Some(hole) = facts.holes.largest else { return "none: nothing that is held is free".to_owned() };
    let Hole { size, is_small, .. } = hole;
    let whose = match (hole.pool == facts.pool, is_small) {
        (false, _) if hole.pool.is_private() => format!("in {}", pool(hole.pool)),
        (_, true) => format!("among small blocks of {}", stream(hole.stream)),
        _ => format!("of {}", stream(hole.stream)),
    };
    let mut out = format!("{} {whose}: ", Bytes(size));
    let pending: u64 = facts.holes.pending.iter().map(|(_, bytes)| bytes).sum();
    if size >= facts.size {
        out.push_str(if hole.pool.is_private() && hole.pool != facts.pool {
            if matches!(hole.pool, PoolKey(0, _)) {
                "it is that pool's alone"
            } else {
                "it stays there, for graphs remember their addresses"
            }
        } else if facts.is_quiet {
            "nothing is lent while a private pool is open"
        } else {
            "the device refused to map it"
        });
    } else if facts.holes.own >= facts.size {
        let _ = write!(
            out,
            "{} are free in pieces, {} of it in pages that live blocks pin",
            Bytes(facts.holes.own),
            Bytes(facts.holes.pinned)
        );
    } else {
        let _ = write!(out, "too small, as is all that is free ({})", Bytes(facts.holes.own));
    }
    match facts.holes.pending.as_slice() {
        [] => {}
        [(one, _)] => {
            let _ = write!(out, "; {} wait for {}", Bytes(pending), stream(*one));
        }
        several => {
            let _ = write!(out, "; {} wait for {} streams", Bytes(pending), several.len());
        }
    }
    out
}

/// The open scope in which the pool cannot wait for streams.
pub(super) fn open(facts: &Facts) -> &'static str {
    if matches!(facts.pool, PoolKey(0, 1..)) { "in use_mem_pool" } else { "during a capture" }
}

fn plural(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * Bytes(part).share_of(Bytes(whole)))
}

/// `text` on one line: names of files and functions may contain control characters.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn clipped(line: &str) -> String {
    if line.chars().count() <= COLUMNS {
        return line.to_owned();
    }
    line.chars().take(COLUMNS - 3).chain("...".chars()).collect()
}

/// The words in lines of at most `columns`.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in plain(text).split_whitespace() {
        let line = lines.last_mut().expect("a first one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= columns {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
