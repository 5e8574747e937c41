//! Findings of checked mode, and their text: what happened, where, which lines had the memory and which ask now, what
//! to do. Pure.

use super::place::Place;
use gapless_cuda::scrub::{Change, PATTERN};
use gapless_pool::StreamHandle;
use gapless_trace::Bytes;
use std::fmt::Write;
use std::sync::Arc;

/// The column after the labels.
const INDENT: usize = 16;

/// A block, and the lines that had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub device: i32,
    pub addr: u64,
    /// Size of the block; at least what the program asked for.
    pub size: u64,
    pub stream: StreamHandle,
    pub allocated: Place,
    /// The line that freed it; `None` while it is live.
    pub freed: Option<Place>,
}

impl Record {
    fn block(&self) -> String {
        let Record { device, addr, size, stream, .. } = self;
        format!("the block of {} at {addr:#x} on GPU {device}, stream {:#x}", Bytes(*size), stream.0)
    }

    /// True if `addr` lies in the block.
    #[must_use]
    pub fn holds(&self, addr: u64) -> bool {
        (self.addr..self.addr + self.size).contains(&addr)
    }

    fn at(&self, addr: u64) -> String {
        format!("byte {} of {}", addr - self.addr, self.block())
    }

    #[cfg(test)]
    pub(super) fn for_tests() -> Record {
        let (addr, size, stream) = (0x1000_0000, 4096, StreamHandle(0));
        Record { device: 0, addr, size, stream, allocated: "train.py:12 step".into(), freed: None }
    }
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Freed memory was written before it was handed out again.
    Written { before: Arc<Record>, now: Arc<Record>, addr: u64, change: Change },
    /// A block was handed out over memory of another one that is live.
    Shared { holder: Arc<Record>, now: Arc<Record>, bytes: u64 },
    /// A block was handed out without memory behind a part of it.
    Unmapped { now: Arc<Record>, bytes: u64 },
    /// The memory behind a live block is not what it was when the block was handed out.
    Moved { record: Arc<Record> },
    /// A second free.
    FreedTwice { before: Arc<Record>, by: Place },
    /// A free of an address inside of a block.
    FreedInside { holder: Arc<Record>, addr: u64, by: Place },
    /// A free of an address that no block had.
    FreedUnknown { addr: u64, by: Place },
}

const WROTE: &str = "look for work on this memory that was queued after the free: a copy or kernel through a pointer\n\
                     that was kept, a graph whose input was freed, a library's own stream. If there is none,\n\
                     please report this text: it is a mistake of Gapless";
const OURS: &str = "please report this text: it is a mistake of Gapless. GAPLESS_PLANS=0 may work around it";
const TWICE: &str = "let one owner free it: a tensor that was made from a raw pointer or by DLPack must not free what its\n\
                     source frees too";
const INSIDE: &str = "free the address that the allocator returned, once";
const UNKNOWN: &str = "free it with what allocated it: cudaMalloc's memory by cudaFree, and what torch allocated before\n\
                       Gapless was enabled by torch's own allocator";

impl Finding {
    /// The whole text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::from("gapless check: ");
        let mut say = |label: &str, what: &str| {
            for (at, line) in what.lines().enumerate() {
                let label = if at == 0 { format!("{label}:") } else { String::new() };
                let _ = write!(out, "\n  {label:<INDENT$}{line}");
            }
        };
        let headline = match self {
            Finding::Written { before, now, addr, change: Change { offset, found, words } } => {
                let at = addr + offset;
                say("where", &format!("{at:#x}, {}", now.at(at)));
                say(
                    "found",
                    &format!("{found:#010x} where {PATTERN:#010x} was put; {} changed", Bytes(4 * words)),
                );
                // A window gives the same memory other addresses, so the address may lie outside of the earlier block.
                let seen = if before.holds(at) { before.at(at) } else { before.block() };
                say("had it before", &seen);
                say_past(&mut say, before);
                say("asked for by", &now.allocated.to_string());
                say("what to do", WROTE);
                "freed memory was written to before it was handed out again."
            }
            Finding::Shared { holder, now, bytes } => {
                say("where", &format!("{} of {}", Bytes(*bytes), holder.block()));
                say("held by", &holder.allocated.to_string());
                say("asked for by", &format!("{}, as {}", now.allocated, now.block()));
                say("what to do", OURS);
                "a block was about to be handed out over memory that another block still has."
            }
            Finding::Unmapped { now, bytes } => {
                say("where", &format!("{} of {}", Bytes(*bytes), now.block()));
                say("asked for by", &now.allocated.to_string());
                say("what to do", OURS);
                "a block was about to be handed out with no memory behind some of it."
            }
            Finding::Moved { record } => {
                say("where", &record.block());
                say_past(&mut say, record);
                say("what to do", OURS);
                "the memory behind a live block was changed."
            }
            Finding::FreedTwice { before, by } => {
                say("where", &before.block());
                say_past(&mut say, before);
                say("freed again at", &by.to_string());
                say("what to do", TWICE);
                "a block was freed twice."
            }
            Finding::FreedInside { holder, addr, by } => {
                say("where", &format!("{addr:#x}, {}", holder.at(*addr)));
                say_past(&mut say, holder);
                say("freed at", &by.to_string());
                say("what to do", INSIDE);
                "an address inside of a block was freed."
            }
            Finding::FreedUnknown { addr, by } => {
                say("where", &format!("{addr:#x}"));
                say("freed at", &by.to_string());
                say("what to do", UNKNOWN);
                "an address was freed that Gapless never handed out, or too long ago to know."
            }
        };
        out.insert_str("gapless check: ".len(), headline);
        out
    }
}

fn say_past(say: &mut impl FnMut(&str, &str), record: &Record) {
    say("allocated at", &record.allocated.to_string());
    if let Some(freed) = &record.freed {
        say("freed at", &freed.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freed() -> Arc<Record> {
        Arc::new(Record { freed: Some("train.py:14 step".into()), ..Record::for_tests() })
    }

    #[test]
    fn a_write_after_a_free_names_both_owners_and_the_first_change() {
        let (before, now) = (
            freed(),
            Arc::new(Record { size: 8192, allocated: "train.py:20 step".into(), ..Record::for_tests() }),
        );
        let change = Change { offset: 8, found: 0x3f80_0000, words: 2 };
        let text = Finding::Written { before, now, addr: 0x1000_0400, change }.text();
        let expected = "\
gapless check: freed memory was written to before it was handed out again.
  where:          0x10000408, byte 1032 of the block of 8.00 KiB at 0x10000000 on GPU 0, stream 0x0
  found:          0x3f800000 where 0x7fde7fde was put; 8 B changed
  had it before:  byte 1032 of the block of 4.00 KiB at 0x10000000 on GPU 0, stream 0x0
  allocated at:   train.py:12 step
  freed at:       train.py:14 step
  asked for by:   train.py:20 step
  what to do:     look for work";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn a_second_free_names_both_frees() {
        let text = Finding::FreedTwice { before: freed(), by: "train.py:15 step".into() }.text();
        for part in [
            "freed twice",
            "allocated at:   train.py:12",
            "freed at:       train.py:14",
            "freed again at: train.py:15",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }

    #[test]
    fn every_text_is_narrow_and_says_what_to_do() {
        let (record, by) = (freed(), Place::from("train.py:15 step"));
        let addr = record.addr;
        let all = [
            Finding::Shared { holder: record.clone(), now: record.clone(), bytes: 512 },
            Finding::Unmapped { now: record.clone(), bytes: 512 },
            Finding::Moved { record: record.clone() },
            Finding::FreedTwice { before: record.clone(), by: by.clone() },
            Finding::FreedInside { holder: record, addr: addr + 8, by: by.clone() },
            Finding::FreedUnknown { addr, by },
        ];
        for finding in all {
            let text = finding.text();
            assert!(text.starts_with("gapless check: a") || text.starts_with("gapless check: the"), "{text}");
            assert!(text.contains("what to do:"), "{text}");
            assert!(text.lines().all(|line| line.len() <= 120), "{text}");
        }
    }
}
