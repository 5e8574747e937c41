//! Processes that have pages of this one. A page counts from when it is handed over until its reader reports that it
//! has dropped it, or has ended.
//!
//! A region that sleeps would leave its readers with the old pages, so it does not sleep while there are any. A reader
//! without Gapless copies files out of this process itself, and is not counted.

use gapless_cuda::locks::{Guard, Lock};
use gapless_cuda::shared_pages::SharedPage;
use gapless_stats::process;
use std::collections::HashMap;

/// A process that was handed a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reader {
    /// 0 if the process is not visible from here.
    pid: u32,
    /// Its start time, because process numbers are reused.
    start: Option<u64>,
}

impl Reader {
    pub(super) fn of(pid: u32) -> Reader {
        Reader { pid, start: process::start_of(pid) }
    }

    /// True if its start time was read, or if it is not visible anyway.
    pub(super) fn is_known(self) -> bool {
        self.pid == 0 || self.start.is_some()
    }

    /// True if it has ended. A process whose start time is unknown counts as alive.
    fn has_ended(self) -> bool {
        self.pid != 0 && self.start.is_some() && process::start_of(self.pid) != self.start
    }

    pub(super) fn again(self) -> Reader {
        Reader::of(self.pid)
    }

    /// True if both are one process, as far as is known.
    fn is(self, other: Reader) -> bool {
        self.pid == other.pid && (self.start == other.start || !self.is_known() || !other.is_known())
    }
}

type Held = HashMap<SharedPage, Vec<(Reader, u32)>>;

static HELD: Lock<Held> = Lock::new(Held::new);

fn held() -> Guard<'static, Held> {
    HELD.lock()
}

/// A process is about to be handed these pages.
pub(super) fn took(reader: Reader, pages: &[SharedPage]) {
    let mut held = held();
    for page in pages {
        let readers = held.entry(*page).or_default();
        match readers.iter_mut().find(|(other, _)| other.is(reader)) {
            Some((_, times)) => *times += 1,
            None => readers.push((reader, 1)),
        }
    }
}

/// A process has dropped these pages.
pub(super) fn dropped(reader: Reader, pages: &[SharedPage]) {
    let mut held = held();
    for page in pages {
        let Some(readers) = held.get_mut(page) else { continue };
        if let Some((_, times)) = readers.iter_mut().find(|(other, _)| other.is(reader)) {
            *times -= 1;
        }
        readers.retain(|(_, times)| *times > 0);
        if readers.is_empty() {
            held.remove(page);
        }
    }
}

/// True if a living process has this page.
pub(crate) fn has(page: SharedPage) -> bool {
    let mut held = held();
    let Some(readers) = held.get_mut(&page) else { return false };
    readers.retain(|(reader, _)| !reader.has_ended());
    let is_held = !readers.is_empty();
    if !is_held {
        held.remove(&page);
    }
    is_held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_held_until_it_was_dropped_as_often_as_it_was_taken() {
        let (page, other) = (SharedPage(u64::MAX - 1), SharedPage(u64::MAX - 2));
        let pid = std::process::id();
        assert!(!has(page));
        took(Reader::of(pid), &[page, page, other]);
        dropped(Reader::of(pid), &[page]);
        assert!(has(page) && has(other));
        dropped(Reader { pid: pid + 1, start: None }, &[page]);
        assert!(has(page), "another process has dropped it");
        dropped(Reader { pid, start: None }, &[page, other, other]);
        assert!(!has(page) && !has(other));
    }

    #[test]
    fn what_a_process_had_that_ended_is_held_by_nobody() {
        let page = SharedPage(u64::MAX - 3);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it starts");
        took(Reader::of(child.id()), &[page]);
        assert!(has(page));
        child.kill().expect("it lives");
        child.wait().expect("it ends");
        assert!(!has(page));
    }
}
