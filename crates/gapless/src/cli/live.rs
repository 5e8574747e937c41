//! The commands that look at what runs right now: `top` and `metrics`.

use clap::{Args as ClapArgs, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless top                                    every process on every card, live
  gapless top --pid 4242                         one process: pools, streams, the largest holders
  gapless top --once --format json | jq '.processes[].command'

Keys:
  up, down, enter    choose a process, look into it          esc, q    back, leave
  s, r               sort by the next column, turn around    /         filter
  space              hold still                              ?         all keys

Processes that use Gapless show live and reserved memory, fragmentation, allocations a second and
the last minutes; of all others the driver (NVML) tells what they hold. Only processes of the same
user show their insides.

Exit code: 0 shown, 2 it could not be.")]
pub(crate) struct TopArgs {
    /// Print what is there once, and end
    #[arg(long)]
    pub(crate) once: bool,

    /// How to print it; json needs --once
    #[arg(long, value_enum, default_value_t = LiveFormat::Text)]
    pub(crate) format: LiveFormat,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub(crate) interval: f64,

    /// Only this process
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LiveFormat {
    Text,
    Json,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds from 0.1 to 3600".to_owned()),
    }
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless metrics                                        http://127.0.0.1:9754/metrics
  gapless metrics --listen 0.0.0.0:9754                  for a Prometheus on another machine
  gapless metrics -o gapless.prom                        once, for node_exporter's textfile collector

Sizes are in bytes. Cards have the labels gpu, UUID, device and Hostname as DCGM's exporter spells
them, so that both can be joined; processes have pid and process besides. grafana/gapless.json is
a board for it.

There is no password: who reaches the address reads names of programs and sizes. By default that is
this machine alone. It serves until it is told to end.

Exit code: 0 printed or written, 2 the address or the file cannot be used.")]
pub(crate) struct MetricsArgs {
    /// Where to serve /metrics
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9754")]
    pub(crate) listen: SocketAddr,

    /// Print the metrics once, and end
    #[arg(long, conflicts_with = "listen")]
    pub(crate) once: bool,

    /// Write them once to this file, whole or not at all, and end
    #[arg(short, long, value_name = "FILE", conflicts_with = "listen")]
    pub(crate) output: Option<PathBuf>,
}
