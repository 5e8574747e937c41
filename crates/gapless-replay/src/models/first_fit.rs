//! Free chunks by address: the lowest that is large enough.
//!
//! A sorted list in buckets, each with the largest size in it: a search looks at one number a bucket, then at one
//! bucket. With n free chunks that is n / 64 numbers and 128 entries at most, and a bucket fits in the cache.

/// A bucket is cut in two when it grows past this.
const BUCKET: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Free {
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) chunk: u32,
}

/// Invariants: buckets are not empty, entries ascend by address over all of them, and `largest[b]` is the largest size
/// in bucket b.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstFit {
    buckets: Vec<Vec<Free>>,
    starts: Vec<u64>,
    largest: Vec<u64>,
}

fn largest(bucket: &[Free]) -> u64 {
    bucket.iter().map(|free| free.size).max().unwrap_or(0)
}

impl FirstFit {
    /// The bucket that has `addr`, or would.
    #[inline]
    fn bucket(&self, addr: u64) -> usize {
        self.starts.partition_point(|&start| start <= addr).saturating_sub(1)
    }

    pub(super) fn insert(&mut self, free: Free) {
        if self.buckets.is_empty() {
            self.buckets.push(vec![free]);
            self.starts.push(free.addr);
            self.largest.push(free.size);
            return;
        }
        let b = self.bucket(free.addr);
        let bucket = &mut self.buckets[b];
        let at = bucket.partition_point(|other| other.addr < free.addr);
        bucket.insert(at, free);
        self.starts[b] = bucket[0].addr;
        self.largest[b] = self.largest[b].max(free.size);
        if bucket.len() > BUCKET {
            let tail = bucket.split_off(BUCKET / 2);
            self.largest[b] = largest(bucket);
            self.starts.insert(b + 1, tail[0].addr);
            self.largest.insert(b + 1, largest(&tail));
            self.buckets.insert(b + 1, tail);
        }
    }

    pub(super) fn remove(&mut self, addr: u64) {
        let b = self.bucket(addr);
        let Some(at) =
            self.buckets.get(b).and_then(|bucket| bucket.binary_search_by_key(&addr, |free| free.addr).ok())
        else {
            debug_assert!(false, "{addr:#x} is not free");
            return;
        };
        self.remove_at(b, at);
    }

    fn remove_at(&mut self, b: usize, at: usize) -> Free {
        let bucket = &mut self.buckets[b];
        let gone = bucket.remove(at);
        if bucket.is_empty() {
            self.buckets.remove(b);
            self.starts.remove(b);
            self.largest.remove(b);
        } else {
            self.starts[b] = bucket[0].addr;
            if gone.size == self.largest[b] {
                self.largest[b] = largest(bucket);
            }
        }
        gone
    }

    /// The lowest chunk of at least `size` bytes.
    pub(super) fn find(&self, size: u64) -> Option<Free> {
        let b = self.largest.iter().position(|&largest| largest >= size)?;
        self.buckets[b].iter().find(|free| free.size >= size).copied()
    }

    /// Gives the chunk that starts at `addr` other bounds; its place among the others stays the same.
    pub(super) fn update(&mut self, addr: u64, to: Free) {
        let b = self.bucket(addr);
        let bucket = &mut self.buckets[b];
        let Ok(at) = bucket.binary_search_by_key(&addr, |free| free.addr) else {
            debug_assert!(false, "{addr:#x} is not free");
            return;
        };
        let before = std::mem::replace(&mut bucket[at], to).size;
        self.starts[b] = bucket[0].addr;
        if to.size >= self.largest[b] {
            self.largest[b] = to.size;
        } else if before == self.largest[b] {
            self.largest[b] = largest(bucket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_as_a_plain_list_would() {
        let (mut index, mut list) = (FirstFit::default(), Vec::<Free>::new());
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for step in 0..20_000 {
            let addr = random(4000) * 100;
            let at = list.iter().position(|free| free.addr == addr);
            // Few are large, so that a bucket's largest is often the only one.
            let bits = random(20);
            let free = Free { addr, size: 1 + random(1 << bits), chunk: step };
            match at {
                Some(at) if random(2) == 0 => {
                    index.remove(addr);
                    list.remove(at);
                }
                Some(at) => {
                    let to = Free { addr: addr + random(40), ..free };
                    index.update(addr, to);
                    list[at] = to;
                    if to.addr != addr {
                        index.update(to.addr, free);
                        list[at] = free;
                    }
                }
                None => {
                    index.insert(free);
                    list.push(free);
                }
            }
            let bits = random(21);
            let size = 1 + random(1 << bits);
            let naive = list.iter().filter(|free| free.size >= size).min_by_key(|free| free.addr).copied();
            assert_eq!(index.find(size), naive, "step {step}");
        }
    }
}
