//! Measures the time and the memory of reading a file: `cargo run --release --example time_reading -- FILE [TIMES]`.

use gapless_ingest::{ReadOptions, open};
use std::path::Path;
use std::time::Instant;

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("a file to read");
    let times: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    for _ in 0..times {
        let start = Instant::now();
        match open(Path::new(&path), &ReadOptions::default()) {
            Ok(trace) => {
                let events: usize = trace.devices.iter().map(|d| d.events.len()).sum();
                println!(
                    "{:.1} ms, {events} events, {} stacks, {}, {}, {:?}",
                    start.elapsed().as_secs_f64() * 1e3,
                    trace.stacks.len(),
                    trace.source.format,
                    trace.source.producer,
                    trace.source.notes
                );
            }
            Err(error) => println!("{error}"),
        }
    }
    // The most memory held, as Linux counts it.
    if let Ok(status) = std::fs::read_to_string("/proc/self/status")
        && let Some(line) = status.lines().find(|line| line.starts_with("VmHWM"))
    {
        println!("{line}");
    }
}
