//! The commands that show the current state: `top` and `metrics`.

use clap::{Args as ClapArgs, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless top                                    every process on every card
  gapless top --pid 4242                         one process: pools, streams, the largest holders
  gapless top --once --format json | jq '.processes[].command'

Keys:
  up, down, enter    select a process, show details       esc, q    back, quit
  s, r               sort by the next column, reverse     /         filter
  space              pause                                ?         all keys

Processes that use Gapless show allocated and reserved memory, fragmentation, allocations a second and
the last minutes. For all others, the driver (NVML) reports the total. Details are available only
for processes of the same user.

Exit code: 0 success, 2 an error.")]
pub(crate) struct TopArgs {
    /// Print once, and exit
    #[arg(long)]
    pub(crate) once: bool,

    /// The output format; json needs --once
    #[arg(long, value_enum, default_value_t = LiveFormat::Text)]
    pub(crate) format: LiveFormat,

    /// Seconds between updates
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

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("use a number of seconds from 0.1 to 3600".to_owned()),
    }
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless metrics                                        http://127.0.0.1:9754/metrics
  gapless metrics --listen 0.0.0.0:9754                  for a Prometheus on another machine
  gapless metrics -o gapless.prom                        once, for node_exporter's textfile collector

Sizes are in bytes. Cards have the labels gpu, UUID, device and Hostname, spelled as in DCGM's
exporter, so you can join both. Processes also have the labels pid and process.
grafana/gapless.json is a dashboard for them.

There is no password: anyone who can reach the address can read program names and sizes. By default
only this machine can. The server runs until you stop it.

Exit code: 0 success, 2 the address or the file cannot be used.")]
pub(crate) struct MetricsArgs {
    /// The address to serve /metrics on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9754")]
    pub(crate) listen: SocketAddr,

    /// Print the metrics once, and exit
    #[arg(long, conflicts_with = "listen")]
    pub(crate) once: bool,

    /// Write the metrics once to this file, atomically, and exit
    #[arg(short, long, value_name = "FILE", conflicts_with = "listen")]
    pub(crate) output: Option<PathBuf>,
}
