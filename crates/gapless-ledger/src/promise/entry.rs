//! The promise to one pod on one node, in memory and in one line of text.

use super::mutants::{self, Mutant};
use super::{Node, Pod};
use std::fmt;
use std::str::FromStr;

/// An amount of a GPU's memory. The unit is a part of the value, because a node's facts on its GPUs may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Amount {
    Bytes(u64),
    /// Thousandths of a GPU whose bytes were not known.
    Milli(u32),
}

impl Amount {
    /// The amount in the units of a GPU: bytes if its capacity is known, else thousandths. Without a capacity, bytes
    /// count as a whole GPU.
    #[must_use]
    pub fn units(self, capacity: Option<u64>) -> u64 {
        match (self, capacity) {
            (Amount::Bytes(bytes), Some(_)) => bytes,
            (Amount::Milli(milli), Some(_)) if mutants::is(Mutant::UnitsWithoutName) => milli.into(),
            // Rounded down, so that parts that add up to a whole GPU fit on one.
            (Amount::Milli(milli), Some(whole)) => {
                u64::try_from(u128::from(whole) * u128::from(milli) / 1000).unwrap_or(u64::MAX)
            }
            (Amount::Milli(milli), None) => milli.into(),
            (Amount::Bytes(_), None) => 1000,
        }
    }

    /// This many units of a GPU of this capacity.
    #[must_use]
    pub fn of_units(units: u64, capacity: Option<u64>) -> Amount {
        match capacity {
            Some(_) => Amount::Bytes(units),
            None => Amount::Milli(u32::try_from(units).unwrap_or(u32::MAX)),
        }
    }
}

/// `19327352832`, or `500m` for thousandths.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Bytes(bytes) => write!(f, "{bytes}"),
            Amount::Milli(milli) => write!(f, "{milli}m"),
        }
    }
}

impl FromStr for Amount {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Amount, Self::Err> {
        match text.strip_suffix('m') {
            Some(milli) => milli.parse().map(Amount::Milli),
            None => text.parse().map(Amount::Bytes),
        }
    }
}

/// The resources that a pod got by its own annotations, which its owner can edit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    pub gpus: Vec<String>,
    pub amount: Amount,
}

/// A promise to a pod on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub uid: String,
    /// `NAMESPACE/NAME`.
    pub pod: String,
    /// UUIDs.
    pub gpus: Vec<String>,
    /// Of each GPU.
    pub amount: Amount,
    /// The version of the pod that a bind of this entry requires.
    pub seen: String,
}

/// The state of an entry, judged by a pod that was read after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// No bind of it can succeed, and none has.
    Void,
    /// The pod is bound by it.
    Bound,
    /// A bind of it may still succeed.
    Open,
}

impl Entry {
    #[must_use]
    pub fn claim(&self) -> Claim {
        Claim { gpus: self.gpus.clone(), amount: self.amount }
    }

    /// Judges this entry by the pod, which must have been read after it.
    #[must_use]
    pub fn verdict(&self, node: &str, pod: Option<&Pod>) -> Verdict {
        match pod {
            Some(pod) if pod.uid == self.uid && !pod.is_finished => match pod.node.as_str() {
                "" if pod.version == self.seen && !mutants::is(Mutant::UnboundIsProof) => Verdict::Open,
                "" => Verdict::Void,
                bound if bound == node => Verdict::Bound,
                _ => Verdict::Void,
            },
            _ => Verdict::Void,
        }
    }

    /// The words after the uid: `default/p GPU-a;GPU-b 19327352832 4711`.
    #[must_use]
    pub fn words(&self) -> String {
        format!("{} {} {} {}", self.pod, self.gpus.join(";"), self.amount, self.seen)
    }

    /// Reads [`Entry::words`].
    #[must_use]
    pub fn read(uid: &str, words: &str) -> Option<Entry> {
        let mut words = words.split(' ');
        let (pod, gpus, amount, seen) = (words.next()?, words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || uid.is_empty() || pod.is_empty() || seen.is_empty() {
            return None;
        }
        let gpus: Vec<String> = gpus.split(';').map(str::to_owned).collect();
        if gpus.iter().any(String::is_empty) {
            return None;
        }
        let (uid, pod, seen) = (uid.to_owned(), pod.to_owned(), seen.to_owned());
        Some(Entry { uid, pod, gpus, amount: amount.parse().ok()?, seen })
    }
}

/// The first GPU of `entry` that the node lacks, or that has too little left beside `others`, with its units left.
#[must_use]
pub fn first_full<'a>(node: &Node, others: &[Entry], entry: &'a Entry) -> Option<(&'a str, u64)> {
    let need = entry.amount.units(node.capacity);
    entry.gpus.iter().find_map(|gpu| {
        if !node.gpus.contains(gpu) {
            return Some((gpu.as_str(), 0));
        }
        let is_beside = |other: &&Entry| other.uid != entry.uid && is_on(node, other, gpu);
        let held = others.iter().filter(is_beside).map(|other| other.amount.units(node.capacity));
        let left = node.units().saturating_sub(held.fold(0, u64::saturating_add));
        (left < need).then_some((gpu.as_str(), left))
    })
}

/// True if an entry is on a GPU. A mutant identifies GPUs by their indices, which shift when one is lost.
#[must_use]
pub fn is_on(node: &Node, entry: &Entry, gpu: &str) -> bool {
    if mutants::is(Mutant::GpuByIndex) {
        // The mutant's tests name GPUs by a digit at the end.
        let place = |name: &str| name.bytes().last().map(|digit| usize::from(digit - b'0'));
        let at = node.gpus.iter().position(|known| known == gpu);
        return entry.gpus.iter().any(|name| place(name) == at);
    }
    // A GPU without a UUID is named by its index. If the node has UUIDs now, the entry may be of any of its GPUs.
    let is_index = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    entry
        .gpus
        .iter()
        .any(|name| name == gpu || (!node.gpus.contains(name) && (is_index(name) || is_index(gpu))))
}

/// A sum over a page, to notice edits by hand: FNV-1a.
#[must_use]
pub fn sum(node: &str, entries: &[Entry]) -> u64 {
    let mut lines: Vec<String> =
        entries.iter().map(|entry| format!("{} {}", entry.uid, entry.words())).collect();
    lines.sort_unstable();
    lines.insert(0, node.to_owned());
    let bytes = lines.iter().flat_map(|line| line.bytes().chain([b'\n']));
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
