//! The GPUs of a node as ResourceSlices.
//!
//! ```text
//! memory: value 143771Mi     all of the GPU, rounded down to whole steps
//!   default 143771Mi         a claim that says nothing takes the whole GPU
//!   1Mi .. 143771Mi by 1Mi   what a claim may take of it; the scheduler rounds up to the next step
//! ```
//!
//! A GPU that is divided (MIG) is published as its instances, which are devices of their own. They share nothing, so
//! no counters are needed.

use super::{
    API_VERSION, DEVICE, DRIVER, INDEX, MEMORY, MODEL, STEP, UUID, is_label, is_subdomain, quantity, short,
};
use serde_json::{Value, json};

/// The most devices in one slice.
pub const MOST_DEVICES: usize = 128;

/// A GPU, or an instance of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    pub index: u32,
    pub instance: Option<u32>,
    pub uuid: Option<String>,
    pub model: String,
    pub bytes: u64,
}

impl Gpu {
    /// The name of the device: the UUID, which does not change when other cards are removed; else the number.
    pub fn name(&self) -> String {
        let uuid = self.uuid.as_ref().map(|uuid| uuid.to_ascii_lowercase());
        uuid.filter(|name| is_label(name)).unwrap_or_else(|| match self.instance {
            Some(instance) => format!("gpu-{}-mig-{instance}", self.index),
            None => format!("gpu-{}", self.index),
        })
    }

    /// The device. With `shared`, claims may take parts of its memory.
    fn device(&self, shared: bool) -> Value {
        let (name, value) = (self.name(), quantity(self.bytes / STEP * STEP));
        let mut attributes = json!({
            DEVICE: {"string": name},
            INDEX: {"int": self.index},
            MODEL: {"string": short(&self.model)},
        });
        if let Some(uuid) = self.uuid.as_ref().filter(|uuid| short(uuid) == uuid.as_str()) {
            attributes[UUID] = json!({"string": uuid});
        }
        let mut device =
            json!({"name": name, "attributes": attributes, "capacity": {MEMORY: {"value": value}}});
        if shared {
            let step = quantity(STEP);
            device["allowMultipleAllocations"] = json!(true);
            device["capacity"][MEMORY]["requestPolicy"] =
                json!({"default": value, "validRange": {"min": step, "max": value, "step": step}});
        }
        device
    }
}

/// The node that owns the slices. Kubernetes deletes them with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub node: String,
    /// Empty if it is not known. Kubernetes then does not delete the slices with the node.
    pub uid: String,
}

/// The slices of a node; none if it has no GPUs. GPUs without a size are left out, because claims count bytes.
pub fn slices(owner: &Owner, gpus: &[Gpu], shared: bool, generation: u64) -> Result<Vec<Value>, String> {
    let node = &owner.node;
    // A policy needs room for two steps.
    let devices: Vec<Value> =
        gpus.iter().filter(|gpu| gpu.bytes >= 2 * STEP).map(|gpu| gpu.device(shared)).collect();
    let mut names: Vec<&str> = devices.iter().filter_map(|device| device["name"].as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two GPUs are called {}", twice[0]));
    }
    let count = devices.len().div_ceil(MOST_DEVICES);
    let of = |(number, devices): (usize, &[Value])| {
        let name = format!("{node}-{DRIVER}-{number}");
        if !is_subdomain(&name) {
            return Err(format!("invalid name of a ResourceSlice {name:?}: the node's name cannot be used"));
        }
        let mut metadata = json!({"name": name});
        if !owner.uid.is_empty() {
            let kind = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner.uid});
            metadata["ownerReferences"] = json!([kind]);
        }
        Ok(json!({
            "apiVersion": API_VERSION,
            "kind": "ResourceSlice",
            "metadata": metadata,
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": generation, "resourceSliceCount": count},
                "devices": devices,
            },
        }))
    };
    devices.chunks(MOST_DEVICES).enumerate().map(of).collect()
}
