//! Gives a container its GPUs and its tenant: a specification of the Container Device Interface for each pod.
//!
//! ```text
//! gapless.dev-pod_UID.json    device gapless.dev/pod=UID    GAPLESS_TENANT, NVIDIA_VISIBLE_DEVICES
//! ```
//!
//! A runtime that is told of the device uses the file: `podman run --device gapless.dev/pod=UID`. On Kubernetes the
//! variables come with the pod itself ([`gapless_kube::admit`]).

use super::account::Booking;
use gapless_kube::tenant::is_name;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

const KIND: &str = "gapless.dev/pod";
const PREFIX: &str = "gapless.dev-pod_";

/// The specification for one pod.
pub(super) fn specification(booking: &Booking) -> Value {
    let gpus = if booking.uuids.is_empty() {
        booking.indices.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    } else {
        booking.uuids.join(",")
    };
    json!({
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "devices": [{
            "name": booking.id,
            "containerEdits": {"env": [
                format!("GAPLESS_TENANT={}:{}", booking.tenant(), booking.bytes),
                format!("NVIDIA_VISIBLE_DEVICES={gpus}"),
            ]},
        }],
    })
}

/// Writes the files of these pods, and removes those of others. Gives the number of files that changed.
pub(super) fn write(folder: &Path, bookings: &[Booking]) -> std::io::Result<usize> {
    std::fs::create_dir_all(folder)?;
    let mut changed = 0;
    let mut wanted = BTreeSet::new();
    for booking in bookings.iter().filter(|booking| is_name(&booking.id)) {
        let name = format!("{PREFIX}{}.json", booking.id);
        let text = format!("{:#}\n", specification(booking));
        let path = folder.join(&name);
        wanted.insert(name);
        if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        // A runtime that reads the folder now must not see half a file.
        let half = folder.join(format!(".{PREFIX}{}.new", booking.id));
        std::fs::write(&half, &text)?;
        std::fs::rename(&half, &path)?;
        changed += 1;
    }
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(PREFIX) && name.ends_with(".json") && !wanted.contains(&name) {
            std::fs::remove_file(entry.path())?;
            changed += 1;
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn booking(id: &str) -> Booking {
        Booking { id: id.to_owned(), indices: vec![0, 3], bytes: 1 << 30, ..Booking::default() }
    }

    #[test]
    fn a_pod_gets_its_tenant_and_its_gpus() {
        let by_number = specification(&booking("a-1"));
        let env = &by_number["devices"][0]["containerEdits"]["env"];
        assert_eq!(env, &json!(["GAPLESS_TENANT=pod-a-1:1073741824", "NVIDIA_VISIBLE_DEVICES=0,3"]));
        let by_uuid = specification(&Booking { uuids: vec!["GPU-x".to_owned()], ..booking("a-1") });
        assert_eq!(by_uuid["devices"][0]["containerEdits"]["env"][1], "NVIDIA_VISIBLE_DEVICES=GPU-x");
    }

    #[test]
    fn files_follow_the_pods_and_nothing_else_is_touched() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("nvidia.yaml"), "theirs").expect("written");
        assert_eq!(write(folder.path(), &[booking("a"), booking("b")]).expect("written"), 2);
        assert_eq!(
            write(folder.path(), &[booking("a"), booking("b")]).expect("written"),
            0,
            "nothing changed"
        );
        // Names that would leave the folder are left out.
        assert_eq!(write(folder.path(), &[booking("b"), booking("../c"), booking("")]).expect("written"), 1);
        let mut left: Vec<String> = std::fs::read_dir(folder.path())
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["gapless.dev-pod_b.json", "nvidia.yaml"]);
    }
}
