//! RMM's pool as lists of blocks by address, one for each stream that has one.

use crate::Twin;
use gapless_replay::{Device, Lane, SimDevice};
use gapless_trace::StreamId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy)]
struct Block {
    addr: u64,
    size: u64,
    head: bool,
}

impl Block {
    fn is_contiguous_before(&self, next: &Block) -> bool {
        self.addr + self.size == next.addr && !next.head
    }
}

pub(crate) struct Naive {
    device: SimDevice,
    streams: Vec<StreamId>,
    /// Streams in the order of their events.
    events: Vec<StreamId>,
    /// Event to list.
    lists: BTreeMap<usize, Vec<Block>>,
    upstream: BTreeSet<u64>,
    size: u64,
    maximum: Option<u64>,
}

fn aligned(size: u64) -> u64 {
    size.div_ceil(256) * 256
}

fn insert(list: &mut Vec<Block>, block: Block) {
    let at = list.iter().position(|other| block.addr < other.addr).unwrap_or(list.len());
    list.insert(at, block);
    if at + 1 < list.len() && list[at].is_contiguous_before(&list[at + 1]) {
        list[at].size += list[at + 1].size;
        list.remove(at + 1);
    }
    if at > 0 && list[at - 1].is_contiguous_before(&list[at]) {
        list[at - 1].size += list[at].size;
        list.remove(at);
    }
}

fn take(list: &mut Vec<Block>, size: u64) -> Option<Block> {
    let mut best: Option<usize> = None;
    for (at, block) in list.iter().enumerate() {
        if block.size >= size && best.is_none_or(|best| block.size < list[best].size) {
            best = Some(at);
        }
    }
    best.map(|at| list.remove(at))
}

fn cut(list: &mut Vec<Block>, block: Block, size: u64) -> u64 {
    if block.size > size {
        insert(list, Block { addr: block.addr + size, size: block.size - size, head: false });
    }
    block.addr
}

impl Naive {
    pub(crate) fn new(
        device: SimDevice,
        lanes: &[Lane],
        initial: Option<u64>,
        maximum: Option<u64>,
    ) -> Naive {
        let streams = lanes.iter().map(|lane| lane.stream).collect();
        let initial = initial.unwrap_or(device.available() / 2 / 256 * 256);
        let mut pool = Naive {
            device,
            streams,
            events: Vec::new(),
            lists: BTreeMap::new(),
            upstream: BTreeSet::new(),
            size: 0,
            maximum,
        };
        let block = pool.upstream(initial).expect("room");
        let event = pool.event(StreamId(0));
        insert(pool.lists.entry(event).or_default(), block);
        pool
    }

    fn event(&mut self, stream: StreamId) -> usize {
        self.events.iter().position(|&known| known == stream).unwrap_or_else(|| {
            self.events.push(stream);
            self.events.len() - 1
        })
    }

    fn upstream(&mut self, size: u64) -> Option<Block> {
        let addr = self.device.malloc(size)?;
        self.upstream.insert(addr);
        self.size += size;
        Some(Block { addr, size, head: true })
    }

    fn expand(&mut self, size: u64) -> Option<Block> {
        let mut attempt = match self.maximum {
            Some(maximum) => {
                let remaining = aligned(maximum.saturating_sub(self.size));
                if size <= remaining { size.max(remaining / 2) } else { 0 }
            }
            None => size.max(self.size),
        };
        while attempt >= size {
            if let Some(block) = self.upstream(attempt) {
                return Some(block);
            }
            if attempt == size {
                return None;
            }
            attempt = size.max(attempt / 2);
        }
        None
    }
}

impl Twin for Naive {
    fn alloc(&mut self, size: u64, lane: u16) -> Option<u64> {
        let size = aligned(size);
        let event = self.event(self.streams[lane as usize]);
        let own = self.lists.entry(event).or_default();
        if let Some(block) = take(own, size) {
            return Some(cut(own, block, size));
        }
        for (_, list) in self.lists.iter_mut().filter(|(other, _)| **other != event) {
            if let Some(block) = take(list, size) {
                return Some(cut(list, block, size));
            }
        }
        let others: Vec<usize> = self.lists.keys().copied().filter(|&other| other != event).collect();
        for other in others {
            let merged = self.lists.remove(&other).expect("there");
            let own = self.lists.get_mut(&event).expect("there");
            merged.into_iter().for_each(|block| insert(own, block));
            if let Some(block) = take(own, size) {
                return Some(cut(own, block, size));
            }
        }
        let block = self.expand(size)?;
        Some(cut(self.lists.get_mut(&event).expect("there"), block, size))
    }

    fn free(&mut self, addr: u64, size: u64, lane: u16) {
        let event = self.event(self.streams[lane as usize]);
        let block = Block { addr, size: aligned(size), head: self.upstream.contains(&addr) };
        insert(self.lists.entry(event).or_default(), block);
    }

    fn reserved(&self) -> u64 {
        self.size
    }
}
