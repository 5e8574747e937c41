//! The bookings of a node, in an annotation of the node: the one place where all replicas agree.
//!
//! ```text
//! gapless.dev/bookings: {"UID": "NAMESPACE/NAME 0;1 19327352832", ...}      pod, GPUs, units of each
//! ```
//!
//! A booking adds up what is booked on each GPU of the node, and writes the new list with the version that it knows. If
//! anybody has changed the node since, the API server refuses the change, and the booking reads the node and starts
//! again. So no GPU is booked twice, whatever the replicas believe.

use crate::api::{Api, ApiError};
use crate::objects::{node, parse_indices, text};
use gapless_fleet::words::Node;
use serde_json::{Map, Value, json};

pub const BOOKINGS: &str = "gapless.dev/bookings";
/// How often a change of the node is tried; kubelets change nodes all the time.
const TRIES: usize = 20;
/// If a node has more bookings, each is checked.
const MOST_ENTRIES: usize = 256;

/// A booking of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub uid: String,
    pub pod: String,
    pub gpus: Vec<u16>,
    /// Units of each GPU.
    pub units: u64,
}

/// Why a booking was not made.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    #[error(
        "GPU {gpu} of node {node} has {left} of the {asked} units that the pod needs: another booking came first"
    )]
    NoRoom { node: String, gpu: u16, left: u64, asked: u64 },
    #[error("node {node}: {what}")]
    Node { node: String, what: String },
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// A node at some version.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub version: String,
    pub node: Node,
    pub entries: Vec<Entry>,
}

impl Snapshot {
    /// Reads a node object.
    pub fn of(object: &Value) -> Result<Snapshot, String> {
        let version = text(object, &["metadata", "resourceVersion"]).to_owned();
        Ok(Snapshot { version, node: node(object)?.node, entries: entries(object)? })
    }
}

/// What became of bookings.
#[derive(Debug)]
pub struct Booked {
    /// The node as it was last read or written.
    pub after: Value,
    /// One for each entry.
    pub results: Vec<Result<(), BookError>>,
}

/// What a booking knows of other pods.
pub trait Others {
    /// Whether this booking is certainly void: its pod is deleted, finished or bound to another node.
    fn is_void(&self, entry: &Entry, at: &str) -> bool;
    /// The same, and the API server may be asked.
    fn is_gone(&self, entry: &Entry) -> bool;
}

/// The bookings in a node's annotation; an error if somebody has edited it into nonsense.
pub fn entries(object: &Value) -> Result<Vec<Entry>, String> {
    let Some(written) = object["metadata"]["annotations"][BOOKINGS].as_str().filter(|text| !text.is_empty())
    else {
        return Ok(Vec::new());
    };
    let wrong = || format!("the annotation {BOOKINGS} is damaged: delete it, and Gapless makes it anew");
    let members: Map<String, Value> = serde_json::from_str(written).map_err(|_| wrong())?;
    let entry = |(uid, value): (&String, &Value)| {
        let mut words = value.as_str()?.split(' ');
        let (pod, gpus, units) = (words.next()?, words.next()?, words.next()?);
        let gpus = parse_indices(gpus).ok()?;
        Some(Entry { uid: uid.clone(), pod: pod.to_owned(), gpus, units: units.parse().ok()? })
    };
    members.iter().map(|member| entry(member).ok_or_else(wrong)).collect()
}

fn written(entries: &[Entry]) -> String {
    let members: Map<String, Value> = entries
        .iter()
        .map(|entry| {
            let gpus: Vec<String> = entry.gpus.iter().map(u16::to_string).collect();
            (entry.uid.clone(), json!(format!("{} {} {}", entry.pod, gpus.join(";"), entry.units)))
        })
        .collect();
    Value::Object(members).to_string()
}

/// The first GPU on which `entry` has no room beside `others`, with what is left there.
pub fn first_full(node: &Node, others: &[Entry], entry: &Entry) -> Option<(u16, u64)> {
    entry.gpus.iter().find_map(|&gpu| {
        if u32::from(gpu) >= node.gpus {
            return Some((gpu, 0));
        }
        let on_it = others.iter().filter(|other| other.uid != entry.uid && other.gpus.contains(&gpu));
        let used = on_it.fold(0u64, |sum, other| sum.saturating_add(other.units));
        let left = node.units().saturating_sub(used);
        (left < entry.units).then_some((gpu, left))
    })
}

/// Books `new` entries on a node, each if it has room. `first` is what is known of the node; without it the node is
/// read. `bound` are pods that are bound there: those that the annotation lacks, because somebody has edited it, are
/// added.
pub fn add(
    api: &Api,
    name: &str,
    first: Option<Snapshot>,
    new: &[Entry],
    bound: &[Entry],
    others: &dyn Others,
) -> Result<Booked, BookError> {
    let mut results = Vec::new();
    let after = change(api, name, first, |now, is_read| {
        results = Vec::with_capacity(new.len());
        if new.iter().all(|entry| now.entries.contains(entry)) {
            results.extend(new.iter().map(|_| Ok(())));
            return None;
        }
        let is_new = |uid: &str| new.iter().any(|entry| entry.uid == uid);
        let mut all = now.entries.clone();
        all.retain(|other| !is_new(&other.uid) && !others.is_void(other, &now.version));
        for known in bound {
            if !is_new(&known.uid) && all.iter().all(|other| other.uid != known.uid) {
                all.push(known.clone());
            }
        }
        let mut is_changed = false;
        for entry in new {
            let mut full = first_full(&now.node, &all, entry);
            // What was known may be old: only for a node that was just read it is worth asking for each pod.
            if is_read && (full.is_some() || all.len() > MOST_ENTRIES) {
                all.retain(|other| is_new(&other.uid) || !others.is_gone(other));
                full = first_full(&now.node, &all, entry);
            }
            results.push(match full {
                Some((gpu, left)) => {
                    Err(BookError::NoRoom { node: name.to_owned(), gpu, left, asked: entry.units })
                }
                None => {
                    all.push(entry.clone());
                    is_changed = true;
                    Ok(())
                }
            });
        }
        if !is_read && results.iter().any(Result::is_err) {
            return None;
        }
        is_changed.then(|| written(&all))
    })?;
    Ok(Booked { after, results })
}

/// Takes the booking of a pod off a node. Gives the node as it was last read or written.
pub fn remove(api: &Api, name: &str, first: Option<Snapshot>, uid: &str) -> Result<Value, BookError> {
    change(api, name, first, |now, _| {
        let mut all = now.entries.clone();
        all.retain(|other| other.uid != uid);
        (all.len() < now.entries.len()).then(|| written(&all))
    })
}

/// Makes the new list and writes it with the version that it was made from, until nobody came between. `make` hears
/// whether the node was just read. Nothing to write counts only then. Gives the node as it was last read or written.
fn change(
    api: &Api,
    name: &str,
    first: Option<Snapshot>,
    mut make: impl FnMut(&Snapshot, bool) -> Option<String>,
) -> Result<Value, BookError> {
    let path = format!("/api/v1/nodes/{name}");
    let wrong = |what| BookError::Node { node: name.to_owned(), what };
    let mut now = first;
    let mut last = None;
    for _ in 0..TRIES {
        let (snapshot, read) = match now.take() {
            Some(snapshot) => (snapshot, None),
            None => {
                let object = api.get(&path)?;
                (Snapshot::of(&object).map_err(wrong)?, Some(object))
            }
        };
        let Some(new) = make(&snapshot, read.is_some()) else {
            match read {
                Some(object) => return Ok(object),
                None => continue,
            }
        };
        let body = json!({"metadata": {"resourceVersion": snapshot.version, "annotations": {BOOKINGS: new}}});
        match api.patch(&path, &body) {
            Ok(object) => return Ok(object),
            Err(error) if error.status() == Some(409) => last = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    Err(last.map_or_else(|| wrong("it cannot be changed".to_owned()), BookError::Api))
}
