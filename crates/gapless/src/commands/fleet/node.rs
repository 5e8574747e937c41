//! The node that a command runs on: its name, and its GPUs for Kubernetes.

use crate::failure::Failure;
use crate::machine::Machine;
use anyhow::Result;
use gapless_kube::dra::slices::Gpu;

/// The name of this node: from the user, from Kubernetes (NODE_NAME), or the host's.
pub(super) fn name(named: Option<&str>) -> Result<String> {
    let from = |path: &str| std::fs::read_to_string(path).ok().map(|name| name.trim().to_owned());
    let name = named.map(str::to_owned).or_else(|| std::env::var("NODE_NAME").ok());
    let name = name.or_else(|| from("/proc/sys/kernel/hostname")).unwrap_or_default();
    // The name becomes a part of paths to the API server, so its characters are checked.
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 253 || !name.chars().all(inside) {
        let what = format!("--node: invalid name {name:?}");
        return Err(Failure::new(what, "use the node's name as Kubernetes knows it").into());
    }
    Ok(name)
}

/// The GPUs of a machine, in the form that the slices need.
pub(super) fn gpus(machine: &Machine) -> Vec<Gpu> {
    let of = |gpu: &crate::machine::Gpu| Gpu {
        index: gpu.index,
        instance: gpu.instance,
        uuid: gpu.uuid.clone(),
        model: gpu.name.clone(),
        bytes: gpu.total,
    };
    machine.gpus.iter().map(of).collect()
}
