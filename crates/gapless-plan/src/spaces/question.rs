//! The question and its answer: memories, what is known of each buffer, and the memory of each at each time.

use gapless_trace::Bytes;

use crate::error::{Error, Result};
use crate::problem::Lifetime;

/// One memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    pub name: String,
    /// `None`: as large as need be.
    pub capacity: Option<Bytes>,
    /// Cost of an access of one byte, in millionths of a unit that the caller chooses.
    pub cost: u64,
}

impl Space {
    #[must_use]
    pub fn new(name: &str, capacity: Option<u64>, cost: u64) -> Space {
        Space { name: name.to_owned(), capacity: capacity.map(Bytes), cost }
    }
}

/// Memories, in the caller's order. Invariants: at least one, at most [`SPACE_LIMIT`], names differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spaces(Vec<Space>);

/// The most spaces: [`Allowed`] is a set of 64.
pub const SPACE_LIMIT: usize = 64;

impl Spaces {
    pub fn new(spaces: Vec<Space>) -> Result<Spaces> {
        if spaces.is_empty() || spaces.len() > SPACE_LIMIT {
            let what = format!("{} spaces given; give 1 to {SPACE_LIMIT}", spaces.len());
            return Err(Error::Spaces { what });
        }
        for (at, space) in spaces.iter().enumerate() {
            if spaces[..at].iter().any(|other| other.name == space.name) {
                let what = format!("two spaces are named {:?}; give each a name of its own", space.name);
                return Err(Error::Spaces { what });
            }
        }
        Ok(Spaces(spaces))
    }

    #[must_use]
    pub fn all(&self) -> &[Space] {
        &self.0
    }

    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|space| space.name == name)
    }
}

/// The spaces in which a buffer may lie, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed(u64);

impl Allowed {
    pub const ALL: Allowed = Allowed(u64::MAX);

    /// Positions at or above [`SPACE_LIMIT`] name no space and are left out.
    #[must_use]
    pub fn only(spaces: &[usize]) -> Allowed {
        Allowed(spaces.iter().filter(|at| **at < SPACE_LIMIT).fold(0, |set, at| set | 1 << at))
    }

    #[must_use]
    pub fn contains(self, space: usize) -> bool {
        space < SPACE_LIMIT && self.0 >> space & 1 == 1
    }
}

/// The number of times that a buffer is read or written as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accesses {
    /// At times unknown, so it never moves.
    Count(u64),
    /// One at each of these times, sorted, within the lifetime: between two of them it may move.
    At(Box<[i64]>),
}

/// The accesses of a buffer, and the spaces that it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    pub accesses: Accesses,
    pub allowed: Allowed,
}

impl Default for Usage {
    fn default() -> Usage {
        Usage::count(1)
    }
}

impl Usage {
    /// So many accesses, in any space.
    #[must_use]
    pub fn count(accesses: u64) -> Usage {
        Usage { accesses: Accesses::Count(accesses), allowed: Allowed::ALL }
    }

    /// Accesses at these times, in any space.
    #[must_use]
    pub fn at(times: Vec<i64>) -> Usage {
        Usage { accesses: Accesses::At(times.into_boxed_slice()), allowed: Allowed::ALL }
    }

    #[must_use]
    pub fn only_in(mut self, spaces: &[usize]) -> Usage {
        self.allowed = Allowed::only(spaces);
        self
    }
}

/// The place of a buffer for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residence {
    pub space: usize,
    pub lifetime: Lifetime,
    pub offset: Bytes,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpacePlan {
    /// For each buffer its residences in order of time. One residence begins before the one before it ends: while both
    /// places are held, the bytes are copied, and nothing accesses the buffer.
    pub residences: Vec<Vec<Residence>>,
    /// The peak of each space.
    pub peaks: Vec<Bytes>,
    /// Accesses and moves: sum of bytes x cost of the space, in the unit of [`Space::cost`].
    pub traffic: u128,
    /// No plan has less traffic than this.
    pub lower_bound: u128,
    pub effort: u64,
}

impl SpacePlan {
    #[must_use]
    pub fn proven_optimal(&self) -> bool {
        self.traffic == self.lower_bound
    }

    /// The space in which each buffer begins its life (and stays, if it does not move).
    #[must_use]
    pub fn space_of(&self) -> Vec<usize> {
        self.residences.iter().map(|all| all.first().map_or(0, |first| first.space)).collect()
    }

    /// The number of buffers that move at least once.
    #[must_use]
    pub fn moved(&self) -> usize {
        self.residences.iter().filter(|all| all.len() > 1).count()
    }
}
