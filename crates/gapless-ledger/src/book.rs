//! The rules for taking more memory. This module works on entries in memory; it uses no clock, file or process.
//!
//! A tenant exists while one of its processes does, and all its processes have the same share. Its sum is that of
//! its processes' bytes.
//!
//! * Within its share, a tenant's requests are granted. It waits only if the card is full. Only borrowing by others
//!   can cause that, because the shares add up to at most the card.
//! * Beyond its share, a tenant without `borrow` gets nothing. With `borrow`, it gets memory that no tenant holds,
//!   unless another tenant waits for memory within its own share.
//!
//! Invariants, if every growth asks first: the sum of all <= capacity; a tenant that does not borrow holds at most its
//! share.

use crate::processes::Who;
use std::fmt;

/// The most processes in a card's ledger.
pub const MOST: usize = 256;

/// One process of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub who: Who,
    /// Its tenant's name; `limit` and `borrow` are the tenant's share.
    pub name: String,
    pub limit: u64,
    pub borrow: bool,
    /// Bytes of the card, those outside of the pool included.
    pub held: u64,
    /// Bytes that it waits for; 0: it does not wait.
    pub wants: u64,
    /// The part of `held` outside of the pool: context, modules, memory of libraries.
    pub outside: u64,
}

/// The answer to a process that asks for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted,
    /// It is within the share, but lent to others, who are asked to give it back.
    Wait,
    /// It would be beyond the share.
    Refused,
}

/// The reason why a process cannot join a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// Shares would add up to more than the card; `others` are the other shares.
    Oversold { name: String, limit: u64, capacity: u64, others: Vec<(String, u64)> },
    /// Other processes of this tenant have another share.
    Differs { name: String, limit: u64, borrow: bool, pid: u32 },
    /// All places are taken.
    Crowded,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        match self {
            JoinError::Oversold { name, limit, capacity, others } => {
                write!(
                    f,
                    "tenant {name} cannot have {:.0} MiB of a card with {:.0} MiB: ",
                    mib(*limit),
                    mib(*capacity)
                )?;
                if others.is_empty() {
                    return f.write_str("it has less");
                }
                for (at, (other, limit)) in others.iter().enumerate() {
                    write!(f, "{}{other} has {:.0} MiB", if at > 0 { ", " } else { "" }, mib(*limit))?;
                }
                f.write_str("; ask for what is left, or end the processes of one of them")
            }
            JoinError::Differs { name, limit, borrow, pid } => write!(
                f,
                "tenant {name} has {:.0} MiB{} already, in process {pid}: say the same in all of its processes",
                mib(*limit),
                if *borrow { " and borrows" } else { "" }
            ),
            JoinError::Crowded => write!(f, "{MOST} processes share this card already"),
        }
    }
}

impl std::error::Error for JoinError {}

/// All entries of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    pub capacity: u64,
    pub entries: Vec<Option<Entry>>,
}

impl Book {
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    /// Bytes that all processes hold.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.iter().map(|entry| entry.held).sum()
    }

    /// Bytes that the processes of a tenant hold.
    #[must_use]
    pub fn held_by(&self, name: &str) -> u64 {
        self.iter().filter(|entry| entry.name == name).map(|entry| entry.held).sum()
    }

    /// Every tenant's name and share, each once.
    #[must_use]
    pub fn shares(&self) -> Vec<(String, u64)> {
        let mut shares: Vec<(String, u64)> = Vec::new();
        for entry in self.iter() {
            if !shares.iter().any(|(name, _)| *name == entry.name) {
                shares.push((entry.name.clone(), entry.limit));
            }
        }
        shares
    }

    fn at(&self, who: Who) -> Option<usize> {
        self.entries.iter().position(|entry| entry.as_ref().is_some_and(|entry| entry.who == who))
    }

    /// Puts a process's entry in its last place, or in a free one. Returns false if there is none.
    pub fn put(&mut self, entry: Entry) -> bool {
        let free = || self.entries.iter().position(Option::is_none);
        match self.at(entry.who).or_else(free) {
            Some(at) => self.entries[at] = Some(entry),
            None if self.entries.len() < MOST => self.entries.push(Some(entry)),
            None => return false,
        }
        true
    }

    pub fn remove(&mut self, who: Who) {
        if let Some(at) = self.at(who) {
            self.entries[at] = None;
        }
    }

    /// Forgets processes that are gone. Returns the bytes that they held.
    pub fn drop_dead(&mut self, is_alive: impl Fn(Who) -> bool) -> u64 {
        let mut freed = 0;
        for place in &mut self.entries {
            if let Some(entry) = place.take_if(|entry| !is_alive(entry.who)) {
                freed += entry.held;
            }
        }
        freed
    }

    /// Lets a process in. Its entry usually holds 0 bytes, because it asks for its memory afterwards.
    ///
    /// # Errors
    /// When its tenant's share is impossible. The book is then unchanged.
    pub fn join(&mut self, entry: Entry) -> Result<(), JoinError> {
        let others = || self.iter().filter(|other| other.who != entry.who);
        if let Some(other) = others().find(|other| other.name == entry.name)
            && (other.limit, other.borrow) != (entry.limit, entry.borrow)
        {
            let Entry { name, limit, borrow, who, .. } = other.clone();
            return Err(JoinError::Differs { name, limit, borrow, pid: who.pid });
        }
        let mut shares = self.shares();
        shares.retain(|(name, _)| *name != entry.name);
        let sold: u64 = shares.iter().map(|(_, limit)| limit).sum();
        if sold.saturating_add(entry.limit) > self.capacity {
            let (name, limit, capacity) = (entry.name, entry.limit, self.capacity);
            return Err(JoinError::Oversold { name, limit, capacity, others: shares });
        }
        if self.put(entry) { Ok(()) } else { Err(JoinError::Crowded) }
    }

    /// A process that is in the book asks for `bytes` more; if they are granted, its entry has them.
    pub fn ask(&mut self, who: Who, bytes: u64) -> Answer {
        let Some(at) = self.at(who) else { return Answer::Refused };
        let Some(entry) = self.entries[at].clone() else { return Answer::Refused };
        let fits = self.total().saturating_add(bytes) <= self.capacity;
        let is_own = self.held_by(&entry.name).saturating_add(bytes) <= entry.limit;
        let is_awaited = self.iter().any(|other| other.wants > 0 && other.name != entry.name);
        let answer = match (is_own, fits) {
            (true, true) => Answer::Granted,
            (true, false) => Answer::Wait,
            (false, true) if entry.borrow && !is_awaited => Answer::Granted,
            (false, _) => Answer::Refused,
        };
        let (held, wants) = match answer {
            Answer::Granted => (entry.held + bytes, 0),
            Answer::Wait => (entry.held, bytes),
            Answer::Refused => (entry.held, 0),
        };
        self.entries[at] = Some(Entry { held, wants, ..entry });
        answer
    }

    /// Bytes that the tenant of a process should give back now: those beyond its share, if another tenant waits or if
    /// it does not borrow. A tenant without `borrow` exceeds its share only by memory that it did not ask for.
    #[must_use]
    pub fn overdue(&self, who: Who) -> u64 {
        let Some(entry) = self.iter().find(|entry| entry.who == who) else { return 0 };
        let is_awaited = self.iter().any(|other| other.wants > 0 && other.name != entry.name);
        if is_awaited || !entry.borrow { self.held_by(&entry.name).saturating_sub(entry.limit) } else { 0 }
    }
}
