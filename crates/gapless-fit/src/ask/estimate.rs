//! The memory of a run, from a simulated step or from closed forms.

use super::error::AskError;
use super::policy;
use super::question::Question;
use super::shape::{Shape, part, phase};
use crate::eager::{Phase, Recomputed, Run, Scope};
use crate::formulas::{engine, overhead};
use crate::search::memory;
use crate::search::serve::ServePlan;
use crate::search::space::Config;
use crate::settings::Checkpointing;
use crate::simulated::{Simulated, Verdict, context};
use crate::tune;
use gapless_trace::Bytes;

/// The source of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Operator by operator, then replayed on PyTorch's allocator.
    Simulated,
    /// Equations over simulated blocks.
    ClosedForms,
}

impl Method {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Simulated => "simulated",
            Method::ClosedForms => "closed_forms",
        }
    }
}

/// The moment of the peak.
#[derive(Clone, Debug, Default)]
pub struct PeakAt {
    pub step: Option<u32>,
    pub phase: &'static str,
    pub part: String,
    pub op: String,
}

impl PeakAt {
    /// In words, as a text shows it.
    #[must_use]
    pub fn words(&self) -> String {
        let step = self.step.map_or_else(String::new, |step| format!("step {step}, "));
        let part = if self.part.is_empty() || self.part == "optimizer" {
            String::new()
        } else {
            format!(" of {}", self.part)
        };
        let op = if self.op.is_empty() { String::new() } else { format!(", at {}", self.op) };
        format!("{step}{}{part}{op}", self.phase)
    }
}

/// Memory of one run, and whether its device holds it.
#[derive(Clone, Debug)]
pub struct Estimate {
    pub method: Method,
    pub verdict: Verdict,
    pub parameters: u64,
    pub peak_allocated: Bytes,
    pub peak_reserved: Bytes,
    pub context: Bytes,
    /// Communication buffers outside the allocator.
    pub outside: Bytes,
    /// Memory of the host that this GPU's rank needs if something is offloaded.
    pub host: Bytes,
    /// Memory that a serving engine takes: it fills its share of the device with cache, however little was asked for.
    pub taken: Option<Bytes>,
    /// They add up to the peak of allocated bytes.
    pub components: Vec<(&'static str, u64)>,
    pub peak_at: PeakAt,
    /// Share by which it may be off.
    pub error: f64,
    /// Bytes that our allocator would hold.
    pub gapless_reserved: Option<Bytes>,
    /// The most requested bytes alive at once: no allocator can hold less.
    pub floor: Option<Bytes>,
    pub blocks: u64,
    pub recomputed: Vec<u64>,
    pub shape: Option<Shape>,
    /// The run itself, if it was simulated.
    pub simulated: Option<Box<Simulated>>,
}

impl Estimate {
    /// Bytes that the driver counts for the process on one device.
    #[must_use]
    pub fn process_total(&self) -> Bytes {
        self.peak_reserved + self.context + self.outside
    }

    /// False if the run takes more than [`policy::MOST_BYTES`]: its figures are not those of the whole run.
    pub(super) fn is_countable(&self) -> bool {
        let whole = self.simulated.as_ref().is_none_or(|simulated| simulated.figures.is_whole);
        whole && self.peak_allocated.0 <= policy::MOST_BYTES
    }

    /// One GPU, simulated.
    ///
    /// # Errors
    /// When the model's steps cannot be followed.
    pub fn simulated(q: &Question) -> Result<Estimate, AskError> {
        let auto = q.checkpointing == Checkpointing::Optimal && q.trains();
        let wrong = |error| AskError::build(&q.path, &error);
        if auto
            && let Some(tuned) =
                tune::least_recomputation(&q.architecture, &q.run, q.gpu(), q.memory()).map_err(wrong)?
        {
            return Ok(Estimate::of(q, tuned.simulated, None));
        }
        let run = if auto { Run { recomputed: Recomputed::All, ..q.run.clone() } } else { q.run.clone() };
        let (answer, ours) = Simulated::with_gapless(&q.architecture, &run).map_err(wrong)?;
        Ok(Estimate::of(q, answer, Some(ours)))
    }

    /// An answer as the renderers show it; `ours` is the bytes that our allocator would hold, if they are known
    /// already.
    #[must_use]
    pub fn of(q: &Question, answer: Simulated, ours: Option<Bytes>) -> Estimate {
        let verdict = answer.verdict(q.gpu(), q.memory());
        let account = &answer.account;
        let blocks = blocks(&answer);
        let recomputed: Vec<u64> = if q.trains() {
            (0..blocks).filter(|&at| answer.run.checkpoints(at as usize)).collect()
        } else {
            Vec::new()
        };
        Estimate {
            method: Method::Simulated,
            verdict,
            parameters: answer.steps.parameters,
            peak_allocated: answer.figures.peak_allocated,
            peak_reserved: match verdict {
                Verdict::FitsTightly => answer.reserved_on(q.gpu(), q.memory()),
                _ => answer.figures.peak_reserved,
            },
            context: context(q.gpu()),
            outside: Bytes::ZERO,
            host: Bytes::ZERO,
            taken: None,
            components: account.components.iter().map(|(c, bytes)| (c.name(), bytes.0)).collect(),
            peak_at: PeakAt {
                step: Some(account.at.step),
                phase: phase(account.at.phase),
                part: part(account.at.scope, account.at.layer),
                // The optimizer's step is one operator: naming it says nothing.
                op: if account.at.phase == Phase::Step { String::new() } else { account.at.op.to_owned() },
            },
            error: answer.error,
            gapless_reserved: Some(ours.unwrap_or_else(|| answer.gapless_reserved())),
            floor: Some(answer.figures.peak_requested),
            blocks,
            recomputed,
            shape: Some(Shape::of(&answer)),
            simulated: Some(Box::new(answer)),
        }
    }

    /// One GPU that serves, of a plan.
    #[must_use]
    pub fn serving(q: &Question, plan: &ServePlan, cache: u64) -> Estimate {
        let gpu = q.gpu();
        let workspace = overhead::cublas_workspace(gpu.compute_capability).value;
        let base = overhead::context(true).value;
        let components = vec![
            ("weights", plan.weights),
            ("kv_cache", cache),
            ("temporaries", plan.activations),
            ("workspaces", workspace),
            ("cuda_graphs", plan.graphs),
        ];
        let peak = Bytes(components.iter().map(|(_, bytes)| bytes).sum());
        let outside = Bytes(plan.overhead.saturating_sub(workspace + base));
        Estimate {
            method: Method::ClosedForms,
            verdict: policy::counted(peak + context(gpu) + outside, q.memory(), engine::ERROR),
            parameters: crate::parameters::count(&q.architecture).unwrap_or(0),
            peak_allocated: peak,
            peak_reserved: peak,
            context: context(gpu),
            outside,
            host: Bytes::ZERO,
            taken: q.is_paged().then(|| q.memory().saturating_sub(Bytes(plan.left(q.memory().0)))),
            components,
            peak_at: PeakAt { phase: "forward", ..PeakAt::default() },
            error: engine::ERROR,
            gapless_reserved: None,
            floor: None,
            blocks: 0,
            recomputed: Vec::new(),
            shape: None,
            simulated: None,
        }
    }

    /// One rank of a configuration over several GPUs, or with settings that a simulation does not cover.
    #[must_use]
    pub fn closed(
        q: &Question,
        config: &Config,
        account: &memory::RankAccount,
        parameters: u64,
        recomputed: Vec<u64>,
    ) -> Estimate {
        let gpu = q.gpu();
        let widths = config.held();
        let each = widths.master as f64 + config.optimizer.state_bytes(widths.state);
        let masters = if each > 0.0 { account.states * widths.master as f64 / each } else { 0.0 };
        let workspace = overhead::TRAINING_THREADS * overhead::cublas_workspace(gpu.compute_capability).value;
        let base_context = overhead::context(true).value;
        let outside = (account.overhead as u64).saturating_sub(workspace + base_context);
        let at = account.at;
        let components = [
            ("weights", account.weights),
            ("optimizer_state", account.states - masters),
            ("master_copies", masters),
            ("workspaces", workspace as f64),
            ("gradients", at.gradients),
            ("activations", at.activations),
            ("gathered", at.gathered),
            ("loss_head", at.head),
            ("temporaries", at.working),
            ("optimizer_temporaries", at.optimizer_step),
        ];
        let components: Vec<(&'static str, u64)> = components
            .into_iter()
            .map(|(name, bytes)| (name, bytes as u64))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        let sum = components.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let peak_allocated = Bytes(sum.min(u64::MAX >> 8));
        let peak_reserved = policy::typically_reserved(peak_allocated);
        let total = peak_reserved + context(gpu) + Bytes(outside);
        let error = policy::closed_form_error(q.is_picture());
        let host = Bytes(account.host as u64);
        Estimate {
            method: Method::ClosedForms,
            verdict: if host.0 > q.cluster.host_memory {
                Verdict::DoesNotFit
            } else {
                policy::counted(total, q.memory(), error)
            },
            parameters,
            peak_allocated,
            peak_reserved,
            context: context(gpu),
            outside: Bytes(outside),
            host,
            taken: None,
            components,
            peak_at: PeakAt {
                step: None,
                phase: at.phase,
                part: if config.pipeline > 1 { format!("stage {}", account.stage) } else { String::new() },
                op: String::new(),
            },
            error,
            gapless_reserved: None,
            floor: None,
            blocks: 0,
            recomputed,
            shape: None,
            simulated: None,
        }
    }
}

fn blocks(answer: &Simulated) -> u64 {
    let of = |scope| if let Scope::Block(at) = scope { u64::from(at) + 1 } else { 0 };
    answer.steps.log.allocations.iter().map(|a| of(a.scope)).max().unwrap_or(0)
}
