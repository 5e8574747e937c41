//! The report against CPython's `pickle.load` of the same file: time and peak memory, interleaved, medians.
//!
//! A report runs on two threads, `pickle.load` on one: so both CPU time and wall time are compared.
//!
//! There are two recordings of about 900,000 events. One is a real trace repeated, with all memory freed in
//! between, so that its peaks are those of the trace. The other has random sizes and lifetimes and no stacks, so
//! that nothing repeats.

use crate::shell::{self, command};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

const TRACE: &str = "testdata/traces/llama1b_varlen_ckpt.pickle.gz";
const EVENTS: &str = "900000";
const ROUNDS: &str = "7";

pub(crate) fn run() -> Result<()> {
    shell::run(command(".", "cargo", &["build", "--release", "--locked", "--package", "gapless"]))?;
    let folder = shell::target().join("bench");
    std::fs::create_dir_all(&folder)?;
    let path = |name: &str| folder.join(name).display().to_string();
    let (repeated, random) = (path("900k.pickle"), path("random.pickle"));
    shell::run(command(".", "python3", &["xtask/bench/repeat_trace.py", TRACE, EVENTS, &repeated]))?;
    shell::run(command(".", "python3", &["xtask/bench/random_trace.py", EVENTS, &random]))?;
    let binary = shell::target().join("release/gapless").display().to_string();
    for (what, file) in [("a trace repeated", &repeated), ("random sizes and lifetimes, no stacks", &random)]
    {
        let args = ["xtask/bench/measure.py", &binary, file, ROUNDS];
        let measured = shell::output(command(".", "python3", &args))?;
        print(what, &serde_json::from_str(&measured).context("measure.py prints JSON")?)?;
    }
    same_peaks(&binary, &repeated)
}

fn print(what: &str, figures: &Value) -> Result<()> {
    let number = |key: &str| figures[key].as_f64().with_context(|| format!("measure.py gives {key}"));
    let (load, load_wall) = (number("pickle_load_cpu_s")?, number("pickle_load_wall_s")?);
    let size = number("file_bytes")?;
    println!(
        "\n{what}: {} events in {:.1} MB; medians of {ROUNDS} interleaved rounds",
        figures["events"],
        size / 1e6
    );
    println!(
        "{:<24} {:>9} {:>8} {:>9} {:>8} {:>10} {:>12}",
        "", "CPU", "of load", "wall", "of load", "peak RSS", "/ file size"
    );
    for (name, title, aim) in [
        ("pickle_load", "pickle.load alone", ""),
        ("json", "report --format json", "wanted: at most 1/6, RSS at most 1.3"),
        ("html", "report --format html", "wanted: at most 1/4"),
    ] {
        let (cpu, wall) = (number(&format!("{name}_cpu_s"))?, number(&format!("{name}_wall_s"))?);
        let rss = number(&format!("{name}_rss"))?;
        println!(
            "{title:<24} {:>6.0} ms {:>8} {:>6.0} ms {:>8} {:>7.0} MB {:>12.2}   {aim}",
            cpu * 1e3,
            format!("1/{:.1}", load / cpu),
            wall * 1e3,
            format!("1/{:.1}", load_wall / wall),
            rss / 1e6,
            rss / size
        );
    }
    Ok(())
}

/// The repeated recording must report the peaks of the trace that it was made from.
fn same_peaks(binary: &str, big: &str) -> Result<()> {
    let report = |file: &str| -> Result<Value> {
        let text = shell::output(command(".", binary, &["report", file, "--format", "json"]))?;
        Ok(serde_json::from_str(&text)?)
    };
    let (one, many) = (report(TRACE)?, report(big)?);
    for figure in ["peak_allocated", "peak_active", "peak_requested", "peak_reserved"] {
        let (a, b) = (&one["devices"][0][figure], &many["devices"][0][figure]);
        ensure!(a == b, "{figure}: {a} in the trace, {b} in its repetition");
    }
    println!("peaks of the repetition equal those of the trace, to the byte");
    Ok(())
}
