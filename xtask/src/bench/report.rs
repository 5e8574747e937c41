//! The report against CPython's `pickle.load` of the same file: time and peak memory, interleaved, medians.
//!
//! The file is a recording of about 900,000 events: a real trace repeated, with everything freed in between, so that
//! its peaks are those of the trace.

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
    let big = folder.join("900k.pickle").display().to_string();
    shell::run(command(".", "python3", &["xtask/bench/repeat_trace.py", TRACE, EVENTS, &big]))?;
    let binary = shell::target().join("release/gapless").display().to_string();
    let measured =
        shell::output(command(".", "python3", &["xtask/bench/measure.py", &binary, &big, ROUNDS]))?;
    let figures: Value = serde_json::from_str(&measured).context("measure.py prints JSON")?;
    print(&figures)?;
    same_peaks(&binary, &big)
}

fn print(figures: &Value) -> Result<()> {
    let number = |key: &str| figures[key].as_f64().with_context(|| format!("measure.py gives {key}"));
    let (load, size) = (number("pickle_load_s")?, number("file_bytes")?);
    println!(
        "\n{} events in {:.1} MB; medians of {ROUNDS} interleaved rounds",
        figures["events"],
        size / 1e6
    );
    println!("{:<28} {:>9} {:>16} {:>10} {:>14}", "", "time", "/ pickle.load", "peak RSS", "/ file size");
    println!(
        "{:<28} {:>7.0} ms {:>16} {:>7.0} MB {:>14.2}",
        "pickle.load alone",
        load * 1e3,
        "1",
        number("pickle_rss")? / 1e6,
        number("pickle_rss")? / size
    );
    for (name, aim) in [("json", "at most 1/4, aim 1/8, RSS at most 1.5"), ("html", "at most 1/2")] {
        let (time, rss) = (number(&format!("{name}_s"))?, number(&format!("{name}_rss"))?);
        println!(
            "{:<28} {:>7.0} ms {:>9.3} = 1/{:<4.1} {:>7.0} MB {:>14.2}   wanted: {aim}",
            format!("report --format {name}"),
            time * 1e3,
            time / load,
            load / time,
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
