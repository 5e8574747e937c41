//! Reads the parts of a [`Machine`]: statistics files, the management library, /proc.

use super::{CardReading, Machine};
use crate::failure::Failure;
use anyhow::Result;
use gapless_cuda::Nvml;
use gapless_stats::{folder, process, read_all, read_hosts};
use std::collections::HashMap;

/// The machine as it is now. `only` keeps one process.
pub(crate) fn collect(only: Option<u32>) -> Result<Machine> {
    let candidates = folder::candidates();
    let readings = read_all(&candidates);
    // If the user named the folder, no other one is searched, so a refusal is an error.
    if let (1, [error]) = (candidates.len(), readings.refused.as_slice()) {
        let what = format!("statistics files cannot be read: {error}");
        let help = format!("{} must name a folder that only you can access (mode 700)", folder::VARIABLE);
        return Err(Failure::new(what, help).into());
    }
    let users = users();
    let who = |pid: u32| {
        let user =
            process::owner_of(pid).map(|uid| users.get(&uid).cloned().unwrap_or_else(|| uid.to_string()));
        (user.unwrap_or_default(), process::command_of(pid).map(|text| shown(&text)).unwrap_or_default())
    };
    let mut machine = Machine::of(readings.files, cards(), process::now(), only, &who);
    machine.host = host();
    machine.hosts = read_hosts(&candidates);
    machine.hosts.retain(|statistics| only.is_none_or(|pid| statistics.process.pid == pid));
    machine
        .notes
        .extend(readings.refused.iter().map(|error| format!("statistics files cannot be read: {error}")));
    machine
        .notes
        .extend(readings.unreadable.iter().map(|(path, error)| format!("{}: {error}", path.display())));
    Ok(machine)
}

/// Command lines of other users must not control the terminal.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(gapless_stats::layout::COMMAND).collect()
}

fn cards() -> Result<Vec<CardReading>, String> {
    let nvml = Nvml::open().map_err(|error| error.to_string())?;
    let reading = |(at, device): (usize, gapless_cuda::nvml::NvmlDevice<'_>)| {
        let memory = device.memory_or_host();
        CardReading {
            index: device.index().unwrap_or(at as u32),
            instance: device.instance(),
            uuid: device.uuid(),
            name: device.name().unwrap_or_default(),
            memory: memory.map(|(memory, _)| memory),
            unified: memory.is_some_and(|(_, is_host)| is_host),
            processes: device
                .processes()
                .unwrap_or_default()
                .into_iter()
                .map(|process| (process.pid, process.used))
                .collect(),
        }
    };
    Ok(nvml.devices().enumerate().map(reading).collect())
}

/// Names of users by number.
fn users() -> HashMap<u32, String> {
    let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    text.lines().filter_map(user).collect()
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    shown(name.trim())
}
