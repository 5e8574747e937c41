//! Prints the bytes that the Gapless allocator holds of each run in ordinary use, and the smallest limit from which on
//! the run finishes, both as multiples of peak live bytes. With `why` it also prints the places of the free memory at
//! the request that failed under a smaller limit.
//!
//! `cargo run -p gapless-replay --example caps -- [why] [emptied=N] [SHAKES] [NAME or FILE]...` A number asks for as
//! many more runs, each with another block in front that is never freed: a run's figures depend on chance, their mean
//! less so. `emptied=N` empties the cache after each N requests, as some programs do.

#[path = "../tests/support/scripts.rs"]
mod scripts;

use gapless_pool::Options;
use gapless_replay::gapless::Gapless;
use gapless_replay::run::replay;
use gapless_replay::{Allocator, Op, Script};
use gapless_trace::Bytes;
use scripts::live_peak;
use std::path::PathBuf;

const TRACES: [&str; 6] =
    ["gpt2_train", "llama1b_varlen_ckpt", "llama_offload", "resnet_varbatch", "mixtral_moe", "multistream"];
const MIB: u64 = 1 << 20;
/// Limits are tried in steps of this part of the live bytes, from so many steps above them on.
const STEPS: u64 = 2000;
const MOST_STEPS: u64 = 120;
/// The block in front is this large, times the number of the run.
const SHAKE: u64 = 777 << 10;

/// The same run with a block in front.
fn shaken(script: &Script, size: u64) -> Script {
    let mut script = script.clone();
    if size > 0 && !script.ops.is_empty() {
        let (slot, lane) = (script.slots + 1, script.lanes.len() as u16 - 1);
        script.ops.insert(0, Op::Alloc { slot, size: Bytes(size), lane });
        script.ticks.insert(0, script.ticks[0]);
        script.slots += 2;
    }
    script
}

/// The same run, whose cache is emptied after each `every` requests.
fn emptied(script: &Script, every: usize) -> Script {
    let (mut ops, mut ticks, mut requests) = (Vec::new(), Vec::new(), 0);
    for (op, tick) in script.ops.iter().zip(&script.ticks) {
        ops.push(*op);
        ticks.push(*tick);
        if matches!(op, Op::Alloc { .. }) {
            requests += 1;
            if requests % every == 0 {
                ops.push(Op::EmptyCache { pool: None });
                ticks.push(*tick);
            }
        }
    }
    Script { ops, ticks, ..script.clone() }
}

/// A run under a limit, and true if it finished.
fn run(script: &Script, limit: Option<u64>, says_why: bool) -> (Gapless, bool) {
    let options = Options { limit, ..Options::default() };
    let mut gapless = Gapless::planned(1 << 40, options, &script.lanes);
    let failure = replay(script, &mut gapless, &mut ());
    if let Some(failure) = failure.filter(|_| says_why) {
        let (limit, asked) =
            (limit.unwrap_or(0) as f64 / MIB as f64, failure.oom.requested.0 as f64 / MIB as f64);
        println!("  limit {limit:.1} MiB: op {} of {} asks for {asked:.3} MiB", failure.op, script.ops.len());
        println!("{}", gapless.pool().waste());
    }
    (gapless, failure.is_none())
}

/// Of a run: live MiB, the bytes that it holds in ordinary use and under the smallest limit, as multiples of the live
/// bytes, and the driver's time in ms for both.
fn figures(script: &Script, says_why: bool) -> [f64; 5] {
    let live = live_peak(script);
    let (free, _) = run(script, None, says_why);
    // Downwards, since a run may finish under a limit by chance and fail under a larger one.
    let limits = (0..=MOST_STEPS).rev().map(|step| live + live / STEPS * step);
    let enough = limits.take_while(|&limit| run(script, Some(limit), says_why).1);
    let smallest = enough.last().unwrap_or(u64::MAX);
    let (at_cap, _) = run(script, Some(smallest), false);
    let part = |bytes: u64| bytes as f64 / live as f64;
    let ms = |gapless: &Gapless| gapless.stats().driver_ns as f64 / 1e6;
    [live as f64 / MIB as f64, part(free.stats().reserved.peak), part(smallest), ms(&free), ms(&at_cap)]
}

fn main() {
    let (mut says_why, mut every, mut shakes, mut names) = (false, None, 0, Vec::new());
    for argument in std::env::args().skip(1) {
        match argument.parse() {
            Ok(number) => shakes = number,
            Err(_) if argument == "why" => says_why = true,
            Err(_) => match argument.strip_prefix("emptied=").map(str::parse::<usize>) {
                Some(Ok(requests)) if requests > 0 => every = Some(requests),
                Some(_) => return eprintln!("{argument:?}: emptied= wants a number of requests"),
                None => names.push(argument),
            },
        }
    }
    if names.is_empty() {
        names = TRACES.iter().map(|&name| name.to_owned()).collect();
    }
    println!("{:<22} {:>9} {:>9} {:>9} {:>9} {:>9}", "run", "live MiB", "ordinary", "smallest", "ms", "ms");
    for name in names {
        let path = scripts::trace(&name);
        let path = if path.exists() { path } else { PathBuf::from(&name) };
        let script = match scripts::recorded(&path) {
            Ok(script) => script,
            Err(why) => {
                println!("{why}");
                continue;
            }
        };
        let script = match every {
            Some(every) => emptied(&script, every),
            None => script,
        };
        let all: Vec<[f64; 5]> =
            (0..=shakes).map(|shake| figures(&shaken(&script, shake * SHAKE), says_why)).collect();
        let mean = |at: usize| all.iter().map(|figures| figures[at]).sum::<f64>() / all.len() as f64;
        let [live, ordinary, smallest, ms, at_cap] = std::array::from_fn(mean);
        println!("{name:<22} {live:>9.1} {ordinary:>9.5} {smallest:>9.5} {ms:>9.1} {at_cap:>9.1}");
    }
}
