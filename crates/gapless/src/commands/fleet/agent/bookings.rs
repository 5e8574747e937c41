//! Who was promised what on this node: from what the API server says of the node and its pods, or from a file.
//!
//! The node's booking of a pod counts. What the pod's own annotations say counts only if there is none: the pod's owner
//! may edit those, and would raise the limit.

use super::account::Booking;
use gapless_fleet::words::WHOLE;
use gapless_kube::api::{Api, ApiError};
use gapless_kube::book::{self, Entry};
use gapless_kube::cdi::{self, is_name};
use gapless_kube::objects::{BOOKED, GPU_MEMORY, GPU_MODEL, GPUS, INDICES, UUIDS, parse_indices, text};
use gapless_trace::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::machine::Machine;

/// What the API server says of the pods on `node`, whose object is `object`. The second list tells what makes no sense.
pub(super) fn listed(
    api: &Api,
    node: &str,
    object: &Value,
    machine: &Machine,
) -> Result<(Vec<Booking>, Vec<String>), ApiError> {
    let list = api.get(&format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}"))?;
    Ok(of_list(&list, node, object, machine))
}

fn of_list(list: &Value, node: &str, object: &Value, machine: &Machine) -> (Vec<Booking>, Vec<String>) {
    let (mut bookings, mut wrong) = (Vec::new(), Vec::new());
    let entries = book::entries(object).unwrap_or_else(|what| {
        wrong.push(format!("{node}: {what}"));
        Vec::new()
    });
    let names = uuids(&object["metadata"]["annotations"][UUIDS]);
    for pod in list["items"].as_array().map(Vec::as_slice).unwrap_or_default() {
        // A server that ignores the selector must not make us write for pods of other nodes.
        let is_here = text(pod, &["spec", "nodeName"]) == node;
        let is_over = matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed");
        if !is_here || is_over {
            continue;
        }
        let own = of_pod(pod, machine);
        let uid = text(pod, &["metadata", "uid"]);
        let Some(entry) = entries.iter().find(|entry| entry.uid == uid && is_name(uid)) else {
            match own {
                Ok(Some(booking)) => bookings.push(booking),
                Ok(None) => {}
                Err(what) => wrong.push(what),
            }
            continue;
        };
        let booking = of_entry(entry, &names, machine);
        if own.as_ref().ok().and_then(Option::as_ref).is_none_or(|own| !own.is_same(&booking)) {
            wrong.push(format!("{}: its annotations were edited; the node's booking counts", booking.name));
        }
        if cdi::named(pod).wrong.is_some() {
            wrong.push(format!("{}: its annotations name devices that are not its own", booking.name));
        }
        bookings.push(booking);
    }
    (bookings, wrong)
}

/// The booking of a pod on the node. `names` are the UUIDs of the node's GPUs, if it says them.
fn of_entry(entry: &Entry, names: &[String], machine: &Machine) -> Booking {
    let of = |gpu: &u16| names.get(usize::from(*gpu)).filter(|name| is_name(name)).cloned();
    let found: Option<Vec<String>> = entry.gpus.iter().map(of).collect();
    Booking {
        id: entry.uid.clone(),
        name: entry.pod.clone(),
        uuids: found.unwrap_or_default(),
        indices: entry.gpus.iter().copied().map(u32::from).collect(),
        bytes: bytes(entry.units, machine),
    }
}

/// The UUIDs in an annotation.
fn uuids(annotation: &Value) -> Vec<String> {
    let text = annotation.as_str().filter(|text| !text.is_empty());
    text.map(|all| all.split(',').map(|one| one.trim().to_owned()).collect()).unwrap_or_default()
}

/// Units as bytes. Few of them are thousandths, from a time when the node did not say how much memory its GPUs have.
fn bytes(units: u64, machine: &Machine) -> u64 {
    if units > u64::from(WHOLE) {
        return units;
    }
    machine.gpus.iter().map(|gpu| gpu.total).min().unwrap_or(0) / u64::from(WHOLE) * units
}

fn of_pod(pod: &Value, machine: &Machine) -> Result<Option<Booking>, String> {
    let note = |name: &str| pod["metadata"]["annotations"][name].as_str().filter(|text| !text.is_empty());
    let (Some(indices), Some(booked)) = (note(INDICES), note(BOOKED)) else { return Ok(None) };
    let name = format!("{}/{}", text(pod, &["metadata", "namespace"]), text(pod, &["metadata", "name"]));
    let id = text(pod, &["metadata", "uid"]).to_owned();
    if !is_name(&id) {
        return Err(format!("{name}: invalid uid {id:?}"));
    }
    let indices = parse_indices(indices).map_err(|what| format!("{name}: {what}"))?;
    let units: u64 = booked.parse().map_err(|_| format!("{name}: invalid {BOOKED} {booked:?}"))?;
    let uuids = uuids(&pod["metadata"]["annotations"][UUIDS]);
    if uuids.iter().any(|uuid| !is_name(uuid)) {
        return Err(format!("{name}: invalid {UUIDS}"));
    }
    let indices: Vec<u32> = indices.into_iter().map(u32::from).collect();
    Ok(Some(Booking { id, name, uuids, indices, bytes: bytes(units, machine) }))
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

/// Tells the API server which GPUs the node has, and whether an agent writes files for containers there, if the node's
/// object does not say so already. `has_files`: nothing if this look does not know. Gives whether something changed.
pub(super) fn report(
    api: &Api,
    node: &str,
    object: &Value,
    machine: &Machine,
    has_files: Option<bool>,
) -> Result<bool, ApiError> {
    let mut wanted = annotations(machine);
    if let Some(has_files) = has_files {
        wanted.insert(cdi::SERVED.to_owned(), if has_files { json!("true") } else { Value::Null });
    }
    let there = &object["metadata"]["annotations"];
    let changed: serde_json::Map<String, Value> =
        wanted.into_iter().filter(|(name, value)| there[name.as_str()] != *value).collect();
    if changed.is_empty() {
        return Ok(false);
    }
    api.patch(&format!("/api/v1/nodes/{node}"), &json!({"metadata": {"annotations": changed}}))?;
    Ok(true)
}

/// The annotations of a node with these GPUs: whole ones; if they differ, what is true for each.
fn annotations(machine: &Machine) -> serde_json::Map<String, Value> {
    let gpus: Vec<_> = machine.gpus.iter().filter(|gpu| gpu.instance.is_none() && gpu.total > 0).collect();
    let mut all = serde_json::Map::new();
    all.insert(GPUS.to_owned(), json!(gpus.len().to_string()));
    if let Some(least) = gpus.iter().map(|gpu| gpu.total).min() {
        all.insert(GPU_MEMORY.to_owned(), json!(least.to_string()));
        let is_one = gpus.iter().all(|gpu| gpu.name == gpus[0].name);
        all.insert(GPU_MODEL.to_owned(), json!(if is_one { gpus[0].name.as_str() } else { "mixed" }));
        let uuids: Vec<&str> = gpus.iter().filter_map(|gpu| gpu.uuid.as_deref()).collect();
        if uuids.len() == gpus.len() {
            all.insert(UUIDS.to_owned(), json!(uuids.join(",")));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::testing::{GIB, machine};

    #[test]
    fn a_pod_is_read_from_its_annotations() {
        let pod = |annotations: Value| json!({"metadata": {"uid": "u-1", "namespace": "d", "name": "p", "annotations": annotations}});
        let read = |annotations: Value| of_pod(&pod(annotations), &machine());
        assert_eq!(read(json!({})), Ok(None), "it asks for no GPU memory");
        let booking =
            read(json!({INDICES: "0;1", BOOKED: "1073741824", UUIDS: "GPU-a,GPU-b"})).expect("right");
        let booking = booking.expect("booked");
        assert_eq!(
            (booking.name.as_str(), booking.bytes, booking.indices.as_slice()),
            ("d/p", GIB, &[0, 1][..])
        );
        assert_eq!(booking.uuids, ["GPU-a", "GPU-b"]);
        let half = read(json!({INDICES: "0", BOOKED: "500"})).expect("right").expect("booked");
        assert_eq!(half.bytes, 80 * GIB / 1000 * 500);
        assert!(read(json!({INDICES: "x", BOOKED: "1"})).is_err());
        assert!(read(json!({INDICES: "0", BOOKED: "-1"})).is_err());
        assert!(read(json!({INDICES: "0", BOOKED: "1", UUIDS: "../x"})).is_err());
    }

    #[test]
    fn the_nodes_booking_counts_and_not_what_the_pod_says() {
        let notes = |gib: u64| json!({INDICES: "1", BOOKED: (gib * GIB).to_string(), UUIDS: "GPU-b"});
        let pod = |uid: &str, node: &str, notes: Value| {
            let metadata = json!({"uid": uid, "namespace": "d", "name": uid, "annotations": notes});
            json!({"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}})
        };
        let mut thief = notes(4);
        thief["cdi.k8s.io/x"] = json!("gapless.dev/pod=honest");
        let list = json!({"items": [
            pod("honest", "n", notes(4)),
            pod("greedy", "n", notes(70)),
            pod("mute", "n", json!({})),
            pod("thief", "n", thief),
            pod("unbooked", "n", notes(2)),
            pod("far", "m", notes(4)),
        ]});
        let entry = |uid: &str| (uid.to_owned(), json!(format!("d/{uid} 1 {}", 4 * GIB)));
        let all: serde_json::Map<String, Value> =
            ["honest", "greedy", "mute", "thief", "far"].map(entry).into_iter().collect();
        let node = |bookings: &str| json!({"metadata": {"annotations": {book::BOOKINGS: bookings, UUIDS: "GPU-a,GPU-b"}}});
        let (bookings, wrong) = of_list(&list, "n", &node(&Value::Object(all).to_string()), &machine());
        let found: Vec<(&str, u64)> = bookings.iter().map(|one| (one.id.as_str(), one.bytes / GIB)).collect();
        assert_eq!(found, [("honest", 4), ("greedy", 4), ("mute", 4), ("thief", 4), ("unbooked", 2)]);
        assert!(bookings.iter().all(|one| one.uuids == ["GPU-b"] && one.indices == [1]));
        let said = |part: &str| wrong.iter().any(|what| what.contains(part));
        assert!(
            said("d/greedy: its annotations were edited") && said("d/mute: its annotations"),
            "{wrong:?}"
        );
        assert!(said("d/thief: its annotations name devices") && wrong.len() == 3, "{wrong:?}");
        let (bookings, wrong) = of_list(&list, "n", &node("nonsense"), &machine());
        assert_eq!((bookings.len(), wrong.len()), (4, 1), "then the pods' own annotations count");
    }

    #[test]
    fn a_node_tells_its_gpus() {
        let told = annotations(&machine());
        assert_eq!((&told[GPUS], &told[GPU_MEMORY]), (&json!("2"), &json!((80 * GIB).to_string())));
        assert_eq!(told[GPU_MODEL], "NVIDIA A100-SXM4-80GB");
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
