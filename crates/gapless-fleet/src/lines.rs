//! The interface for other programs: one JSON object a line in, one a line out.
//!
//! ```text
//! {"op": "node", "node": {"name": "a", "cpus": 64, "memory": "512GiB", "gpus": 8, "gpu_memory": "80GiB"}}
//! {"op": "ask", "pod": {"name": "p", "cpus": 1, "gpus": 1, "gpu_memory": "18GiB"}}
//!   {"ok": true, "place": {"id": "p", "node": "a", "gpus": [0], "units": 19327352832}}
//!   {"ok": true, "waits": 0, "cause": "gpus-full", "why": "too little free on all GPUs together"}
//!   {"ok": false, "never": "too-large", "why": "larger than any node: the largest GPU has 80 GiB"}
//! {"op": "free", "id": "p"}      {"ok": true, "known": true, "placed": [{"id": "q", ...}]}
//! {"op": "close", "node": "a"}   {"op": "find", "id": "p"}   {"op": "state"}   {"op": "check"}
//! {"op": "restore", "pod": {...}, "node": "a", "gpus": [0]}
//! {"op": "group", "id": "g", "strategy": "STRICT_PACK", "pods": [{...}, {...}]}
//!   {"ok": true, "places": [{"id": "p", ...}, ...]}, or `waits` or `never` as for one pod
//! ```
//!
//! Nodes and pods are written as in lists (`read`). The answers to `free` and `node` list the waiting pods that were
//! placed. All pods of a group are placed or none ([`crate::group`]); each is freed by its own id. A line that makes no
//! sense is answered with `{"error": ...}` and changes nothing.

use crate::desk::Place;
use crate::group::{MOST_PODS, Strategy};
use crate::queue::{Asked, AskedGroup, Queue};
use crate::read;
use crate::sim::Cause;
use crate::words::{Pod, Request};
use gapless_trace::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

/// The longest line.
pub const MOST_LINE: usize = 1 << 20;

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Line {
    Node { node: Value },
    Close { node: String },
    Ask { pod: Value },
    Group { id: String, strategy: Strategy, pods: Vec<Value> },
    Restore { pod: Value, node: String, gpus: Vec<u16> },
    Free { id: String },
    Find { id: String },
    State {},
    Check {},
}

/// Answers one line; the answer has no line break.
pub fn answer(queue: &mut Queue, line: &str) -> String {
    let answered = if line.len() > MOST_LINE {
        Err(format!("a line of {} bytes; the most is {MOST_LINE}", line.len()))
    } else {
        let line = serde_json::from_str::<Line>(line);
        line.map_err(|error| format!("invalid line: {error}")).and_then(|line| carry_out(queue, line))
    };
    answered.unwrap_or_else(|error| json!({ "error": error })).to_string()
}

fn carry_out(queue: &mut Queue, line: Line) -> Result<Value, String> {
    Ok(match line {
        Line::Node { node } => {
            let node = read::node(node).map_err(|what| format!("invalid node: {what}"))?;
            let name = node.name.clone();
            let (is_same, placed) = queue.add_node(node);
            if !is_same {
                return Err(format!("node {name:?} is known with other capacities: give it another name"));
            }
            json!({"ok": true, "placed": places(&placed)})
        }
        Line::Close { node } => json!({"ok": queue.close_node(&node)}),
        Line::Ask { pod } => {
            let pod = pod_of(pod)?;
            match queue.ask(&pod.name, &pod.request) {
                Asked::Placed(at) => json!({"ok": true, "place": place(&pod.name, &at)}),
                Asked::Waits(before, cause) => {
                    json!({"ok": true, "waits": before, "cause": cause, "why": cause.words()})
                }
                Asked::Never(cause) => json!({"ok": false, "never": cause, "why": why(queue, cause)}),
            }
        }
        Line::Group { id, strategy, pods } => {
            let pods = group_of(&id, pods)?;
            let ids: Vec<String> = pods.iter().map(|(id, _)| id.clone()).collect();
            match queue.ask_group(&id, pods, strategy)? {
                AskedGroup::Placed(at) => {
                    let placed: Vec<(String, Place)> = ids.into_iter().zip(at).collect();
                    json!({"ok": true, "places": places(&placed)})
                }
                AskedGroup::Waits(before, cause) => {
                    json!({"ok": true, "waits": before, "cause": cause, "why": cause.words()})
                }
                AskedGroup::Never(cause, why) => json!({"ok": false, "never": cause, "why": why}),
            }
        }
        Line::Restore { pod, node, gpus } => {
            let pod = pod_of(pod)?;
            queue.restore(&pod.name, &node, &pod.request, &gpus).map_err(|error| error.to_string())?;
            json!({"ok": true})
        }
        Line::Free { id } => {
            let (known, placed) = queue.free(&id);
            json!({"ok": true, "known": known, "placed": places(&placed)})
        }
        Line::Find { id } => json!({"ok": true, "place": queue.desk().find(&id).map(|at| place(&id, &at))}),
        Line::State {} => {
            let (free, total) = queue.desk().free();
            let (pods, waiting) = (queue.desk().pods(), queue.waiting());
            json!({"ok": true, "pods": pods, "waiting": waiting, "free_milli": free, "total_milli": total})
        }
        Line::Check {} => {
            queue.desk().check()?;
            json!({"ok": true})
        }
    })
}

fn pod_of(value: Value) -> Result<Pod, String> {
    read::pod(value).map_err(|what| format!("invalid pod: {what}"))
}

/// The pods of a group with their ids.
fn group_of(id: &str, pods: Vec<Value>) -> Result<Vec<(String, Request)>, String> {
    if id.is_empty() || pods.is_empty() || pods.len() > MOST_PODS {
        return Err(format!(
            "invalid group {id:?}: it needs an id, and 1 to {MOST_PODS} pods, not {}",
            pods.len()
        ));
    }
    let pods: Vec<Pod> = pods.into_iter().map(pod_of).collect::<Result<_, _>>()?;
    let mut ids: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).chain([id]).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(format!("invalid group {id:?}: {:?} is the name of two", twice[0])),
        None => Ok(pods.into_iter().map(|pod| (pod.name, pod.request)).collect()),
    }
}

/// The reason why a request can never be placed, with the largest GPU for comparison.
fn why(queue: &Queue, cause: Cause) -> String {
    match (cause, queue.desk().largest_gpu()) {
        (Cause::TooLarge, largest @ 1..) => {
            format!("{}: the largest GPU has {}", cause.words(), Bytes(largest))
        }
        _ => cause.words().to_owned(),
    }
}

fn place(id: &str, place: &Place) -> Value {
    json!({"id": id, "node": place.node, "gpus": place.gpus, "units": place.units})
}

fn places(placed: &[(String, Place)]) -> Vec<Value> {
    placed.iter().map(|(id, at)| place(id, at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str =
        r#"{"op":"node","node":{"name":"a","cpus":8,"memory":"64GiB","gpus":1,"gpu_memory":"80GiB"}}"#;

    fn said(queue: &mut Queue, line: &str) -> Value {
        let text = answer(queue, line);
        assert!(!text.contains('\n'), "{text}");
        serde_json::from_str(&text).expect("an answer is JSON")
    }

    fn ask(id: &str, memory: &str) -> String {
        format!(r#"{{"op":"ask","pod":{{"name":"{id}","gpus":1,"gpu_memory":"{memory}"}}}}"#)
    }

    #[test]
    fn a_conversation() {
        let mut queue = Queue::new(Vec::new());
        assert_eq!(said(&mut queue, &ask("p", "18GiB"))["never"], "model", "there is no node yet");
        assert_eq!(said(&mut queue, NODE), json!({"ok": true, "placed": []}));
        let placed = said(&mut queue, &ask("p", "50GiB"));
        assert_eq!(placed["place"], json!({"id": "p", "node": "a", "gpus": [0], "units": 50u64 << 30}));
        let waits = said(&mut queue, &ask("q", "60GiB"));
        assert_eq!((&waits["waits"], &waits["cause"]), (&json!(0), &json!("gpus-full")));
        let never = said(&mut queue, &ask("r", "90GiB"));
        assert_eq!(never["ok"], false);
        assert_eq!(never["why"], "larger than any node: the largest GPU has 80.0 GiB");
        let freed = said(&mut queue, r#"{"op":"free","id":"p"}"#);
        assert_eq!(
            (&freed["known"], &freed["placed"][0]["id"], &freed["placed"][0]["node"]),
            (&json!(true), &json!("q"), &json!("a"))
        );
        assert_eq!(said(&mut queue, r#"{"op":"find","id":"q"}"#)["place"]["gpus"], json!([0]));
        assert_eq!(said(&mut queue, r#"{"op":"find","id":"p"}"#)["place"], Value::Null);
        let state = said(&mut queue, r#"{"op":"state"}"#);
        assert_eq!((&state["pods"], &state["waiting"]), (&json!(1), &json!(0)));
        assert_eq!(said(&mut queue, r#"{"op":"check"}"#), json!({"ok": true}));
        assert_eq!(said(&mut queue, r#"{"op":"close","node":"a"}"#), json!({"ok": true}));
        assert_eq!(said(&mut queue, r#"{"op":"close","node":"b"}"#), json!({"ok": false}));
    }

    #[test]
    fn what_is_restored_is_in_the_account() {
        let mut queue = Queue::new(Vec::new());
        said(&mut queue, NODE);
        let restore = |id: &str, gib: u64| {
            let pod = format!(r#"{{"name":"{id}","gpus":1,"gpu_memory":"{gib}GiB"}}"#);
            format!(r#"{{"op":"restore","pod":{pod},"node":"a","gpus":[0]}}"#)
        };
        assert_eq!(said(&mut queue, &restore("old", 70)), json!({"ok": true}));
        assert_eq!(said(&mut queue, &ask("p", "20GiB"))["waits"], 0);
        let over = said(&mut queue, &restore("older", 20));
        assert!(over["error"].as_str().is_some_and(|text| text.contains("too little left")), "{over}");
    }

    #[test]
    fn nonsense_is_answered_and_changes_nothing() {
        let mut queue = Queue::new(Vec::new());
        said(&mut queue, NODE);
        for (line, part) in [
            ("", "invalid line"),
            ("{", "invalid line"),
            ("[]", "invalid line"),
            (r#"{"op":"dance"}"#, "unknown variant"),
            (r#"{"op":"ask","pod":{"name":"p","gpus":1,"gpu_memory":"18GiBB"}}"#, "invalid pod: gpu_memory"),
            (r#"{"op":"ask","pod":{"name":"p","gpus":-1}}"#, "invalid pod"),
            (r#"{"op":"ask","pod":{"name":"","gpus":1}}"#, "no name"),
            (r#"{"op":"ask","pod":{"name":"p","gpus":1,"gpu_memory":1e99}}"#, "invalid pod"),
            (r#"{"op":"node","node":{"name":"b","cpus":1,"memory":0,"gpus":9999}}"#, "9999 GPUs"),
            (r#"{"op":"node","node":{"name":"a","cpus":1,"memory":0,"gpus":1}}"#, "other capacities"),
            (r#"{"op":"free"}"#, "missing field"),
            (r#"{"op":"group","id":"g","strategy":"PACK","pods":[]}"#, "1 to 1024 pods"),
            (
                r#"{"op":"group","id":"g","strategy":"NEAR","pods":[{"name":"p","gpus":1}]}"#,
                "unknown variant",
            ),
            (
                r#"{"op":"group","id":"g","strategy":"PACK","pods":[{"name":"p"},{"name":"p"}]}"#,
                "name of two",
            ),
            (r#"{"op":"group","id":"g","strategy":"PACK","pods":[{"name":"g","gpus":1}]}"#, "name of two"),
            (r#"{"op":"group","id":"","strategy":"PACK","pods":[{"name":"p","gpus":1}]}"#, "needs an id"),
            (r#"{"op":"group","id":"g","strategy":"PACK","pods":[{"name":"p","gpus":-1}]}"#, "invalid pod"),
            (r#"{"op":"restore","pod":{"name":"p","gpus":1},"node":"z","gpus":[0]}"#, "no such node"),
            (r#"{"op":"restore","pod":{"name":"p","gpus":1},"node":"a","gpus":[7]}"#, "no such GPU"),
        ] {
            let error = said(&mut queue, line)["error"].as_str().unwrap_or_default().to_owned();
            assert!(error.contains(part), "{line}: {error}");
        }
        let long = format!(r#"{{"op":"free","id":"{}"}}"#, "x".repeat(MOST_LINE));
        assert!(answer(&mut queue, &long).contains("the most is"));
        assert_eq!(said(&mut queue, r#"{"op":"state"}"#)["pods"], 0);
    }
}
