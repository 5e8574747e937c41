//! Runs random programs on a device that knows time, and prints counts of what happened.
//!
//! `cargo run --release -p gapless-checker --example check -- --operations 10000000 --seed 1`

use gapless_checker::{Campaign, Rule};
use gapless_pool::mutants::{self, Mutant};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str =
    "usage: check [--operations N] [--seed N] [--ignore RULE[,RULE...]] [--most-found N] [--no-shrink]";

fn main() -> ExitCode {
    let campaign = match campaign() {
        Ok(campaign) => campaign,
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let start = Instant::now();
    let outcome = campaign.run();
    let seconds = start.elapsed().as_secs_f64();
    for (text, count) in outcome.totals.list() {
        println!("{count:>12}  {text}");
    }
    println!(
        "{:>12}  seeds, from {} to {}",
        outcome.seeds.1 - outcome.seeds.0,
        outcome.seeds.0,
        outcome.seeds.1 - 1
    );
    let each = seconds * 1e6 / outcome.totals.operations.max(1) as f64;
    println!("{seconds:>12.1}  seconds, {each:.1} us an operation");
    println!("{:>12}  violations found", outcome.found.len());
    for found in &outcome.found {
        println!("\nafter {} operations: {found}", found.after);
    }
    if outcome.found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn campaign() -> Result<Campaign, String> {
    let mut campaign = Campaign::new(1, 1_000_000);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        if name == "--no-shrink" {
            campaign.shrinks = false;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} needs a number, not {value:?}"));
        match name.as_str() {
            "--operations" => campaign.operations = number()?,
            "--seed" => campaign.seed = number()?,
            "--most-found" => campaign.most_found = number()? as usize,
            "--ignore" => {
                for rule in value.split(',') {
                    campaign
                        .ignored
                        .push(Rule::named(rule).ok_or_else(|| format!("no rule is named {rule:?}"))?);
                }
            }
            "--mutant" => {
                let is_it = |mutant: &Mutant| format!("{mutant:?}").eq_ignore_ascii_case(&value);
                let found = Mutant::ALL.into_iter().find(is_it);
                mutants::set(Some(found.ok_or_else(|| format!("no mutant is named {value:?}"))?));
            }
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(campaign)
}
