//! BFC against the real one: random programs of allocations by jax 0.11 on an H200, with what `memory_stats()` said
//! after each step: every address, the bytes in use and the bytes held are equal.
//! `torch-bench/live/jax_programs/bfc.py` records them; `GAPLESS_BFC` names a folder with more.

use gapless_replay::models::{Bfc, BfcSettings};
use gapless_replay::{Allocator, Device};
use gapless_trace::{Bytes, DeviceAddr};
use std::cell::Cell;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The card that they were recorded on.
const CARD: u64 = 150_109_880_320;

fn recordings() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/xla/bfc");
    let mut found = Vec::new();
    for folder in std::iter::once(own).chain(std::env::var_os("GAPLESS_BFC").map(PathBuf::from)) {
        found.extend(
            std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()),
        );
    }
    found.sort();
    found
}

/// Addresses of recordings are offsets from the first, and may be below it.
const BASE: i64 = 1 << 50;

/// The card, which gives a region the address that it had: the request that made the heap grow lies at its beginning.
struct Recorded {
    next: Rc<Cell<u64>>,
}

impl Device for Recorded {
    fn malloc(&mut self, _: u64) -> Option<u64> {
        Some(self.next.get())
    }

    fn total(&self) -> u64 {
        CARD
    }

    fn available(&self) -> u64 {
        CARD
    }

    fn free(&mut self, _: u64, _: u64) {}

    fn reserve(&mut self, _: u64) -> u64 {
        0
    }

    fn unreserve(&mut self, _: u64, _: u64) {}

    fn map(&mut self, _: u64, _: u64) -> bool {
        false
    }

    fn unmap(&mut self, _: u64, _: u64) {}
}

/// Replays a recording; the number of its steps.
fn compare(path: &Path) -> usize {
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("a recording");
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("text");
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    let (mode, share) = name.trim_end_matches(".txt.gz").split_once('.').expect("mode and share");
    let key = if mode == "preallocate" { mode } else { "fraction" };
    let settings: BfcSettings = format!("{key}:{share}").parse().expect("settings");
    let next = Rc::new(Cell::new(0));
    let mut heap = Bfc::new(Recorded { next: Rc::clone(&next) }, &[], &settings);
    let mut steps = 0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        steps += 1;
        let id = words[0][1..].parse().expect("an id");
        let figures = if words[0].starts_with('-') {
            heap.free(id);
            &words[1..]
        } else {
            let offset: i64 = words[5].parse().expect("an address");
            next.set((BASE + offset) as u64);
            let addr =
                heap.alloc(id, Bytes(words[1].parse().expect("a size")), 0).expect("the card served it");
            assert_eq!(addr, DeviceAddr(next.get()), "{name}, step {steps}: the address");
            &words[2..]
        };
        let figure = |at: usize| figures[at].parse::<u64>().expect("a figure");
        assert_eq!(heap.stats().allocated.current, figure(0), "{name}, step {steps}: bytes_in_use");
        assert_eq!(heap.stats().reserved.current, figure(2), "{name}, step {steps}: pool_bytes");
    }
    steps
}

#[test]
fn the_model_holds_what_the_card_s_allocator_held_after_each_step() {
    let all = recordings();
    assert!(all.len() >= 2);
    for path in all {
        assert!(compare(&path) > 1000, "{}", path.display());
    }
}
