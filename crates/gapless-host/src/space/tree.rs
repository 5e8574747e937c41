//! The free extents by address, in a treap. Each node knows the longest extent below it, and if one below it has
//! memory. So both searches of the space take a logarithmic number of steps: for the lowest address that fits, and for
//! the highest extent with memory. Priorities are a hash of the node's number, so equal programs build equal trees.

use crate::sys::{Table, Zeroed};

/// A node's number. 0 is no node.
pub type Index = u32;
pub const NONE: Index = 0;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Node {
    pub start: u32,
    pub len: u32,
    /// Granules of a free extent that have memory.
    pub backed: u32,
    pub state: u32,
    left: Index,
    right: Index,
    /// Over this node and all below it.
    longest: u32,
    has_backed: u32,
}

// SAFETY: all fields are integers.
unsafe impl Zeroed for Node {}

#[derive(Debug)]
pub struct Nodes {
    table: Table<Node>,
    /// Nodes below this number were used at least once.
    used: u32,
    /// Unused nodes, chained by `left`.
    spare: Index,
    root: Index,
}

fn priority(node: Index) -> u32 {
    let mixed = node.wrapping_mul(0x9E37_79B9);
    (mixed ^ (mixed >> 15)).wrapping_mul(0x85EB_CA6B)
}

impl Nodes {
    #[must_use]
    pub fn new(most: u32) -> Option<Nodes> {
        Some(Nodes { table: Table::lazy(most as usize + 2)?, used: 1, spare: NONE, root: NONE })
    }

    /// Makes room for a few nodes more than there ever were, because a change takes at most two. False if there is no
    /// memory.
    #[must_use]
    pub fn reach(&mut self) -> bool {
        self.table.reach(self.used as usize + 8)
    }

    /// Gives up the addresses of the table behind the nodes that were ever needed.
    pub fn tighten(&mut self) {
        self.table.tighten();
    }

    #[must_use]
    pub fn get(&self, node: Index) -> Node {
        self.table.get(node as usize)
    }

    pub fn change(&mut self, node: Index, change: impl FnOnce(&mut Node)) {
        let mut value = self.get(node);
        change(&mut value);
        self.table.set(node as usize, value);
    }

    /// Takes a node that is in no tree. There are as many nodes as granules, so there is always one.
    pub fn take(&mut self, start: u32, len: u32, state: u32) -> Index {
        let node = if self.spare == NONE {
            self.used += 1;
            self.used - 1
        } else {
            let node = self.spare;
            self.spare = self.get(node).left;
            node
        };
        self.table.set(node as usize, Node { start, len, state, ..Node::default() });
        node
    }

    pub fn give(&mut self, node: Index) {
        let spare = self.spare;
        self.table.set(node as usize, Node { left: spare, ..Node::default() });
        self.spare = node;
    }

    fn update(&mut self, node: Index) {
        let Node { left, right, len, backed, .. } = self.get(node);
        let (l, r) = (self.get(left), self.get(right));
        self.change(node, |n| {
            n.longest = len.max(l.longest).max(r.longest);
            n.has_backed = u32::from(backed > 0) | l.has_backed | r.has_backed;
        });
    }

    pub fn insert(&mut self, node: Index) {
        self.change(node, |n| (n.left, n.right) = (NONE, NONE));
        self.update(node);
        self.root = self.insert_at(self.root, node);
    }

    fn insert_at(&mut self, tree: Index, node: Index) -> Index {
        if tree == NONE {
            return node;
        }
        if priority(node) > priority(tree) {
            let (left, right) = self.split(tree, self.get(node).start);
            self.change(node, |n| (n.left, n.right) = (left, right));
            self.update(node);
            return node;
        }
        let Node { left, right, start, .. } = self.get(tree);
        if self.get(node).start < start {
            let left = self.insert_at(left, node);
            self.change(tree, |n| n.left = left);
        } else {
            let right = self.insert_at(right, node);
            self.change(tree, |n| n.right = right);
        }
        self.update(tree);
        tree
    }

    /// The nodes that start below `start`, and the others.
    fn split(&mut self, tree: Index, start: u32) -> (Index, Index) {
        if tree == NONE {
            return (NONE, NONE);
        }
        let node = self.get(tree);
        if node.start < start {
            let (a, b) = self.split(node.right, start);
            self.change(tree, |n| n.right = a);
            self.update(tree);
            (tree, b)
        } else {
            let (a, b) = self.split(node.left, start);
            self.change(tree, |n| n.left = b);
            self.update(tree);
            (a, tree)
        }
    }

    pub fn remove(&mut self, node: Index) {
        let start = self.get(node).start;
        self.root = self.remove_at(self.root, start);
    }

    fn remove_at(&mut self, tree: Index, start: u32) -> Index {
        if tree == NONE {
            return NONE;
        }
        let Node { left, right, start: here, .. } = self.get(tree);
        if here == start {
            return self.join(left, right);
        }
        if start < here {
            let left = self.remove_at(left, start);
            self.change(tree, |n| n.left = left);
        } else {
            let right = self.remove_at(right, start);
            self.change(tree, |n| n.right = right);
        }
        self.update(tree);
        tree
    }

    fn join(&mut self, a: Index, b: Index) -> Index {
        if a == NONE || b == NONE {
            return a | b;
        }
        if priority(a) > priority(b) {
            let right = self.join(self.get(a).right, b);
            self.change(a, |n| n.right = right);
            self.update(a);
            a
        } else {
            let left = self.join(a, self.get(b).left);
            self.change(b, |n| n.left = left);
            self.update(b);
            b
        }
    }

    /// The extent with the lowest address that has at least `len` granules; [`NONE`] if there is none.
    #[must_use]
    pub fn lowest(&self, len: u32) -> Index {
        let mut tree = self.root;
        while tree != NONE {
            let node = self.get(tree);
            if node.longest < len {
                return NONE;
            }
            if self.get(node.left).longest >= len {
                tree = node.left;
            } else if node.len >= len {
                return tree;
            } else {
                tree = node.right;
            }
        }
        NONE
    }

    /// The extent with the highest address that has memory; [`NONE`] if there is none.
    #[must_use]
    pub fn highest_backed(&self) -> Index {
        let mut tree = self.root;
        while tree != NONE {
            let node = self.get(tree);
            if node.has_backed == 0 {
                return NONE;
            }
            if self.get(node.right).has_backed != 0 {
                tree = node.right;
            } else if node.backed > 0 {
                return tree;
            } else {
                tree = node.left;
            }
        }
        NONE
    }

    /// Granules of the longest free extent.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.get(self.root).longest
    }

    /// Checks the order, the priorities and the sums; `None` if they are right.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        self.fault_at(self.root, 0, u64::MAX)
    }

    fn fault_at(&self, tree: Index, low: u64, high: u64) -> Option<&'static str> {
        if tree == NONE {
            return None;
        }
        let node = self.get(tree);
        let start = u64::from(node.start);
        let children = [node.left, node.right].map(|child| self.get(child));
        if start < low || start >= high {
            return Some("a node is on the wrong side");
        }
        if [node.left, node.right].iter().any(|&child| child != NONE && priority(child) > priority(tree)) {
            return Some("a child has the higher priority");
        }
        if node.longest != children.iter().map(|c| c.longest).max().unwrap_or(0).max(node.len) {
            return Some("the longest extent is wrong");
        }
        let backed = node.backed > 0 || children.iter().any(|c| c.has_backed != 0);
        if (node.has_backed != 0) != backed {
            return Some("the mark of memory is wrong");
        }
        self.fault_at(node.left, low, start).or_else(|| self.fault_at(node.right, start + 1, high))
    }
}
