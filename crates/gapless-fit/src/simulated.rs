//! One run simulated: its peaks on PyTorch's allocator and on ours, and the verdict of a card on it.
//!
//! A card holds a run when the run gets to its end within [`room`] of the card, the context included: PyTorch gives
//! cached memory back before it fails, so less than the reserved peak can do, and only a replay on a card of that
//! size tells.

use crate::account::{PeakAccount, error_of};
use crate::eager::{Figures, Log, OUTSIDE_TORCH, Run, Steps, replay, simulate_telling};
use crate::hardware::Gpu;
use crate::model::Architecture;
use crate::models::BuildError;
use gapless_replay::gapless::Gapless;
use gapless_replay::machine::{Drive, Machine, Spec, TorchMachine};
use gapless_replay::torch::{TorchSettings, TorchVersion};
use gapless_replay::{Allocator, Lane, Op};
use gapless_trace::{Bytes, Trace};

/// Share by which accounts from closed forms may be off: several GPUs, offloading. Simulated ones have
/// [`crate::account::error_of`].
pub const CLOSED_FORM_ERROR: f64 = 0.1;
/// Share of a card that stays free if a run is said to fit.
pub const RESERVE: f64 = 0.02;

/// The most that a process may be predicted to take if a card of `memory` bytes is said to hold it: even if the
/// prediction is too low by its whole `error`, [`RESERVE`] of the card stays free. Every verdict uses it.
///
/// Invariant: `room * (1 + error) <= memory * (1 - RESERVE)`.
#[must_use]
pub fn room(memory: Bytes, error: f64) -> Bytes {
    Bytes((memory.0 as f64 * (1.0 - RESERVE) / (1.0 + error)) as u64)
}

/// Bytes that the driver counts for a process beside torch's own memory: context, modules, libraries.
///
/// Measured on an H200 with torch 2.11 and CUDA 13.0; on an RTX 6000 Ada 426 MiB.
#[must_use]
pub fn context(gpu: &Gpu) -> Bytes {
    if gpu.is_rocm() || gpu.compute_capability >= 90 { OUTSIDE_TORCH } else { Bytes(450 << 20) }
}

/// The verdict of a card on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fits,
    /// It gets to its end, but the allocator has to give cached memory back to the card on the way.
    FitsTightly,
    DoesNotFit,
}

impl Verdict {
    #[must_use]
    pub fn fits(self) -> bool {
        self != Verdict::DoesNotFit
    }
}

/// One run, simulated.
#[derive(Clone, Debug)]
pub struct Simulated {
    pub run: Run,
    pub steps: Steps,
    pub figures: Figures,
    pub account: PeakAccount,
    /// Share by which the peak of allocated bytes may be off.
    pub error: f64,
}

impl Simulated {
    /// Simulates `run`.
    ///
    /// # Errors
    /// As [`crate::eager::simulate`].
    pub fn of(architecture: &Architecture, run: &Run) -> Result<Simulated, BuildError> {
        let steps = steps(architecture, run, &mut |_| {})?;
        let figures = steps.figures();
        let account = PeakAccount::at_peak(&steps, &figures);
        Ok(Simulated { run: run.clone(), steps, figures, account, error: error_of(architecture, run) })
    }

    /// The same, and the most bytes that Gapless' own allocator would hold. Its replay follows the simulation, phase by
    /// phase, in a thread of its own.
    ///
    /// # Errors
    /// As [`crate::eager::simulate`].
    pub fn with_gapless(architecture: &Architecture, run: &Run) -> Result<(Simulated, Bytes), BuildError> {
        let (sender, receiver) = std::sync::mpsc::channel::<Vec<Op>>();
        let simulate = move || {
            let mut told = 0;
            let steps = steps(architecture, run, &mut |log| {
                // The send fails only if the replay's thread has panicked, which ends this call.
                let _ = sender.send(replay::ops(log, told).collect());
                told = log.events.len();
            });
            drop(sender);
            let steps = steps?;
            let figures = steps.figures();
            let account = PeakAccount::at_peak(&steps, &figures);
            Ok(Simulated { run: run.clone(), steps, figures, account, error: error_of(architecture, run) })
        };
        let replay = move || gapless_reserved(receiver.into_iter().flatten());
        let (simulated, ours) = gapless_threads::alongside("replay of a fit", simulate, replay);
        Ok((simulated?, ours))
    }

    /// Reserved bytes, and those that the driver counts for the process beside them.
    #[must_use]
    pub fn process_total(&self, gpu: &Gpu) -> Bytes {
        self.figures.peak_reserved + context(gpu)
    }

    /// The most bytes that Gapless' own allocator would hold.
    #[must_use]
    pub fn gapless_reserved(&self) -> Bytes {
        gapless_reserved(replay::ops(&self.steps.log, 0))
    }

    /// Bytes that are left for PyTorch's allocator, of the [`room`] on a card of `memory` bytes.
    fn left(&self, gpu: &Gpu, memory: Bytes) -> Bytes {
        room(memory, self.error).saturating_sub(context(gpu))
    }

    /// The most bytes that PyTorch's allocator holds within the [`room`] on a card of `memory` bytes: less than without
    /// a limit, if it has to give some back.
    #[must_use]
    pub fn reserved_on(&self, gpu: &Gpu, memory: Bytes) -> Bytes {
        let drive = Drive::on(self.left(gpu, memory).0);
        Bytes(torch().drive(&self.steps.script(), drive, &mut ()).stats.reserved.peak)
    }

    /// The verdict of a card of `memory` bytes.
    #[must_use]
    pub fn verdict(&self, gpu: &Gpu, memory: Bytes) -> Verdict {
        let left = self.left(gpu, memory);
        if !self.figures.is_whole {
            return Verdict::DoesNotFit;
        }
        if self.figures.peak_reserved <= left {
            return Verdict::Fits;
        }
        if self.figures.peak_allocated > left {
            return Verdict::DoesNotFit;
        }
        if self.steps.survives(&torch(), left) { Verdict::FitsTightly } else { Verdict::DoesNotFit }
    }
}

/// A model of a known family operator by operator, an exported graph node by node. `tell` sees the log as it grows.
fn steps(architecture: &Architecture, run: &Run, tell: &mut dyn FnMut(&Log)) -> Result<Steps, BuildError> {
    match architecture {
        Architecture::Graph(graph) => {
            let steps = crate::graph::simulate(graph, run);
            tell(&steps.log);
            Ok(steps)
        }
        _ => simulate_telling(architecture, run, tell),
    }
}

fn gapless_reserved(ops: impl Iterator<Item = Op>) -> Bytes {
    let Ok(Machine::Gapless(options)) = Spec::Gapless.machine(&Trace::default()) else { return Bytes::ZERO };
    let mut ours = Gapless::planned(gapless_replay::answer::ENDLESS.0, options, &[Lane::default()]);
    replay::serve(ops, &mut ours, &mut ());
    Bytes(ours.stats().reserved.peak)
}

/// PyTorch's allocator as it is without any setting.
fn torch() -> Machine {
    Machine::Torch(TorchMachine {
        version: TorchVersion::DEFAULT,
        settings: TorchSettings::default(),
        recorded: false,
    })
}
