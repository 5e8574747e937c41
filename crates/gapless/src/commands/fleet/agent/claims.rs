//! The agent as a driver of Dynamic Resource Allocation: the kubelet asks it to prepare the claims of pods.

use super::{Agent, log, node};
use crate::failure::Failure;
use crate::machine::collect::collect;
use anyhow::Result;
use gapless_kube::api::Api;
use gapless_kube::dra::driver::{self, Driver};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Listens in the kubelet's folder of plug-ins.
pub(super) fn listen(folder: &Path) -> Result<(UnixListener, PathBuf)> {
    let socket = driver::socket(folder);
    let listener = driver::listen(&socket).map_err(|error| {
        let what = format!("{} cannot be served: {error}", socket.display());
        Failure::new(what, "use --dra-plugin with the kubelet's folder, /var/lib/kubelet/plugins_registry")
    })?;
    Ok((listener, socket))
}

/// Serves the kubelet until the process ends.
pub(super) fn serve(listener: &UnixListener, socket: &Path, api: &Api, agent: &Agent<'_>) {
    let gpus = || {
        let machine = collect(None).map_err(|error| error.to_string())?;
        match machine.no_nvml {
            Some(reason) => Err(format!("the driver says nothing of GPUs: {reason}")),
            None => Ok(node::gpus(&machine)),
        }
    };
    let driver = Driver {
        api,
        node: agent.node.clone(),
        folder: agent.args.cdi_dir.clone().unwrap_or_default(),
        socket: socket.to_owned(),
        gpus: &gpus,
        log: &log,
    };
    if let Err(error) = driver.serve(listener, &AtomicBool::new(false)) {
        log(serde_json::json!({"event": "error", "what": format!("{}: {error}", socket.display())}));
    }
}
