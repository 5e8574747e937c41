//! `gapless fleet`: policies on a simulated cluster, the judge of their logs, the extender and the webhook for
//! Kubernetes, the agent on a node, objects of DRA, and the placement for other programs.

mod admit;
mod advise;
mod agent;
mod check_log;
mod dra;
mod node;
mod place;
mod serve;
mod sim;
mod size;

use crate::Answer;
use crate::cli::fleet::{FleetArgs, FleetCommand, Workload};
use crate::failure::Failure;
use anyhow::Result;
use gapless_fleet::arrivals::{self, Arrivals};
use gapless_fleet::ledger::Ledger;
use gapless_fleet::mix::common_units;
use gapless_fleet::read;
use gapless_fleet::words::{Node, Pod};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub(crate) fn run(args: &FleetArgs) -> Result<Answer> {
    match &args.command {
        FleetCommand::Sim(args) => sim::run(args),
        FleetCommand::CheckLog(args) => check_log::run(args),
        FleetCommand::Serve(args) => serve::run(args),
        FleetCommand::Admit(args) => admit::run(args),
        FleetCommand::Dra(args) => dra::run(args),
        FleetCommand::Place(args) => place::run(args),
        FleetCommand::Agent(args) => agent::run(args),
        FleetCommand::Advise(args) => advise::run(args),
    }
}

/// The files that a command reads, and those that it writes.
pub(super) fn files(args: &FleetArgs) -> (Vec<&Path>, Vec<&Path>) {
    fn workload(workload: &Workload) -> Vec<&Path> {
        vec![&workload.nodes, &workload.pods]
    }
    match &args.command {
        FleetCommand::Sim(args) => {
            let written = [&args.log, &args.moves, &args.output];
            (workload(&args.workload), written.into_iter().flatten().map(PathBuf::as_path).collect())
        }
        FleetCommand::CheckLog(args) => {
            let mut read = workload(&args.workload);
            read.push(&args.log);
            read.extend(args.moves.as_deref());
            (read, Vec::new())
        }
        FleetCommand::Serve(_) => (Vec::new(), Vec::new()),
        FleetCommand::Admit(args) => (args.pod.iter().map(PathBuf::as_path).collect(), Vec::new()),
        FleetCommand::Agent(args) => (args.bookings.iter().map(PathBuf::as_path).collect(), Vec::new()),
        FleetCommand::Dra(args) => (dra::read(args), Vec::new()),
        FleetCommand::Place(args) => (args.nodes.iter().map(PathBuf::as_path).collect(), Vec::new()),
        FleetCommand::Advise(args) => (vec![&args.file], args.output.iter().map(PathBuf::as_path).collect()),
    }
}

/// The nodes and pods that a user named.
fn lists(workload: &Workload) -> Result<(Vec<Node>, Vec<Pod>)> {
    if let Some(level) = workload.arrivals
        && !(level > 0.0 && level <= 1000.0)
    {
        let what = format!("--arrivals: invalid level {level}");
        return Err(Failure::new(what, "use a number above 0, such as 1.3 for 130 % of all GPUs").into());
    }
    let nodes = opened(&workload.nodes, |input| read::nodes(input))?;
    let pods = opened(&workload.pods, |input| read::pods(input))?;
    let is_untimed = pods.iter().any(|pod| pod.created.is_none());
    if workload.times && is_untimed {
        let what = format!("{}: not every pod has a time of creation", workload.pods.display());
        return Err(Failure::new(what, "leave out --times, or add creation_time to every row").into());
    }
    Ok((nodes, pods))
}

/// Opens a file and parses it; an error names the file.
fn opened<T>(
    path: &Path,
    parse: impl FnOnce(&mut (dyn Read + Send)) -> gapless_fleet::Result<T>,
) -> Result<T> {
    let name = path.display();
    let cannot =
        |error: std::io::Error| Failure::new(format!("cannot read {name}: {error}"), "check the path");
    if path.is_dir() {
        return Err(
            Failure::new(format!("cannot read {name}: it is a directory"), "name a file inside it").into()
        );
    }
    let mut file = File::open(path).map_err(cannot)?;
    parse(&mut file).map_err(|error| {
        Failure::new(
            format!("{name}: {error}"),
            "`gapless fleet sim --help` and docs/fleet.md describe the lists",
        )
        .into()
    })
}

/// The pods that arrive, in order.
fn arrivals(workload: &Workload, nodes: &[Node], pods: &[Pod], seed: i64) -> Result<Arrivals> {
    if workload.times {
        return Ok(arrivals::listed(pods, nodes, seed));
    }
    let units = common_units(&Ledger::new(nodes.to_vec()));
    arrivals::shuffled(pods, nodes, units, workload.arrivals, seed)
        .map_err(|error| Failure::new(error.to_string(), "use a lower --arrivals").into())
}
