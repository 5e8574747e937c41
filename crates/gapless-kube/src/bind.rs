//! Carries out a placement: books the GPUs on the node's page, then binds the pod, with its GPUs in annotations. The
//! rules are those of [`gapless_ledger::promise`]; this module drives them over the API server.
//!
//! If another replica has booked the GPU first, another GPU of the same node is tried, because the scheduler waits
//! before it repeats a failed bind. Entries of failed binds are removed from a page once there is a proof.

use crate::account::Account;
use crate::api::{self, Api, ApiError, Session};
use crate::book::{self, Booked};
use crate::log::Log;
use crate::objects::{self, BOOKED, INDICES, NODE, TENANT, UUIDS};
use crate::target::Target;
use crate::tenant;
use gapless_fleet::desk::Place;
use gapless_fleet::sim::Cause;
use gapless_fleet::words::Request;
use gapless_ledger::promise::attempt::Failure;
use gapless_ledger::promise::{Ask, Attempt, Booking, Entry, NotBooked, Step, Told};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks by node, so that binds of one node wait for each other here and not at the API server.
const LOCKS: usize = 64;
/// The most places on one node that a bind tries.
const PLACES: usize = 4;

/// Binds pods. Bookings of a node that arrive while another one is written share the next write, because a policy
/// that fills one node after the other has many of them.
#[derive(Debug)]
pub struct Binder {
    locks: [Mutex<()>; LOCKS],
    waiting: Mutex<FxHashMap<String, Vec<(Entry, Outcome)>>>,
}

/// The outcome of a booking, once a thread has made it, with the API server's error.
type Outcome = Arc<Mutex<Option<(Result<Entry, NotBooked>, Option<String>)>>>;

impl Default for Binder {
    fn default() -> Binder {
        Binder { locks: std::array::from_fn(|_| Mutex::new(())), waiting: Mutex::default() }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Describes why a request fits nowhere.
pub type Why<'a> = &'a dyn Fn(&Account, &Request, Cause) -> String;

impl Binder {
    /// Books and binds.
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
            bind_plain(api, target)?;
            locked(account).bound(target.uid, target.node, None);
            return Ok(());
        }
        let full_name = format!("{}/{}", target.namespace, target.name);
        let Some((gpus, amount)) = locked(account).named(&place) else {
            return Err(format!("node {} is not known any more", target.node));
        };
        let mut attempt = Attempt::new(target.uid, &full_name, target.node, gpus, amount);
        let mut session = api.session();
        // The last error of the API server, for the pod's event.
        let mut error = None;
        let mut tried = 1;
        loop {
            match attempt.step().clone() {
                Step::Ask(ask) => {
                    let told = ask_api(&mut session, account, target, &ask);
                    attempt.hear(told.unwrap_or_else(|why| {
                        error = Some(why);
                        Told::Nothing
                    }));
                }
                Step::Book(entry) => {
                    let (result, why) = self.book(api, account, log, target.node, entry);
                    error = why.or(error);
                    attempt.booked(result);
                }
                // The booking has updated the account with the node's present page.
                Step::Choose(_) => {
                    tried += 1;
                    let other = request.as_ref().filter(|_| tried <= PLACES).and_then(|request| {
                        let mut account = locked(account);
                        let place = account.choose(target.uid, request, &[target.node]).ok()?;
                        account.named(&place)
                    });
                    match other {
                        Some((gpus, amount)) => attempt.place(gpus, amount),
                        None => attempt.give_up(),
                    }
                }
                Step::Bound(entry) => {
                    let elsewhere = {
                        let mut account = locked(account);
                        account.bound(target.uid, target.node, entry);
                        account.booked_elsewhere(target.uid, target.node)
                    };
                    // Removes entries of interrupted attempts from other nodes.
                    for node in elsewhere {
                        self.check(api, account, log, &node, vec![target.uid.to_owned()]);
                    }
                    return Ok(());
                }
                Step::Failed(failure) => {
                    drop(session);
                    if locked(account).is_booked(target.uid, target.node) {
                        self.check(api, account, log, target.node, vec![target.uid.to_owned()]);
                    }
                    return Err(words(&failure, target, error));
                }
            }
        }
    }

    /// Books on a node, together with all waiting bookings of the same node.
    fn book(
        &self,
        api: &Api,
        account: &Mutex<Account>,
        log: &Log,
        node: &str,
        entry: Entry,
    ) -> (Result<Entry, NotBooked>, Option<String>) {
        let mine = Outcome::default();
        locked(&self.waiting).entry(node.to_owned()).or_default().push((entry, Arc::clone(&mine)));
        let _one_by_one = api::waiting(|| locked(self.lock(node)));
        if let Some(result) = locked(&mine).take() {
            return result;
        }
        // No other thread has taken this booking, so it is among these.
        let taken = locked(&self.waiting).remove(node).unwrap_or_default();
        let wishes: Vec<Entry> = taken.iter().map(|(entry, _)| entry.clone()).collect();
        let (known, suspects) = {
            let account = locked(account);
            (account.bound_on(node), account.suspects(node))
        };
        let booking = Booking::new(node, wishes, known).with_suspects(suspects, false);
        let Booked { after, results, error } = book::run(&mut api.session(), node, booking);
        if let Some(object) = after {
            locked(account).see_node(&object, log);
        }
        for ((_, outcome), result) in taken.iter().zip(results) {
            *locked(outcome) = Some((result, error.clone()));
        }
        locked(&mine).take().unwrap_or((Err(NotBooked::Unknown), error))
    }

    /// Removes entries of pods from a node if they are proven void, after ending binds of them that are on their way.
    /// Entries without a proof stay until the next booking that needs the room, or a later check.
    pub fn check(&self, api: &Api, account: &Mutex<Account>, log: &Log, node: &str, uids: Vec<String>) {
        let _one_by_one = locked(self.lock(node));
        let known = locked(account).bound_on(node);
        let booking = Booking::new(node, Vec::new(), known).with_suspects(uids, true);
        if let Some(object) = book::run(&mut api.session(), node, booking).after {
            locked(account).see_node(&object, log);
        }
    }

    fn lock(&self, node: &str) -> &Mutex<()> {
        let hash = rustc_hash::FxBuildHasher.hash_one(node);
        &self.locks[hash as usize % LOCKS]
    }
}

/// The place of a pod on the node that the scheduler names, and the request that it was chosen for, if the pod has
/// one; `None` if it is bound there already. Both are read under one lock, because an event of the node may end an
/// assumption at any time.
fn place(
    api: &Api,
    account: &Mutex<Account>,
    log: &Log,
    target: Target<'_>,
    why: Why<'_>,
) -> Result<Option<(Place, Option<Request>)>, String> {
    let Target { uid, node, .. } = target;
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
    // After a restart the assumption is lost, but the node is the scheduler's choice. If the watch does not know the
    // pod, or knows it as bound, it is read from the API server.
    if !is_known {
        let object = api.get(&target.path()).map_err(|error| match error.status() {
            Some(404) => words(&Failure::Gone, target, None),
            _ => error.to_string(),
        })?;
        let pod = objects::pod(&object);
        if pod.uid != uid {
            return Err(words(&Failure::Gone, target, None));
        }
        locked(account).hear_pod(pod, log);
    }
    let mut account = locked(account);
    let Some(pod) = account.pod(uid) else { return Err(words(&Failure::Gone, target, None)) };
    if !pod.node.is_empty() {
        return if pod.node == node { Ok(None) } else { Err(format!("it is bound to {} already", pod.node)) };
    }
    let Some(request) = pod.request.clone()? else {
        // The pod asks for no GPU memory, so there is nothing to book.
        return Ok(Some((Place { node: node.to_owned(), gpus: Vec::new(), units: 0 }, None)));
    };
    match account.choose(uid, &request, &[node]) {
        Ok(place) => Ok(Some((place, Some(request)))),
        Err(cause) => Err(why(&account, &request, cause)),
    }
}

/// The reason why a pod was not bound, for the event that its owner reads.
fn words(failure: &Failure, target: Target<'_>, error: Option<String>) -> String {
    let Target { namespace, name, node, .. } = target;
    let told = |what: &str| error.map_or_else(|| what.to_owned(), |why| format!("{what}: {why}"));
    match failure {
        Failure::Gone => format!("pod {namespace}/{name} is deleted, finished or made anew"),
        Failure::Elsewhere(other) => format!("it is bound to {other} already"),
        Failure::NotBooked(NotBooked::Unknown) => told(&format!("node {node}: nothing is booked")),
        Failure::NotBooked(why) => format!("node {node}: {why}"),
        Failure::Refused => told("it is not bound"),
        Failure::Unknown => told("the API server does not say whether it is bound"),
    }
}

/// Makes one call about the pod that is being bound. It is read and bound over one connection.
fn ask_api(
    session: &mut Session<'_>,
    account: &Mutex<Account>,
    target: Target<'_>,
    ask: &Ask,
) -> Result<Told, String> {
    let entry = match ask {
        Ask::Pod(name) => return book::pod_told(name, session.begin(&target.path())),
        Ask::Bind(entry) => entry,
        _ => return Err("a question that is not for a pod".to_owned()),
    };
    let indices = locked(account).indices(target.node, entry);
    let notes = json!({
        NODE: target.node,
        INDICES: indices.iter().map(u16::to_string).collect::<Vec<_>>().join(";"),
        BOOKED: entry.amount.to_string(),
        UUIDS: entry.gpus.join(","),
        TENANT: tenant::share(target.uid, entry.amount),
    });
    // The bind requires this version, for which the entry was booked.
    let body = binding(target, &json!(entry.seen), &notes);
    match session.call("POST", &format!("{}/binding", target.path()), Some(JSON), Some(&body)) {
        Ok(answer) if answer["status"] == "Success" => Ok(Told::Done),
        Ok(_) => Err("the API server's answer does not say whether the pod is bound".to_owned()),
        Err(ApiError::Status { status: 404 | 409, .. }) => Ok(Told::Conflict),
        Err(why) => Err(why.to_string()),
    }
}

const JSON: &str = "application/json";

fn binding(target: Target<'_>, version: &Value, notes: &Value) -> Value {
    let Target { namespace, name, uid, node } = target;
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": notes},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    if !version.is_null() {
        object["metadata"]["resourceVersion"] = version.clone();
    }
    object
}

/// Binds a pod that gets no GPU.
fn bind_plain(api: &Api, target: Target<'_>) -> Result<(), String> {
    let path = target.path();
    let body = binding(target, &Value::Null, &json!({}));
    let Err(error) = api.post(&format!("{path}/binding"), &body) else { return Ok(()) };
    // The answer may have been lost, so the pod is read.
    let object = api.get(&path).map_err(|_| error.to_string())?;
    let is_ours = objects::text(&object, &["metadata", "uid"]) == target.uid;
    let is_here = objects::text(&object, &["spec", "nodeName"]) == target.node;
    if is_ours && is_here { Ok(()) } else { Err(error.to_string()) }
}
