//! The buddy system as trees: a block is free, used, or two halves.

use crate::Twin;
use gapless_replay::{Device, SimDevice};

enum Node {
    Free,
    Used,
    Halves(Box<Node>, Box<Node>),
}

struct Segment {
    base: u64,
    size: u64,
    root: Node,
}

pub(crate) struct Naive {
    device: SimDevice,
    segments: Vec<Segment>,
    segment: u64,
}

/// All free blocks of the tree, as (size, address).
fn free_blocks(node: &Node, addr: u64, size: u64, found: &mut Vec<(u64, u64)>) {
    match node {
        Node::Free => found.push((size, addr)),
        Node::Used => {}
        Node::Halves(low, high) => {
            free_blocks(low, addr, size / 2, found);
            free_blocks(high, addr + size / 2, size / 2, found);
        }
    }
}

/// Puts a used block of `want` bytes at `target`, which lies in a free block.
fn occupy(node: &mut Node, addr: u64, size: u64, target: u64, want: u64) {
    if size == want {
        *node = Node::Used;
        return;
    }
    if matches!(node, Node::Free) {
        *node = Node::Halves(Box::new(Node::Free), Box::new(Node::Free));
    }
    if let Node::Halves(low, high) = node {
        let half = size / 2;
        let (child, at) = if target < addr + half { (low, addr) } else { (high, addr + half) };
        occupy(child, at, half, target, want);
    }
}

fn release(node: &mut Node, addr: u64, size: u64, target: u64) {
    match node {
        Node::Halves(low, high) => {
            let half = size / 2;
            let (child, at) =
                if target < addr + half { (&mut *low, addr) } else { (&mut *high, addr + half) };
            release(child, at, half, target);
            if matches!((&**low, &**high), (Node::Free, Node::Free)) {
                *node = Node::Free;
            }
        }
        Node::Used | Node::Free => *node = Node::Free,
    }
}

impl Naive {
    pub(crate) fn new(device: SimDevice, segment: u64) -> Naive {
        Naive { device, segments: Vec::new(), segment }
    }

    fn find(&mut self, want: u64) -> Option<u64> {
        let mut found = Vec::new();
        for segment in &self.segments {
            free_blocks(&segment.root, segment.base, segment.size, &mut found);
        }
        let (_, addr) = found.into_iter().filter(|&(size, _)| size >= want).min()?;
        let segment = self.segments.iter_mut().find(|s| (s.base..s.base + s.size).contains(&addr))?;
        occupy(&mut segment.root, segment.base, segment.size, addr, want);
        Some(addr)
    }

    fn grow(&mut self, want: u64) -> bool {
        let size = want.max(self.segment);
        let Some(base) = self.device.malloc(size) else { return false };
        self.segments.push(Segment { base, size, root: Node::Free });
        true
    }
}

impl Twin for Naive {
    fn alloc(&mut self, size: u64, _lane: u16) -> Option<u64> {
        let want = size.max(512).next_power_of_two();
        if let Some(addr) = self.find(want) {
            return Some(addr);
        }
        if !self.grow(want) {
            self.empty_cache();
            if !self.grow(want) {
                return None;
            }
        }
        self.find(want)
    }

    fn free(&mut self, addr: u64, _size: u64, _lane: u16) {
        for s in self.segments.iter_mut().filter(|s| (s.base..s.base + s.size).contains(&addr)) {
            release(&mut s.root, s.base, s.size, addr);
        }
    }

    fn empty_cache(&mut self) {
        for segment in self.segments.extract_if(.., |segment| matches!(segment.root, Node::Free)) {
            self.device.free(segment.base, segment.size);
        }
    }

    fn reserved(&self) -> u64 {
        self.segments.iter().map(|segment| segment.size).sum()
    }
}
