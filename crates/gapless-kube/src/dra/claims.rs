//! A pod's annotations as a ResourceClaimTemplate; and the pod with a claim instead of the annotations.
//!
//! A claim counts bytes of GPUs. It cannot express thousandths of a GPU of any size.

use super::{API_VERSION, CLASS, DEVICE, DRIVER, MEMORY, MODEL, STEP, is_subdomain, quantity, short};
use crate::objects::{GPU_MEMORY, GPU_MILLI, GPU_MODELS, GPUS};
use gapless_fleet::words::{Request, Share, WHOLE};
use serde_json::{Value, json};

/// The name of the claim within a pod, and of the request within a claim.
const CLAIM: &str = "gapless";
const REQUEST: &str = "gpu";
/// The most devices in one claim.
const MOST_DEVICES: u32 = 32;
/// The most characters of a selector's expression.
const MOST_EXPRESSION: usize = 10 << 10;

/// The specification of a claim. Without `shared`, it leaves out members that a cluster without DRAConsumableCapacity
/// does not know, and then gets whole GPUs that are large enough.
pub fn spec(request: &Request, shared: bool) -> Result<Value, String> {
    let bytes = match request.share {
        Share::Bytes(bytes) => Some(bytes.div_ceil(STEP) * STEP),
        Share::Milli(WHOLE) => None,
        Share::Milli(_) => {
            return Err(format!("{GPU_MILLI} cannot be a claim, which counts bytes: use {GPU_MEMORY}"));
        }
    };
    if request.gpus == 0 || request.gpus > MOST_DEVICES {
        return Err(format!("{GPUS}: a claim has 1 to {MOST_DEVICES} GPUs, not {}", request.gpus));
    }
    let mut selectors = Vec::new();
    if let Some(bytes) = bytes {
        let size = quantity(bytes);
        selectors.push(format!("device.capacity[{DRIVER:?}].{MEMORY}.compareTo(quantity({size:?})) >= 0"));
    }
    if !request.models.is_empty() {
        // A JSON string is a valid CEL string.
        let models: Vec<Value> = request.models.split('|').map(|model| json!(short(model.trim()))).collect();
        selectors.push(format!("device.attributes[{DRIVER:?}].{MODEL} in {}", Value::Array(models)));
    }
    if selectors.iter().any(|one| one.len() > MOST_EXPRESSION) {
        return Err(format!("{GPU_MODELS}: more models than a selector can name"));
    }
    let mut exactly =
        json!({"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": request.gpus});
    if !selectors.is_empty() {
        let of = |expression: &String| json!({"cel": {"expression": expression}});
        exactly["selectors"] = selectors.iter().map(of).collect();
    }
    if let Some(bytes) = bytes.filter(|_| shared) {
        exactly["capacity"] = json!({"requests": {MEMORY: quantity(bytes)}});
    }
    let mut devices = json!({"requests": [{"name": REQUEST, "exactly": exactly}]});
    if shared && request.gpus > 1 {
        // Without this constraint one GPU could be taken twice.
        let attribute = format!("{DRIVER}/{DEVICE}");
        devices["constraints"] = json!([{"requests": [REQUEST], "distinctAttribute": attribute}]);
    }
    Ok(json!({"devices": devices}))
}

/// A template from which Kubernetes makes a claim for each pod.
pub fn template(name: &str, namespace: &str, spec: Value) -> Result<Value, String> {
    let mut object = named("ResourceClaimTemplate", name, namespace)?;
    object["spec"] = json!({"spec": spec});
    Ok(object)
}

/// A claim that several pods may share.
pub fn claim(name: &str, namespace: &str, spec: Value) -> Result<Value, String> {
    let mut object = named("ResourceClaim", name, namespace)?;
    object["spec"] = spec;
    Ok(object)
}

fn named(kind: &str, name: &str, namespace: &str) -> Result<Value, String> {
    if !is_subdomain(name) {
        return Err(format!("invalid name of a {kind} {name:?}: use lower-case letters, digits, - and ."));
    }
    let mut metadata = json!({"name": name});
    if !namespace.is_empty() {
        metadata["namespace"] = json!(namespace);
    }
    Ok(json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata}))
}

/// The pod in a manifest: the object itself, or the template of a workload.
pub fn pod_of(manifest: &mut Value) -> Option<&mut Value> {
    let path = match manifest["kind"].as_str()? {
        "Pod" => "",
        "CronJob" => "/spec/jobTemplate/spec/template",
        _ => "/spec/template",
    };
    manifest.pointer_mut(path).filter(|pod| pod["spec"]["containers"].is_array())
}

/// Lets all containers of a pod use the claim of this template, and removes the annotations that it was made from,
/// because the extender would book the memory a second time.
pub fn use_template(pod: &mut Value, template: &str) -> Result<(), String> {
    let claims = &mut pod["spec"]["resourceClaims"];
    if !claims.is_array() {
        *claims = json!([]);
    }
    let list = claims.as_array_mut().map(std::mem::take).unwrap_or_default();
    if list.iter().any(|one| one["name"] == CLAIM) {
        return Err(format!("the pod has a claim {CLAIM:?} already"));
    }
    let ours = json!({"name": CLAIM, "resourceClaimTemplateName": template});
    *claims = list.into_iter().chain([ours]).collect();
    for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
        if !container.is_object() {
            return Err(format!("invalid container {container}: it must be an object"));
        }
        if !container["resources"].is_object() {
            container["resources"] = json!({});
        }
        match &mut container["resources"]["claims"] {
            Value::Array(list) => list.push(json!({"name": CLAIM})),
            other => *other = json!([{"name": CLAIM}]),
        }
    }
    if let Some(annotations) = pod.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        for name in [GPU_MEMORY, GPUS, GPU_MODELS] {
            annotations.remove(name);
        }
    }
    Ok(())
}
