//! Promises on this node, from the API server's objects of the node and its pods, or from a file.
//!
//! Only the node's booking of a pod counts: a pod's owner may edit the pod's annotations and so could raise its limit.

use super::account::Booking;
use gapless_kube::api::{self, Api, ApiError};
use gapless_kube::book;
use gapless_kube::objects::{self, GPU_MEMORY, GPU_MODEL, GPUS, UUIDS, text};
use gapless_kube::tenant::is_name;
use gapless_ledger::promise::{Amount, Entry};
use gapless_trace::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::machine::Machine;

/// The bookings of pods on `node`, whose object is `object`. The second list names invalid entries.
pub(super) fn listed(
    api: &Api,
    node: &str,
    object: &Value,
    machine: &Machine,
) -> Result<(Vec<Booking>, Vec<String>), ApiError> {
    let mut list = api.get(&format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}"))?;
    Ok(of_list(&api::items(&mut list)?, node, object, machine))
}

fn of_list(pods: &[Value], node: &str, object: &Value, machine: &Machine) -> (Vec<Booking>, Vec<String>) {
    let (mut bookings, mut wrong) = (Vec::new(), Vec::new());
    let page = book::page(object).unwrap_or_else(|what| {
        wrong.push(format!("{node}: {what}"));
        book::Page::default()
    });
    for pod in pods {
        // If a server ignores the selector, the agent still must not write for pods of other nodes.
        let is_here = text(pod, &["spec", "nodeName"]) == node;
        let is_over = matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed");
        if !is_here || is_over {
            continue;
        }
        let claim = objects::pod(pod).claim;
        let name = format!("{}/{}", text(pod, &["metadata", "namespace"]), text(pod, &["metadata", "name"]));
        let uid = text(pod, &["metadata", "uid"]);
        let Some(entry) = page.entries.iter().find(|entry| entry.uid == uid && is_name(uid)) else {
            if claim.is_some() {
                wrong.push(format!("{name}: it says that it has GPUs, and nothing is booked for it"));
            }
            continue;
        };
        if claim != Some(entry.claim()) {
            wrong.push(format!("{name}: its annotations were edited; the node's booking counts"));
        }
        bookings.push(of_entry(entry, machine));
    }
    (bookings, wrong)
}

/// The booking of a pod on the node. GPUs that have no UUID are named by their indices.
fn of_entry(entry: &Entry, machine: &Machine) -> Booking {
    let indices: Vec<u32> = entry.gpus.iter().filter_map(|gpu| gpu.parse().ok()).collect();
    let uuids = entry.gpus.iter().filter(|gpu| is_name(gpu) && gpu.parse::<u32>().is_err()).cloned();
    Booking {
        id: entry.uid.clone(),
        name: entry.pod.clone(),
        uuids: uuids.collect(),
        indices,
        bytes: bytes(entry.amount, machine),
    }
}

/// An amount as bytes, and never more than a GPU has.
fn bytes(amount: Amount, machine: &Machine) -> u64 {
    let whole = machine.gpus.iter().map(|gpu| gpu.total);
    let most = whole.clone().max().unwrap_or(0);
    match amount {
        Amount::Bytes(bytes) if most == 0 => bytes,
        amount => amount.units(whole.min()).min(most),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    name: Option<String>,
    #[serde(default)]
    uuids: Vec<String>,
    #[serde(default)]
    gpus: Vec<u32>,
    bytes: Value,
}

/// Bookings in a file: `[{"id": "...", "name": "...", "gpus": [0], "bytes": "18GiB"}]`.
pub(super) fn read(text: &str) -> Result<Vec<Booking>, String> {
    let rows: Vec<Row> = serde_json::from_str(text).map_err(|error| format!("invalid JSON: {error}"))?;
    let one = |(at, row): (usize, Row)| {
        let bytes = match &row.bytes {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse::<Bytes>().ok().map(|bytes| bytes.0),
            _ => None,
        };
        let bytes = bytes.ok_or_else(|| format!("[{at}]: invalid bytes {}: use 18GiB", row.bytes))?;
        if !is_name(&row.id) {
            return Err(format!("[{at}]: invalid id {:?}: use letters, digits, -, _ and .", row.id));
        }
        if row.uuids.is_empty() && row.gpus.is_empty() {
            return Err(format!("[{at}]: no GPU: name them in gpus or uuids"));
        }
        let name = row.name.unwrap_or_else(|| row.id.clone());
        Ok(Booking { id: row.id, name, uuids: row.uuids, indices: row.gpus, bytes })
    };
    rows.into_iter().enumerate().map(one).collect()
}

/// Tells the API server which GPUs the node has, if the node's object does not say so already. Returns true if
/// something changed.
pub(super) fn report(api: &Api, node: &str, object: &Value, machine: &Machine) -> Result<bool, ApiError> {
    let wanted = annotations(machine);
    let there = &object["metadata"]["annotations"];
    let changed: serde_json::Map<String, Value> =
        wanted.into_iter().filter(|(name, value)| there[name.as_str()] != *value).collect();
    if changed.is_empty() {
        return Ok(false);
    }
    api.patch(&format!("/api/v1/nodes/{node}"), &json!({"metadata": {"annotations": changed}}))?;
    Ok(true)
}

/// The annotations of a node with these GPUs: whole ones; if they differ, values that hold for each. Null removes one
/// that would no longer be true: UUIDs of before would name other cards.
fn annotations(machine: &Machine) -> serde_json::Map<String, Value> {
    let gpus: Vec<_> = machine.gpus.iter().filter(|gpu| gpu.instance.is_none() && gpu.total > 0).collect();
    let mut all = serde_json::Map::new();
    all.insert(GPUS.to_owned(), json!(gpus.len().to_string()));
    if let Some(least) = gpus.iter().map(|gpu| gpu.total).min() {
        all.insert(GPU_MEMORY.to_owned(), json!(least.to_string()));
        let is_one = gpus.iter().all(|gpu| gpu.name == gpus[0].name);
        all.insert(GPU_MODEL.to_owned(), json!(if is_one { gpus[0].name.as_str() } else { "mixed" }));
        let uuids: Vec<&str> = gpus.iter().filter_map(|gpu| gpu.uuid.as_deref()).collect();
        let is_whole = uuids.len() == gpus.len();
        all.insert(UUIDS.to_owned(), if is_whole { json!(uuids.join(",")) } else { Value::Null });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::testing::{GIB, machine};
    use gapless_kube::objects::BOOKED;

    fn entry(uid: &str, gpu: &str, amount: Amount) -> Entry {
        let (pod, seen) = (format!("d/{uid}"), "7".to_owned());
        Entry { uid: uid.to_owned(), pod, gpus: vec![gpu.to_owned()], amount, seen }
    }

    #[test]
    fn a_booking_is_no_more_than_a_gpu_has() {
        let of = |gpu: &str, amount: Amount| of_entry(&entry("u", gpu, amount), &machine());
        assert_eq!(of("GPU-a", Amount::Bytes(GIB)).bytes, GIB);
        assert_eq!(of("GPU-a", Amount::Bytes(u64::MAX)).bytes, 80 * GIB);
        assert_eq!(of("GPU-a", Amount::Milli(500)).bytes, 40 * GIB);
        assert_eq!(of("GPU-a", Amount::Milli(u32::MAX)).bytes, 80 * GIB);
        assert_eq!(
            (of("1", Amount::Milli(500)).indices, of("GPU-a", Amount::Milli(500)).indices),
            (vec![1], vec![])
        );
        assert_eq!(of("../x", Amount::Bytes(GIB)).uuids, [""; 0], "no name of a GPU");
    }

    #[test]
    fn the_nodes_booking_counts_and_not_what_the_pod_says() {
        let notes = |gib: u64| json!({UUIDS: "GPU-b", BOOKED: (gib * GIB).to_string()});
        let pod = |uid: &str, node: &str, notes: Value| {
            let metadata = json!({"uid": uid, "namespace": "d", "name": uid, "annotations": notes});
            json!({"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}})
        };
        let list = [
            pod("honest", "n", notes(4)),
            pod("greedy", "n", json!({UUIDS: "all", BOOKED: (8u64 << 60).to_string()})),
            pod("mute", "n", json!({})),
            pod("unbooked", "n", json!({UUIDS: "all", BOOKED: (8u64 << 60).to_string()})),
            pod("far", "m", notes(4)),
        ];
        let booked =
            ["honest", "greedy", "mute", "far"].map(|uid| entry(uid, "GPU-b", Amount::Bytes(4 * GIB)));
        let node = |page: &str| json!({"metadata": {"annotations": {book::BOOKINGS: page}}});
        let (bookings, wrong) = of_list(&list, "n", &node(&book::written("", &booked)), &machine());
        let found: Vec<(&str, u64)> = bookings.iter().map(|one| (one.id.as_str(), one.bytes / GIB)).collect();
        assert_eq!(found, [("honest", 4), ("greedy", 4), ("mute", 4)]);
        assert!(bookings.iter().all(|one| one.uuids == ["GPU-b"] && one.indices.is_empty()));
        let said = |part: &str| wrong.iter().any(|what| what.contains(part));
        assert!(
            said("d/greedy: its annotations were edited") && said("d/mute: its annotations"),
            "{wrong:?}"
        );
        assert!(said("d/unbooked: it says"), "{wrong:?}");
        assert_eq!(wrong.len(), 3);
        let (bookings, wrong) = of_list(&list, "n", &node("nonsense"), &machine());
        assert_eq!((bookings.len(), wrong.len()), (0, 4), "nothing is booked, and nobody is believed");
    }

    #[test]
    fn a_node_tells_its_gpus() {
        let told = annotations(&machine());
        assert_eq!((&told[GPUS], &told[GPU_MEMORY]), (&json!("2"), &json!((80 * GIB).to_string())));
        assert_eq!(told[GPU_MODEL], "NVIDIA A100-SXM4-80GB");
        assert!(told[UUIDS].as_str().is_some_and(|uuids| uuids.split(',').count() == 2), "{}", told[UUIDS]);
        let mut machine = machine();
        machine.gpus[0].uuid = None;
        assert_eq!(annotations(&machine).get(UUIDS), Some(&Value::Null), "those of before name other cards");
    }

    #[test]
    fn a_file_is_read_or_refused_with_its_place() {
        let read = |text: &str| super::read(text).map_err(|error| error.to_string());
        let right = read(r#"[{"id": "job-1", "gpus": [0], "bytes": "18GiB"}]"#).expect("right");
        assert_eq!((right[0].name.as_str(), right[0].bytes), ("job-1", 18 * GIB));
        for (text, part) in [
            ("{}", "invalid JSON"),
            (r#"[{"id": "a", "gpus": [0], "bytes": "lots"}]"#, "[0]: invalid bytes"),
            (r#"[{"id": "a/b", "gpus": [0], "bytes": 1}]"#, "[0]: invalid id"),
            (r#"[{"id": "a", "bytes": 1}]"#, "[0]: no GPU"),
        ] {
            assert!(read(text).is_err_and(|error| error.contains(part)), "{text}");
        }
    }
}
