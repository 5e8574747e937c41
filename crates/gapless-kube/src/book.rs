//! The page of a node, in an annotation of the node: the one place where all replicas agree. The rules are those of
//! [`gapless_ledger::promise`]; this module reads and writes pages, and drives bookings over the API server.
//!
//! ```text
//! gapless.dev/bookings: {"": "NODE-UID SUM", "UID": "NAMESPACE/NAME GPU-a;GPU-b 19327352832 VERSION", ...}
//! ```
//!
//! An entry has the pod, its GPUs by UUID, the bytes of each (`500m`: thousandths, if the bytes are not known), and the
//! version of the pod that its binding requires. Uid and sum reveal a node that was made again, and edits by hand.

use crate::api::{self, ApiError, Session};
use crate::names;
use crate::objects::{self, node, text};
use crate::retry;
use gapless_ledger::promise::entry::sum;
use gapless_ledger::promise::{Ask, Booking, Entry, Node, NotBooked, Told};
use serde_json::{Map, Value, json};

pub const BOOKINGS: &str = "gapless.dev/bookings";
/// An answer with a status of success that is not what was asked for, as from a proxy.
const OTHER: &str = "the API server answered with another object";
const MERGE: Option<&str> = Some("application/merge-patch+json");

/// A node's page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// True if the page is this node's and unedited.
    pub is_founded: bool,
    pub entries: Vec<Entry>,
}

/// Reads the page of a node; an error if an edit has made it unreadable.
pub fn page(object: &Value) -> Result<Page, String> {
    let Some(written) = object["metadata"]["annotations"][BOOKINGS].as_str().filter(|text| !text.is_empty())
    else {
        return Ok(Page::default());
    };
    let wrong =
        || format!("the annotation {BOOKINGS} is damaged: delete it once no pod uses the node's GPUs");
    let members: Map<String, Value> = serde_json::from_str(written).map_err(|_| wrong())?;
    let entry = |(uid, words): (&String, &Value)| Entry::read(uid, words.as_str()?);
    let entries = members.iter().filter(|(uid, _)| !uid.is_empty());
    let entries: Vec<Entry> =
        entries.map(|member| entry(member).ok_or_else(wrong)).collect::<Result<_, _>>()?;
    let uid = text(object, &["metadata", "uid"]);
    let is_founded = members.get("").and_then(Value::as_str) == Some(&head(uid, &entries));
    Ok(Page { is_founded, entries })
}

fn head(uid: &str, entries: &[Entry]) -> String {
    format!("{uid} {:016x}", sum(uid, entries))
}

/// The text of a page of the node with this uid.
pub fn written(uid: &str, entries: &[Entry]) -> String {
    let member = |entry: &Entry| (entry.uid.clone(), json!(entry.words()));
    let mut members: Map<String, Value> = entries.iter().map(member).collect();
    members.insert(String::new(), json!(head(uid, entries)));
    Value::Object(members).to_string()
}

/// The outcome of a booking.
#[derive(Debug)]
pub struct Booked {
    /// The node as it was last read or written.
    pub after: Option<Value>,
    /// One for each wish.
    pub results: Vec<Result<Entry, NotBooked>>,
    /// The API server's error, if there was one.
    pub error: Option<String>,
}

/// Runs a booking to its end. The page is read and written over one connection.
pub fn run(session: &mut Session<'_>, name: &str, mut booking: Booking) -> Booked {
    let path = format!("/api/v1/nodes/{name}");
    let (mut after, mut error) = (None, None);
    let mut uid = String::new();
    loop {
        let ask = match booking.ask() {
            Ok(ask) => ask.clone(),
            Err(results) => return Booked { after, results: results.to_vec(), error },
        };
        let told = match &ask {
            Ask::Node => session.begin(&path).map_err(|why| why.to_string()).and_then(|object| {
                if text(&object, &["metadata", "name"]) != name {
                    return Err(OTHER.to_owned());
                }
                let node = read(&object)?;
                text(&object, &["metadata", "uid"]).clone_into(&mut uid);
                after = Some(object);
                Ok(Told::Node(node))
            }),
            Ask::BoundPods => {
                let list = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{name}");
                let list = session.call("GET", &list, None, None).and_then(|mut list| api::items(&mut list));
                list.map_err(|why| why.to_string()).map(|items| {
                    // A server that ignores the selector lists pods of other nodes too.
                    let bound = items.iter().map(objects::promised).filter(|pod| pod.node == name);
                    Told::BoundPods(bound.collect())
                })
            }
            Ask::Write(version, entries) => {
                let page = written(&uid, entries);
                let notes = json!({ BOOKINGS: page });
                let body = json!({"metadata": {"resourceVersion": version, "annotations": notes}});
                match session.call("PATCH", &path, MERGE, Some(&body)) {
                    // Another answer does not say that the page is written.
                    Ok(object) if object["metadata"]["annotations"][BOOKINGS] != page => {
                        Err(OTHER.to_owned())
                    }
                    Ok(object) => {
                        after = Some(object);
                        Ok(Told::Done)
                    }
                    Err(why) if why.status() == Some(409) => Ok(Told::Conflict),
                    Err(why) => Err(why.to_string()),
                }
            }
            ask => about_pod(session, ask),
        };
        booking.hear(told.unwrap_or_else(|why| {
            error = Some(why);
            Told::Nothing
        }));
    }
}

/// Reads or touches a pod over a connection that is open.
fn about_pod(session: &mut Session<'_>, ask: &Ask) -> Result<Told, String> {
    let (name, answer) = match ask {
        Ask::Pod(name) => (name, session.call("GET", &path_of(name)?, None, None)),
        Ask::Touch { name, uid, version } => {
            let mut body = retry::mark(uid);
            body["metadata"]["resourceVersion"] = json!(version);
            (name, session.call("PATCH", &path_of(name)?, MERGE, Some(&body)))
        }
        _ => return Err("a question that is not for a page".to_owned()),
    };
    pod_told(name, answer)
}

/// The path of a pod; an error if its name on the page is invalid.
pub(crate) fn path_of(name: &str) -> Result<String, String> {
    match name.split_once('/') {
        Some((namespace, pod)) if names::is_namespace(namespace) && names::is_name(pod) => {
            Ok(format!("/api/v1/namespaces/{namespace}/pods/{pod}"))
        }
        _ => Err(format!("invalid name of a pod {name:?}")),
    }
}

/// The pod in an answer about the pod of this name. Another object is no proof of anything.
pub(crate) fn pod_told(name: &str, answer: Result<Value, ApiError>) -> Result<Told, String> {
    match answer {
        Ok(object) => {
            let pod = objects::promised(&object);
            if pod.name == name && !pod.uid.is_empty() {
                Ok(Told::Pod(Some(pod)))
            } else {
                Err(OTHER.to_owned())
            }
        }
        Err(ApiError::Status { status: 404, .. }) => Ok(Told::Pod(None)),
        Err(ApiError::Status { status: 409, .. }) => Ok(Told::Conflict),
        Err(why) => Err(why.to_string()),
    }
}

/// A node in the form of the ledger's rules.
fn read(object: &Value) -> Result<Node, String> {
    let kube = node(object)?;
    let Page { is_founded, entries } = page(object)?;
    let version = text(object, &["metadata", "resourceVersion"]).to_owned();
    Ok(Node { version, gpus: kube.gpus(), capacity: kube.node.gpu_memory, is_founded, entries })
}
