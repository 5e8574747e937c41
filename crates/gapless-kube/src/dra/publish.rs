//! Keeps the ResourceSlices of a node equal to its GPUs.
//!
//! A change raises the generation of all slices of the node, as the API requires, so that a scheduler never mixes old
//! and new ones. If the API server drops the members that make GPUs shareable, they are left out until the next start.

use super::slices::{Gpu, Owner, slices};
use super::{API_VERSION, DRIVER};
use crate::api::{self, Api, ApiError};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// The reason why nothing was published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("the cluster has no {API_VERSION}: Dynamic Resource Allocation needs Kubernetes 1.34 or later")]
    NoDra,
    #[error("{0}")]
    Wrong(String),
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// The result of [`Publisher::publish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    pub written: usize,
    pub deleted: usize,
    /// True if several claims may share a GPU: the cluster has the feature gate DRAConsumableCapacity.
    pub is_shared: bool,
}

/// Publishes for one node.
#[derive(Debug, Default)]
pub struct Publisher {
    /// True if the API server has dropped the members that make GPUs shareable.
    is_whole: AtomicBool,
}

impl Publisher {
    /// Writes the slices that differ.
    pub fn publish(&self, api: &Api, owner: &Owner, gpus: &[Gpu]) -> Result<Published, PublishError> {
        let there = there(api, &owner.node)?;
        let generation_of = |slice: &Value| slice["spec"]["pool"]["generation"].as_u64().unwrap_or(0);
        let last = there.values().map(generation_of).max().unwrap_or(0);
        let shared = !self.is_whole.load(Ordering::Relaxed);
        let same = slices(owner, gpus, shared, last).map_err(PublishError::Wrong)?;
        let is_there =
            |slice: &Value| there.get(name(slice)).is_some_and(|old| holds(&old["spec"], &slice["spec"]));
        if there.len() == same.len() && same.iter().all(is_there) {
            return Ok(Published { written: 0, deleted: 0, is_shared: shared });
        }
        let new = slices(owner, gpus, shared, last.saturating_add(1)).map_err(PublishError::Wrong)?;
        let mut is_shared = shared;
        for slice in &new {
            let answer = match there.get(name(slice)) {
                Some(old) => {
                    let mut slice = slice.clone();
                    slice["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
                    api.call("PUT", &path(name(&slice)), Some("application/json"), Some(&slice))?
                }
                None => api.post(COLLECTION, slice)?,
            };
            if shared && is_dropped(slice, &answer) {
                self.is_whole.store(true, Ordering::Relaxed);
                is_shared = false;
            }
        }
        let extra: Vec<&String> =
            there.keys().filter(|old| new.iter().all(|slice| name(slice) != old.as_str())).collect();
        for old in &extra {
            match api.call("DELETE", &path(old), None, None) {
                Err(error) if error.status() != Some(404) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(Published { written: new.len(), deleted: extra.len(), is_shared })
    }
}

const COLLECTION: &str = "/apis/resource.k8s.io/v1/resourceslices";

fn path(name: &str) -> String {
    format!("{COLLECTION}/{name}")
}

fn name(slice: &Value) -> &str {
    slice["metadata"]["name"].as_str().unwrap_or_default()
}

/// Our slices of a node, by their names.
fn there(api: &Api, node: &str) -> Result<BTreeMap<String, Value>, PublishError> {
    let chosen = format!("spec.driver%3D{DRIVER},spec.nodeName%3D{node}");
    let mut list = match api.get(&format!("{COLLECTION}?fieldSelector={chosen}")) {
        Err(error) if error.status() == Some(404) => return Err(PublishError::NoDra),
        result => result?,
    };
    let items = api::items(&mut list)?;
    // If a server ignores the selector, the agent still must not delete slices of others.
    let is_ours = |slice: &Value| slice["spec"]["driver"] == DRIVER && slice["spec"]["nodeName"] == node;
    Ok(items.into_iter().filter(is_ours).map(|slice| (name(&slice).to_owned(), slice)).collect())
}

/// True if a value has all wanted members. It may have more, which later API servers add.
fn holds(there: &Value, wanted: &Value) -> bool {
    match (there, wanted) {
        (Value::Object(there), Value::Object(wanted)) => {
            wanted.iter().all(|(name, value)| there.get(name).is_some_and(|old| holds(old, value)))
        }
        (Value::Array(there), Value::Array(wanted)) => {
            there.len() == wanted.len() && there.iter().zip(wanted).all(|(old, value)| holds(old, value))
        }
        _ => there == wanted,
    }
}

/// True if the API server dropped the members that make GPUs shareable.
fn is_dropped(asked: &Value, answer: &Value) -> bool {
    let shares = |slice: &Value| {
        let devices = slice["spec"]["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
        devices.iter().any(|device| device["allowMultipleAllocations"] == true)
    };
    shares(asked) && !shares(answer)
}
