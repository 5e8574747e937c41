//! The bytes alive at the peak, component by component, and the place of the peak in the run.

use crate::eager::{Figures, Kind, Layer, Phase, Run, Scope, Steps};
use crate::model::Architecture;
use gapless_trace::Bytes;

/// The purposes that bytes serve, by the names that people use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Component {
    Weights,
    Gradients,
    OptimizerState,
    /// 16-bit copies of 32-bit weights.
    AutocastWeights,
    AttentionActivations,
    FeedForwardActivations,
    NormActivations,
    ConvolutionActivations,
    /// Sums between layers, embeddings, and tensors of no other kind.
    OtherActivations,
    /// Logits and the tensors that the loss makes of them.
    LossHead,
    Temporaries,
    OptimizerTemporaries,
    KvCache,
    /// Tokens, images, positions, masks, running figures.
    Inputs,
    Workspaces,
    /// Bytes that the allocator adds to requests.
    Rounding,
}

impl Component {
    pub const ALL: [Component; 16] = [
        Component::Weights,
        Component::Gradients,
        Component::OptimizerState,
        Component::AutocastWeights,
        Component::AttentionActivations,
        Component::FeedForwardActivations,
        Component::NormActivations,
        Component::ConvolutionActivations,
        Component::OtherActivations,
        Component::LossHead,
        Component::Temporaries,
        Component::OptimizerTemporaries,
        Component::KvCache,
        Component::Inputs,
        Component::Workspaces,
        Component::Rounding,
    ];

    /// A stable word for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Component::Weights => "weights",
            Component::Gradients => "gradients",
            Component::OptimizerState => "optimizer_state",
            Component::AutocastWeights => "autocast_weights",
            Component::AttentionActivations => "attention_activations",
            Component::FeedForwardActivations => "feed_forward_activations",
            Component::NormActivations => "norm_activations",
            Component::ConvolutionActivations => "convolution_activations",
            Component::OtherActivations => "other_activations",
            Component::LossHead => "loss_head",
            Component::Temporaries => "temporaries",
            Component::OptimizerTemporaries => "optimizer_temporaries",
            Component::KvCache => "kv_cache",
            Component::Inputs => "inputs",
            Component::Workspaces => "workspaces",
            Component::Rounding => "rounding",
        }
    }
}

/// A place in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeakAt {
    /// From 0.
    pub step: u32,
    pub phase: Phase,
    pub scope: Scope,
    pub layer: Layer,
    pub op: &'static str,
}

/// The account of one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakAccount {
    pub total: Bytes,
    /// Bytes of each component that has any, in the order of [`Component::ALL`].
    pub components: Vec<(Component, Bytes)>,
    pub at: PeakAt,
}

impl PeakAccount {
    /// Of the instant at which `figures` found the most allocated bytes. The components add up to the total.
    #[must_use]
    pub fn at_peak(steps: &Steps, figures: &Figures) -> PeakAccount {
        let log = &steps.log;
        let last = (figures.peak_event as usize).min(log.events.len().saturating_sub(1));
        let mut alive = vec![false; log.allocations.len()];
        for event in &log.events[..=last] {
            alive[event.slot() as usize] = !event.is_free();
        }
        let mut sums = [0u64; Component::ALL.len()];
        let mut known = 0;
        for (allocation, _) in log.allocations.iter().zip(&alive).filter(|(_, alive)| **alive) {
            let component = component(allocation.kind, allocation.scope, allocation.layer);
            sums[component as usize] += allocation.bytes;
            known += allocation.bytes;
        }
        sums[Component::Rounding as usize] = figures.peak_allocated.0.saturating_sub(known);
        let peak = log.allocations[log.events[last].slot() as usize];
        let step = log.marks.iter().find(|m| m.event as usize > last).map_or(0, |m| m.step);
        PeakAccount {
            total: figures.peak_allocated,
            components: Component::ALL
                .into_iter()
                .zip(sums)
                .filter(|(_, bytes)| *bytes > 0)
                .map(|(component, bytes)| (component, Bytes(bytes)))
                .collect(),
            at: PeakAt { step, phase: peak.phase, scope: peak.scope, layer: peak.layer, op: peak.op },
        }
    }

    /// Bytes of one component.
    #[must_use]
    pub fn of(&self, component: Component) -> Bytes {
        self.components.iter().find(|(c, _)| *c == component).map_or(Bytes::ZERO, |(_, bytes)| *bytes)
    }
}

/// How far the simulated peak of a decoder or encoder may be off, as a share.
pub const SIMULATED_ERROR: f64 = 0.02;

/// How far the peak of allocated bytes may be off, as a share: a bound on the errors measured over 165 cells and 192
/// recordings of these families. Convolutions carry cuDNN's choice of workspaces; T5 was recorded in one shape only.
#[must_use]
pub fn error_share(architecture: &Architecture) -> f64 {
    match architecture {
        Architecture::Decoder(_) | Architecture::Encoder(_) => SIMULATED_ERROR,
        Architecture::EncoderDecoder(_) | Architecture::Vision(_) => 0.03,
        Architecture::Graph(_) | Architecture::Counted(_) => 0.1,
    }
}

/// The same for a run: frozen or served weights in another format have kernels whose workspaces are not simulated, and
/// were not measured.
#[must_use]
pub fn error_of(architecture: &Architecture, run: &Run) -> f64 {
    let base = error_share(architecture);
    let adapters = run.lora.map_or(0.0, |_| ADAPTERS_ERROR);
    base.max(adapters).max(if run.stored.is_some() { STORED_ERROR } else { 0.0 })
}

/// How far a run over weights that are stored in another format may be off, as a share.
pub const STORED_ERROR: f64 = 0.05;

/// How far a run with adapters may be off, as a share: 24 runs of PEFT on an H200 were off by 0.3 % at most.
pub const ADAPTERS_ERROR: f64 = 0.02;

fn component(kind: Kind, scope: Scope, layer: Layer) -> Component {
    match kind {
        Kind::Weight => Component::Weights,
        Kind::Gradient => Component::Gradients,
        Kind::Optimizer => Component::OptimizerState,
        Kind::Cast => Component::AutocastWeights,
        Kind::StepTemporary => Component::OptimizerTemporaries,
        Kind::Workspace => Component::Workspaces,
        Kind::Input => Component::Inputs,
        Kind::KvCache => Component::KvCache,
        Kind::Activation | Kind::Temporary if matches!(scope, Scope::Head | Scope::Loss) => {
            Component::LossHead
        }
        Kind::Temporary => Component::Temporaries,
        Kind::Activation => match layer {
            Layer::Attention => Component::AttentionActivations,
            Layer::FeedForward => Component::FeedForwardActivations,
            Layer::Norm => Component::NormActivations,
            Layer::Convolution => Component::ConvolutionActivations,
            Layer::Other => Component::OtherActivations,
        },
    }
}
