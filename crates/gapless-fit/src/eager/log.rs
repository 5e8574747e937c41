//! The log of a run: every allocation with its purpose, and every event (allocation or free) in order.
//!
//! Names are static texts and scopes are numbers: an event costs four bytes and no hashing.

/// The kind of an allocation, as the account shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Weight,
    Gradient,
    Optimizer,
    /// 16-bit copies of 32-bit weights that autocast makes.
    Cast,
    /// Kept for the backward pass.
    Activation,
    /// Lives within the forward or backward pass.
    Temporary,
    /// Of the optimizer's step.
    StepTemporary,
    /// Of libraries: cuBLAS, cuDNN.
    Workspace,
    /// Inputs, labels, buffers of the model.
    Input,
    KvCache,
}

impl Kind {
    pub const ALL: [Kind; 10] = [
        Kind::Weight,
        Kind::Gradient,
        Kind::Optimizer,
        Kind::Cast,
        Kind::Activation,
        Kind::Temporary,
        Kind::StepTemporary,
        Kind::Workspace,
        Kind::Input,
        Kind::KvCache,
    ];
}

/// Which part of the model an allocation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Weights and all that belongs to no part.
    Model,
    Embedding,
    Block(u16),
    Head,
    Loss,
    Optimizer,
}

/// Which kind of layer within a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    Norm,
    Attention,
    FeedForward,
    Convolution,
    /// Additions between layers, and all that has no layer.
    Other,
}

/// The phase of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    Build,
    Forward,
    Backward,
    /// A block's forward again, within the backward pass.
    Recompute,
    Step,
    /// Gradients dropped: the end of a step.
    Zero,
}

/// One allocation.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    /// As asked for.
    pub bytes: u64,
    pub kind: Kind,
    pub op: &'static str,
    pub scope: Scope,
    pub layer: Layer,
    pub phase: Phase,
}

/// An allocation's birth or death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEvent(u32);

impl LogEvent {
    /// Which allocation, by its place in the log.
    #[must_use]
    pub fn slot(self) -> u32 {
        self.0 >> 1
    }

    #[must_use]
    pub fn is_free(self) -> bool {
        self.0 & 1 == 1
    }
}

/// An operator of the run, and the bytes alive when it began. Kept only on demand, to compare with a recording.
#[derive(Clone, Copy, Debug)]
pub struct OpMark {
    pub op: &'static str,
    pub phase: Phase,
    pub scope: Scope,
    pub event: u32,
}

/// The end of a phase.
#[derive(Clone, Copy, Debug)]
pub struct PhaseMark {
    pub step: u32,
    pub phase: Phase,
    /// Events before it.
    pub event: u32,
}

/// All that happened.
#[derive(Clone, Debug)]
pub struct Log {
    pub allocations: Vec<Allocation>,
    pub events: Vec<LogEvent>,
    pub marks: Vec<PhaseMark>,
    pub ops: Option<Vec<OpMark>>,
    /// Floating-point operations of the forward pass, part by part in order.
    pub flops: Vec<(Scope, u64)>,
    pub(crate) op: &'static str,
    pub(crate) scope: Scope,
    pub(crate) layer: Layer,
    pub(crate) phase: Phase,
}

impl Log {
    #[must_use]
    pub fn new() -> Log {
        Log { allocations: Vec::with_capacity(8192), events: Vec::with_capacity(16384), ..Log::empty() }
    }

    /// Without room for anything.
    pub(crate) fn empty() -> Log {
        Log {
            allocations: Vec::new(),
            events: Vec::new(),
            marks: Vec::new(),
            ops: None,
            flops: Vec::new(),
            op: "",
            scope: Scope::Model,
            layer: Layer::Other,
            phase: Phase::Build,
        }
    }

    pub(crate) fn alloc(&mut self, bytes: u64, kind: Kind) -> u32 {
        let slot = self.allocations.len() as u32;
        self.allocations.push(Allocation {
            bytes,
            kind,
            op: self.op,
            scope: self.scope,
            layer: self.layer,
            phase: self.phase,
        });
        self.events.push(LogEvent(slot << 1));
        slot
    }

    pub(crate) fn free(&mut self, slot: u32) {
        self.events.push(LogEvent(slot << 1 | 1));
    }

    pub(crate) fn begin(&mut self, op: &'static str) {
        self.op = op;
        if let Some(ops) = &mut self.ops {
            ops.push(OpMark { op, phase: self.phase, scope: self.scope, event: self.events.len() as u32 });
        }
    }

    /// Counts operations of the forward pass.
    pub(crate) fn count(&mut self, flops: u64) {
        if self.phase != Phase::Forward {
            return;
        }
        match self.flops.last_mut() {
            Some((scope, sum)) if *scope == self.scope => *sum += flops,
            _ => self.flops.push((self.scope, flops)),
        }
    }

    /// Bytes in multiples of the allocator's smallest unit.
    #[must_use]
    pub fn rounded(bytes: u64) -> u64 {
        bytes.next_multiple_of(512).max(512)
    }
}

impl Default for Log {
    fn default() -> Log {
        Log::new()
    }
}
