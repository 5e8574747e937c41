//! The answer to an admission review: containers of a pod that asks for GPU memory get variables whose values come
//! from annotations that the binding writes.
//!
//! ```text
//! GAPLESS_TENANT            gapless.dev/tenant       the pod as a tenant of its GPUs, with its bytes
//! NVIDIA_VISIBLE_DEVICES    gapless.dev/gpu-uuids    its GPUs
//! ```
//!
//! The kubelet resolves them (downward API) when it starts a container, which is after the binding. If no binding wrote
//! them, both are empty: such a container sees no GPU. Values of the pod's own for these names are replaced.
//!
//! The review also refuses invalid requests, new pods that say by themselves what they got, and new pods that name
//! their node: nothing would book GPUs for them, and their node would take no more pods. Containers that are added to
//! a running pod (`kubectl debug`) get the variables too.

use crate::objects::{self, OUTPUTS, TENANT, UUIDS};
use serde_json::{Value, json};

/// The variables, and the annotations that their values come from.
pub const VARIABLES: [(&str, &str); 2] = [("GAPLESS_TENANT", TENANT), ("NVIDIA_VISIBLE_DEVICES", UUIDS)];

/// The answer to a review (`admission.k8s.io/v1`); an error if this is none.
pub fn review(review: &Value) -> Result<Value, String> {
    let request = &review["request"];
    let uid =
        request["uid"].as_str().filter(|uid| !uid.is_empty()).ok_or("no AdmissionReview with a request")?;
    let is_pod = request["kind"]["kind"] == "Pod" && request["kind"]["group"] == "";
    let changes = match (request["operation"].as_str(), request["subResource"].as_str()) {
        (Some("CREATE"), None | Some("")) if is_pod => Some(patch(&request["object"])),
        (Some("UPDATE"), Some("ephemeralcontainers")) if is_pod => {
            Some(Ok(added(&request["object"], &request["oldObject"])))
        }
        _ => None,
    };
    let mut response = json!({"uid": uid, "allowed": true});
    if let Some(changes) = changes {
        match changes {
            Ok(patch) if patch.is_empty() => {}
            Ok(patch) => {
                response["patchType"] = json!("JSONPatch");
                response["patch"] = json!(base64(Value::Array(patch).to_string().as_bytes()));
            }
            Err(why) => {
                response["allowed"] = json!(false);
                response["status"] =
                    json!({"code": 422, "reason": "Invalid", "message": format!("Gapless: {why}")});
            }
        }
    }
    Ok(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

/// The changes to a new pod: none if it asks for no GPU memory. An error says why it is refused.
pub fn patch(pod: &Value) -> Result<Vec<Value>, String> {
    let annotations = &pod["metadata"]["annotations"];
    if let Some(name) = OUTPUTS.iter().find(|name| !annotations[**name].is_null()) {
        return Err(format!("only Gapless writes the annotation {name}: remove it"));
    }
    let read = objects::pod(pod);
    // The size for `auto` is worked out when the pod is scheduled.
    if read.auto.is_none() {
        read.request.as_ref().map_err(String::clone)?;
    }
    if !read.is_ours() {
        return Ok(Vec::new());
    }
    if !read.node.is_empty() {
        return Err(
            "the pod names its node, so no GPU memory can be booked for it: remove spec.nodeName".to_owned()
        );
    }
    let mut patch = Vec::new();
    for kind in ["initContainers", "containers"] {
        let containers = pod["spec"][kind].as_array().map(Vec::as_slice).unwrap_or_default();
        for (at, container) in containers.iter().enumerate() {
            patch.push(
                json!({"op": "add", "path": format!("/spec/{kind}/{at}/env"), "value": variables(container)}),
            );
        }
    }
    Ok(patch)
}

/// The changes to containers that are added to a running pod. Those that are there already cannot be changed.
fn added(pod: &Value, old: &Value) -> Vec<Value> {
    if !objects::pod(pod).is_ours() {
        return Vec::new();
    }
    let of = |pod: &Value| pod["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
    let before = of(old);
    let is_new = |one: &Value| before.iter().all(|old| old["name"] != one["name"]);
    let change = |(at, one): (usize, Value)| {
        let path = format!("/spec/ephemeralContainers/{at}/env");
        is_new(&one).then(|| json!({"op": "add", "path": path, "value": variables(&one)}))
    };
    of(pod).into_iter().enumerate().filter_map(change).collect()
}

/// A container's variables with ours. Ours come first, so that others may refer to them by `$(NAME)`.
fn variables(container: &Value) -> Vec<Value> {
    let ours = VARIABLES.map(|(name, annotation)| {
        let field = format!("metadata.annotations['{annotation}']");
        json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}})
    });
    let is_other = |variable: &&Value| VARIABLES.iter().all(|(name, _)| variable["name"] != *name);
    let others = container["env"].as_array().map(Vec::as_slice).unwrap_or_default();
    ours.into_iter().chain(others.iter().filter(is_other).cloned()).collect()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let word =
            part.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for at in 0..4 {
            let digit = char::from(DIGITS[(word >> (18 - 6 * at) & 63) as usize]);
            text.push(if at <= part.len() { digit } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{GPU_MEMORY, GPUS};

    fn pod(annotations: &Value) -> Value {
        let own = json!([{"name": "A", "value": "1"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
        json!({
            "metadata": {"annotations": annotations},
            "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "a", "env": own}, {"name": "b"}]},
        })
    }

    #[test]
    fn every_container_gets_both_variables_and_its_own_values_are_replaced() {
        let changes = patch(&pod(&json!({GPU_MEMORY: "18GiB"}))).expect("a valid pod");
        let paths: Vec<&str> = changes.iter().filter_map(|change| change["path"].as_str()).collect();
        assert_eq!(paths, ["/spec/initContainers/0/env", "/spec/containers/0/env", "/spec/containers/1/env"]);
        for change in &changes {
            let variables = change["value"].as_array().expect("variables");
            for (at, (name, annotation)) in VARIABLES.iter().enumerate() {
                assert_eq!(variables[at]["name"], *name);
                let path = &variables[at]["valueFrom"]["fieldRef"]["fieldPath"];
                assert_eq!(*path, format!("metadata.annotations['{annotation}']"));
                assert_eq!(variables.iter().filter(|one| one["name"] == *name).count(), 1);
            }
        }
        assert_eq!(changes[1]["value"][2], json!({"name": "A", "value": "1"}));
    }

    #[test]
    fn pods_without_gpus_stay_as_they_are_and_wrong_ones_are_refused() {
        for other in [json!({}), json!({"a": "b"}), json!({GPUS: "0"})] {
            assert_eq!(patch(&pod(&other)), Ok(Vec::new()), "{other}");
        }
        assert!(!patch(&pod(&json!({GPU_MEMORY: "auto"}))).expect("sized later").is_empty());
        for (wrong, part) in [
            (json!({GPU_MEMORY: "18 bananas"}), "18 bananas"),
            (json!({GPUS: "-1"}), "-1"),
            (json!({GPU_MEMORY: "1GiB", UUIDS: "GPU-other"}), UUIDS),
            (json!({TENANT: "other:80GiB"}), TENANT),
        ] {
            let why = patch(&pod(&wrong)).expect_err("it is refused");
            assert!(why.contains(part), "{wrong}: {why}");
        }
    }

    #[test]
    fn only_new_pods_are_looked_at_and_every_review_is_answered() {
        let wrong = pod(&json!({GPU_MEMORY: "18 bananas"}));
        let ask = |kind: &str, operation: &str| {
            let kind = json!({"group": "", "version": "v1", "kind": kind});
            review(&json!({"request": {"uid": "u", "kind": kind, "operation": operation, "object": wrong}}))
        };
        let answer = ask("Pod", "CREATE").expect("a review");
        assert_eq!(
            (&answer["response"]["allowed"], &answer["response"]["uid"]),
            (&json!(false), &json!("u"))
        );
        for (kind, operation) in [("Pod", "UPDATE"), ("Pod", "DELETE"), ("Job", "CREATE")] {
            assert_eq!(
                ask(kind, operation).expect("a review")["response"],
                json!({"uid": "u", "allowed": true})
            );
        }
        for none in [json!({}), json!({"request": {}}), json!([]), json!({"request": {"uid": 7}})] {
            assert!(review(&none).is_err(), "{none}");
        }
    }

    #[test]
    fn a_container_that_is_added_later_sees_no_other_gpu() {
        let notes = json!({GPU_MEMORY: "18GiB", UUIDS: "GPU-a", TENANT: "pod-u:1"});
        let all = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
        let ask = |annotations: &Value, sub: &str| {
            let mut old = pod(annotations);
            old["spec"]["ephemeralContainers"] = json!([{"name": "first", "env": all}]);
            let mut new = old.clone();
            new["spec"]["ephemeralContainers"] =
                json!([{"name": "first", "env": all}, {"name": "second", "env": all}]);
            let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
            let answer = review(&json!({"request": {"uid": "u", "kind": kind, "operation": "UPDATE",
                "subResource": sub, "object": new, "oldObject": old}}));
            answer.expect("a review")["response"].clone()
        };
        let [old, new] = [json!({"name": "first"}), json!({"name": "second", "env": all})];
        let pod_of = |containers: &[&Value]| {
            let mut pod = pod(&notes);
            pod["spec"]["ephemeralContainers"] = json!(containers);
            pod
        };
        let changes = added(&pod_of(&[&old, &new]), &pod_of(&[&old]));
        assert_eq!(changes.len(), 1, "the first one cannot be changed any more");
        assert_eq!(changes[0]["path"], "/spec/ephemeralContainers/1/env");
        assert_eq!(changes[0]["value"], json!(variables(&json!({}))), "its own value is replaced");
        let answer = ask(&notes, "ephemeralcontainers");
        assert_eq!(
            (&answer["allowed"], answer["patch"].is_string()),
            (&json!(true), true),
            "what the binding wrote is no reason to refuse"
        );
        for (annotations, sub) in [
            (&json!({}), "ephemeralcontainers"),
            (&json!({GPUS: "0"}), "ephemeralcontainers"),
            (&notes, "status"),
        ] {
            assert_eq!(ask(annotations, sub), json!({"uid": "u", "allowed": true}), "{annotations} {sub}");
        }
    }

    #[test]
    fn a_pod_that_names_its_node_is_refused_if_it_asks_for_gpus() {
        let on_a_node = |annotations: &Value| {
            let mut pod = pod(annotations);
            pod["spec"]["nodeName"] = json!("n0");
            patch(&pod)
        };
        for asks in [json!({GPU_MEMORY: "1GiB"}), json!({GPU_MEMORY: "auto"}), json!({GPUS: "2"})] {
            assert!(on_a_node(&asks).is_err_and(|why| why.contains("spec.nodeName")), "{asks}");
        }
        for other in [json!({}), json!({GPUS: "0"})] {
            assert_eq!(on_a_node(&other), Ok(Vec::new()), "{other}");
        }
    }

    #[test]
    fn base64_is_that_of_the_standard() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }
}
