//! One pod on its way to one node: read, booked, bound. Even if answers are lost, nothing is undone without a proof.

use super::mutants::{self, Mutant};
use super::{Amount, Ask, Entry, NotBooked, Told};

/// The most reads of a pod that changes meanwhile.
const TRIES: u32 = 3;

/// A pod on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    uid: String,
    /// `NAMESPACE/NAME`.
    name: String,
    node: String,
    gpus: Vec<String>,
    amount: Amount,
    tries: u32,
    step: Step,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Ask(Ask),
    /// Book this entry, then call [`Attempt::booked`] with the result.
    Book(Entry),
    /// The place is full: give another one with [`Attempt::place`], or [`Attempt::give_up`].
    Choose(NotBooked),
    /// The pod is bound to the node, with this entry; `None`: another call bound it, and the page has its entry.
    Bound(Option<Entry>),
    Failed(Failure),
}

/// The reason why a pod was not bound.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// It is deleted or finished.
    Gone,
    /// It is bound to another node.
    Elsewhere(String),
    NotBooked(NotBooked),
    /// It is not bound, and this attempt will not bind it.
    Refused,
    /// The API server gave no answer.
    Unknown,
}

impl Attempt {
    #[must_use]
    pub fn new(uid: &str, name: &str, node: &str, gpus: Vec<String>, amount: Amount) -> Attempt {
        let (uid, name, node) = (uid.to_owned(), name.to_owned(), node.to_owned());
        let step = Step::Ask(Ask::Pod(name.clone()));
        Attempt { uid, name, node, gpus, amount, tries: 0, step }
    }

    #[must_use]
    pub fn step(&self) -> &Step {
        &self.step
    }

    /// Takes the answer to a question.
    pub fn hear(&mut self, told: Told) {
        let Step::Ask(asked) = &self.step else { return };
        let entry = match asked {
            Ask::Bind(entry) => Some(entry.clone()),
            _ => None,
        };
        self.step = match (entry, told) {
            (Some(entry), Told::Done) => Step::Bound(Some(entry)),
            (Some(entry), Told::Conflict) if mutants::is(Mutant::ConflictIsMine) => Step::Bound(Some(entry)),
            (Some(_), _) => Step::Ask(Ask::Pod(self.name.clone())),
            (None, Told::Pod(pod)) => match pod.filter(|pod| pod.uid == self.uid && !pod.is_finished) {
                None => Step::Failed(Failure::Gone),
                Some(pod) if pod.node == self.node => Step::Bound(None),
                Some(pod) if !pod.node.is_empty() => Step::Failed(Failure::Elsewhere(pod.node)),
                Some(_) if self.tries >= TRIES => Step::Failed(Failure::Refused),
                Some(pod) => {
                    self.tries += 1;
                    let (uid, pod, seen) = (self.uid.clone(), self.name.clone(), pod.version);
                    Step::Book(Entry { uid, pod, gpus: self.gpus.clone(), amount: self.amount, seen })
                }
            },
            (None, _) => Step::Failed(Failure::Unknown),
        };
    }

    /// Takes the result of [`Step::Book`]. If another booking of this pod came first, that one is bound.
    pub fn booked(&mut self, result: Result<Entry, NotBooked>) {
        if !matches!(self.step, Step::Book(_)) {
            return;
        }
        self.step = match result {
            Ok(entry) => Step::Ask(Ask::Bind(entry)),
            Err(full @ NotBooked::Full { .. }) => Step::Choose(full),
            Err(NotBooked::Stale) if self.tries < TRIES => Step::Ask(Ask::Pod(self.name.clone())),
            Err(why) => Step::Failed(Failure::NotBooked(why)),
        };
    }

    /// Tries another place on the node. The pod is read again, because it may have changed meanwhile.
    pub fn place(&mut self, gpus: Vec<String>, amount: Amount) {
        (self.gpus, self.amount) = (gpus, amount);
        self.step = Step::Ask(Ask::Pod(self.name.clone()));
    }

    /// There is no other place.
    pub fn give_up(&mut self) {
        if let Step::Choose(why) = &self.step {
            self.step = Step::Failed(Failure::NotBooked(why.clone()));
        }
    }
}
