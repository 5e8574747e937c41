//! A module's instructions by name and number, and what their metadata says: the path of scopes, the pass, the lines.

use gapless_formats::hlo::{Computation, Instruction, Module};
use gapless_trace::stacks::{Frame, FrameId};
use gapless_trace::{StackId, Trace};
use rustc_hash::FxHashMap;

/// Frames of a stack that are kept: a bound for files whose frames call each other in circles.
const DEEPEST: usize = 48;

/// The pass of a training step that an instruction belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Backward,
    /// Work of the forward pass that is done again for the backward pass.
    Recomputed,
    /// Neither: no derivative is taken of it.
    Plain,
}

pub(super) struct Program<'a> {
    pub(super) module: &'a Module,
    by_id: FxHashMap<i64, &'a Instruction>,
    by_name: FxHashMap<&'a str, &'a Instruction>,
    computations: FxHashMap<i64, &'a Computation>,
}

impl<'a> Program<'a> {
    pub(super) fn of(module: &'a Module) -> Program<'a> {
        let all = || module.computations.iter().flat_map(|c| &c.instructions);
        Program {
            module,
            by_id: all().map(|i| (i.id, i)).collect(),
            by_name: all().map(|i| (i.name.as_str(), i)).collect(),
            computations: module.computations.iter().map(|c| (c.id, c)).collect(),
        }
    }

    pub(super) fn named(&self, name: &str) -> Option<&'a Instruction> {
        self.by_name.get(name).copied()
    }

    pub(super) fn numbered(&self, id: i64) -> Option<&'a Instruction> {
        self.by_id.get(&id).copied()
    }

    /// The instruction that makes a buffer: by number, or by name in older files.
    pub(super) fn maker(&self, id: i64, name: &str) -> Option<&'a Instruction> {
        self.by_id.get(&id).copied().filter(|_| id != 0 || name.is_empty()).or_else(|| self.named(name))
    }

    pub(super) fn operand(&self, instruction: &Instruction, at: usize) -> Option<&'a Instruction> {
        self.by_id.get(instruction.operands.get(at)?).copied()
    }

    pub(super) fn entry(&self) -> Option<&'a Computation> {
        self.computations.get(&self.module.entry).copied()
    }

    pub(super) fn called(&self, instruction: &Instruction) -> impl Iterator<Item = &'a Computation> + '_ {
        instruction
            .called
            .iter()
            .filter_map(|id| self.computations.get(id).copied())
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// The name of an instruction's operator, or of one that it reads: XLA's own copies have none.
    pub(super) fn op_name(&self, instruction: &'a Instruction) -> &'a str {
        let mut at = instruction;
        for _ in 0..8 {
            if !at.op_name.is_empty() {
                return &at.op_name;
            }
            match self.operand(at, 0) {
                Some(operand) => at = operand,
                None => break,
            }
        }
        ""
    }

    /// True if it moves data between devices, or waits for that.
    pub(super) fn is_collective(&self, instruction: &Instruction) -> bool {
        const NAMES: [&str; 7] = [
            "all-reduce",
            "all-gather",
            "all-to-all",
            "reduce-scatter",
            "collective-permute",
            "collective-broadcast",
            "ragged-all-to-all",
        ];
        let is = |opcode: &str| NAMES.iter().any(|name| opcode.starts_with(name));
        let wraps = || self.called(instruction).any(|c| c.instructions.iter().any(|i| is(&i.opcode)));
        is(&instruction.opcode) || (instruction.opcode.starts_with("async-") && wraps())
    }

    /// The stack of an instruction, innermost frame first; without frames the line that the metadata names.
    pub(super) fn stack(&self, instruction: &Instruction, trace: &mut Trace) -> StackId {
        let mut frames: Vec<FrameId> = Vec::new();
        let mut id = instruction.frame;
        while let Some(frame) = at(&self.module.frames, id).filter(|_| frames.len() < DEEPEST) {
            if let Some(&[file, function, line]) = at(&self.module.locations, frame.location) {
                let file = at(&self.module.file_names, file).map_or("", String::as_str);
                let function = at(&self.module.function_names, function).map_or("", String::as_str);
                frames.extend(intern(trace, function, file, line));
            }
            id = frame.parent;
        }
        if frames.is_empty() && !instruction.file.is_empty() {
            frames.extend(intern(trace, "", &instruction.file, instruction.line));
        }
        trace.stacks.intern(&frames)
    }
}

/// The value of a number from 1.
fn at<T>(list: &[T], number: i64) -> Option<&T> {
    list.get(usize::try_from(number).ok()?.checked_sub(1)?)
}

fn intern(trace: &mut Trace, function: &str, file: &str, line: i64) -> Option<FrameId> {
    let name = trace.strings.try_intern(function)?;
    let file = trace.strings.try_intern(file)?;
    Some(trace.frames.intern(Frame { name, file, line: u32::try_from(line).unwrap_or(0) }))
}

/// The pass by an operator's name: jax wraps scopes in the transformations that it makes of them.
pub(super) fn pass(op_name: &str) -> Pass {
    let again =
        ["rematted_computation", "/remat/", "checkpoint/rematted"].iter().any(|part| op_name.contains(part));
    if again {
        Pass::Recomputed
    } else if op_name.contains("transpose(") {
        Pass::Backward
    } else if op_name.contains("jvp(") {
        Pass::Forward
    } else {
        Pass::Plain
    }
}

/// The path of scopes with dots: `jit(step)/transpose(jvp(transformer))/block_3/mlp/dot_general` is
/// `transformer.block.3.mlp`. A number behind a name becomes a part of its own, as layers are told by their numbers.
pub(super) fn scope(op_name: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let all = split(op_name);
    // The last part is the operator.
    for part in &all[..all.len().saturating_sub(1)] {
        let bare = unwrapped(part);
        let skipped = [
            "while",
            "body",
            "cond",
            "branch",
            "closed_call",
            "checkpoint",
            "rematted_computation",
            "remat",
            "main",
        ];
        if bare.is_empty() || skipped.contains(&bare) || bare.contains("->") || bare.starts_with("branch_") {
            continue;
        }
        parts.extend(layered(bare));
    }
    parts.join(".")
}

/// The path of an argument with dots: `params['blocks']['block_0'].kernel` is `params.blocks.block.0.kernel`.
pub(super) fn argument(op_name: &str) -> String {
    let names = op_name.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|part| !part.is_empty());
    names.flat_map(layered).collect::<Vec<_>>().join(".")
}

/// Parts between slashes that are outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0u32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '/' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// The scope that a transformation was made of: `transpose(jvp(mlp))` of `mlp`. Functions that were compiled on their
/// own, such as `jit(step)`, are no scopes.
fn unwrapped(mut part: &str) -> &str {
    while let Some((name, rest)) = part.split_once('(').filter(|(_, rest)| rest.ends_with(')')) {
        if matches!(name, "jit" | "pjit" | "pmap" | "xla_call") {
            return "";
        }
        part = &rest[..rest.len() - 1];
    }
    part
}

fn layered(name: &str) -> Vec<String> {
    let clean = |text: &str| text.replace(|c: char| c == '.' || c.is_whitespace(), "_");
    match name.rsplit_once('_') {
        Some((before, number))
            if !before.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            vec![clean(before), number.to_owned()]
        }
        _ => vec![clean(name)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_what_the_program_named_without_jax_s_own_parts() {
        for (op_name, path) in [
            ("jit(step)/transpose(jvp(transformer))/block_3/mlp/dot_general", "transformer.block.3.mlp"),
            (
                "jit(step)/jvp(transformer)/block_0/attention/bqhd,bkhd->bhqk/dot_general",
                "transformer.block.0.attention",
            ),
            ("jit(step)/jit(main)/jvp()/while/body/closed_call/checkpoint/attn/mul", "attn"),
            ("jit(step)/transpose(jvp(checkpoint))/rematted_computation/mlp/tanh", "mlp"),
            ("jit(f)/mul", ""),
            ("", ""),
            ("jit(f)/vmap(a/b)/c.d/mul", "a/b.c_d"),
        ] {
            assert_eq!(scope(op_name), path, "{op_name}");
        }
        assert_eq!(argument("params['blocks']['block_0']['up']"), "params.blocks.block.0.up");
        assert_eq!(argument("state[0].mu['w_1']"), "state.0.mu.w.1");
    }

    #[test]
    fn the_pass_is_by_what_jax_did_to_the_function() {
        assert_eq!(pass("jit(step)/jvp(mlp)/tanh"), Pass::Forward);
        assert_eq!(pass("jit(step)/transpose(jvp(mlp))/mul"), Pass::Backward);
        assert_eq!(pass("jit(step)/transpose(jvp(checkpoint))/rematted_computation/tanh"), Pass::Recomputed);
        assert_eq!(pass("jit(step)/mul"), Pass::Plain);
    }
}
