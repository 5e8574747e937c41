//! Entries on the page of one node: they are made if there is room, and removed if there is a proof.
//!
//! A booking reads the node, checks pods if their entries matter, and writes the page with the version that it read.
//! If the node has changed since, it starts again.

use super::entry::{Verdict, first_full, is_on};
use super::mutants::{self, Mutant};
use super::{Ask, Claim, Entry, Node, Pod, Told};
use std::fmt;

/// The most tries for a page. They are many, because kubelets change nodes all the time.
const TRIES: u32 = 20;

/// The reason why there is no entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NotBooked {
    /// Another booking came first.
    Full { gpu: String, left: u64, need: u64 },
    /// The pod has changed since it was read.
    Stale,
    /// A pod with unknown GPUs is bound here.
    Closed { pod: String },
    /// The API server gave no answer.
    Unknown,
}

impl fmt::Display for NotBooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotBooked::Full { gpu, left, need } => write!(
                f,
                "GPU {gpu} has {left} of the {need} units that the pod needs: another booking came first"
            ),
            NotBooked::Stale => f.write_str("the pod has changed since it was read"),
            NotBooked::Closed { pod } => write!(
                f,
                "nobody can tell which GPUs {pod} has there: the node takes no more pods until that pod is gone"
            ),
            NotBooked::Unknown => f.write_str("the API server did not say whether the booking was made"),
        }
    }
}

/// The name of an entry's pod and its state; the outer `None`: it could not be read.
type Read = (String, Option<Option<Pod>>);

/// Entries on the page of one node, on their way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Booking {
    node: String,
    wishes: Vec<Entry>,
    /// Entries that this replica remembers of pods that are bound here.
    known: Vec<Entry>,
    /// Pods whose entries are checked, even if there is room.
    suspects: Vec<String>,
    /// Ends binds of suspects that are on their way, so that their entries can go.
    fences: bool,
    tries: u32,
    page: Option<Node>,
    bound: Option<Vec<Pod>>,
    reads: Vec<Read>,
    next: Next,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Next {
    Ask(Ask),
    Done(Vec<Result<Entry, NotBooked>>),
}

impl Booking {
    #[must_use]
    pub fn new(node: &str, wishes: Vec<Entry>, known: Vec<Entry>) -> Booking {
        let node = node.to_owned();
        let (page, bound, reads, suspects) = (None, None, Vec::new(), Vec::new());
        let next = Next::Ask(Ask::Node);
        Booking { node, wishes, known, suspects, fences: false, tries: 0, page, bound, reads, next }
    }

    /// Checks the entries of these pods too. With `fences`, binds of them that may still succeed are ended.
    #[must_use]
    pub fn with_suspects(mut self, suspects: Vec<String>, fences: bool) -> Booking {
        (self.suspects, self.fences) = (suspects, fences);
        self
    }

    /// The next question; `Err` has the results, one for each wish.
    ///
    /// # Errors
    /// When it is done.
    pub fn ask(&self) -> Result<&Ask, &[Result<Entry, NotBooked>]> {
        match &self.next {
            Next::Ask(ask) => Ok(ask),
            Next::Done(results) => Err(results),
        }
    }

    /// The last page that was read.
    #[must_use]
    pub fn page(&self) -> Option<&Node> {
        self.page.as_ref()
    }

    /// Takes the answer to [`Booking::ask`].
    pub fn hear(&mut self, told: Told) {
        let Next::Ask(asked) = &self.next else { return };
        match (asked, told) {
            (Ask::Node, Told::Node(node)) => self.page = Some(node),
            (Ask::BoundPods, Told::BoundPods(pods)) => self.bound = Some(pods),
            (Ask::Pod(name), Told::Pod(pod)) => {
                let name = name.clone();
                self.note(name, Some(pod));
            }
            (Ask::Touch { name, version, .. }, Told::Pod(Some(pod))) if pod.version != *version => {
                let name = name.clone();
                self.note(name, Some(Some(pod)));
            }
            // Without an answer the entry stays, and the next booking asks again.
            (Ask::Pod(name) | Ask::Touch { name, .. }, _) => {
                let name = name.clone();
                let is_touch = matches!(asked, Ask::Touch { .. });
                let believes = mutants::is(Mutant::RefusalIsProof) && !is_touch;
                self.note(name, believes.then_some(None));
            }
            (Ask::Write(..), Told::Done) => {
                let results = self.plan().1;
                self.next = Next::Done(results);
                return;
            }
            (Ask::Write(..), Told::Conflict) if self.tries < TRIES => {
                self.tries += 1;
                (self.page, self.bound) = (None, None);
                self.reads.clear();
            }
            _ => {
                self.next = Next::Done(self.wishes.iter().map(|_| Err(NotBooked::Unknown)).collect());
                return;
            }
        }
        self.next = match self.plan() {
            (Some(ask), _) => Next::Ask(ask),
            (None, results) => Next::Done(results),
        };
    }

    fn note(&mut self, name: String, read: Option<Option<Pod>>) {
        self.reads.retain(|(other, _)| *other != name);
        self.reads.push((name, read));
    }

    /// The state of a pod that was read after the page; `None` if it was not read.
    fn read_of(&self, name: &str) -> Option<&Option<Option<Pod>>> {
        self.reads.iter().find(|(other, _)| other == name).map(|(_, read)| read)
    }

    fn verdict(&self, entry: &Entry) -> Option<Verdict> {
        let read = self.read_of(&entry.pod)?;
        Some(read.as_ref().map_or(Verdict::Open, |pod| entry.verdict(&self.node, pod.as_ref())))
    }

    /// The next question, or the results.
    fn plan(&self) -> (Option<Ask>, Vec<Result<Entry, NotBooked>>) {
        let Some(node) = &self.page else { return (Some(Ask::Node), Vec::new()) };
        let mut entries = node.entries.clone();
        if !node.is_founded {
            let Some(bound) = &self.bound else { return (Some(Ask::BoundPods), Vec::new()) };
            if let Some(pod) = self.found(&mut entries, bound) {
                let closed = NotBooked::Closed { pod };
                return (None, self.wishes.iter().map(|_| Err(closed.clone())).collect());
            }
        }
        let is_suspect = |entry: &Entry| self.suspects.contains(&entry.uid);
        let is_dead = |entry: &Entry| mutants::is(Mutant::DeadStayDead) && !self.fences && is_suspect(entry);
        for entry in entries.iter().filter(|entry| is_suspect(entry)) {
            match self.verdict(entry) {
                None if is_dead(entry) => {}
                None => return (Some(Ask::Pod(entry.pod.clone())), Vec::new()),
                Some(Verdict::Open) if self.fences => {
                    let Some(Some(Some(pod))) = self.read_of(&entry.pod) else { continue };
                    let (name, uid, version) = (pod.name.clone(), pod.uid.clone(), pod.version.clone());
                    return (Some(Ask::Touch { name, uid, version }), Vec::new());
                }
                Some(_) => {}
            }
        }
        entries.retain(|entry| self.verdict(entry) != Some(Verdict::Void) && !is_dead(entry));
        let mut results = Vec::with_capacity(self.wishes.len());
        for wish in &self.wishes {
            match self.place(node, &mut entries, wish) {
                Ok(result) => results.push(result),
                Err(ask) => return (Some(ask), Vec::new()),
            }
        }
        let is_written = node.is_founded && entries == node.entries;
        let write = || Ask::Write(node.version.clone(), entries);
        ((!is_written).then(write), results)
    }

    /// Adds bound pods to the entries of a page that is not this node's, or was edited. Returns a pod with unknown
    /// GPUs, which closes the node.
    fn found(&self, entries: &mut Vec<Entry>, bound: &[Pod]) -> Option<String> {
        for pod in bound.iter().filter(|pod| !pod.is_finished && pod.is_ours) {
            // An entry needs two sources that agree: the pod's annotations, and the page or this replica's memory.
            let is_right =
                |entry: &&Entry| entry.uid == pod.uid && pod.claim.as_ref() == Some(&entry.claim());
            let mut right = entries.iter().chain(&self.known).find(is_right).cloned();
            if let (true, Some(claim)) = (mutants::is(Mutant::BelieveClaims), &pod.claim) {
                let (uid, name, seen) = (pod.uid.clone(), pod.name.clone(), pod.version.clone());
                let Claim { gpus, amount } = claim.clone();
                right = Some(Entry { uid, pod: name, gpus, amount, seen });
            }
            let Some(right) = right else { return Some(pod.name.clone()) };
            entries.retain(|entry| entry.uid != pod.uid);
            entries.push(right);
        }
        None
    }

    /// Enters a wish if there is room; `Err` is a question that must be answered first.
    fn place(
        &self,
        node: &Node,
        entries: &mut Vec<Entry>,
        wish: &Entry,
    ) -> Result<Result<Entry, NotBooked>, Ask> {
        let old = entries.iter().find(|other| other.uid == wish.uid);
        if let Some(old) = old.filter(|_| !mutants::is(Mutant::OneOverAnother)) {
            if old.seen == wish.seen {
                let is_here = old.gpus.iter().all(|gpu| node.gpus.contains(gpu));
                // A bind of the old entry may be on its way, so this one must be equal.
                return Ok(if is_here { Ok(old.clone()) } else { Err(NotBooked::Stale) });
            }
            match self.read_of(&old.pod) {
                None => return Err(Ask::Pod(old.pod.clone())),
                Some(None) => return Ok(Err(NotBooked::Unknown)),
                Some(Some(Some(pod))) if pod.node.is_empty() && pod.version == wish.seen => {}
                Some(Some(_)) => return Ok(Err(NotBooked::Stale)),
            }
        }
        if let Some((gpu, left)) = first_full(node, entries, wish) {
            let is_beside =
                |other: &&Entry| other.uid != wish.uid && wish.gpus.iter().any(|gpu| is_on(node, other, gpu));
            let mut beside = entries.iter().filter(is_beside);
            if let Some(other) = beside.find(|other| self.read_of(&other.pod).is_none()) {
                return Err(Ask::Pod(other.pod.clone()));
            }
            let (gpu, need) = (gpu.to_owned(), wish.amount.units(node.capacity));
            return Ok(Err(NotBooked::Full { gpu, left, need }));
        }
        entries.retain(|other| other.uid != wish.uid);
        entries.push(wish.clone());
        Ok(Ok(wish.clone()))
    }
}
