//! The replay against recordings and against real runs with other settings, and its speed.

use crate::shell::{self, command};
use anyhow::Result;

/// `FILES=a.pickle,b.pickle` adds the user's traces. Each is replayed with its own settings and compared with itself.
pub(crate) fn run() -> Result<()> {
    let files = std::env::var("FILES").unwrap_or_default();
    let mut args = vec![
        "run",
        "--release",
        "--locked",
        "--package",
        "gapless-replay",
        "--example",
        "replay_bench",
        "--",
    ];
    let parts = ["exact", "what-if", "cards", "speed", "sweep"];
    args.extend(parts);
    args.extend(files.split(',').filter(|file| !file.is_empty()));
    shell::run(command(".", "cargo", &args))
}
