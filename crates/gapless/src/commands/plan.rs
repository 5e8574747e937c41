//! `gapless plan`: an offset for each buffer, from a list of buffers or from a trace.

mod page;
mod read;
mod show;
mod spaces;

use crate::cli::plan::{PlanArgs, PlanFormat};
use crate::failure::Failure;
use crate::{Answer, output};
use anyhow::Result;
use gapless_plan::{Buffer, Options, Plan, Problem, Shares, Solution, Tricks, Watch};
use gapless_problems::csv;
use gapless_trace::Bytes;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The input of the renderers.
struct Planned {
    name: String,
    problem: Problem,
    solution: Solution,
    capacity: Option<Bytes>,
    took: Duration,
    /// Buffers whose place changed, if an old plan was given.
    moved: Option<usize>,
}

pub(crate) fn run(args: &PlanArgs) -> Result<Answer> {
    let options = options(args)?;
    let align = args.align.as_deref().map(|text| bytes("--align", text)).transpose()?;
    let mut buffers = read::buffers(args)?;
    let problem = aligned(std::mem::take(&mut buffers.problem), align)?;
    if let Some(path) = &args.spaces {
        let question = spaces::Question::read(path, &buffers, &problem)?;
        let as_json = match args.format {
            PlanFormat::Text => false,
            PlanFormat::Json => true,
            _ => {
                return Err(
                    Failure::new("plans for several memories come as text or JSON", "--format json").into()
                );
            }
        };
        let name = args.file.display().to_string();
        question.answer(&name, &problem, &options, as_json, args.output.as_deref())?;
        return Ok(Answer::Yes);
    }
    let shares = buffers.column("shares").map(|cells| read::shares(cells, &problem)).transpose()?;
    let start = Instant::now();
    let (solution, moved) = match &args.old {
        Some(old) => replan(&problem, old)?,
        None => (search(&problem, &options, shares.as_ref())?, None),
    };
    let took = start.elapsed();
    judge(&problem, &solution, &options, shares.as_ref(), args.monotone)?;
    let fits = solution.fits;
    let planned = Planned {
        name: args.file.display().to_string(),
        problem,
        solution,
        capacity: options.capacity,
        took,
        moved,
    };
    let path = args.output.as_deref();
    match args.format {
        PlanFormat::Text => output::write_text(path, &show::text(&planned))?,
        PlanFormat::Json => write(path, &show::json(&planned)?)?,
        PlanFormat::Csv => write(path, &csv::write(&planned.problem, Some(&planned.solution.plan)))?,
        PlanFormat::Svg => write(path, &show::svg(&planned)?)?,
        PlanFormat::Html => output::write_to(path, |out| page::write(out, &planned))?,
    }
    let asked = planned.capacity.is_some();
    Ok(if asked && fits != Some(true) { Answer::No } else { Answer::Yes })
}

/// Checks every plan before it is shown. The judge shares no code with the planner, and is cheap beside any search.
fn judge(
    problem: &Problem,
    solution: &Solution,
    options: &Options,
    shares: Option<&Shares>,
    monotone: bool,
) -> Result<()> {
    let plan = &solution.plan;
    let bug = |wrong: gapless_plan::Invalid| {
        Failure::new(
            format!("the plan is not valid: {wrong}"),
            "this is a bug: please report it with the file",
        )
    };
    match (options.chunk, shares) {
        (Some(chunk), _) => gapless_plan::validate_chunks(problem, plan, chunk).map_err(bug)?,
        (None, Some(shares)) => gapless_plan::validate_sharing(problem, shares, plan, None).map_err(bug)?,
        (None, None) => gapless_plan::validate(problem, plan, None).map_err(bug)?,
    }
    if monotone && shares.is_none() {
        let halved = |buffer: &Buffer| Buffer { size: Bytes(buffer.size.0.div_ceil(2)), ..buffer.clone() };
        let smaller = Problem::new(problem.buffers().iter().map(halved).collect())?;
        let plan = Plan::of_offsets(&smaller, plan.offsets.clone());
        gapless_plan::validate(&smaller, &plan, None).map_err(bug)?;
    }
    Ok(())
}

fn write(path: Option<&Path>, text: &str) -> Result<()> {
    output::write_to(path, |out| Ok(out.write_all(text.as_bytes())?))
}

fn options(args: &PlanArgs) -> Result<Options> {
    let mut tricks = Tricks::default();
    for name in &args.without {
        if !tricks.turn_off(name) {
            let known = Tricks::NAMES.join(", ");
            return Err(
                Failure::new(format!("unknown trick {name:?}"), format!("use one of: {known}")).into()
            );
        }
    }
    Ok(Options {
        capacity: args.capacity.as_deref().map(|text| bytes("--capacity", text)).transpose()?,
        chunk: args.chunk.as_deref().map(|text| bytes("--chunk", text)).transpose()?,
        seed: args.seed,
        threads: args.threads,
        time_limit: Some(duration(&args.time_limit)?),
        effort: None,
        tricks,
    })
}

/// A size; a bare number is in the unit of the buffers' list, whose sizes are bare numbers too.
pub(super) fn bytes(flag: &str, text: &str) -> Result<Bytes> {
    text.parse()
        .map_err(|error| Failure::new(format!("{flag}: {error}"), format!("for example {flag} 1MiB")).into())
}

/// `500ms`, `10s`, `2min`; a plain number is seconds.
pub(super) fn duration(text: &str) -> Result<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "ms" => Some(1e-3),
        "" | "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    let seconds = number.parse::<f64>().ok().zip(scale).map(|(number, scale)| number * scale);
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
        Failure::new(
            format!("--time-limit: invalid duration {text:?}"),
            "use a number and a unit, such as 500ms, 10s or 2min",
        )
        .into()
    })
}

/// The problem with every buffer aligned to at least `align`.
fn aligned(problem: Problem, align: Option<Bytes>) -> Result<Problem> {
    let Some(align) = align.filter(|align| align.0 > 1) else { return Ok(problem) };
    let raised = |buffer: &Buffer| {
        let own = buffer.alignment.0;
        // Both alignments must hold, so the result is their least common multiple.
        let (mut a, mut b) = (own.max(1), align.0);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let alignment = (own.max(1) / a).checked_mul(align.0);
        alignment.map(|alignment| Buffer { alignment: Bytes(alignment), ..buffer.clone() })
    };
    let buffers: Option<Vec<Buffer>> = problem.buffers().iter().map(raised).collect();
    let names = (0..problem.len()).map(|index| problem.name(index).into()).collect();
    let help = "leave --align out, or give a power of two";
    let buffers =
        buffers.ok_or_else(|| Failure::new("--align is too large for the buffers' own alignments", help))?;
    Problem::with_names(buffers, names).map_err(|error| Failure::new(error.to_string(), help).into())
}

/// A flag that Ctrl-C sets from now on.
fn interrupted() -> Arc<AtomicBool> {
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancel);
    // If no handler can be set, Ctrl-C ends the process.
    let _ = ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed));
    cancel
}

/// Searches until solved, out of time or interrupted, with a line of progress on a terminal.
fn search(problem: &Problem, options: &Options, shares: Option<&Shares>) -> Result<Solution> {
    let cancel = interrupted();
    let terminal = std::io::stderr().is_terminal();
    let mut on_better = |progress: &gapless_plan::Progress<'_>| {
        if terminal {
            let gap = gap(progress.plan, progress.lower_bound);
            eprint!(
                "\r\x1b[2Kpeak {}  bound {}  gap {gap}  {:.1} s",
                progress.plan.peak,
                progress.lower_bound,
                progress.elapsed.as_secs_f64()
            );
        }
    };
    let mut watch = Watch { cancel: Some(&cancel), on_better: Some(&mut on_better) };
    let solution = match shares {
        Some(shares) => gapless_plan::solve_sharing(problem, shares, options, &mut watch),
        None => gapless_plan::solve(problem, options, &mut watch),
    };
    if terminal {
        eprint!("\r\x1b[2K");
    }
    solution.map_err(|error| {
        Failure::new(error.to_string(), "`gapless plan --help` explains the question").into()
    })
}

/// The old plan changed as little as possible.
fn replan(problem: &Problem, old: &Path) -> Result<(Solution, Option<usize>)> {
    let before = read::earlier(old)?;
    let offsets: Option<Vec<Bytes>> = before.buffers().iter().map(|buffer| buffer.hint).collect();
    let offsets = offsets.ok_or_else(|| {
        Failure::new(
            format!("{}: not every buffer has an offset", old.display()),
            "give a plan that `gapless plan --format csv` wrote",
        )
    })?;
    let plan = Plan::of_offsets(&before, offsets);
    gapless_plan::validate(&before, &plan, None).map_err(|wrong| {
        Failure::new(
            format!("{}: the old plan is not valid: {wrong}", old.display()),
            "plan again without --old",
        )
    })?;
    let kept = gapless_plan::carry_over(&before, &plan, problem);
    let new = gapless_plan::replan(problem, &kept);
    let lower_bound = gapless_plan::bound::lower_bound(problem).min(new.plan.peak);
    let moved = new.moved.len() + new.placed.len();
    let solution = Solution { plan: new.plan, lower_bound, fits: None, conflict: Vec::new(), effort: 0 };
    Ok((solution, Some(moved)))
}

/// The distance of the peak above the bound, for people.
fn gap(plan: &Plan, bound: Bytes) -> String {
    if plan.peak == bound {
        return "none".to_owned();
    }
    let above = plan.peak.share_of(bound) - 1.0;
    format!("{:.3} %", above * 100.0)
}
