//! `gapless fleet agent`: what a node has, what was promised of it, and what is really used.
//!
//! It gives containers their tenants and GPUs ([`cdi`]), sets the kernel's limit if there is one ([`dmem`]), and marks
//! over-use. It ends nobody: a tenant's own process is refused memory by its share.

mod account;
mod bookings;
mod cdi;
mod dmem;
mod show;

use crate::cli::fleet::{AgentArgs, AgentFormat};
use crate::commands::metrics::server;
use crate::failure::{self, Failure};
use crate::machine::Machine;
use crate::machine::collect::collect;
use crate::{Answer, output};
use account::{Account, Booking};
use anyhow::Result;
use gapless_kube::api::Api;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub(super) fn run(args: &AgentArgs) -> Result<Answer> {
    let agent = Agent { args, api: super::serve::optional_address(args)?.map(Api::new), node: node(args)? };
    if args.once {
        let (machine, account) = agent.look()?;
        match args.format {
            AgentFormat::Text => output::write_text(None, &show::text(&agent.node, &machine, &account))?,
            AgentFormat::Json => {
                let document = show::json(&agent.node, &machine, &account);
                output::write_to(None, |out| Ok(writeln!(out, "{document:#}")?))?;
            }
            AgentFormat::Prometheus => {
                let text = show::metrics(&agent.node, &machine, &account);
                output::write_to(None, |out| Ok(out.write_all(text.as_bytes())?))?;
            }
        }
        let is_over = account.over().next().is_some();
        return Ok(if is_over { Answer::No } else { Answer::Yes });
    }
    if args.format != AgentFormat::Text {
        let what = "--format needs --once; without it the agent serves metrics";
        return Err(Failure::new(what, "gapless fleet agent --once --format json").into());
    }
    // What cannot be read now is said now.
    let first = agent.step(&mut BTreeMap::new())?;
    let listener = TcpListener::bind(args.listen).map_err(|error| {
        let what = format!("{} cannot be served: {error}", args.listen);
        Failure::new(what, "use --listen with another address or port")
    })?;
    eprintln!("serving http://{}/metrics", listener.local_addr()?);
    let latest = Mutex::new(first);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut over = BTreeMap::new();
            let mut said = String::new();
            loop {
                match agent.step(&mut over) {
                    Ok(text) => {
                        *latest.lock().unwrap_or_else(PoisonError::into_inner) = text;
                        said.clear();
                    }
                    // An API server that is away is no reason to end, and is told once.
                    Err(error) if error.to_string() != said => {
                        said = error.to_string();
                        log(json!({"event": "error", "what": said}));
                    }
                    Err(_) => {}
                }
                std::thread::sleep(Duration::from_secs_f64(args.interval));
            }
        });
        server::serve(&listener, &|| Ok(latest.lock().unwrap_or_else(PoisonError::into_inner).clone()))
    })
}

struct Agent<'a> {
    args: &'a AgentArgs,
    api: Option<Api>,
    node: String,
}

impl Agent<'_> {
    /// Everything once: the account, the containers' specifications and the kernel's limits.
    fn look(&self) -> Result<(Machine, Account)> {
        let machine = collect(None)?;
        let bookings = self.bookings(&machine)?;
        if let Some(folder) = &self.args.cdi_dir {
            cdi::write(folder, &bookings).map_err(|error| {
                let what =
                    format!("{}: the files for containers cannot be written: {error}", folder.display());
                Failure::new(what, "use --cdi-dir with a folder that this user can write to")
            })?;
        }
        let account = Account::of(&machine, &bookings, &cgroup_of);
        self.limit(&bookings, &account);
        Ok((machine, account))
    }

    /// Looks, and tells whose over-use began or ended since the last time. Gives the metrics.
    fn step(&self, over: &mut BTreeMap<(usize, String), u64>) -> Result<String> {
        let (machine, account) = self.look()?;
        let now: BTreeMap<(usize, String), u64> =
            account.over().map(|(gpu, held)| ((gpu, held.id.clone()), held.over())).collect();
        for (gpu, held) in account.over() {
            if !over.contains_key(&(gpu, held.id.clone())) {
                log(json!({
                    "event": "over-use", "pod": held.name, "gpu": machine.gpus[gpu].index,
                    "booked": held.booked, "used": held.used,
                }));
            }
        }
        for (gpu, id) in over.keys().filter(|key| !now.contains_key(*key)) {
            let index = machine.gpus.get(*gpu).map(|gpu| gpu.index);
            log(json!({"event": "over-use-ended", "id": id, "gpu": index}));
        }
        *over = now;
        Ok(show::metrics(&self.node, &machine, &account))
    }

    fn bookings(&self, machine: &Machine) -> Result<Vec<Booking>> {
        let mut all = Vec::new();
        if let Some(path) = &self.args.bookings {
            let name = path.display();
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::new(format!("cannot read {name}: {error}"), "check the path"))?;
            let help = "write [{\"id\": \"job-1\", \"gpus\": [0], \"bytes\": \"18GiB\"}]";
            all.extend(bookings::read(&text).map_err(|what| Failure::new(format!("{name}: {what}"), help))?);
        }
        if let Some(api) = &self.api {
            let failed = |error: gapless_kube::api::ApiError| {
                Failure::new(error.to_string(), "check --api, --ca and --token-file, and the agent's role")
            };
            if machine.no_nvml.is_none() {
                bookings::report(api, &self.node, machine).map_err(failed)?;
            }
            let (listed, wrong) = bookings::listed(api, &self.node, machine).map_err(failed)?;
            for what in wrong {
                failure::note(&what);
            }
            all.extend(listed);
        }
        Ok(all)
    }

    /// The kernel's own limit for pods that have a process.
    fn limit(&self, bookings: &[Booking], account: &Account) {
        for booking in bookings {
            let pids = account.gpus.iter().flat_map(|gpu| &gpu.held).filter(|held| held.id == booking.id);
            let Some(cgroup) = pids.flat_map(|held| &held.pids).find_map(|&pid| cgroup_of(pid)) else {
                continue;
            };
            let limited = dmem::limit(&self.args.cgroups, Path::new("/proc/driver/nvidia"), booking, &cgroup);
            if let Err(error) = limited {
                failure::note(&format!("{}: dmem.max cannot be set: {error}", booking.name));
            }
        }
    }
}

/// The cgroup of a process, in the one hierarchy of version 2.
fn cgroup_of(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The name of this node: as the user says, as Kubernetes says (NODE_NAME), or the host's.
fn node(args: &AgentArgs) -> Result<String> {
    let from = |path: &str| std::fs::read_to_string(path).ok().map(|name| name.trim().to_owned());
    let name = args.node.clone().or_else(|| std::env::var("NODE_NAME").ok());
    let name = name.or_else(|| from("/proc/sys/kernel/hostname")).unwrap_or_default();
    // It becomes a part of paths to the API server.
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 253 || !name.chars().all(inside) {
        let what = format!("--node: invalid name {name:?}");
        return Err(Failure::new(what, "use the node's name as Kubernetes knows it").into());
    }
    Ok(name)
}

/// One JSON object a line on standard error.
fn log(mut event: serde_json::Value) {
    event["time"] = json!(gapless_stats::process::now() / 1_000_000);
    eprintln!("{event}");
}
