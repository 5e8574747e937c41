//! RMM's arenas as ordered maps of superblocks, each with an ordered map of its free blocks.

use crate::Twin;
use gapless_replay::{Device, Lane, SimDevice};
use gapless_trace::StreamId;
use std::collections::BTreeMap;

const MINIMUM: u64 = 1 << 20;

struct Superblock {
    addr: u64,
    size: u64,
    free: BTreeMap<u64, u64>,
}

type Superblocks = BTreeMap<u64, Superblock>;

impl Superblock {
    fn new(addr: u64, size: u64) -> Superblock {
        Superblock { addr, size, free: BTreeMap::from([(addr, size)]) }
    }

    fn empty(&self) -> bool {
        self.free.len() == 1 && self.free.values().next() == Some(&self.size)
    }

    fn fits(&self, size: u64) -> bool {
        self.free.values().any(|&free| free >= size)
    }

    fn first_fit(&mut self, size: u64) -> Option<u64> {
        let (&addr, &bytes) = self.free.iter().find(|(_, bytes)| **bytes >= size)?;
        self.free.remove(&addr);
        if bytes > size {
            self.free.insert(addr + size, bytes - size);
        }
        Some(addr)
    }

    fn contains(&self, addr: u64, size: u64) -> bool {
        self.addr <= addr && self.addr + self.size >= addr + size
    }

    fn coalesce(&mut self, mut addr: u64, mut size: u64) {
        if let Some((&before, &bytes)) = self.free.range(..addr).next_back()
            && before + bytes == addr
        {
            self.free.remove(&before);
            (addr, size) = (before, size + bytes);
        }
        if let Some(bytes) = self.free.remove(&(addr + size)) {
            size += bytes;
        }
        self.free.insert(addr, size);
    }
}

pub(crate) struct Naive {
    streams: Vec<StreamId>,
    global: Superblocks,
    arenas: BTreeMap<u64, Superblocks>,
    size: u64,
}

impl Naive {
    pub(crate) fn new(mut device: SimDevice, lanes: &[Lane], size: Option<u64>) -> Naive {
        let streams = lanes.iter().map(|lane| lane.stream).collect();
        let size = size.unwrap_or(device.available() / 2) / 256 * 256;
        let addr = device.malloc(size).expect("room");
        let global = BTreeMap::from([(addr, Superblock::new(addr, size))]);
        Naive { streams, global, arenas: BTreeMap::new(), size }
    }

    fn global_first_fit(&mut self, size: u64) -> Option<Superblock> {
        let (&addr, _) = self.global.iter().find(|(_, superblock)| superblock.fits(size))?;
        let superblock = self.global.remove(&addr)?;
        let minimum = size.max(MINIMUM);
        if superblock.empty() && superblock.size >= minimum + MINIMUM {
            let tail = Superblock::new(addr + minimum, superblock.size - minimum);
            self.global.insert(tail.addr, tail);
            return Some(Superblock::new(addr, minimum));
        }
        Some(superblock)
    }

    fn global_coalesce(&mut self, superblock: Superblock) {
        let Superblock { mut addr, mut size, .. } = superblock;
        if !superblock.empty() {
            self.global.insert(addr, superblock);
            return;
        }
        let before = self.global.range(..addr).next_back().map(|(_, s)| (s.addr, s.size, s.empty()));
        if let Some((start, bytes, true)) = before
            && start + bytes == addr
        {
            self.global.remove(&start);
            (addr, size) = (start, size + bytes);
        }
        if self.global.get(&(addr + size)).is_some_and(Superblock::empty) {
            size += self.global.remove(&(addr + size)).map_or(0, |next| next.size);
        }
        self.global.insert(addr, Superblock::new(addr, size));
    }

    fn attempt(&mut self, size: u64, stream: u64) -> Option<u64> {
        if size > MINIMUM {
            let mut superblock = self.global_first_fit(size)?;
            let addr = superblock.first_fit(size);
            self.global.insert(superblock.addr, superblock);
            return addr;
        }
        let arena = self.arenas.entry(stream).or_default();
        if let Some(superblock) = arena.values_mut().find(|superblock| superblock.fits(size)) {
            return superblock.first_fit(size);
        }
        let mut superblock = self.global_first_fit(size)?;
        let addr = superblock.first_fit(size);
        self.arenas.entry(stream).or_default().insert(superblock.addr, superblock);
        addr
    }
}

impl Twin for Naive {
    fn alloc(&mut self, size: u64, lane: u16) -> Option<u64> {
        let (size, stream) = (size.div_ceil(256) * 256, self.streams[lane as usize].0);
        if let Some(addr) = self.attempt(size, stream) {
            return Some(addr);
        }
        for superblock in std::mem::take(&mut self.arenas).into_values().flat_map(BTreeMap::into_values) {
            self.global_coalesce(superblock);
        }
        self.attempt(size, stream)
    }

    fn free(&mut self, addr: u64, size: u64, _lane: u16) {
        let size = size.div_ceil(256) * 256;
        for arena in self.arenas.values_mut() {
            if let Some(superblock) = arena.values_mut().find(|superblock| superblock.contains(addr, size)) {
                superblock.coalesce(addr, size);
                return;
            }
        }
        let found = self.global.values().find(|superblock| superblock.contains(addr, size)).map(|s| s.addr);
        let mut superblock = self.global.remove(&found.expect("it is somewhere")).expect("there");
        superblock.coalesce(addr, size);
        self.global_coalesce(superblock);
    }

    fn reserved(&self) -> u64 {
        self.size
    }
}
