//! The machine on which modeling code runs: allocations, the autograd tape, the engine of the backward pass.
//!
//! Nodes run from the last recorded to the first, as PyTorch's engine takes them; a node's saved tensors go when it has
//! run, gradients of parameters are kept as soon as they are complete. The order of frees within one node follows the
//! engine too: the gradients it was given, then its saved tensors, then the gradients it gave on.

mod checkpoint;

use self::checkpoint::Frame;
use super::ledger::{Kernel, Ledger};
use super::log::{Kind, Layer, Log, Phase, PhaseMark, Scope};
use super::tensor::{Edge, Param, SharedLog, Storage, Tensor};
use crate::model::Dtype;
use crate::settings::Lora;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Gradients of a node's inputs, in order.
pub type Grads = Vec<Option<Tensor>>;

/// The arguments of a node's backward.
#[derive(Debug)]
pub struct Ctx<'a> {
    /// Gradients of its outputs.
    pub grads: &'a [Option<Tensor>],
    pub saved: &'a [Tensor],
    /// True for inputs that want a gradient.
    pub needs: &'a [bool],
}

impl Ctx<'_> {
    /// The gradient of the first output.
    #[must_use]
    pub fn grad(&self) -> &Tensor {
        self.grads[0].as_ref().expect("a node runs with a gradient")
    }
}

type Backward = Box<dyn FnOnce(&Sim, &Ctx<'_>) -> Grads>;

pub(crate) enum Saved {
    Plain(Tensor),
    /// In a checkpoint's frame, to be recomputed.
    Packed {
        frame: Rc<Frame>,
        index: u32,
    },
}

struct Node {
    name: &'static str,
    scope: Scope,
    layer: Layer,
    saved: Vec<Saved>,
    edges: Vec<Option<Edge>>,
    grads: Vec<Option<Tensor>>,
    backward: Option<Backward>,
}

#[derive(Default)]
struct Leaf {
    grad: Option<Tensor>,
    /// Gradients still to come in this backward pass.
    pending: u32,
    buffer: Option<Tensor>,
}

/// The machine.
pub struct Sim {
    pub(crate) log: SharedLog,
    nodes: RefCell<Vec<Node>>,
    leaves: RefCell<Vec<Leaf>>,
    /// Parameters in order of registration, with their shapes.
    pub(crate) params: RefCell<Vec<(Param, Vec<u64>)>>,
    pub(crate) grad_enabled: Cell<bool>,
    /// The type that autocast computes in, if it is on.
    pub(crate) amp: Cell<Option<Dtype>>,
    pub(crate) casts: RefCell<Vec<(u32, Tensor)>>,
    /// The checkpoint whose forward is running: its saved tensors are dropped.
    pub(crate) packing: RefCell<Option<Rc<Frame>>>,
    /// The checkpoint that is being recomputed.
    pub(crate) recomputing: RefCell<Option<Rc<Frame>>>,
    /// True once a recomputation has all that it needs: the rest of the code does not run.
    pub(crate) stopped: Cell<bool>,
    /// Adapters, with which everything else is frozen.
    pub(crate) lora: Cell<Option<Lora>>,
    pub(crate) ledger: RefCell<Option<Ledger>>,
    /// Tensors that live as long as the model, and that no code reads by name: scales, and the frozen one of two
    /// copies.
    kept: RefCell<Vec<Tensor>>,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("nodes", &self.nodes.borrow().len()).finish_non_exhaustive()
    }
}

impl Default for Sim {
    fn default() -> Sim {
        Sim::new()
    }
}

/// An operator that is being recorded.
pub struct Recording<'s> {
    sim: &'s Sim,
    name: &'static str,
    edges: Vec<Option<Edge>>,
    saved: Vec<Saved>,
    wanted: bool,
}

impl std::fmt::Debug for Recording<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Sim {
    #[must_use]
    pub fn new() -> Sim {
        Sim {
            log: Rc::new(RefCell::new(Log::new())),
            nodes: RefCell::default(),
            leaves: RefCell::default(),
            params: RefCell::default(),
            grad_enabled: Cell::new(true),
            amp: Cell::new(None),
            casts: RefCell::default(),
            packing: RefCell::default(),
            recomputing: RefCell::default(),
            stopped: Cell::new(false),
            lora: Cell::new(None),
            ledger: RefCell::default(),
            kept: RefCell::default(),
        }
    }

    /// A new tensor of `n` elements.
    #[must_use]
    pub fn alloc(&self, n: u64, dtype: Dtype) -> Tensor {
        self.alloc_as(n, dtype, Kind::Temporary)
    }

    #[must_use]
    pub fn alloc_as(&self, n: u64, dtype: Dtype, kind: Kind) -> Tensor {
        let bytes = if self.stopped.get() { 0 } else { n * dtype.bytes() };
        Tensor { storage: Storage::new(&self.log, bytes, kind), n, dtype, edge: None }
    }

    /// A tensor of the same size and type.
    #[must_use]
    pub fn like(&self, t: &Tensor) -> Tensor {
        self.alloc(t.n, t.dtype)
    }

    /// Memory that is taken and given back within an operator.
    pub fn touch(&self, bytes: u64) {
        drop(self.alloc_as(bytes, Dtype::U8, Kind::Temporary));
    }

    /// Names the operator that runs now.
    pub fn begin(&self, op: &'static str) {
        if !self.stopped.get() {
            self.log.borrow_mut().begin(op);
        }
    }

    pub fn scope(&self, scope: Scope) {
        self.log.borrow_mut().scope = scope;
    }

    /// Sets the kind of layer that runs now; returns the one before.
    pub fn layer(&self, layer: Layer) -> Layer {
        std::mem::replace(&mut self.log.borrow_mut().layer, layer)
    }

    /// Counts operations of the forward pass.
    pub fn count(&self, flops: u64) {
        if !self.stopped.get() {
            self.log.borrow_mut().count(flops);
        }
    }

    pub fn phase(&self, phase: Phase) {
        self.log.borrow_mut().phase = phase;
    }

    pub(crate) fn current_phase(&self) -> Phase {
        self.log.borrow().phase
    }

    /// The end of a phase of `step`.
    pub fn mark(&self, step: u32, phase: Phase) {
        let mut log = self.log.borrow_mut();
        let event = log.events.len() as u32;
        log.marks.push(PhaseMark { step, phase, event });
    }

    /// A parameter of that shape: trainable, unless adapters are trained instead.
    pub fn param(&self, shape: &[u64], dtype: Dtype) -> Param {
        let trained = self.lora.get().is_none();
        let Some(entry) = self.ledger.borrow_mut().as_mut().map(|ledger| ledger.next(shape)) else {
            return self.param_as(shape, dtype, trained);
        };
        if entry.saved {
            self.begin("frozen");
            let frozen = self.alloc_as(shape.iter().product(), dtype, Kind::Weight);
            self.kept.borrow_mut().push(frozen);
            return self.param_as(shape, dtype, true);
        }
        let Some((first, rest)) = entry.pieces.split_first() else {
            return Param { adapted: entry.adapted, ..self.param_as(shape, dtype, trained) };
        };
        self.begin("frozen");
        let piece = |bytes: u64| self.alloc_as(bytes, Dtype::U8, Kind::Weight);
        let tensor = Tensor { n: shape.iter().product(), dtype, ..piece(*first) };
        self.kept.borrow_mut().extend(rest.iter().map(|bytes| piece(*bytes)));
        Param { kernel: entry.kernel, adapted: entry.adapted, ..self.register(tensor, shape, false) }
    }

    /// A parameter that is trained or frozen.
    pub fn param_as(&self, shape: &[u64], dtype: Dtype, trained: bool) -> Param {
        self.begin(if trained { "parameter" } else { "frozen" });
        let tensor = self.alloc_as(shape.iter().product(), dtype, Kind::Weight);
        self.register(tensor, shape, trained)
    }

    fn register(&self, mut tensor: Tensor, shape: &[u64], trained: bool) -> Param {
        let mut leaves = self.leaves.borrow_mut();
        let id = leaves.len() as u32;
        leaves.push(Leaf::default());
        tensor.edge = trained.then_some(Edge::Leaf(id));
        let param = Param { tensor, id, kernel: Kernel::Plain, adapted: false };
        self.params.borrow_mut().push((param.clone(), shape.to_vec()));
        param
    }

    /// The gradient of a parameter, if it has one.
    #[must_use]
    pub fn grad_of(&self, param: u32) -> Option<Tensor> {
        self.leaves.borrow()[param as usize].grad.clone()
    }

    pub(crate) fn take_grad(&self, param: u32) -> Option<Tensor> {
        self.leaves.borrow_mut()[param as usize].grad.take()
    }

    /// Begins an operator over `inputs`.
    pub fn op<'s>(&'s self, name: &'static str, inputs: &[&Tensor]) -> Recording<'s> {
        self.begin(name);
        let wanted = self.grad_enabled.get() && inputs.iter().any(|t| t.edge.is_some());
        let edges = if wanted { inputs.iter().map(|t| t.edge).collect() } else { Vec::new() };
        Recording { sim: self, name, edges, saved: Vec::new(), wanted }
    }

    /// Runs the backward pass from `loss`, and leaves gradients in the parameters.
    pub fn backward(&self, loss: &Tensor) {
        let Some(Edge::Node(root, _)) = loss.edge else { return };
        self.count_uses(root);
        self.begin("ones_like");
        let one = self.alloc(loss.n, loss.dtype);
        self.nodes.borrow_mut()[root as usize].grads[0] = Some(one);
        for at in (0..=root as usize).rev() {
            let (name, (scope, layer), saved, edges, grads, backward) = {
                let mut nodes = self.nodes.borrow_mut();
                let node = &mut nodes[at];
                if node.grads.iter().all(Option::is_none) {
                    continue;
                }
                let Some(backward) = node.backward.take() else { continue };
                let (saved, edges) = (std::mem::take(&mut node.saved), std::mem::take(&mut node.edges));
                (node.name, (node.scope, node.layer), saved, edges, std::mem::take(&mut node.grads), backward)
            };
            self.scope(scope);
            let needs: Vec<bool> = edges.iter().map(Option::is_some).collect();
            let unpacked: Vec<Tensor> = saved.into_iter().map(|s| self.unpack(s)).collect();
            self.scope(scope);
            self.layer(layer);
            self.log.borrow_mut().op = name;
            let out = backward(self, &Ctx { grads: &grads, saved: &unpacked, needs: &needs });
            drop(grads);
            drop(unpacked);
            for (edge, grad) in edges.into_iter().zip(out) {
                if let (Some(edge), Some(grad)) = (edge, grad) {
                    self.give(edge, grad);
                }
            }
        }
        self.nodes.borrow_mut().clear();
    }

    /// Drops the nodes that a forward pass recorded.
    pub fn forget(&self) {
        let nodes = std::mem::take(&mut *self.nodes.borrow_mut());
        drop(nodes);
    }

    /// Counts the gradients that each parameter will be given, so that the last is known.
    fn count_uses(&self, root: u32) {
        let nodes = self.nodes.borrow();
        let mut leaves = self.leaves.borrow_mut();
        let mut reached = vec![false; root as usize + 1];
        reached[root as usize] = true;
        for at in (0..=root as usize).rev() {
            if !reached[at] {
                continue;
            }
            for edge in nodes[at].edges.iter().flatten() {
                match *edge {
                    Edge::Node(to, _) => reached[to as usize] = true,
                    Edge::Leaf(id) => leaves[id as usize].pending += 1,
                }
            }
        }
    }

    fn give(&self, edge: Edge, grad: Tensor) {
        match edge {
            Edge::Node(to, output) => {
                let before = self.nodes.borrow_mut()[to as usize].grads[output as usize].take();
                let sum = self.accumulate(before, grad);
                self.nodes.borrow_mut()[to as usize].grads[output as usize] = Some(sum);
            }
            Edge::Leaf(id) => {
                let before = self.leaves.borrow_mut()[id as usize].buffer.take();
                let sum = self.accumulate(before, grad);
                let last = {
                    let mut leaves = self.leaves.borrow_mut();
                    let leaf = &mut leaves[id as usize];
                    leaf.pending -= 1;
                    leaf.pending == 0
                };
                if last {
                    self.keep(id, sum);
                } else {
                    self.leaves.borrow_mut()[id as usize].buffer = Some(sum);
                }
            }
        }
    }

    /// Two gradients of one tensor become their sum, a third one.
    fn accumulate(&self, before: Option<Tensor>, grad: Tensor) -> Tensor {
        let Some(before) = before else { return grad };
        self.begin("add");
        self.like(&before)
    }

    /// The gradient of a parameter is complete. It is taken over if no other tensor shares its storage, else copied.
    fn keep(&self, id: u32, grad: Tensor) {
        let existing = self.leaves.borrow_mut()[id as usize].grad.take();
        let kept = match existing {
            Some(existing) => {
                self.begin("add_");
                existing
            }
            None if grad.only_owner() => grad.detach(),
            None => {
                self.begin("clone");
                self.like(&grad)
            }
        };
        kept.storage.set_kind(Kind::Gradient);
        self.leaves.borrow_mut()[id as usize].grad = Some(kept);
    }
}

impl Recording<'_> {
    /// True if a gradient will flow through it.
    #[must_use]
    pub fn wanted(&self) -> bool {
        self.wanted
    }

    /// Keeps a tensor for the backward pass.
    pub fn save(&mut self, t: &Tensor) {
        if !self.wanted {
            return;
        }
        let saved = self.sim.pack(t);
        self.saved.push(saved);
    }

    /// Ends the operator with one output.
    pub fn finish(self, output: Tensor, backward: impl FnOnce(&Sim, &Ctx<'_>) -> Grads + 'static) -> Tensor {
        let mut outputs = [output];
        self.finish_many(&mut outputs, backward);
        let [output] = outputs;
        output
    }

    /// Ends the operator with several outputs.
    pub fn finish_many(
        self,
        outputs: &mut [Tensor],
        backward: impl FnOnce(&Sim, &Ctx<'_>) -> Grads + 'static,
    ) {
        if !self.wanted {
            return;
        }
        let id = if self.sim.recomputing.borrow().is_some() {
            // Only the tensors that it saves matter: the node itself never runs.
            u32::MAX
        } else {
            let mut nodes = self.sim.nodes.borrow_mut();
            let id = nodes.len() as u32;
            let (scope, layer) = {
                let log = self.sim.log.borrow();
                (log.scope, log.layer)
            };
            nodes.push(Node {
                name: self.name,
                scope,
                layer,
                saved: self.saved,
                edges: self.edges,
                grads: vec![None; outputs.len()],
                backward: Some(Box::new(backward)),
            });
            id
        };
        for (at, output) in outputs.iter_mut().enumerate() {
            output.edge = Some(Edge::Node(id, at as u8));
        }
    }
}
