//! The replay against recordings and against runs that were really made, and its speed.

use crate::shell::{self, command};
use anyhow::Result;

/// `FILES=a.pickle,b.pickle` adds traces of one's own: each is replayed with its own settings and compared with itself.
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
