//! What a run takes, from whichever source it is known: a simulated step, a simulated step with its weights or cache changed, or closed forms.

use super::question::Question;
use crate::failure::Failure;
use anyhow::Result;
use gapless_fit::account::error_share;
use gapless_fit::answer::{Answer, CLOSED_FORM_ERROR, Verdict, context};
use gapless_fit::eager::{Checkpointing, Layer, Log, Phase, Scope};
use gapless_fit::formulas::{cache, weights};
use gapless_fit::model::Architecture;
use gapless_fit::search::memory;
use gapless_fit::search::space::Config;
use gapless_fit::tune;
use gapless_trace::Bytes;

/// Where the numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// Operator by operator, then replayed on PyTorch's allocator.
    Simulated,
    /// The same with weights or cache counted in another format.
    Adjusted,
    /// Equations over simulated blocks.
    ClosedForms,
}

impl Method {
    pub(super) fn name(self) -> &'static str {
        match self {
            Method::Simulated => "simulated",
            Method::Adjusted => "simulated_adjusted",
            Method::ClosedForms => "closed_forms",
        }
    }
}

/// Where the peak is.
#[derive(Clone, Debug, Default)]
pub(super) struct PeakAt {
    pub(super) step: Option<u32>,
    pub(super) phase: &'static str,
    pub(super) part: String,
    pub(super) op: String,
}

impl PeakAt {
    pub(super) fn words(&self) -> String {
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

/// The memory of one step over time, in equal pieces, and where its phases end.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape {
    pub(super) most: Vec<u64>,
    /// Name, columns, peak.
    pub(super) phases: Vec<(&'static str, usize, u64)>,
}

#[derive(Clone, Debug)]
pub(super) struct Estimate {
    pub(super) method: Method,
    pub(super) verdict: Verdict,
    pub(super) parameters: u64,
    pub(super) peak_allocated: Bytes,
    pub(super) peak_reserved: Bytes,
    pub(super) context: Bytes,
    /// Communication buffers outside the allocator.
    pub(super) outside: Bytes,
    /// They add up to the peak of allocated bytes.
    pub(super) components: Vec<(&'static str, u64)>,
    pub(super) peak_at: PeakAt,
    /// Share by which it may be off.
    pub(super) error: f64,
    /// What our allocator would hold.
    pub(super) gapless_reserved: Option<Bytes>,
    /// The most requested bytes alive at once: no allocator can hold less.
    pub(super) floor: Option<Bytes>,
    pub(super) blocks: u64,
    pub(super) recomputed: Vec<u64>,
    pub(super) shape: Option<Shape>,
    pub(super) answer: Option<Box<Answer>>,
}

impl Estimate {
    pub(super) fn process_total(&self) -> Bytes {
        self.peak_reserved + self.context + self.outside
    }

    /// One GPU, simulated.
    pub(super) fn simulated(q: &Question) -> Result<Estimate> {
        let auto = q.checkpointing == crate::cli::fit::CheckpointingArg::Auto && q.trains();
        let wrong =
            |error: gapless_fit::BuildError| Failure::new(format!("{}: {error}", q.path), help(&error));
        if auto
            && let Some(tuned) =
                tune::least_recomputation(&q.architecture, &q.run, q.gpu(), q.memory()).map_err(wrong)?
        {
            return Ok(Estimate::of(q, tuned.answer, None));
        }
        let run = if auto {
            gapless_fit::eager::Run { checkpointing: Checkpointing::All, ..q.run.clone() }
        } else {
            q.run.clone()
        };
        let (answer, ours) = Answer::with_gapless(&q.architecture, &run).map_err(wrong)?;
        Ok(Estimate::of(q, answer, Some(ours)))
    }

    /// An answer as the renderers show it; `ours` is what our allocator would hold, where that is known already.
    pub(super) fn of(q: &Question, answer: Answer, ours: Option<Bytes>) -> Estimate {
        let verdict = answer.verdict(q.gpu(), q.memory());
        let account = &answer.account;
        let blocks = blocks(&answer);
        let recomputed: Vec<u64> = if q.trains() {
            (0..blocks).filter(|&at| answer.run.checkpoints(at as usize)).collect()
        } else {
            Vec::new()
        };
        let mut estimate = Estimate {
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
            components: account.components.iter().map(|(c, bytes)| (c.name(), bytes.0)).collect(),
            peak_at: PeakAt {
                step: Some(account.at.step),
                phase: phase(account.at.phase),
                part: part(account.at.scope, account.at.layer),
                // The optimizer's step is one operator: naming it says nothing.
                op: if account.at.phase == Phase::Step { String::new() } else { account.at.op.to_owned() },
            },
            error: error_share(&q.architecture),
            gapless_reserved: Some(ours.unwrap_or_else(|| answer.gapless_reserved())),
            floor: Some(answer.figures.peak_requested),
            blocks,
            recomputed,
            shape: Some(shape(&answer)),
            answer: Some(Box::new(answer)),
        };
        if !q.trains() || q.lora.is_some() {
            estimate.adjust(q);
        }
        estimate
    }

    /// Weights, frozen or served, or a cache of another size than the simulated ones.
    fn adjust(&mut self, q: &Question) {
        use gapless_fit::formulas::weights::Format;
        let full =
            gapless_fit::parameters::count(&q.architecture).unwrap_or(0) * q.run.precision.weights().bytes();
        let before =
            self.components.iter().find(|(name, _)| *name == "weights").map_or(0, |(_, bytes)| *bytes);
        let adapters = if q.lora.is_some() { before.saturating_sub(full) } else { 0 };
        let mut set = |name: &'static str, bytes: u64| {
            let place = self.components.iter().position(|(n, _)| *n == name);
            let before = place.map_or(0, |at| self.components[at].1);
            match place {
                Some(at) => self.components[at].1 = bytes,
                None => self.components.push((name, bytes)),
            }
            self.components.retain(|(_, bytes)| *bytes > 0);
            let moved = |b: Bytes| Bytes((b.0 + bytes).saturating_sub(before));
            self.peak_allocated = moved(self.peak_allocated);
            self.peak_reserved = moved(self.peak_reserved);
            self.floor = self.floor.map(moved);
            self.gapless_reserved = self.gapless_reserved.map(moved);
            self.method = Method::Adjusted;
            self.error = 0.05;
        };
        let width = match q.run.precision {
            gapless_fit::eager::Precision::Fp32 => 32.0,
            _ => 16.0,
        };
        if (!matches!(q.format, Format::Half | Format::F32) || q.sparse)
            && let Some(count) = gapless_fit::parameters::count(&q.architecture)
        {
            // Embeddings, head and norms keep their width.
            let kept: u64 = match &q.architecture {
                Architecture::Decoder(d) => {
                    let (first, last) = gapless_fit::formulas::parameters::ends(d);
                    first.total() + last.total()
                }
                _ => 0,
            };
            let format = if matches!(q.format, Format::F32) { Format::Half } else { q.format };
            let stored = weights::stored(count.saturating_sub(kept), format, q.sparse).value;
            set("weights", stored + (kept as f64 * width / 8.0) as u64 + adapters);
        }
        // A file in block formats says what its weights take.
        let stored = q.model.weights.as_ref().filter(|list| list.iter().any(|w| w.dtype.is_none()));
        if let (Some(list), Format::Half) = (stored, q.format) {
            set("weights", list.iter().map(|w| w.bytes).sum());
        }
        if let (Some(tokens), Architecture::Decoder(d)) = (q.kv_tokens, &q.architecture) {
            set("kv_cache", cache::total(d, 1, tokens, width / 8.0, 1, 1).value);
        }
        if self.method == Method::Adjusted {
            let left = q.memory().0 as f64 * 0.98;
            let total = self.process_total().0 as f64;
            self.verdict = if total <= left { Verdict::Fits } else { Verdict::DoesNotFit };
        }
    }

    /// One GPU that serves, of a plan.
    pub(super) fn serving(
        q: &Question,
        plan: &gapless_fit::search::serve::ServePlan,
        cache: u64,
    ) -> Estimate {
        let gpu = q.gpu();
        let workspace = gapless_fit::formulas::overhead::cublas_workspace(gpu.compute_capability).value;
        let base = gapless_fit::formulas::overhead::context(true).value;
        let components = vec![
            ("weights", plan.weights),
            ("kv_cache", cache),
            ("temporaries", plan.activations),
            ("workspaces", workspace),
        ];
        let peak = Bytes(components.iter().map(|(_, bytes)| bytes).sum());
        Estimate {
            method: Method::ClosedForms,
            verdict: Verdict::Fits,
            parameters: gapless_fit::parameters::count(&q.architecture).unwrap_or(0),
            peak_allocated: peak,
            peak_reserved: peak,
            context: context(gpu),
            outside: Bytes(plan.overhead.saturating_sub(workspace + base)),
            components,
            peak_at: PeakAt { phase: "forward", ..PeakAt::default() },
            error: CLOSED_FORM_ERROR,
            gapless_reserved: None,
            floor: None,
            blocks: 0,
            recomputed: Vec::new(),
            shape: None,
            answer: None,
        }
    }

    /// One rank of a configuration over several GPUs, or with what a simulation does not cover.
    pub(super) fn closed(
        q: &Question,
        config: &Config,
        account: &memory::Account,
        parameters: u64,
        recomputed: Vec<u64>,
    ) -> Estimate {
        let gpu = q.gpu();
        let accumulates = config.accumulation > 1 || config.pipeline > 1;
        let widths = config.precision.bytes();
        let each = widths.master as f64 + config.optimizer.state_bytes(widths.state);
        let masters = if each > 0.0 { account.states * widths.master as f64 / each } else { 0.0 };
        let workspace = gapless_fit::formulas::overhead::cublas_workspace(gpu.compute_capability).value;
        let base_context = gapless_fit::formulas::overhead::context(true).value;
        let outside = (account.overhead as u64).saturating_sub(workspace + base_context);
        let gradients = if accumulates { account.gradients } else { 0.0 };
        let running = account.gathered + gradients + account.activations + account.working.max(account.head);
        let ending = account.gathered + account.gradients + account.working;
        let stepping = account.gradients + account.optimizer_step;
        let mut components = vec![
            ("weights", account.weights),
            ("optimizer_state", account.states - masters),
            ("master_copies", masters),
            ("workspaces", workspace as f64),
        ];
        let phase = if running >= ending && running >= stepping {
            components.extend([
                ("gradients", gradients),
                ("activations", account.activations),
                ("gathered", account.gathered),
            ]);
            if account.head > account.working {
                components.push(("loss_head", account.head));
                "loss"
            } else {
                components.push(("temporaries", account.working));
                "backward"
            }
        } else if ending >= stepping {
            components.extend([
                ("gradients", account.gradients),
                ("temporaries", account.working),
                ("gathered", account.gathered),
            ]);
            "end of backward"
        } else {
            components.extend([
                ("gradients", account.gradients),
                ("optimizer_temporaries", account.optimizer_step),
            ]);
            "optimizer step"
        };
        let components: Vec<(&'static str, u64)> = components
            .into_iter()
            .map(|(name, bytes)| (name, bytes as u64))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        let peak_allocated = Bytes(components.iter().map(|(_, bytes)| bytes).sum());
        // What PyTorch holds beyond what is allocated, typically.
        let peak_reserved = Bytes((peak_allocated.0 as f64 * 1.02) as u64);
        let total = peak_reserved.0 + context(gpu).0 + outside;
        Estimate {
            method: Method::ClosedForms,
            verdict: if total <= q.memory().0 { Verdict::Fits } else { Verdict::DoesNotFit },
            parameters,
            peak_allocated,
            peak_reserved,
            context: context(gpu),
            outside: Bytes(outside),
            components,
            peak_at: PeakAt {
                step: None,
                phase,
                part: if config.pipeline > 1 { format!("stage {}", account.stage) } else { String::new() },
                op: String::new(),
            },
            // The worst block's working set stands for all: far from it where blocks differ as much as those of convolutional networks.
            error: if q.is_picture() { 2.5 * CLOSED_FORM_ERROR } else { CLOSED_FORM_ERROR },
            gapless_reserved: None,
            floor: None,
            blocks: 0,
            recomputed,
            shape: None,
            answer: None,
        }
    }
}

fn help(error: &gapless_fit::BuildError) -> &'static str {
    match error {
        gapless_fit::BuildError::Unsupported(_) => {
            "give the model's config.json, or the name of a built-in model, to have its steps followed"
        }
        gapless_fit::BuildError::Shape(_) => "check the numbers of the model's configuration",
    }
}

fn blocks(answer: &Answer) -> u64 {
    let of = |scope| if let Scope::Block(at) = scope { u64::from(at) + 1 } else { 0 };
    answer.steps.log.allocations.iter().map(|a| of(a.scope)).max().unwrap_or(0)
}

pub(super) fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Build => "building the model",
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Recompute => "backward, recomputing",
        Phase::Step => "optimizer step",
        Phase::Zero => "end of the step",
    }
}

pub(super) fn part(scope: Scope, layer: Layer) -> String {
    let layer = match layer {
        Layer::Norm => " norm",
        Layer::Attention => " attention",
        Layer::FeedForward => " feed-forward",
        Layer::Convolution => " convolution",
        Layer::Other => "",
    };
    match scope {
        Scope::Model => String::new(),
        Scope::Embedding => "the embedding".to_owned(),
        Scope::Block(at) => format!("block {at}{layer}"),
        Scope::Head => "the head".to_owned(),
        Scope::Loss => "the loss".to_owned(),
        Scope::Optimizer => "optimizer".to_owned(),
    }
}

/// Columns of the picture.
const COLUMNS: usize = 72;

/// The last whole step: the first ones still make the optimizer's states.
fn shape(answer: &Answer) -> Shape {
    let log = &answer.steps.log;
    let last = log.marks.iter().map(|m| m.step).max().unwrap_or(0);
    let begin = log.marks.iter().filter(|m| m.step < last).map(|m| m.event).max().unwrap_or(answer.steps.base)
        as usize;
    let end = log.events.len();
    let mut live = 0u64;
    let mut curve = Vec::with_capacity(end - begin);
    for (at, event) in log.events.iter().enumerate() {
        let bytes = Log::rounded(log.allocations[event.slot() as usize].bytes);
        live = if event.is_free() { live.saturating_sub(bytes) } else { live + bytes };
        if at >= begin {
            curve.push(live);
        }
    }
    if curve.is_empty() {
        return Shape::default();
    }
    // The pieces are equal within each phase; passes of a step that accumulates follow each other.
    let mut bounds: Vec<(&'static str, usize)> = Vec::new();
    for mark in log.marks.iter().filter(|m| m.step == last && m.phase != Phase::Zero) {
        bounds.push((phase(mark.phase), (mark.event as usize).saturating_sub(begin).min(curve.len())));
    }
    let total = bounds.last().map_or(curve.len(), |(_, end)| (*end).max(1));
    let mut result = Shape::default();
    let mut from = 0;
    for (name, to) in bounds {
        if to <= from {
            continue;
        }
        let columns = ((to - from) * COLUMNS / total).max(2);
        for column in 0..columns {
            let (a, b) = (from + (to - from) * column / columns, from + (to - from) * (column + 1) / columns);
            result.most.push(curve[a..b.max(a + 1)].iter().copied().max().unwrap_or(0));
        }
        let peak = curve[from..to].iter().copied().max().unwrap_or(0);
        result.phases.push((name, columns, peak));
        from = to;
    }
    result
}
