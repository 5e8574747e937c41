//! Our JSON: a list of objects, or an object with the list as its member `nodes` or `pods`.
//!
//! ```text
//! {"nodes": [{"name": "a", "cpus": 96, "memory": "384GiB", "gpus": 8, "model": "H200", "gpu_memory": "141GB"}]}
//! {"pods": [{"name": "p", "cpus": 4, "memory": "16GiB", "gpus": 1, "gpu_memory": "18GiB", "models": ["H200"],
//!            "created": 0, "duration": 3600, "priority": 1, "gang": "g"}]}
//! ```
//!
//! A pod gives the part of each GPU as `gpu_memory` or as `gpu_milli`; without both it takes whole GPUs.

use super::MOST_BYTES;
use crate::error::{Error, Result};
use crate::words::{MAX_PODS, Node, Pod, Request, Share, WHOLE};
use gapless_trace::Bytes;
use serde::Deserialize;
use serde_json::Value;
use std::io::Read;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeRow {
    name: String,
    cpus: f64,
    memory: Value,
    gpus: u32,
    #[serde(default)]
    model: String,
    gpu_memory: Option<Value>,
    max_pods: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PodRow {
    name: String,
    #[serde(default)]
    cpus: f64,
    #[serde(default)]
    memory: Value,
    #[serde(default)]
    gpus: u32,
    gpu_milli: Option<u32>,
    gpu_memory: Option<Value>,
    #[serde(default)]
    models: Vec<String>,
    created: Option<u64>,
    deleted: Option<u64>,
    duration: Option<u64>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    gang: String,
}

pub(super) fn nodes(input: &mut dyn Read) -> Result<Vec<Node>> {
    rows(input, "nodes", NodeRow::node)
}

pub(super) fn pods(input: &mut dyn Read) -> Result<Vec<Pod>> {
    rows(input, "pods", PodRow::pod)
}

/// One node, as in a list.
pub(super) fn node(value: Value) -> std::result::Result<Node, String> {
    serde_json::from_value::<NodeRow>(value).map_err(|error| error.to_string())?.node()
}

/// One pod, as in a list.
pub(super) fn pod(value: Value) -> std::result::Result<Pod, String> {
    serde_json::from_value::<PodRow>(value).map_err(|error| error.to_string())?.pod()
}

impl NodeRow {
    fn node(self) -> std::result::Result<Node, String> {
        let node = Node {
            cpu_milli: cpus(self.cpus)?,
            memory: bytes("memory", &self.memory)?,
            gpus: self.gpus,
            model: self.model,
            gpu_memory: self.gpu_memory.map(|value| bytes("gpu_memory", &value)).transpose()?,
            max_pods: self.max_pods.unwrap_or(MAX_PODS),
            name: self.name,
        };
        node.check()?;
        Ok(node)
    }
}

impl PodRow {
    fn pod(self) -> std::result::Result<Pod, String> {
        let row = self;
        let share = match (row.gpu_milli, &row.gpu_memory) {
            (Some(_), Some(_)) => return Err("both gpu_milli and gpu_memory: give one".to_owned()),
            (Some(milli), None) => Share::Milli(milli),
            (None, Some(value)) => Share::Bytes(bytes("gpu_memory", value)?),
            (None, None) => Share::Milli(if row.gpus > 0 { WHOLE } else { 0 }),
        };
        let deleted = match (row.created, row.deleted, row.duration) {
            (_, Some(_), Some(_)) => return Err("both deleted and duration: give one".to_owned()),
            (Some(created), None, Some(duration)) => {
                Some(created.checked_add(duration).ok_or("created + duration is too large")?)
            }
            (None, None, Some(_)) => return Err("a duration needs created".to_owned()),
            (_, deleted, None) => deleted,
        };
        if let (Some(created), Some(deleted)) = (row.created, deleted)
            && deleted < created
        {
            return Err(format!("it is deleted at {deleted}, before it is created at {created}"));
        }
        let memory = if row.memory.is_null() { 0 } else { bytes("memory", &row.memory)? };
        let models = row.models.join("|");
        let request = Request { cpu_milli: cpus(row.cpus)?, memory, gpus: row.gpus, share, models };
        request.check()?;
        if row.name.is_empty() {
            return Err("the pod has no name".to_owned());
        }
        let (created, priority, gang) = (row.created, row.priority, row.gang);
        Ok(Pod { name: row.name, request, created, deleted, priority, gang })
    }
}

fn rows<Row: for<'de> Deserialize<'de>, T>(
    input: &mut dyn Read,
    member: &str,
    convert: impl Fn(Row) -> std::result::Result<T, String>,
) -> Result<Vec<T>> {
    let wrong = |what: String| Error::Json { what };
    let mut text = Vec::new();
    let read = input.take(MOST_BYTES + 1).read_to_end(&mut text);
    read.map_err(|source| gapless_formats::Error::Io { offset: text.len() as u64, source })?;
    if text.len() as u64 > MOST_BYTES {
        return Err(wrong(format!("more than {MOST_BYTES} bytes")));
    }
    let mut value: Value =
        serde_json::from_slice(&text).map_err(|error| wrong(format!("invalid JSON: {error}")))?;
    let list = match &mut value {
        Value::Array(list) => std::mem::take(list),
        Value::Object(members) => match members.get_mut(member) {
            Some(Value::Array(list)) => std::mem::take(list),
            _ => return Err(wrong(format!("the object has no list {member:?}"))),
        },
        _ => return Err(wrong(format!("neither a list nor an object with a list {member:?}"))),
    };
    let mut all = Vec::with_capacity(list.len());
    for (index, row) in list.into_iter().enumerate() {
        let row: Row =
            serde_json::from_value(row).map_err(|error| wrong(format!("{member}[{index}]: {error}")))?;
        all.push(convert(row).map_err(|what| wrong(format!("{member}[{index}]: {what}")))?);
    }
    Ok(all)
}

fn cpus(number: f64) -> std::result::Result<u64, String> {
    if !(0.0..=1e9).contains(&number) {
        return Err(format!("cpus is not between 0 and a billion: {number}"));
    }
    Ok((number * 1000.0).ceil() as u64)
}

fn bytes(member: &str, value: &Value) -> std::result::Result<u64, String> {
    match value {
        Value::Number(number) => {
            number.as_u64().ok_or_else(|| format!("{member} is not a whole number of bytes: {number}"))
        }
        Value::String(text) => {
            text.parse::<Bytes>().map(|bytes| bytes.0).map_err(|error| format!("{member}: {error}"))
        }
        _ => Err(format!("{member} is neither a number of bytes nor a text such as \"18GiB\"")),
    }
}
