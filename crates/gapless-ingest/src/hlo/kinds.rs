//! The kind of each buffer: of arguments by their names and use, of the rest by the instruction that makes it and by
//! the one at which it is freed. jax wraps an operator's scope in the pass that it belongs to, so a buffer that the
//! forward pass makes and the backward pass frees was kept for it.

use super::lives::Block;
use super::program::{Pass, Program, pass};
use gapless_formats::hlo::{Allocation, Instruction, Leaf};
use gapless_trace::kinds::Kind;
use rustc_hash::FxHashSet;

/// Words of an argument's path that name an optimizer's state.
const STATE: [&str; 19] = [
    "opt",
    "opt_state",
    "optstate",
    "opt_states",
    "optimizer_state",
    "mu",
    "nu",
    "adam",
    "momentum",
    "momentums",
    "trace",
    "velocity",
    "exp_avg",
    "exp_avg_sq",
    "inner_state",
    "acc_grads",
    "ema",
    "mini_step",
    "gradient_step",
];
const WEIGHTS: [&str; 15] = [
    "params",
    "param",
    "parameters",
    "weights",
    "weight",
    "kernel",
    "bias",
    "embedding",
    "scale",
    "model",
    "variables",
    "batch_stats",
    "module",
    "layers",
    "net",
];
const INPUTS: [&str; 20] = [
    "batch",
    "x",
    "y",
    "xs",
    "ys",
    "input",
    "inputs",
    "input_ids",
    "tokens",
    "labels",
    "targets",
    "images",
    "image",
    "mask",
    "cache",
    "kv_cache",
    "caches",
    "key",
    "rng",
    "data",
];

pub(super) struct Kinds<'a> {
    program: &'a Program<'a>,
    /// Arguments that an operator of the forward pass reads.
    differentiated: FxHashSet<i64>,
    /// Ends of the paths of an optimizer's state: `opt.mu.blocks.0.up` is the state of what ends with `blocks.0.up`.
    stated: FxHashSet<Vec<String>>,
    /// Shapes of the module's results.
    results: FxHashSet<(i64, Vec<i64>)>,
    /// Shapes of arguments that are weights.
    weights: FxHashSet<(i64, Vec<i64>)>,
    trains: bool,
}

impl<'a> Kinds<'a> {
    pub(super) fn of(program: &'a Program<'a>) -> Kinds<'a> {
        let mut own = Kinds {
            program,
            differentiated: FxHashSet::default(),
            stated: FxHashSet::default(),
            results: FxHashSet::default(),
            weights: FxHashSet::default(),
            trains: false,
        };
        let Some(entry) = program.entry() else { return own };
        for instruction in &entry.instructions {
            let pass = pass(program.op_name(instruction));
            own.trains |= matches!(pass, Pass::Backward | Pass::Recomputed);
            if pass == Pass::Forward {
                own.reads(instruction);
            }
            if instruction.opcode == "parameter" {
                let words = words(&instruction.op_name);
                if let Some(at) = words.iter().rposition(|word| STATE.contains(&word.as_str())) {
                    own.stated.insert(words[at + 1..].to_vec());
                }
            }
        }
        own.stated.remove(&Vec::new());
        if let Some(last) = entry.instructions.last() {
            own.results = last.shape.iter().map(shape).collect();
        }
        for instruction in entry.instructions.iter().filter(|i| i.opcode == "parameter") {
            if own.argument(instruction, false) == Kind::Weights {
                own.weights.extend(instruction.shape.first().map(shape));
            }
        }
        own
    }

    /// Notes what an instruction of the forward pass reads, through copies that XLA made.
    fn reads(&mut self, instruction: &Instruction) {
        let mut ids: Vec<i64> = instruction.operands.clone();
        while let Some(id) = ids.pop() {
            let is_new = self.differentiated.insert(id);
            if let Some(operand) = self.program.numbered(id).filter(|i| is_new && i.op_name.is_empty()) {
                ids.extend(&operand.operands);
            }
        }
    }

    /// The kind of a block, and where in the program it belongs.
    pub(super) fn block(
        &self,
        block: &Block<'_>,
        allocation: &Allocation,
        maker: Option<&'a Instruction>,
    ) -> Kind {
        if allocation.is_parameter {
            let argument = self.parameter(allocation.parameter).or(maker);
            return argument
                .map_or(Kind::Inputs, |i| self.argument(i, allocation.is_aliased || allocation.is_output));
        }
        if allocation.is_constant {
            return Kind::Constants;
        }
        if allocation.is_output {
            return Kind::Outputs;
        }
        let Some(maker) = maker else { return Kind::Temporaries };
        if self.program.is_collective(maker) {
            return Kind::Collectives;
        }
        let made = pass(self.program.op_name(maker));
        let freed = self.program.named(block.last).map_or(Pass::Plain, |i| pass(self.program.op_name(i)));
        match (made, freed) {
            (Pass::Recomputed, _) => Kind::Recomputed,
            (Pass::Forward, Pass::Backward | Pass::Recomputed) => Kind::Activations,
            (Pass::Backward, Pass::Plain) if self.like_a_weight(maker, &block.buffer.index) => {
                Kind::Gradients
            }
            _ => Kind::Temporaries,
        }
    }

    /// The argument of that number.
    pub(super) fn parameter(&self, number: i64) -> Option<&'a Instruction> {
        let mut all = self.program.entry()?.instructions.iter();
        all.find(|i| i.opcode == "parameter" && i.parameter == number)
    }

    fn argument(&self, instruction: &Instruction, aliased: bool) -> Kind {
        let words: Vec<String> = words(&instruction.op_name);
        let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
        if has(&STATE) {
            return Kind::OptimizerState;
        }
        if has(&WEIGHTS) {
            return Kind::Weights;
        }
        if (1..words.len()).any(|at| self.stated.contains(&words[at..])) {
            return Kind::Weights;
        }
        let first = words.first().map_or("", String::as_str);
        if INPUTS.contains(&first) {
            return Kind::Inputs;
        }
        let returned =
            aliased || instruction.shape.first().is_some_and(|leaf| self.results.contains(&shape(leaf)));
        match (self.trains, returned, self.differentiated.contains(&instruction.id)) {
            (true, true, true) => Kind::Weights,
            (true, true, false) => Kind::OptimizerState,
            _ => Kind::Inputs,
        }
    }

    fn like_a_weight(&self, maker: &Instruction, index: &[i64]) -> bool {
        let leaf = maker.shape.iter().find(|leaf| leaf.index == index);
        leaf.is_some_and(|leaf| self.weights.contains(&shape(leaf)))
    }
}

/// Type and dimensions. Gradients are often in another order of dimensions than their weight.
fn shape(leaf: &Leaf) -> (i64, Vec<i64>) {
    let mut dimensions: Vec<i64> = leaf.dimensions.iter().copied().filter(|&n| n != 1).collect();
    dimensions.sort_unstable();
    (leaf.element, dimensions)
}

/// The words of an argument's path, in lower case.
fn words(op_name: &str) -> Vec<String> {
    let parts = op_name.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|part| !part.is_empty());
    parts.map(str::to_lowercase).collect()
}
