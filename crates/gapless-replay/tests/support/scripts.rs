//! Requests of recorded programs, and the most bytes that they held at once.

use gapless_replay::torch::{TorchSettings, TorchVersion};
use gapless_replay::{Op, Script};
use gapless_trace::History;
use std::path::{Path, PathBuf};

/// The file of a trace of this repository.
pub(crate) fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../testdata/traces/{name}.pickle.gz"))
}

/// The requests of the first device of a recorded run.
pub(crate) fn recorded(path: &Path) -> Result<Script, String> {
    let trace = gapless_ingest::open(path, &gapless_ingest::ReadOptions::default())
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let device = trace.devices.first().ok_or_else(|| format!("{}: no device", path.display()))?;
    let history = History::rebuild(&trace, device).map_err(|error| format!("{}: {error}", path.display()))?;
    let version = TorchVersion::of_producer(&trace.source.producer);
    let settings = TorchSettings::recorded(&trace.settings.clone().unwrap_or_default(), version);
    Ok(Script::refined(&trace, device, &history, &settings, version))
}

/// The most bytes that the program holds at once, in blocks of 512 bytes.
pub(crate) fn live_peak(script: &Script) -> u64 {
    let mut sizes = vec![0; script.slots as usize + 1];
    let (mut live, mut peak) = (0u64, 0);
    for op in &script.ops {
        match *op {
            Op::Alloc { slot, size, .. } => {
                sizes[slot as usize] = size.0.div_ceil(512).max(1) * 512;
                live += sizes[slot as usize];
            }
            Op::Free { slot } | Op::FreeRequested { slot } => {
                live -= std::mem::take(&mut sizes[slot as usize]);
            }
            _ => {}
        }
        peak = peak.max(live);
    }
    peak
}
