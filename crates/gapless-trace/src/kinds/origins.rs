//! The part of the program that an allocation comes from, by paths and names in its stack.

use crate::stacks::StackId;
use crate::trace::Trace;

/// The part of the program that a stack points to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Origin {
    #[default]
    Unknown,
    Optimizer,
    Backward,
    Building,
}

/// Parts of paths, and names of functions, that tell where an allocation comes from.
const OPTIMIZER_PATHS: [&str; 7] = [
    "torch/optim/",
    "apex/optimizers",
    "bitsandbytes/optim",
    "deepspeed/ops/adam",
    "deepspeed/ops/lamb",
    "transformers/optimization",
    "transformer_engine/pytorch/optimizers",
];
const BACKWARD_NAMES: [&str; 4] = ["_engine_run_backward", "backward", "run_backward", "_backward"];
const BUILDING_NAMES: [&str; 9] = [
    "__init__",
    "reset_parameters",
    "_apply",
    "from_pretrained",
    "load_state_dict",
    "_load_pretrained_model",
    "load_weights",
    "load_model",
    "materialize",
];

/// The origin of each stack, by id. The outermost of the three wins that names one: an optimizer called in a backward
/// hook is still an optimizer, so that is looked for first.
pub(super) fn origins(trace: &Trace) -> Vec<Origin> {
    let of_frame: Vec<Origin> = trace
        .frames
        .iter()
        .map(|frame| {
            let (file, name) = (trace.strings.get(frame.file), trace.strings.get(frame.name));
            if OPTIMIZER_PATHS.iter().any(|path| file.contains(path)) && name != "zero_grad" {
                Origin::Optimizer
            } else if BACKWARD_NAMES.contains(&name) && file.contains("autograd") {
                Origin::Backward
            } else if BUILDING_NAMES.contains(&name) {
                Origin::Building
            } else {
                Origin::Unknown
            }
        })
        .collect();
    let says = |stack: u32| {
        let frames = trace.stacks.get(StackId(stack));
        let has = |origin| frames.iter().any(|f| of_frame.get(f.0 as usize) == Some(&origin));
        [Origin::Optimizer, Origin::Backward, Origin::Building]
            .into_iter()
            .find(|&o| has(o))
            .unwrap_or_default()
    };
    (0..trace.stacks.len() as u32).map(says).collect()
}
