//! `gapless fleet agent`: a node's memory, the promises on it, and the bytes in use.
//!
//! It describes tenants and GPUs to container runtimes ([`cdi`]), sets the kernel's limit if there is one ([`dmem`]),
//! and marks over-use. For Dynamic Resource Allocation it publishes the GPUs and prepares claims ([`claims`]). It kills
//! no process: the share makes a tenant's own process fail its request.

mod account;
mod bookings;
mod cdi;
mod claims;
mod dmem;
mod show;

use super::node;
use crate::cli::fleet::{AgentArgs, AgentFormat};
use crate::commands::metrics::server;
use crate::failure::{self, Failure};
use crate::machine::Machine;
use crate::machine::collect::collect;
use crate::{Answer, output};
use account::{Account, Booking};
use anyhow::Result;
use gapless_kube::api::Api;
use gapless_kube::dra::publish::Publisher;
use gapless_kube::dra::slices::Owner;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub(super) fn run(args: &AgentArgs) -> Result<Answer> {
    let agent = Agent {
        args,
        api: super::serve::optional_address(args)?.map(Api::new),
        node: node::name(args.node.as_deref())?,
        publisher: Publisher::default(),
        told: Mutex::default(),
        is_away: AtomicBool::new(false),
    };
    if args.dra && agent.api.is_none() {
        let help = "use --in-cluster or --api; `gapless fleet dra slices` prints what would be written";
        return Err(Failure::new("--dra needs an API server", help).into());
    }
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
    // Invalid options end the agent at once. An API server that does not answer may come back, so it is awaited.
    let first = match agent.step(&mut BTreeMap::new()) {
        Err(error) if agent.is_away.load(Ordering::Relaxed) => {
            log(json!({"event": "error", "what": error.to_string()}));
            String::new()
        }
        result => result?,
    };
    let listener = TcpListener::bind(args.listen).map_err(|error| {
        let what = format!("{} cannot be served: {error}", args.listen);
        Failure::new(what, "use --listen with another address or port")
    })?;
    eprintln!("serving http://{}/metrics", listener.local_addr()?);
    let latest = Mutex::new(first);
    let plugin = args.dra_plugin.as_deref().map(claims::listen).transpose()?;
    std::thread::scope(|scope| {
        if let (Some((listener, socket)), Some(api)) = (&plugin, &agent.api) {
            let agent = &agent;
            scope.spawn(move || claims::serve(listener, socket, api, agent));
        }
        scope.spawn(|| {
            let mut over = BTreeMap::new();
            let mut said = String::new();
            loop {
                match gapless_threads::or_exit("fleet agent", || agent.step(&mut over)) {
                    Ok(text) => {
                        *latest.lock().unwrap_or_else(PoisonError::into_inner) = text;
                        said.clear();
                    }
                    // The agent goes on if the API server does not answer, and logs each error once.
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

/// Notes that are remembered, so that each is logged once.
const MOST_TOLD: usize = 1000;

struct Agent<'a> {
    args: &'a AgentArgs,
    api: Option<Api>,
    node: String,
    publisher: Publisher,
    /// Notes that were logged already.
    told: Mutex<BTreeSet<String>>,
    /// The API server was asked and could not answer.
    is_away: AtomicBool,
}

impl Agent<'_> {
    /// Does one round: the account, the containers' specifications and the kernel's limits.
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
                let is_away = error.status().is_none_or(|status| status >= 500);
                self.is_away.fetch_or(is_away, Ordering::Relaxed);
                Failure::new(error.to_string(), "check --api, --ca and --token-file, and the agent's role")
            };
            let object = api.get(&format!("/api/v1/nodes/{}", self.node)).map_err(failed)?;
            let (listed, wrong) = bookings::listed(api, &self.node, &object, machine).map_err(failed)?;
            wrong.iter().for_each(|what| self.tell(what));
            all.extend(listed);
            if machine.no_nvml.is_none() {
                bookings::report(api, &self.node, &object, machine).map_err(failed)?;
                if self.args.dra {
                    self.publish(api, &object, machine);
                }
            }
        }
        Ok(all)
    }

    /// The GPUs as ResourceSlices. Containers get their limits even if the cluster takes no slices.
    fn publish(&self, api: &Api, node: &serde_json::Value, machine: &Machine) {
        let uid = gapless_kube::objects::text(node, &["metadata", "uid"]).to_owned();
        let owner = Owner { node: self.node.clone(), uid };
        match self.publisher.publish(api, &owner, &node::gpus(machine)) {
            Err(error) => self.tell(&format!("ResourceSlices cannot be written: {error}")),
            Ok(done) => {
                if done.written > 0 || done.deleted > 0 {
                    log(json!({"event": "published", "slices": done.written, "shared": done.is_shared}));
                }
                if !done.is_shared {
                    self.tell(
                        "claims take whole GPUs: the API server keeps no allowMultipleAllocations, \
                         because the feature gate DRAConsumableCapacity is off",
                    );
                }
            }
        }
    }

    /// Logs a note once.
    fn tell(&self, what: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MOST_TOLD {
            told.clear();
        }
        if told.insert(what.to_owned()) {
            failure::note(what);
        }
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

/// One JSON object a line on standard error.
fn log(mut event: serde_json::Value) {
    event["time"] = json!(gapless_stats::process::now() / 1_000_000);
    eprintln!("{event}");
}
