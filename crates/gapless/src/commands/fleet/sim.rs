//! `gapless fleet sim`: policies side by side on the same arrivals.

use super::{arrivals, lists};
use crate::cli::fleet::{SimArgs, SimFormat};
use crate::failure::{self, Failure};
use crate::{Answer, output};
use anyhow::Result;
use gapless_fleet::log;
use gapless_fleet::policy::{NAMES, Policy, canonical};
use gapless_fleet::show::{self, Named, Simulated};
use gapless_fleet::sim::{self, Options};
use std::path::{Path, PathBuf};

/// Pods that may move for one that fits nowhere.
const MOVES_FOR_ONE: usize = 4;

pub(super) fn run(args: &SimArgs) -> Result<Answer> {
    let policies = policies(&args.policy)?;
    let (nodes, pods) = lists(&args.workload)?;
    let mut arrivals = arrivals(&args.workload, &nodes, &pods, args.seed)?;
    if args.online {
        if policies != ["gapless"] {
            let what = format!("--online: the policy {:?} does not run on a cluster", args.policy);
            return Err(Failure::new(what, "use --policy gapless, or leave out --online").into());
        }
        arrivals.rank_by_name(&nodes);
    }
    let options = Options {
        fragments: true,
        departures: args.workload.times,
        moves: args.repack,
        moves_for_one: MOVES_FOR_ONE,
        learn: args.online,
    };
    let mut runs = Vec::new();
    for policy in policies {
        let run = sim::run(&nodes, &pods, &arrivals, options, |ledger, mix, random| {
            Policy::named(policy, ledger, mix, random).expect("the name is one of NAMES")
        });
        runs.push(Named { policy, run });
    }
    let simulated = Simulated { nodes, pods, seed: args.seed, level: args.workload.arrivals, runs };
    if simulated.runs[0].run.arrived_milli == 0 {
        failure::note("no pod asks for a GPU, so no copies were added");
    }
    let many = simulated.runs.len() > 1;
    for named in &simulated.runs {
        if let Some(path) = &args.log {
            let path = named_path(path, many.then_some(named.policy));
            output::write_to(Some(&path), |out| {
                Ok(log::write(out, &simulated.nodes, &simulated.pods, &arrivals, &named.run)?)
            })?;
        }
        if let Some(path) = &args.moves {
            let path = named_path(path, many.then_some(named.policy));
            output::write_to(Some(&path), |out| {
                Ok(log::write_moves(out, &simulated.nodes, &simulated.pods, &arrivals, &named.run)?)
            })?;
        }
    }
    let path = args.output.as_deref();
    match args.format {
        SimFormat::Text => output::write_text(path, &show::text(&simulated))?,
        SimFormat::Json => write(path, &format!("{:#}\n", show::json(&simulated)))?,
        SimFormat::Html => write(path, &show::page(&simulated))?,
    }
    Ok(Answer::Yes)
}

fn write(path: Option<&Path>, text: &str) -> Result<()> {
    output::write_to(path, |out| Ok(out.write_all(text.as_bytes())?))
}

fn policies(name: &str) -> Result<Vec<&'static str>> {
    if name == "all" {
        return Ok(NAMES.to_vec());
    }
    let one = canonical(name).ok_or_else(|| {
        Failure::new(
            format!("--policy: unknown policy {name:?}"),
            format!("use one of: {}, all", NAMES.join(", ")),
        )
    })?;
    Ok(vec![one])
}

/// The path for one of several policies: `placements.csv` becomes `placements-fgd.csv`.
fn named_path(path: &Path, policy: Option<&str>) -> PathBuf {
    let Some(policy) = policy else { return path.to_owned() };
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let end = path.extension().map(|end| format!(".{}", end.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}-{policy}{end}"))
}
