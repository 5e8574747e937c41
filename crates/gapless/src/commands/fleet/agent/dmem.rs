//! The kernel's own limit of device memory, if it has one: the cgroup controller `dmem`.
//!
//! ```text
//! /sys/fs/cgroup/dmem.capacity             drm/0000:03:00.0/vram0 85899345920
//! /sys/fs/cgroup/.../podUID/dmem.max       drm/0000:03:00.0/vram0 19327352832
//! ```
//!
//! A region carries the PCI address of its card, and NVIDIA's driver tells which UUID has which address. If a driver
//! registers no region, only the tenant's share limits the pod.

use super::account::Booking;
use std::path::{Path, PathBuf};

/// Limits one pod. `cgroup` is that of one of its processes, as /proc tells it. Gives the regions that were limited.
pub(super) fn limit(
    root: &Path,
    drivers: &Path,
    booking: &Booking,
    cgroup: &str,
) -> std::io::Result<Vec<String>> {
    let Ok(capacity) = std::fs::read_to_string(root.join("dmem.capacity")) else { return Ok(Vec::new()) };
    let Some(folder) = folder(root, booking, cgroup) else { return Ok(Vec::new()) };
    let addresses: Vec<String> = booking.uuids.iter().filter_map(|uuid| address(drivers, uuid)).collect();
    let mut limited = Vec::new();
    for region in capacity.lines().filter_map(|line| line.split_whitespace().next()) {
        let is_ours =
            region.split('/').any(|part| addresses.iter().any(|one| part.eq_ignore_ascii_case(one)));
        if !is_ours {
            continue;
        }
        let (path, wanted) = (folder.join("dmem.max"), format!("{region} {}", booking.bytes));
        let there = std::fs::read_to_string(&path)?;
        if !there.lines().any(|line| line.trim() == wanted) {
            std::fs::write(&path, format!("{wanted}\n"))?;
        }
        limited.push(region.to_owned());
    }
    Ok(limited)
}

/// The pod's own folder above that of one of its processes.
fn folder(root: &Path, booking: &Booking, cgroup: &str) -> Option<PathBuf> {
    let mut at = root.to_path_buf();
    for part in cgroup.trim_start_matches('/').split('/') {
        if part.is_empty() || part == ".." {
            return None;
        }
        at.push(part);
        if booking.owns(part) {
            return at.is_dir().then_some(at);
        }
    }
    None
}

/// The PCI address of a card, by NVIDIA's driver: `gpus/0000:03:00.0/information` has a line `GPU UUID`.
fn address(drivers: &Path, uuid: &str) -> Option<String> {
    let cards = std::fs::read_dir(drivers.join("gpus")).ok()?;
    let is_it = |folder: &Path| {
        let text = std::fs::read_to_string(folder.join("information")).unwrap_or_default();
        text.lines().any(|line| {
            line.split_once(':')
                .is_some_and(|(name, value)| name.trim() == "GPU UUID" && value.trim() == uuid)
        })
    };
    let found = cards.filter_map(Result::ok).find(|entry| is_it(&entry.path()))?;
    Some(found.file_name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_pod_is_limited_on_its_own_card_where_the_kernel_can() {
        let there = tempfile::tempdir().expect("a folder");
        let (root, drivers) = (there.path().join("cgroup"), there.path().join("nvidia"));
        let id = "0c1d2e3f-0000-4000-8000-00000000beef";
        let pod = root.join(format!("kubepods/pod{id}"));
        fs::create_dir_all(pod.join("container")).expect("made");
        fs::write(pod.join("dmem.max"), "drm/0000:03:00.0/vram0 max\ndrm/0000:04:00.0/vram0 max\n")
            .expect("written");
        for (at, uuid) in [("0000:03:00.0", "GPU-a"), ("0000:04:00.0", "GPU-b")] {
            fs::create_dir_all(drivers.join("gpus").join(at)).expect("made");
            let text = format!("Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\n");
            fs::write(drivers.join("gpus").join(at).join("information"), text).expect("written");
        }
        let booking =
            Booking { id: id.to_owned(), uuids: vec!["GPU-b".to_owned()], bytes: 7, ..Booking::default() };
        let cgroup = format!("/kubepods/pod{id}/container");
        let limited = |cgroup: &str| limit(&root, &drivers, &booking, cgroup).expect("no error");
        assert!(limited(&cgroup).is_empty(), "the kernel has no such controller");
        fs::write(root.join("dmem.capacity"), "drm/0000:03:00.0/vram0 100\ndrm/0000:04:00.0/vram0 100\n")
            .expect("written");
        assert_eq!(limited(&cgroup), ["drm/0000:04:00.0/vram0"]);
        assert_eq!(fs::read_to_string(pod.join("dmem.max")).expect("read"), "drm/0000:04:00.0/vram0 7\n");
        assert!(limited("/user.slice/x").is_empty(), "not a process of the pod");
        assert!(limited(&format!("/../pod{id}")).is_empty());
    }
}
