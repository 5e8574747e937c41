//! The holders of a card's memory right now: live blocks by the Python line that asked for them, if a recording keeps
//! lines, else by size, pool and stream.
//!
//! This walks over all live blocks, so it serves failed requests and rare questions, not every request.

use crate::card::Card;
use crate::recorder;
use gapless_pool::{AllocationView, PoolKey, StreamHandle};
use gapless_trace::Bytes;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A group of live blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// `model.py:123 forward`, or `24 blocks of 96.0 MiB`.
    pub what: String,
    /// Block bytes.
    pub bytes: u64,
    pub blocks: u64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Line(Arc<str>),
    Size(u64, PoolKey, StreamHandle),
}

/// The `n` largest holders of the card with this number, the most bytes first.
#[must_use]
pub fn largest(card: &Card, device: i32, n: usize) -> Vec<Holder> {
    of(card.pool.live(), device, n)
}

/// The same of blocks that were listed before; it takes no card's lock.
pub fn of(live: impl Iterator<Item = AllocationView>, device: i32, n: usize) -> Vec<Holder> {
    let mut live = Some(live);
    let mut live = || live.take().into_iter().flatten();
    // One lock for all blocks: the scribe waits meanwhile, and takes no card's lock while it has this one.
    recorder::with_lines(|lines| {
        group(live(), n, |a| lines.of(device as u8, a.addr).map(|line| Key::Line(Arc::clone(line))))
    })
    .unwrap_or_else(|| group(live(), n, |_| None))
}

fn group(
    live: impl Iterator<Item = AllocationView>,
    n: usize,
    line: impl Fn(&AllocationView) -> Option<Key>,
) -> Vec<Holder> {
    let mut groups: FxHashMap<Key, (u64, u64)> = FxHashMap::default();
    for a in live {
        let key = line(&a).unwrap_or(Key::Size(a.size, a.pool, a.stream));
        let (bytes, blocks) = groups.entry(key).or_default();
        *bytes += a.size;
        *blocks += 1;
    }
    let mut all: Vec<(Key, u64, u64)> =
        groups.into_iter().map(|(key, (bytes, blocks))| (key, bytes, blocks)).collect();
    all.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| order(&a.0).cmp(&order(&b.0))));
    all.truncate(n);
    all.into_iter().map(|(key, bytes, blocks)| Holder { what: name(&key, blocks), bytes, blocks }).collect()
}

/// A fixed order of groups with equally many bytes.
fn order(key: &Key) -> (&str, u64, PoolKey, StreamHandle) {
    match key {
        Key::Line(line) => (line, 0, PoolKey(0, 0), StreamHandle(0)),
        Key::Size(size, pool, stream) => ("", *size, *pool, *stream),
    }
}

fn name(key: &Key, blocks: u64) -> String {
    match key {
        Key::Line(line) => line.to_string(),
        Key::Size(size, pool, stream) => {
            let mut text = match blocks {
                1 => format!("1 block of {}", Bytes(*size)),
                _ => format!("{blocks} blocks of {}", Bytes(*size)),
            };
            if pool.is_private() {
                text += &format!(", pool {}.{}", pool.0, pool.1);
            }
            if stream.0 != 0 {
                text += &format!(", stream {:#x}", stream.0);
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_pool::{Options, Pool, SimDevice};

    const MIB: u64 = 1 << 20;

    fn holder(what: &str, bytes: u64, blocks: u64) -> Holder {
        Holder { what: what.to_owned(), bytes, blocks }
    }

    #[test]
    fn blocks_without_lines_are_told_by_size_pool_and_stream() {
        let mut pool = Pool::new(SimDevice::new(1 << 30), Options::default());
        let mut take = |count: usize, size: u64, stream: u64, key: PoolKey| -> Vec<u64> {
            let one = |_| pool.alloc(size, StreamHandle(stream), key).expect("memory");
            (0..count).map(one).collect()
        };
        take(3, 8 * MIB, 0, PoolKey(0, 0));
        take(1, 20 * MIB, 0, PoolKey(0, 0));
        take(2, 8 * MIB, 0x70, PoolKey(0, 5));
        let freed = take(9, 64 * MIB, 0, PoolKey(0, 0));
        for addr in freed {
            pool.free(addr).expect("it was there");
        }
        let found = group(pool.live(), 10, |_| None);
        assert_eq!(
            found,
            [
                holder("3 blocks of 8.00 MiB", 24 * MIB, 3),
                holder("1 block of 20.0 MiB", 20 * MIB, 1),
                holder("2 blocks of 8.00 MiB, pool 0.5, stream 0x70", 16 * MIB, 2),
            ]
        );
        assert_eq!(group(pool.live(), 1, |_| None), found[..1]);
        assert_eq!(group(pool.live(), 0, |_| None), []);
    }

    #[test]
    fn blocks_of_one_line_are_one_holder_whatever_their_size() {
        let mut pool = Pool::new(SimDevice::new(1 << 30), Options::default());
        let mut take = |size: u64| pool.alloc(size, StreamHandle(0), PoolKey(0, 0)).expect("memory");
        let lines: std::collections::HashMap<u64, Arc<str>> = [
            (take(4 * MIB), Arc::from("model.py:9 forward")),
            (take(6 * MIB), Arc::from("model.py:9 forward")),
            (take(7 * MIB), Arc::from("train.py:3 step")),
        ]
        .into();
        take(MIB);
        let found = group(pool.live(), 10, |a| lines.get(&a.addr).map(|line| Key::Line(Arc::clone(line))));
        assert_eq!(
            found,
            [
                holder("model.py:9 forward", 10 * MIB, 2),
                holder("train.py:3 step", 7 * MIB, 1),
                holder("1 block of 1.00 MiB", MIB, 1),
            ]
        );
    }
}
