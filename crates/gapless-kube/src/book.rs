//! The bookings of a node, in an annotation of the node: the one place where all replicas agree.
//!
//! ```text
//! gapless.dev/bookings: {"UID": "NAMESPACE/NAME 0;1 19327352832", ...}      pod, GPUs, units of each
//! ```
//!
//! A booking reads the node, adds up what is booked on each GPU, and writes the new list with the version that it read.
//! If anybody has changed the node since, the API server refuses the change, and the booking starts again. So no GPU is
//! booked twice, whatever the replicas believe.

use crate::api::{Api, ApiError};
use crate::objects::{KubeNode, node, parse_indices, text};
use serde_json::{Map, Value, json};

pub const BOOKINGS: &str = "gapless.dev/bookings";
/// How often a change of the node is tried; kubelets change nodes all the time.
const TRIES: usize = 20;

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

/// The bookings in a node's annotation; an error if somebody has edited it into nonsense.
pub fn entries(object: &Value) -> Result<Vec<Entry>, String> {
    let Some(written) = object["metadata"]["annotations"][BOOKINGS].as_str().filter(|text| !text.is_empty())
    else {
        return Ok(Vec::new());
    };
    let wrong =
        || format!("the annotation {BOOKINGS} is damaged: delete it if no pod uses a GPU of the node");
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
pub fn first_full(node: &KubeNode, others: &[Entry], entry: &Entry) -> Option<(u16, u64)> {
    entry.gpus.iter().find_map(|&gpu| {
        if u32::from(gpu) >= node.node.gpus {
            return Some((gpu, 0));
        }
        let on_it = others.iter().filter(|other| other.uid != entry.uid && other.gpus.contains(&gpu));
        let used = on_it.fold(0u64, |sum, other| sum.saturating_add(other.units));
        let left = node.node.units().saturating_sub(used);
        (left < entry.units).then_some((gpu, left))
    })
}

/// Books `entry` on a node. `is_gone` tells, by its name and id, whether a pod of an older booking is gone for good.
pub fn add(
    api: &Api,
    name: &str,
    entry: &Entry,
    is_gone: &dyn Fn(&str, &str) -> bool,
) -> Result<(), BookError> {
    change(api, name, |object| {
        let kube = node(object).map_err(|what| BookError::Node { node: name.to_owned(), what })?;
        let mut all = entries(object).map_err(|what| BookError::Node { node: name.to_owned(), what })?;
        if all.iter().any(|other| other == entry) {
            return Ok(None);
        }
        all.retain(|other| other.uid != entry.uid);
        if first_full(&kube, &all, entry).is_some() || all.len() > 256 {
            // Bookings of pods that are gone are cleared only when they are in the way.
            all.retain(|other| !is_gone(&other.pod, &other.uid));
        }
        if let Some((gpu, left)) = first_full(&kube, &all, entry) {
            return Err(BookError::NoRoom { node: name.to_owned(), gpu, left, asked: entry.units });
        }
        all.push(entry.clone());
        Ok(Some(written(&all)))
    })
}

/// Takes the booking of a pod off a node.
pub fn remove(api: &Api, name: &str, uid: &str) -> Result<(), BookError> {
    change(api, name, |object| {
        let mut all = entries(object).map_err(|what| BookError::Node { node: name.to_owned(), what })?;
        let before = all.len();
        all.retain(|other| other.uid != uid);
        Ok((all.len() < before).then(|| written(&all)))
    })
}

/// Reads the node, makes the new list and writes it with the version that was read, until nobody came between.
fn change(
    api: &Api,
    name: &str,
    make: impl Fn(&Value) -> Result<Option<String>, BookError>,
) -> Result<(), BookError> {
    let path = format!("/api/v1/nodes/{name}");
    let mut last = None;
    for _ in 0..TRIES {
        let object = api.get(&path)?;
        let Some(new) = make(&object)? else { return Ok(()) };
        let version = text(&object, &["metadata", "resourceVersion"]);
        let body = json!({"metadata": {"resourceVersion": version, "annotations": {BOOKINGS: new}}});
        match api.patch(&path, &body) {
            Ok(_) => return Ok(()),
            Err(error) if error.status() == Some(409) => last = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    Err(last.map_or_else(
        || BookError::Node { node: name.to_owned(), what: "it cannot be changed".to_owned() },
        BookError::Api,
    ))
}
