//! Random programs against a naive twin: a list of booleans for "in use" and one for "has memory".

use super::*;
use std::collections::BTreeMap;

struct Twin {
    used: Vec<bool>,
    backed: Vec<bool>,
}

impl Twin {
    /// The lowest start of a free place, with room for the worst alignment, as the space requires it.
    fn lowest(&self, len: u32, align: u32, phase: u32) -> Option<u32> {
        let need = (len + align - 1) as usize;
        let mut start = 0;
        while start < self.used.len() {
            if self.used[start] {
                start += 1;
                continue;
            }
            let end = (start..self.used.len()).find(|&at| self.used[at]).unwrap_or(self.used.len());
            if end - start >= need {
                let lead = phase.wrapping_sub(start as u32) & (align - 1);
                return Some(start as u32 + lead);
            }
            start = end;
        }
        None
    }

    fn count(&self, from: u32, to: u32) -> u32 {
        self.backed[from as usize..to as usize].iter().filter(|b| **b).count() as u32
    }

    fn kept(&self) -> u32 {
        self.used.iter().zip(&self.backed).filter(|(used, backed)| !**used && **backed).count() as u32
    }
}

fn random(seed: &mut u64, below: u32) -> u32 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    ((*seed >> 33) % u64::from(below)) as u32
}

#[test]
fn random_programs_get_what_a_naive_twin_gives() {
    for round in 0..30u64 {
        let mut seed = round * 77 + 1;
        let size = 64 + random(&mut seed, 900);
        let mut space = Space::new(size).expect("memory");
        let mut twin = Twin { used: vec![false; size as usize], backed: vec![false; size as usize] };
        let mut buffers: BTreeMap<u32, u32> = BTreeMap::new();
        for _ in 0..600 {
            match random(&mut seed, 10) {
                0..=4 => {
                    let len = 1 + random(&mut seed, 40);
                    let align = 1 << random(&mut seed, 5);
                    let phase = random(&mut seed, align);
                    let expected = twin.lowest(len, align, phase);
                    let got = space.allocate(len, align, phase);
                    assert_eq!(got.map(|placed| placed.start), expected);
                    let Some(placed) = got else { continue };
                    assert_eq!(placed.start % align, phase);
                    assert_eq!(placed.backed, twin.count(placed.start, placed.start + len));
                    twin.used[placed.start as usize..(placed.start + len) as usize].fill(true);
                    buffers.insert(placed.start, len);
                }
                5..=6 => {
                    let Some((&start, &len)) = buffers.iter().nth(random(&mut seed, 16) as usize) else {
                        continue;
                    };
                    let has_memory = random(&mut seed, 3) > 0;
                    assert_eq!(space.free(start, has_memory), Some(len));
                    assert_eq!(space.free(start, true), None, "twice");
                    buffers.remove(&start);
                    let range = start as usize..(start + len) as usize;
                    twin.used[range.clone()].fill(false);
                    twin.backed[range].fill(has_memory);
                }
                7 => {
                    let Some((&start, &len)) = buffers.iter().nth(random(&mut seed, 16) as usize) else {
                        continue;
                    };
                    let wanted = len + 1 + random(&mut seed, 20);
                    let end = (start + wanted) as usize;
                    let fits =
                        end <= size as usize && twin.used[(start + len) as usize..end].iter().all(|u| !u);
                    assert_eq!(space.grow(start, wanted).is_some(), fits);
                    if fits {
                        twin.used[start as usize..end].fill(true);
                        buffers.insert(start, wanted);
                    }
                }
                8 => {
                    let Some((&start, &len)) = buffers.iter().nth(random(&mut seed, 16) as usize) else {
                        continue;
                    };
                    let wanted = random(&mut seed, len + 1);
                    let expected = (wanted > 0 && wanted < len).then(|| len - wanted);
                    assert_eq!(space.shrink(start, wanted), expected);
                    if expected.is_some() {
                        let range = (start + wanted) as usize..(start + len) as usize;
                        twin.used[range.clone()].fill(false);
                        twin.backed[range].fill(true);
                        buffers.insert(start, wanted);
                    }
                }
                _ => {
                    let most = 1 + random(&mut seed, 30);
                    let taken = space.take_kept(most);
                    assert_eq!(taken.is_some(), twin.kept() > 0);
                    let Some((from, to)) = taken else { continue };
                    assert!(to - from <= most && to > from);
                    assert_eq!(space.busy_from(0), Some((from, to)));
                    let highest =
                        (0..size).rev().find(|&at| !twin.used[at as usize] && twin.backed[at as usize]);
                    assert_eq!(highest, Some(to - 1), "from the top");
                    assert_eq!(space.fault(), None, "while it is busy");
                    let gone = random(&mut seed, 4) > 0;
                    space.put_back((from, to), gone);
                    twin.backed[from as usize..to as usize].fill(!gone);
                }
            }
            assert_eq!(space.fault(), None);
            assert_eq!(space.kept(), twin.kept());
            assert_eq!(space.live(), buffers.values().sum::<u32>());
        }
        for (start, len) in buffers {
            assert_eq!(space.length(start), Some(len));
            space.free(start, true);
        }
        assert_eq!((space.live(), space.longest()), (0, size), "all is one extent again");
    }
}

#[test]
fn low_water_is_what_nobody_needed() {
    let mut space = Space::new(100).expect("memory");
    let a = space.allocate(40, 1, 0).expect("room");
    space.free(a.start, true);
    space.low_water();
    let b = space.allocate(30, 1, 0).expect("room");
    space.free(b.start, true);
    assert_eq!(space.low_water(), 10, "30 of 40 were used again");
    assert_eq!(space.low_water(), 40, "and now none");
}

#[test]
fn addresses_of_no_buffer_are_refused() {
    let mut space = Space::new(100).expect("memory");
    let a = space.allocate(10, 1, 0).expect("room");
    for wrong in [a.start + 1, a.start + 9, 50, 99, 100, u32::MAX] {
        assert_eq!(space.free(wrong, true), None, "{wrong}");
        assert_eq!(space.length(wrong), None, "{wrong}");
        assert_eq!(space.grow(wrong, 20), None, "{wrong}");
    }
    assert_eq!(space.allocate(0, 1, 0), None);
    assert_eq!(space.allocate(u32::MAX, 16, 0), None);
    assert_eq!(space.fault(), None);
}
