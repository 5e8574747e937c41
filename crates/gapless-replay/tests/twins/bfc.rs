//! BFC with its 21 bins, filled anew for every request.

use crate::Twin;
use gapless_replay::{Device, SimDevice};

#[derive(Clone, Copy)]
struct Chunk {
    addr: u64,
    size: u64,
    used: bool,
}

pub(crate) struct Naive {
    device: SimDevice,
    /// Chunks of each region, by address.
    regions: Vec<Vec<Chunk>>,
    limit: u64,
    region_bytes: u64,
    gc: bool,
}

fn rounded(bytes: u64) -> u64 {
    bytes.div_ceil(256) * 256
}

fn bin(bytes: u64) -> u32 {
    (bytes.max(256) >> 8).ilog2().min(20)
}

impl Naive {
    pub(crate) fn new(device: SimDevice, preallocate: bool, gc: bool) -> Naive {
        let limit = device.total();
        let region_bytes = rounded(if preallocate { limit } else { limit.min(2 << 20) });
        Naive { device, regions: Vec::new(), limit, region_bytes, gc }
    }

    fn find(&mut self, size: u64) -> Option<u64> {
        for wanted in bin(size)..21 {
            let mut in_bin: Vec<(u64, u64, usize, usize)> = Vec::new();
            for (r, region) in self.regions.iter().enumerate() {
                for (c, chunk) in region.iter().enumerate() {
                    if !chunk.used && bin(chunk.size) == wanted {
                        in_bin.push((chunk.size, chunk.addr, r, c));
                    }
                }
            }
            in_bin.sort_unstable();
            let Some(&(bytes, addr, r, c)) = in_bin.iter().find(|free| free.0 >= size) else { continue };
            let region = &mut self.regions[r];
            region[c].used = true;
            if bytes >= size * 2 || bytes - size >= 128 << 20 {
                region[c].size = size;
                region.insert(c + 1, Chunk { addr: addr + size, size: bytes - size, used: false });
            }
            return Some(addr);
        }
        None
    }

    fn extend(&mut self, size: u64) -> bool {
        let available = (self.limit - self.reserved()) / 256 * 256;
        if size > available {
            return false;
        }
        let mut increased = false;
        while size > self.region_bytes {
            self.region_bytes *= 2;
            increased = true;
        }
        let mut bytes = self.region_bytes.min(available);
        let mut addr = self.device.malloc(bytes);
        while addr.is_none() {
            let less = rounded((bytes as f32 * 0.9f32) as u64);
            if less < size || less == bytes {
                return false;
            }
            bytes = less;
            addr = self.device.malloc(bytes);
        }
        if !increased {
            self.region_bytes *= 2;
        }
        self.regions.push(vec![Chunk { addr: addr.expect("taken"), size: bytes, used: false }]);
        true
    }

    fn collect(&mut self, size: u64) -> bool {
        let free = |region: &Vec<Chunk>| region.iter().all(|chunk| !chunk.used);
        let bytes: u64 =
            self.regions.iter().filter(|region| free(region)).flatten().map(|chunk| chunk.size).sum();
        if !self.gc || bytes == 0 || size > self.limit - self.reserved() + bytes {
            return false;
        }
        for region in self.regions.extract_if(.., |region| free(region)) {
            self.device.free(region[0].addr, region.iter().map(|chunk| chunk.size).sum());
        }
        true
    }
}

impl Twin for Naive {
    fn alloc(&mut self, size: u64, _lane: u16) -> Option<u64> {
        let size = rounded(size);
        if let Some(addr) = self.find(size) {
            return Some(addr);
        }
        if self.extend(size) || (self.collect(size) && self.extend(size)) {
            return self.find(size);
        }
        None
    }

    fn free(&mut self, addr: u64, _size: u64, _lane: u16) {
        for region in &mut self.regions {
            for chunk in region.iter_mut().filter(|chunk| chunk.addr == addr) {
                chunk.used = false;
            }
            let mut at = 0;
            while at + 1 < region.len() {
                if region[at].used || region[at + 1].used {
                    at += 1;
                } else {
                    region[at].size += region[at + 1].size;
                    region.remove(at + 1);
                }
            }
        }
    }

    fn reserved(&self) -> u64 {
        self.regions.iter().flatten().map(|chunk| chunk.size).sum()
    }
}
