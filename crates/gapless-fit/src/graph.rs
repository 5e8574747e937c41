//! An exported graph run node by node on the simulator's machine. A node's output is allocated unless it is a view, and
//! freed with its last user. With training, a node keeps the tensors that its operator's derivative reads.
//!
//! A graph says what operators return, not what their kernels take for a moment: it has no workspaces. A joint graph
//! (torch.export's with backward) is run as it stands, since its backward pass is made of nodes too.

use crate::eager::log::{Kind, Log, Phase, Scope};
use crate::eager::{Mode, Run, Sim, Steps, Tensor};
use crate::model::{Dtype, Graph, GraphNode, GraphTensor};

/// The tensors that the derivative of an operator reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    /// The output is another view of the first input.
    View,
    /// Nothing: sums, copies, concatenations.
    Nothing,
    /// The result: exponentials, ReLU, softmax.
    Output,
    /// The inputs: products, and all operators that are not known.
    Inputs,
}

/// Names under which operators are logged; all others are "operator".
const NAMES: [(&str, Keeps); 62] = [
    ("view", Keeps::View),
    ("_unsafe_view", Keeps::View),
    ("reshape", Keeps::View),
    ("transpose", Keeps::View),
    ("permute", Keeps::View),
    ("unsqueeze", Keeps::View),
    ("squeeze", Keeps::View),
    ("expand", Keeps::View),
    ("slice", Keeps::View),
    ("select", Keeps::View),
    ("split", Keeps::View),
    ("split_with_sizes", Keeps::View),
    ("chunk", Keeps::View),
    ("unbind", Keeps::View),
    ("t", Keeps::View),
    ("numpy_T", Keeps::View),
    ("detach", Keeps::View),
    ("alias", Keeps::View),
    ("flatten", Keeps::View),
    ("getitem", Keeps::View),
    ("Identity", Keeps::View),
    ("Reshape", Keeps::View),
    ("Flatten", Keeps::View),
    ("Squeeze", Keeps::View),
    ("Unsqueeze", Keeps::View),
    ("add", Keeps::Nothing),
    ("sub", Keeps::Nothing),
    ("neg", Keeps::Nothing),
    ("cat", Keeps::Nothing),
    ("clone", Keeps::Nothing),
    ("contiguous", Keeps::Nothing),
    ("_to_copy", Keeps::Nothing),
    ("to", Keeps::Nothing),
    ("sum", Keeps::Nothing),
    ("mean", Keeps::Nothing),
    ("Add", Keeps::Nothing),
    ("Sub", Keeps::Nothing),
    ("Concat", Keeps::Nothing),
    ("Transpose", Keeps::Nothing),
    ("Cast", Keeps::Nothing),
    ("relu", Keeps::Output),
    ("exp", Keeps::Output),
    ("sqrt", Keeps::Output),
    ("rsqrt", Keeps::Output),
    ("tanh", Keeps::Output),
    ("sigmoid", Keeps::Output),
    ("softmax", Keeps::Output),
    ("_softmax", Keeps::Output),
    ("Relu", Keeps::Output),
    ("Softmax", Keeps::Output),
    ("Tanh", Keeps::Output),
    ("Sigmoid", Keeps::Output),
    ("linear", Keeps::Inputs),
    ("addmm", Keeps::Inputs),
    ("mm", Keeps::Inputs),
    ("bmm", Keeps::Inputs),
    ("matmul", Keeps::Inputs),
    ("gelu", Keeps::Inputs),
    ("layer_norm", Keeps::Inputs),
    ("convolution", Keeps::Inputs),
    ("embedding", Keeps::Inputs),
    ("scaled_dot_product_attention", Keeps::Inputs),
];

fn kind(op: &str) -> (&'static str, Keeps) {
    let bare = op.rsplit('.').next().unwrap_or(op);
    NAMES.iter().copied().find(|(name, _)| *name == bare).unwrap_or(("operator", Keeps::Inputs))
}

fn elements(tensor: &GraphTensor) -> u64 {
    // A tensor's memory reaches as far as its strides do.
    if tensor.strides.len() == tensor.shape.len() && !tensor.strides.is_empty() {
        let reach = tensor
            .shape
            .iter()
            .zip(&tensor.strides)
            .map(|(n, stride)| n.saturating_sub(1).saturating_mul(*stride));
        return if tensor.shape.contains(&0) { 0 } else { reach.fold(1, u64::saturating_add) };
    }
    tensor.shape.iter().fold(1, |product, n| product.saturating_mul(*n))
}

/// A run of `graph`; batch, length and precision are the file's own.
#[must_use]
pub fn simulate(graph: &Graph, run: &Run) -> Steps {
    let sim = Sim::new();
    let mut places: Vec<Option<Tensor>> = vec![None; graph.tensors.len()];
    let mut ids = Vec::new();
    for &at in &graph.parameters {
        let tensor = &graph.tensors[at as usize];
        let param = sim.param(&[elements(tensor)], tensor.dtype);
        ids.push(param.id);
        places[at as usize] = Some(param.tensor);
    }
    sim.begin("buffer");
    for &at in &graph.buffers {
        let tensor = &graph.tensors[at as usize];
        places[at as usize] = Some(sim.alloc_as(elements(tensor), tensor.dtype, Kind::Input));
    }
    let fixed = places.clone();
    let parameters = graph.parameters.iter().map(|&at| elements(&graph.tensors[at as usize])).sum();
    let trains = run.mode == Mode::Train;
    let mut states = trains.then(|| run.optimizer.create(&sim));
    sim.grad_enabled.set(trains && !graph.joint);
    for step in 0..if trains { run.steps } else { run.steps.min(2) } {
        sim.phase(Phase::Forward);
        sim.scope(Scope::Model);
        let mut held = forward(&sim, graph, fixed.clone());
        sim.mark(step, Phase::Forward);
        if let Some(states) = &mut states {
            sim.phase(Phase::Backward);
            if !graph.joint {
                let root = held.iter().find(|t| t.requires_grad()).cloned();
                held.clear();
                if let Some(root) = root {
                    sim.backward(&root);
                }
                sim.forget();
            }
            sim.mark(step, Phase::Backward);
            // A joint graph's gradients are its outputs: no optimizer of ours sees them.
            if !graph.joint {
                run.optimizer.step(&sim, states);
                sim.mark(step, Phase::Step);
            }
            sim.phase(Phase::Zero);
            for &id in &ids {
                drop(sim.take_grad(id));
            }
        }
        drop(held);
        sim.mark(step, Phase::Zero);
    }
    let end = sim.log.borrow().events.len();
    drop((states, places, fixed));
    let mut log = sim.log.replace(Log::empty());
    log.events.truncate(end);
    Steps { log, base: 0, parameters, trained: parameters }
}

/// Runs every node in order; returns the tensors that the caller holds.
fn forward(sim: &Sim, graph: &Graph, mut places: Vec<Option<Tensor>>) -> Vec<Tensor> {
    sim.begin("input");
    for &at in &graph.inputs {
        let tensor = &graph.tensors[at as usize];
        places[at as usize] = Some(sim.alloc_as(elements(tensor), tensor.dtype, Kind::Input));
    }
    let mut last = vec![usize::MAX; graph.tensors.len()];
    for (place, node) in graph.nodes.iter().enumerate() {
        for &at in node.inputs.iter().chain(&node.outputs) {
            last[at as usize] = place;
        }
    }
    for &at in graph.outputs.iter().chain(&graph.parameters).chain(&graph.buffers).chain(&graph.inputs) {
        last[at as usize] = usize::MAX;
    }
    for (place, node) in graph.nodes.iter().enumerate() {
        run_node(sim, graph, node, &mut places);
        for &at in node.inputs.iter().chain(&node.outputs) {
            if last[at as usize] == place {
                places[at as usize] = None;
            }
        }
    }
    let mut held: Vec<Tensor> = graph.outputs.iter().filter_map(|&at| places[at as usize].clone()).collect();
    held.extend(graph.inputs.iter().filter_map(|&at| places[at as usize].clone()));
    held
}

fn run_node(sim: &Sim, graph: &Graph, node: &GraphNode, places: &mut [Option<Tensor>]) {
    let (name, mut keeps) = kind(&node.op);
    let inputs: Vec<Tensor> = node.inputs.iter().filter_map(|&at| places[at as usize].clone()).collect();
    if node.op.ends_with('_') || inputs.is_empty() {
        keeps = if inputs.is_empty() { Keeps::Nothing } else { Keeps::View };
    }
    let refs: Vec<&Tensor> = inputs.iter().collect();
    let mut op = sim.op(name, &refs);
    let floats =
        |t: &Tensor| matches!(t.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F8);
    let mut outputs: Vec<Tensor> = node
        .outputs
        .iter()
        .map(|&at| {
            let tensor = &graph.tensors[at as usize];
            match (keeps, inputs.first()) {
                (Keeps::View, Some(first)) => first.view(elements(tensor)).detach(),
                _ => sim.alloc(elements(tensor), tensor.dtype),
            }
        })
        .collect();
    match keeps {
        Keeps::Inputs => refs.iter().for_each(|t| op.save(t)),
        Keeps::Output => outputs.iter().for_each(|t| op.save(t)),
        Keeps::View | Keeps::Nothing => {}
    }
    if outputs.iter().any(floats) {
        let sizes: Vec<(u64, Dtype)> = inputs.iter().map(|t| (t.n, t.dtype)).collect();
        let view = matches!(keeps, Keeps::View | Keeps::Nothing);
        op.finish_many(&mut outputs, move |sim, ctx| {
            let given = ctx.grads.iter().flatten().next().cloned();
            sizes
                .into_iter()
                .zip(ctx.needs)
                .map(|((n, dtype), needed)| {
                    // Gradients of views and sums are the incoming gradient itself.
                    needed.then(|| match &given {
                        Some(grad) if view && grad.n == n && grad.dtype == dtype => grad.detach(),
                        _ => sim.alloc(n, dtype),
                    })
                })
                .collect()
        });
    }
    for (&at, output) in node.outputs.iter().zip(outputs) {
        places[at as usize] = Some(output);
    }
}
