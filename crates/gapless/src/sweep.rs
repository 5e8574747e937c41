//! Parts that the replaying commands share: checking the options, choosing the device, replaying many settings
//! with a bar and Ctrl-C.

use crate::failure::Failure;
use crate::progress::Counter;
use crate::sizes;
use anyhow::Result;
use gapless_replay::Script;
use gapless_replay::sweep::Progress;
use gapless_replay::torch::{TorchSettings, TorchVersion};
use gapless_report::{Analysis, DeviceAnalysis};
use gapless_trace::{Action, Bytes, Trace};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};

/// `--capacity`.
pub(crate) fn capacity(text: Option<&str>) -> Result<Option<Bytes>> {
    text.map(|text| sizes::memory("--capacity", text)).transpose()
}

/// The device to replay: the one asked for, else the first that allocated something.
pub(crate) fn device<'a, 't>(
    analysis: &'a Analysis<'t>,
    path: &str,
    wanted: Option<u32>,
) -> Result<&'a DeviceAnalysis<'t>> {
    let record = "call torch.cuda.memory._record_memory_history() before the steps in question, and _dump_snapshot after them";
    let allocates = |d: &&DeviceAnalysis<'_>| d.device.events.count(Action::Alloc) > 0;
    let Some(wanted) = wanted else {
        return analysis.devices.iter().find(allocates).ok_or_else(|| {
            Failure::new(format!("{path}: no allocation was recorded, so there is nothing to replay"), record)
                .into()
        });
    };
    let Some(found) = analysis.devices.iter().find(|d| d.device.device == wanted) else {
        let all: Vec<String> = analysis.devices.iter().map(|d| d.device.device.to_string()).collect();
        let help = if all.is_empty() { record.to_owned() } else { format!("there is: {}", all.join(", ")) };
        return Err(Failure::new(format!("{path}: no device {wanted} in it"), help).into());
    };
    if !allocates(&found) {
        let what =
            format!("{path}: no allocation was recorded on device {wanted}, so there is nothing to replay");
        return Err(Failure::new(what, record).into());
    }
    Ok(found)
}

/// The program's requests on a device, with private pools that the recording does not name.
pub(crate) fn script(trace: &Trace, d: &DeviceAnalysis<'_>) -> Script {
    let (settings, version) = settings(trace);
    Script::refined(trace, d.device, &d.history, &settings, version)
}

fn settings(trace: &Trace) -> (TorchSettings, TorchVersion) {
    let version = TorchVersion::of_producer(&trace.source.producer);
    (TorchSettings::recorded(&trace.settings.clone().unwrap_or_default(), version), version)
}

/// The settings that the run had. An error for runs of other allocators, which PyTorch's settings cannot help.
pub(crate) fn recorded(trace: &Trace, path: &str) -> Result<(TorchSettings, TorchVersion)> {
    if trace.source.is_gapless() {
        // A run on Gapless's own allocator: the replay shows PyTorch's allocator with its defaults.
        return Ok((TorchSettings::default(), TorchVersion::DEFAULT));
    }
    if !trace.source.torch_rules {
        return Err(Failure::new(
            format!("{path}: not a run of PyTorch's allocator, so none of its settings were at work"),
            format!(
                "`gapless replay {path} --with torch:default --with plan` says what it would have held there"
            ),
        )
        .into());
    }
    Ok(settings(trace))
}

/// `--threads`, or one a core.
pub(crate) fn threads(wanted: Option<usize>) -> Result<usize> {
    match wanted {
        Some(0) => {
            Err(Failure::new("--threads 0: at least one thread is needed", "use 1 or more, or omit it")
                .into())
        }
        Some(threads) => Ok(threads),
        None => Ok(std::thread::available_parallelism().map_or(1, NonZeroUsize::get)),
    }
}

/// True if Ctrl-C was pressed. All sweeps of the process share it, because a handler can be set only once.
static STOP: AtomicBool = AtomicBool::new(false);

/// Runs a sweep over `total` settings with a bar, until it is done or Ctrl-C is pressed; pressed again it ends the
/// process.
pub(crate) fn watched<T>(total: usize, sweep: impl FnOnce(Progress<'_>) -> T) -> T {
    // If no handler can be set, Ctrl-C ends the process.
    let _ = ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
    let counter = Counter::new("replaying settings", total);
    let done = |done: usize| counter.update(done);
    sweep(Progress { cancel: Some(&STOP), done: Some(&done) })
}
