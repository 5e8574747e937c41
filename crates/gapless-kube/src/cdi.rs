//! The device of a pod, which the agent on its node describes to the container runtime (Container Device Interface).
//!
//! ```text
//! cdi.k8s.io/gapless: gapless.dev/pod=UID      an annotation of the pod, written together with its binding
//! gapless.dev/cdi: "true"                      an annotation of the node: an agent writes the device's file there
//! ```
//!
//! Any user who may create a pod may write such annotations too, and a runtime trusts all that begin with
//! `cdi.k8s.io/`. So a pod that names the device of another pod is refused ([`named`]). An old value of our own
//! annotation is overwritten in the same call that binds the pod, so no kubelet ever sees it.

use serde_json::Value;

pub const ANNOTATION: &str = "cdi.k8s.io/gapless";
pub const KIND: &str = "gapless.dev/pod";
/// The annotation of a node whose agent writes the files.
pub const SERVED: &str = "gapless.dev/cdi";
const PREFIX: &str = "cdi.k8s.io/";

/// The device of a pod.
pub fn device(uid: &str) -> String {
    format!("{KIND}={uid}")
}

/// True if an id is safe as a name of a device and of a file.
pub fn is_name(id: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    id.len() <= 59 && id.chars().all(inside) && ends(id.chars().next()) && ends(id.chars().last())
}

/// The devices of this kind that a pod names by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// True if our annotation has a value already.
    pub has_own: bool,
    /// The reason why the pod cannot be placed.
    pub wrong: Option<String>,
}

/// Looks at the annotations of a pod.
pub fn named(pod: &Value) -> Named {
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let mut found = Named::default();
    let Some(annotations) = pod["metadata"]["annotations"].as_object() else { return found };
    for (name, value) in annotations.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
        let devices = value.as_str().unwrap_or_default().split(',').map(str::trim);
        for device in devices.filter(|device| !device.is_empty()) {
            let id = device.strip_prefix(KIND).and_then(|rest| rest.strip_prefix('='));
            let wrong = match id {
                _ if name == ANNOTATION => {
                    found.has_own = true;
                    // Our bind overwrites the annotation, so another device in it would be lost.
                    id.is_none().then(|| {
                        format!("{ANNOTATION} is written by Gapless: name {device} in an annotation of another name")
                    })
                }
                Some(id) if id != uid => Some(format!("{name} names the device of another pod: remove it")),
                _ => None,
            };
            found.wrong = found.wrong.or(wrong);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_may_name_its_own_device_and_those_of_others_kinds() {
        let of = |annotations: Value| named(&json!({"metadata": {"uid": "u", "annotations": annotations}}));
        for right in [
            json!({}),
            json!({"cdi.k8s.io/x": "vendor.com/nic=a,vendor.com/nic=b"}),
            json!({"cdi.k8s.io/x": "gapless.dev/pod=u"}),
            json!({"other": "gapless.dev/pod=v"}),
        ] {
            assert_eq!(of(right.clone()), Named::default(), "{right}");
        }
        for old in ["gapless.dev/pod=u", "gapless.dev/pod=v"] {
            assert_eq!(of(json!({ANNOTATION: old})), Named { has_own: true, wrong: None }, "written over");
        }
        for (name, value, part) in [
            ("cdi.k8s.io/x", "gapless.dev/pod=v", "another pod"),
            ("cdi.k8s.io/x", "vendor.com/nic=a, gapless.dev/pod=v", "another pod"),
            (ANNOTATION, "vendor.com/nic=a", "vendor.com/nic=a"),
            (ANNOTATION, "gapless.dev/pod=u,vendor.com/nic=a", "vendor.com/nic=a"),
        ] {
            let wrong = of(json!({ name: value })).wrong;
            assert!(wrong.as_ref().is_some_and(|wrong| wrong.contains(part)), "{name}: {value}: {wrong:?}");
        }
        assert_eq!(named(&json!({"metadata": {"annotations": null}})), Named::default());
    }

    #[test]
    fn ids_that_would_leave_a_folder_are_no_names() {
        assert!(is_name("0c1d2e3f-0000-4000-8000-00000000beef"));
        for wrong in ["", "../c", "a/b", "-a", "a-", &"x".repeat(60)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
