//! `--spaces`: places buffers into memories over time so that the traffic is lowest.
//!
//! The memories come from a TOML file, accesses from two more columns of the CSV: `accesses` is a count, or the times
//! of the accesses separated by spaces with an `@` before the first (`@3 7 9`: then the buffer may move in between);
//! `spaces` names the memories that a buffer may lie in, separated by spaces, all if it is empty.

use super::show::buffers;
use super::{bytes, interrupted};
use crate::failure::Failure;
use crate::output;
use anyhow::{Context, Result};
use gapless_plan::spaces::{
    Space, SpacePlan, SpaceProgress, SpaceWatch, Spaces, Usage, solve_spaces_watched,
};
use gapless_plan::{Options, Problem};
use gapless_problems::csv::Buffers;
use gapless_trace::Bytes;
use gapless_trace::numbers::plural;
use serde::Deserialize;
use serde_json::json;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Instant;

const SCHEMA: &str = "gapless.plan.spaces/1";
/// Costs are kept as whole millionths.
const UNIT: f64 = 1e6;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpacesFile {
    space: Vec<SpaceTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpaceTable {
    name: String,
    /// Missing: unlimited.
    capacity: Option<String>,
    /// The cost of one byte accessed.
    cost: f64,
}

/// A question about memory spaces, read from its files.
pub(super) struct Question {
    spaces: Spaces,
    usages: Vec<Usage>,
}

impl Question {
    /// `buffers` has the further columns of the file; without them, each buffer is accessed once.
    pub(super) fn read(path: &Path, buffers: &Buffers, problem: &Problem) -> Result<Question> {
        let spaces = read_spaces(path)?;
        let (accesses, allowed) = (buffers.column("accesses"), buffers.column("spaces"));
        let mut usages = Vec::with_capacity(problem.len());
        for index in 0..problem.len() {
            let cell = |column: Option<&[Box<str>]>| {
                column
                    .and_then(|cells| cells.get(index))
                    .map(|cell| cell.trim().to_owned())
                    .unwrap_or_default()
            };
            let wrong = |what: String| Failure::new(format!("buffer {}: {what}", problem.name(index)), HELP);
            let usage = usage(&cell(accesses)).map_err(wrong)?;
            let names = cell(allowed);
            let places: Result<Vec<usize>, Failure> = names
                .split_whitespace()
                .map(|name| spaces.position(name).ok_or_else(|| wrong(format!("no space is named {name:?}"))))
                .collect();
            let places = places?;
            usages.push(if places.is_empty() { usage } else { usage.only_in(&places) });
        }
        Ok(Question { spaces, usages })
    }

    /// Searches until solved, out of time or interrupted, with a line of progress on a terminal.
    fn search(&self, problem: &Problem, options: &Options) -> Result<SpacePlan> {
        let cancel = interrupted();
        let terminal = std::io::stderr().is_terminal();
        let mut on_better = |progress: &SpaceProgress| {
            if terminal {
                eprint!(
                    "\r\x1b[2Ktraffic {:.6e}  bound {:.6e}  gap {}  {:.1} s",
                    progress.traffic as f64 / UNIT,
                    progress.lower_bound as f64 / UNIT,
                    gap(progress),
                    progress.elapsed.as_secs_f64()
                );
            }
        };
        let mut watch = SpaceWatch { cancel: Some(&cancel), on_better: Some(&mut on_better) };
        let plan = solve_spaces_watched(problem, &self.usages, &self.spaces, options, &mut watch);
        if terminal {
            eprint!("\r\x1b[2K");
        }
        plan.map_err(|error| Failure::new(error.to_string(), HELP).into())
    }

    /// Answers the question and writes the answer as text or JSON.
    pub(super) fn answer(
        &self,
        name: &str,
        problem: &Problem,
        options: &Options,
        as_json: bool,
        path: Option<&Path>,
    ) -> Result<()> {
        let start = Instant::now();
        let plan = self.search(problem, options)?;
        let took = start.elapsed();
        gapless_plan::validate_spaces(problem, &self.usages, &self.spaces, &plan).map_err(|wrong| {
            Failure::new(
                format!("the plan is not valid: {wrong}"),
                "this is a bug: please report it with the files",
            )
        })?;
        if as_json {
            let json = self.json(name, problem, &plan, took.as_secs_f64() * 1e3)?;
            return output::write_to(path, |out| Ok(out.write_all(json.as_bytes())?));
        }
        output::write_text(path, &self.text(name, problem, &plan, took.as_secs_f64() * 1e3))
    }

    fn text(&self, name: &str, problem: &Problem, plan: &SpacePlan, ms: f64) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "\x1b[1m{name}\x1b[0m  {} in {}",
            buffers(problem.len()),
            plural(self.spaces.all().len() as u64, "space")
        );
        let proof = if plan.proven_optimal() {
            "proven lowest".to_owned()
        } else {
            format!("no less than {:.6e}", plan.lower_bound as f64 / UNIT)
        };
        let _ = writeln!(out, "  traffic  \x1b[1m{:.6e}\x1b[0m  {proof}", plan.traffic as f64 / UNIT);
        for (at, space) in self.spaces.all().iter().enumerate() {
            let here = plan.residences.iter().filter(|all| all.iter().any(|r| r.space == at)).count();
            let limit = space.capacity.map_or("unlimited".to_owned(), |c| c.to_string());
            let _ = writeln!(
                out,
                "  {:<12} peak {:>9} of {limit}, {}",
                space.name,
                plan.peaks[at].to_string(),
                buffers(here)
            );
        }
        let _ = writeln!(out, "  moved    {}", buffers(plan.moved()));
        let _ = writeln!(out, "  time     {ms:.1} ms");
        out
    }

    fn json(&self, name: &str, problem: &Problem, plan: &SpacePlan, ms: f64) -> Result<String> {
        let spaces: Vec<_> = self
            .spaces
            .all()
            .iter()
            .zip(&plan.peaks)
            .map(|(space, peak)| json!({"name": space.name, "capacity": space.capacity.map(|c| c.0), "peak": peak.0}))
            .collect();
        let buffers: Vec<_> = plan
            .residences
            .iter()
            .enumerate()
            .map(|(index, all)| {
                let places: Vec<_> = all
                    .iter()
                    .map(|r| {
                        json!({
                            "space": self.spaces.all()[r.space].name,
                            "lower": r.lifetime.start,
                            "upper": r.lifetime.end,
                            "offset": r.offset.0,
                        })
                    })
                    .collect();
                json!({"id": problem.name(index), "size": problem.buffers()[index].size.0, "places": places})
            })
            .collect();
        let value = json!({
            "schema": SCHEMA,
            "path": name,
            "traffic": plan.traffic as f64 / UNIT,
            "lower_bound": plan.lower_bound as f64 / UNIT,
            "proven_optimal": plan.proven_optimal(),
            "moved": plan.moved(),
            "time_ms": ms,
            "spaces": spaces,
            "buffers": buffers,
        });
        Ok(serde_json::to_string(&value)? + "\n")
    }
}

const HELP: &str = "spaces.toml has [[space]] tables with name, cost (of a byte accessed) and capacity (missing: unlimited); the CSV may have the \
                    columns accesses (a count, or times as @3 7 9) and spaces (names)";

/// The distance of the traffic above the bound, for people.
fn gap(progress: &SpaceProgress) -> String {
    if progress.traffic == progress.lower_bound {
        return "none".to_owned();
    }
    if progress.lower_bound == 0 {
        return "unknown".to_owned();
    }
    format!("{:.3} %", (progress.traffic as f64 / progress.lower_bound as f64 - 1.0) * 100.0)
}

fn read_spaces(path: &Path) -> Result<Spaces> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file: SpacesFile = toml::from_str(&text).map_err(|error| {
        Failure::new(format!("{}: {}", path.display(), error.to_string().trim_end()), HELP)
    })?;
    let mut spaces = Vec::with_capacity(file.space.len());
    for table in file.space {
        let capacity: Option<Bytes> =
            table.capacity.as_deref().map(|text| bytes("capacity", text)).transpose()?;
        let cost = table.cost * UNIT;
        if !(0.0..=1e15).contains(&cost) {
            let what = format!("{}: the cost of {:?} is {}", path.display(), table.name, table.cost);
            return Err(Failure::new(what, "give a number of at least 0").into());
        }
        spaces.push(Space::new(&table.name, capacity.map(|c| c.0), cost.round() as u64));
    }
    Spaces::new(spaces).map_err(|error| Failure::new(format!("{}: {error}", path.display()), HELP).into())
}

/// A count, or `@` and the times; nothing: once.
fn usage(cell: &str) -> Result<Usage, String> {
    if cell.is_empty() {
        return Ok(Usage::default());
    }
    if let Some(times) = cell.strip_prefix('@') {
        let times: Result<Vec<i64>, _> = times.split_whitespace().map(str::parse).collect();
        let mut times = times
            .map_err(|_| format!("invalid times {cell:?}: use @ and whole numbers, such as \"@3 17\""))?;
        times.sort_unstable();
        return Ok(Usage::at(times));
    }
    cell.parse()
        .map(Usage::count)
        .map_err(|_| format!("invalid count of accesses {cell:?}: use a whole number, such as 12"))
}
