//! Makes a place true: books the GPUs on the node object, then binds the pod, with its GPUs in annotations.
//!
//! Both writes are made for the pod with this id only. If another replica has booked the GPU first, another GPU of the
//! same node is tried: the scheduler waits before it tries a pod again whose bind has failed. If the second write
//! fails, the first is undone; if that fails too, or the process is killed between the two, the booking waits until the
//! pod is bound somewhere, finished or deleted.

use crate::account::Account;
use crate::api::{self, Api, ApiError};
use crate::book::{self, BookError, Entry, Others};
use crate::cdi;
use crate::log::Log;
use crate::names;
use crate::objects::{self, BOOKED, INDICES, NODE, UUIDS};
use gapless_fleet::desk::Place;
use gapless_fleet::sim::Cause;
use gapless_fleet::words::Request;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Binds of one node wait for each other here rather than at the API server.
const LOCKS: usize = 64;
/// Places on one node that a bind tries.
const PLACES: usize = 4;

/// A pod that is to be bound, as the scheduler names it.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub node: &'a str,
}

impl Target<'_> {
    /// Whether these can be names at all: they become parts of paths.
    pub fn check(&self) -> Result<(), String> {
        let Target { namespace, name, uid, node } = *self;
        let parts = [
            ("PodNamespace", namespace, names::is_namespace(namespace)),
            ("PodName", name, names::is_name(name)),
            ("PodUID", uid, names::is_uid(uid)),
            ("Node", node, names::is_name(node)),
        ];
        match parts.into_iter().find(|(.., is_right)| !is_right) {
            Some((what, text, _)) => {
                Err(format!("{what}: invalid name {text:?}: use lower-case letters, digits, - and ."))
            }
            None => Ok(()),
        }
    }

    pub fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

/// Binds pods. Bookings of one node that come while another one is on its way go together in the next write: a policy
/// that fills one node after the other has many of them.
#[derive(Debug)]
pub struct Binder {
    locks: [Mutex<()>; LOCKS],
    waiting: Mutex<FxHashMap<String, Vec<(Entry, Outcome)>>>,
}

/// What became of a booking, once somebody has made it.
type Outcome = Arc<Mutex<Option<Result<(), Refused>>>>;

/// Why a booking was not made.
#[derive(Clone, Debug)]
struct Refused {
    what: String,
    /// Another booking came first: another GPU may have room.
    is_full: bool,
}

impl From<BookError> for Refused {
    fn from(error: BookError) -> Refused {
        Refused { is_full: matches!(error, BookError::NoRoom { .. }), what: error.to_string() }
    }
}

impl Default for Binder {
    fn default() -> Binder {
        Binder { locks: std::array::from_fn(|_| Mutex::new(())), waiting: Mutex::default() }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says why a request fits nowhere.
pub type Why<'a> = &'a dyn Fn(&Account, &Request, Cause) -> String;

impl Binder {
    /// Books and binds. An error leaves no booking, as far as the API server can be reached.
    pub fn bind(
        &self,
        api: &Api,
        account: &Mutex<Account>,
        log: &Log,
        target: Target<'_>,
        why: Why<'_>,
    ) -> Result<(), String> {
        let Some((place, request)) = place(api, account, log, target, why)? else { return Ok(()) };
        if place.gpus.is_empty() {
            bind_object(api, target, &json!({})).map_err(|unbound| unbound.what)?;
            locked(account).bound(target.uid, target.node);
            return Ok(());
        }
        let place = self.book_somewhere(api, account, log, target, place, request.as_ref())?;
        let (uuids, elsewhere, names_device) = {
            let account = locked(account);
            (
                account.uuids(&place).join(","),
                account.booked_elsewhere(target.uid, target.node),
                account.names_device(target.uid, target.node),
            )
        };
        let indices: Vec<String> = place.gpus.iter().map(u16::to_string).collect();
        let mut notes = json!({
            NODE: place.node,
            INDICES: indices.join(";"),
            BOOKED: place.units.to_string(),
            UUIDS: uuids,
        });
        if names_device {
            notes[cdi::ANNOTATION] = json!(cdi::device(target.uid));
        }
        if let Err(unbound) = bind_object(api, target, &notes) {
            // Without the booking the GPU is free for others at once. Without a proof the pod may run on it.
            if unbound.is_proven {
                self.unbook(api, account, log, target.node, target.uid);
            }
            return Err(unbound.what);
        }
        locked(account).bound(target.uid, target.node);
        // What an attempt that was cut off has left on other nodes.
        for node in elsewhere {
            self.unbook(api, account, log, &node, target.uid);
        }
        Ok(())
    }

    /// Books this place, or another one on the same node if others were faster. Gives the place that was booked.
    fn book_somewhere(
        &self,
        api: &Api,
        account: &Mutex<Account>,
        log: &Log,
        target: Target<'_>,
        mut place: Place,
        request: Option<&Request>,
    ) -> Result<Place, String> {
        for tried in 1.. {
            let entry = Entry {
                uid: target.uid.to_owned(),
                pod: format!("{}/{}", target.namespace, target.name),
                gpus: place.gpus.clone(),
                units: place.units,
            };
            let refused = match self.book(api, account, log, target.node, entry) {
                Ok(()) => break,
                Err(refused) => refused,
            };
            // The account has seen the node as it is now.
            let other = request
                .filter(|_| refused.is_full && tried < PLACES)
                .and_then(|request| locked(account).choose(target.uid, request, &[target.node]).ok());
            place = other.ok_or(refused.what)?;
        }
        Ok(place)
    }

    /// Books on a node, with all that wait for the same node.
    fn book(
        &self,
        api: &Api,
        account: &Mutex<Account>,
        log: &Log,
        node: &str,
        entry: Entry,
    ) -> Result<(), Refused> {
        let mine = Outcome::default();
        locked(&self.waiting).entry(node.to_owned()).or_default().push((entry, Arc::clone(&mine)));
        let _one_by_one = api::waiting(|| locked(self.lock(node)));
        if let Some(result) = locked(&mine).take() {
            return result;
        }
        // Nobody has taken mine, so it is among these.
        let taken = locked(&self.waiting).remove(node).unwrap_or_default();
        let entries: Vec<Entry> = taken.iter().map(|(entry, _)| entry.clone()).collect();
        let (snapshot, bound) = {
            let account = locked(account);
            (account.snapshot(node), account.bound_on(node))
        };
        let others = Pods { api, account, node };
        match book::add(api, node, snapshot, &entries, &bound, &others) {
            Ok(book::Booked { after, results }) => {
                locked(account).see_node(&after, log);
                for ((_, outcome), result) in taken.iter().zip(results) {
                    *locked(outcome) = Some(result.map_err(Refused::from));
                }
            }
            Err(error) => {
                let refused = Refused::from(error);
                for (_, outcome) in &taken {
                    *locked(outcome) = Some(Err(refused.clone()));
                }
            }
        }
        let lost = || Refused { what: "the booking was not made".to_owned(), is_full: false };
        locked(&mine).take().unwrap_or_else(|| Err(lost()))
    }

    /// Takes a booking off a node. If this fails, the booking is void, and cleared by the next one on that node.
    fn unbook(&self, api: &Api, account: &Mutex<Account>, log: &Log, node: &str, uid: &str) {
        let _one_by_one = locked(self.lock(node));
        let snapshot = locked(account).snapshot(node);
        if let Ok(object) = book::remove(api, node, snapshot, uid) {
            locked(account).see_node(&object, log);
        }
    }

    fn lock(&self, node: &str) -> &Mutex<()> {
        let hash = rustc_hash::FxBuildHasher.hash_one(node);
        &self.locks[hash as usize % LOCKS]
    }
}

/// The place of a pod on the node that the scheduler names, and the request that it was chosen for, if the pod has
/// one; nothing if it is bound there already. Both are read at once: news from the node may end an assumption at any
/// time.
fn place(
    api: &Api,
    account: &Mutex<Account>,
    log: &Log,
    target: Target<'_>,
    why: Why<'_>,
) -> Result<Option<(Place, Option<Request>)>, String> {
    let Target { namespace, name, uid, node } = target;
    let is_known = {
        let account = locked(account);
        if let Some(assumed) = account.assumption(uid)
            && account.pod(uid).is_some_and(|pod| pod.node.is_empty())
        {
            return if assumed.place.node == node {
                Ok(Some((assumed.place.clone(), Some(assumed.request.clone()))))
            } else {
                Err(format!("Gapless has assumed it on {}, not on {node}", assumed.place.node))
            };
        }
        account.pod(uid).is_some_and(|pod| pod.node.is_empty())
    };
    // After a restart the assumption is lost, but the node is the scheduler's choice. A pod that the watch does not
    // know, or knows as bound, is read.
    if !is_known {
        let object = api.get(&target.path()).map_err(|error| error.to_string())?;
        let pod = objects::pod(&object);
        if pod.uid != uid {
            return Err(format!("pod {namespace}/{name} was deleted and made anew since it was scheduled"));
        }
        locked(account).see_pod(pod, log);
    }
    let mut account = locked(account);
    let Some(pod) = account.pod(uid) else { return Err(format!("pod {namespace}/{name} has finished")) };
    if !pod.node.is_empty() {
        return if pod.node == node { Ok(None) } else { Err(format!("it is bound to {} already", pod.node)) };
    }
    let Some(request) = pod.request.clone()? else {
        // Not for us: there is nothing to book.
        return Ok(Some((Place { node: node.to_owned(), gpus: Vec::new(), units: 0 }, None)));
    };
    match account.choose(uid, &request, &[node]) {
        Ok(place) => Ok(Some((place, Some(request)))),
        Err(cause) => Err(why(&account, &request, cause)),
    }
}

/// Why a pod was not bound, and whether it certainly was not.
struct Unbound {
    what: String,
    is_proven: bool,
}

fn bind_object(api: &Api, target: Target<'_>, notes: &Value) -> Result<(), Unbound> {
    let Target { namespace, name, uid, node } = target;
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": notes},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let path = target.path();
    let Err(error) = api.post(&format!("{path}/binding"), &body) else { return Ok(()) };
    let unbound = |is_proven| Err(Unbound { what: error.to_string(), is_proven });
    // Refused before it was done. Anything else may be an answer that was lost on its way, or a bind that came first.
    if let Some(400..=407 | 410..=499) = error.status() {
        return unbound(true);
    }
    match api.get(&path) {
        Ok(object) => {
            let now = objects::text(&object, &["spec", "nodeName"]);
            let is_ours = objects::text(&object, &["metadata", "uid"]) == uid;
            let has =
                |note: &str| notes[note].is_null() || object["metadata"]["annotations"][note] == notes[note];
            if is_ours && now == node && has(INDICES) && has(UUIDS) && has(BOOKED) {
                return Ok(());
            }
            // A call whose answer was lost may still be on its way to the API server.
            unbound(!is_ours || !now.is_empty() || error.status() == Some(409))
        }
        Err(ApiError::Status { status: 404, .. }) => unbound(true),
        Err(_) => unbound(false),
    }
}

/// What is known of the pods of other bookings.
struct Pods<'a> {
    api: &'a Api,
    account: &'a Mutex<Account>,
    node: &'a str,
}

impl Others for Pods<'_> {
    fn is_void(&self, entry: &Entry, at: &str) -> bool {
        locked(self.account).is_void(entry, self.node, at)
    }

    fn is_gone(&self, entry: &Entry) -> bool {
        let Some((namespace, name)) = entry.pod.split_once('/') else { return false };
        if !names::is_namespace(namespace) || !names::is_name(name) {
            return false;
        }
        match self.api.get(&format!("/api/v1/namespaces/{namespace}/pods/{name}")) {
            Ok(object) => {
                let now = objects::pod(&object);
                now.uid != entry.uid || now.finished || (!now.node.is_empty() && now.node != self.node)
            }
            Err(ApiError::Status { status: 404, .. }) => true,
            Err(_) => false,
        }
    }
}
