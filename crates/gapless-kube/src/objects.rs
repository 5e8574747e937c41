//! Reads nodes and pods. Objects are untrusted, because their owners may edit annotations.

use crate::auto::{Auto, FIT, FIT_CONFIG, FIT_CONFIG_MAP, TRACE};
use crate::quantity;
use gapless_fleet::words::{MAX_PODS, Node, Request, Share, WHOLE};
use gapless_ledger::promise::{self, Claim};
use gapless_trace::Bytes;
use serde_json::Value;

/// Annotations of a pod's request, for each of its GPUs.
pub const GPU_MEMORY: &str = "gapless.dev/gpu-memory";
pub const GPU_MILLI: &str = "gapless.dev/gpu-milli";
pub const GPUS: &str = "gapless.dev/gpus";
pub const GPU_MODELS: &str = "gapless.dev/gpu-models";
/// Annotations of the resources that a pod got.
pub const INDICES: &str = "gapless.dev/gpu-indices";
pub const UUIDS: &str = "gapless.dev/gpu-uuids";
pub const BOOKED: &str = "gapless.dev/gpu-booked";
pub const NODE: &str = "gapless.dev/node";
/// The pod as a tenant of its GPUs, which its containers read.
pub const TENANT: &str = "gapless.dev/tenant";
/// All annotations that only a binding writes.
pub const OUTPUTS: [&str; 5] = [NODE, INDICES, UUIDS, BOOKED, TENANT];
/// Annotations of a node's GPUs.
pub const GPU_MODEL: &str = "gapless.dev/gpu-model";

/// A node with the names of its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeNode {
    pub node: Node,
    pub uuids: Vec<String>,
    pub schedulable: bool,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubePod {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// The node that it is bound to; empty if it is not.
    pub node: String,
    pub finished: bool,
    /// Its request; `None` if it has no annotation on GPU memory, an error if its annotations are invalid.
    pub request: Result<Option<Request>, String>,
    /// The source of the size, if the pod asks for `auto`. Until it is known, `request` is an error.
    pub auto: Option<Auto>,
    /// CPUs and memory only, for pods of others.
    pub plain: Request,
    pub asked: Asked,
    /// The resources that it got by its annotations, which its owner can edit.
    pub claim: Option<Claim>,
    /// True if its annotations name resources that it got, valid or not.
    pub claims: bool,
}

impl KubeNode {
    /// A name for each GPU: its UUID, or its index if the node has no valid UUID for it.
    pub fn gpus(&self) -> Vec<String> {
        let is_right = |uuid: &&String| {
            let is_once = self.uuids.iter().filter(|other| *other == *uuid).count() == 1;
            is_once && !uuid.is_empty() && uuid.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';')
        };
        let name = |at: usize| self.uuids.get(at).filter(is_right).cloned().unwrap_or_else(|| at.to_string());
        (0..self.node.gpus as usize).map(name).collect()
    }
}

impl KubePod {
    /// `NAMESPACE/NAME`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// True if it uses GPUs, or may use them.
    pub fn is_ours(&self) -> bool {
        let asks =
            !matches!(&self.request, Ok(None)) && !matches!(&self.request, Ok(Some(one)) if one.gpus == 0);
        asks || self.claims
    }

    /// Sets the size for `auto`.
    pub fn set_size(&mut self, size: Result<u64, String>) {
        self.request = size.and_then(|bytes| sized_request(&self.asked, &self.plain, Some(bytes)));
    }
}

/// The request in a pod's annotations, unparsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    memory: Option<String>,
    milli: Option<String>,
    gpus: Option<String>,
    models: String,
}

/// A text at a path of member names; empty if it is not there.
pub fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    path.iter().fold(object, |at, name| &at[*name]).as_str().unwrap_or_default()
}

/// An annotation of a node, or else a label.
fn note<'a>(object: &'a Value, names: &[&str]) -> Option<&'a str> {
    let label = |name: &str| object["metadata"]["labels"][name].as_str().filter(|text| !text.is_empty());
    names.iter().find_map(|name| annotation(object, name).or_else(|| label(name)))
}

/// An annotation. Labels of a pod count for nothing: no policy or webhook looks at them.
fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][name].as_str().filter(|text| !text.is_empty())
}

/// A number of bytes: `18GiB` as Gapless writes it, or `18Gi` as Kubernetes does.
fn size(text: &str) -> Result<u64, String> {
    if text.trim().ends_with('i') {
        return quantity::whole(text);
    }
    text.parse::<Bytes>().map(|bytes| bytes.0).map_err(|error| error.to_string())
}

/// Reads a node. GPUs come from our annotations, or from the labels of NVIDIA's feature discovery.
pub fn node(object: &Value) -> Result<KubeNode, String> {
    let name = text(object, &["metadata", "name"]).to_owned();
    let quantity = |resource: &str| object["status"]["allocatable"][resource].as_str();
    let gpus = note(object, &[GPUS, "nvidia.com/gpu.count"]).map_or(Ok(0), |count| {
        count.trim().parse::<u32>().map_err(|_| format!("invalid number of GPUs {count:?}"))
    })?;
    let gpu_memory = match (note(object, &[GPU_MEMORY]), note(object, &["nvidia.com/gpu.memory"])) {
        (Some(text), _) => Some(size(text)?),
        (None, Some(mebibytes)) => {
            let wrong = || format!("invalid GPU memory {mebibytes:?}");
            let count = mebibytes.trim().parse::<u64>().map_err(|_| wrong())?;
            Some(count.checked_mul(1 << 20).ok_or_else(wrong)?)
        }
        (None, None) => None,
    };
    let node = Node {
        name,
        cpu_milli: quantity("cpu").map_or(Ok(0), quantity::milli)?,
        memory: quantity("memory").map_or(Ok(0), quantity::whole)?,
        gpus,
        model: note(object, &[GPU_MODEL, "nvidia.com/gpu.product"]).unwrap_or_default().to_owned(),
        gpu_memory,
        max_pods: match quantity("pods") {
            Some(pods) => u32::try_from(quantity::whole(pods)?).unwrap_or(u32::MAX),
            None => MAX_PODS,
        },
    };
    node.check()?;
    let uuids = note(object, &[UUIDS]).map(|all| all.split(',').map(|one| one.trim().to_owned()).collect());
    let schedulable = object["spec"]["unschedulable"].as_bool() != Some(true)
        && object["metadata"]["deletionTimestamp"].is_null();
    Ok(KubeNode { node, uuids: uuids.unwrap_or_default(), schedulable })
}

/// Reads a pod.
pub fn pod(object: &Value) -> KubePod {
    let phase = text(object, &["status", "phase"]);
    let plain = plain_request(object);
    let claim = match (annotation(object, UUIDS), annotation(object, BOOKED).map(str::parse)) {
        (Some(gpus), Some(Ok(amount))) => {
            Some(Claim { gpus: gpus.split(',').map(str::to_owned).collect(), amount })
        }
        _ => None,
    };
    let own = |name: &str| annotation(object, name).map(str::to_owned);
    let asked = Asked {
        memory: own(GPU_MEMORY),
        milli: own(GPU_MILLI),
        gpus: own(GPUS),
        models: own(GPU_MODELS).unwrap_or_default(),
    };
    KubePod {
        uid: text(object, &["metadata", "uid"]).to_owned(),
        namespace: text(object, &["metadata", "namespace"]).to_owned(),
        name: text(object, &["metadata", "name"]).to_owned(),
        node: text(object, &["spec", "nodeName"]).to_owned(),
        finished: phase == "Succeeded" || phase == "Failed",
        request: sized_request(&asked, &plain, None),
        auto: (asked.memory.as_deref() == Some("auto")).then(|| Auto {
            fit: own(FIT).unwrap_or_default(),
            config: own(FIT_CONFIG).unwrap_or_default(),
            config_map: own(FIT_CONFIG_MAP).unwrap_or_default(),
            trace: own(TRACE).unwrap_or_default(),
            namespace: text(object, &["metadata", "namespace"]).to_owned(),
        }),
        asked,
        plain,
        claim,
        claims: [INDICES, UUIDS, BOOKED].iter().any(|name| annotation(object, name).is_some()),
    }
}

/// A pod in the form of the ledger's rules.
pub fn promised(object: &Value) -> promise::Pod {
    let pod = pod(object);
    promise::Pod {
        name: pod.full_name(),
        is_ours: pod.is_ours(),
        version: text(object, &["metadata", "resourceVersion"]).to_owned(),
        uid: pod.uid,
        node: pod.node,
        is_finished: pod.finished,
        claim: pod.claim,
    }
}

pub fn parse_indices(text: &str) -> Result<Vec<u16>, String> {
    let one = |part: &str| part.trim().parse().map_err(|_| format!("invalid GPU indices {text:?}"));
    text.split(';').filter(|part| !part.is_empty()).map(one).collect()
}

/// CPUs and memory: the sum over containers, or the largest init container if that is more. A quantity that cannot be
/// parsed counts as 0. The API server refuses such pods, so none comes here.
fn plain_request(object: &Value) -> Request {
    let of = |containers: &Value, resource: &str, read: fn(&str) -> Result<u64, String>| -> Vec<u64> {
        let list = containers.as_array().map(Vec::as_slice).unwrap_or_default();
        let one = |container: &Value| {
            container["resources"]["requests"][resource]
                .as_str()
                .and_then(|text| read(text).ok())
                .unwrap_or(0)
        };
        list.iter().map(one).collect()
    };
    let total = |resource: &str, read: fn(&str) -> Result<u64, String>| {
        let all = of(&object["spec"]["containers"], resource, read);
        let sum = all.iter().fold(0u64, |sum, part| sum.saturating_add(*part));
        let first = of(&object["spec"]["initContainers"], resource, read).into_iter().max().unwrap_or(0);
        let more =
            object["spec"]["overhead"][resource].as_str().and_then(|text| read(text).ok()).unwrap_or(0);
        sum.max(first).saturating_add(more)
    };
    Request {
        cpu_milli: total("cpu", quantity::milli),
        memory: total("memory", quantity::whole),
        gpus: 0,
        share: Share::Milli(0),
        models: String::new(),
    }
}

fn sized_request(asked: &Asked, plain: &Request, size: Option<u64>) -> Result<Option<Request>, String> {
    let (memory, milli, gpus) = (asked.memory.as_deref(), asked.milli.as_deref(), asked.gpus.as_deref());
    if memory.is_none() && milli.is_none() && gpus.is_none() {
        return Ok(None);
    }
    if gpus.is_some_and(|count| count.trim() == "0") {
        // The pod uses only CPUs. With this annotation, it asks for a node on which its CPUs strand no GPU.
        return match (memory, milli) {
            (None, None) => Ok(Some(plain.clone())),
            _ => Err(format!("{GPUS}: 0 GPUs, but a part of each: use 1 or more, or remove the part")),
        };
    }
    let share = match (memory, milli) {
        (Some(_), Some(_)) => return Err(format!("both {GPU_MEMORY} and {GPU_MILLI}: set one of them")),
        (Some("auto"), None) => match size {
            Some(bytes) => Share::Bytes(bytes),
            None => return Err(format!("{GPU_MEMORY}: the size that auto stands for is not known yet")),
        },
        (Some(size), None) => {
            Share::Bytes(self::size(size).map_err(|error| format!("{GPU_MEMORY}: {error}"))?)
        }
        (None, Some(milli)) => {
            let wrong = |_| format!("{GPU_MILLI}: invalid number {milli:?}: use 1 to 1000");
            Share::Milli(milli.trim().parse().map_err(wrong)?)
        }
        (None, None) => Share::Milli(WHOLE),
    };
    let wrong = |_| format!("{GPUS}: invalid number {:?}: use a whole number", gpus.unwrap_or_default());
    let count: u32 = gpus.unwrap_or("1").trim().parse().map_err(wrong)?;
    let models = asked.models.clone();
    let request = Request { gpus: count, share, models, ..plain.clone() };
    request.check()?;
    Ok(Some(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_gapless_and_as_kubernetes_write_them() {
        for text in ["18GiB", "18Gi", "18432Mi", " 18Gi "] {
            assert_eq!(size(text), Ok(18 << 30), "{text}");
        }
        assert!(size("i").is_err() && size("18i").is_err() && size("99999999Pi").is_err());
    }

    /// The guard and the webhook look at annotations: a label must not say what they do not see.
    #[test]
    fn a_label_of_a_pod_neither_asks_nor_claims() {
        let texts = [
            (GPU_MEMORY, "18GiB"),
            (GPU_MILLI, "300"),
            (GPUS, "1"),
            (GPU_MODELS, "H200"),
            (INDICES, "0"),
            (UUIDS, "GPU-a"),
            (BOOKED, "1"),
            (FIT, "m"),
            (FIT_CONFIG, "{}"),
            (FIT_CONFIG_MAP, "m"),
            (TRACE, "t"),
        ];
        let base = serde_json::json!({"metadata": {"name": "p", "namespace": "d", "uid": "u",
            "annotations": {GPU_MEMORY: "auto"}}});
        let with = |kind: &str, name: &str, text: &str| {
            let mut object = base.clone();
            object["metadata"][kind][name] = serde_json::json!(text);
            pod(&object)
        };
        for (name, text) in texts {
            assert_eq!(with("labels", name, text), pod(&base), "{name}");
            assert_ne!(with("annotations", name, text), pod(&base), "{name}");
        }
    }
}
