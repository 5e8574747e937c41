//! `HloModuleProto`: computations, their instructions, and where in the program each comes from.

use super::{Bytes, MOST, add, number, text};
use crate::fault::Fault;
use crate::protobuf::{Wire, field, integers, message, skip};

/// Tuples within tuples that are followed: XLA's asynchronous instructions have two.
const DEEPEST: u32 = 4;

/// A compiled program.
#[derive(Clone, Debug, Default)]
pub struct Module {
    pub name: String,
    pub entry: i64,
    pub computations: Vec<Computation>,
    /// Outputs that lie where a parameter lay.
    pub aliases: Vec<Alias>,
    /// Devices that run it together; 0: the file does not say.
    pub devices: u64,
    pub file_names: Vec<String>,
    pub function_names: Vec<String>,
    /// File, function and line, by numbers from 1.
    pub locations: Vec<[i64; 3]>,
    pub frames: Vec<StackFrame>,
}

#[derive(Clone, Debug, Default)]
pub struct Computation {
    pub id: i64,
    pub name: String,
    pub instructions: Vec<Instruction>,
}

#[derive(Clone, Debug, Default)]
pub struct Instruction {
    pub id: i64,
    pub name: String,
    pub opcode: String,
    pub target: String,
    pub parameter: i64,
    pub operands: Vec<i64>,
    pub called: Vec<i64>,
    /// The arrays that it makes, by their place in its tuple.
    pub shape: Vec<Leaf>,
    /// The path of scopes and the operator: `jit(step)/transformer/block_3/mlp/dot_general`.
    pub op_name: String,
    pub file: String,
    pub line: i64,
    /// Its frame, from 1; 0: none.
    pub frame: i64,
}

/// An array of an instruction's result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaf {
    pub index: Vec<i64>,
    /// XLA's number of the type.
    pub element: i64,
    pub dimensions: Vec<i64>,
}

/// An output that lies where a parameter lay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alias {
    pub output: Vec<i64>,
    pub parameter: i64,
    pub index: Vec<i64>,
}

/// A line of the program, and the frame that called it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackFrame {
    pub location: i64,
    pub parent: i64,
}

pub(super) fn read(source: &mut Bytes, end: u64) -> Result<Module, Fault> {
    let mut own = Module::default();
    while let Some((field, wire)) = field(source, end)? {
        match (field, wire) {
            (1, Wire::Length) => own.name = text(source, end)?,
            (6, _) => own.entry = number(source, end, wire)?,
            (3, Wire::Length) => {
                let inner = message(source, end)?;
                let computation = computation(source, inner)?;
                add(&mut own.computations, computation, source, "computations")?;
            }
            (8, Wire::Length) => {
                let inner = message(source, end)?;
                aliases(source, inner, &mut own.aliases)?;
            }
            (15, Wire::Length) => {
                let inner = message(source, end)?;
                own.devices = devices(source, inner)?;
            }
            (17, Wire::Length) => {
                let inner = message(source, end)?;
                stack_frames(source, inner, &mut own)?;
            }
            _ => skip(source, end, wire)?,
        }
    }
    Ok(own)
}

fn computation(source: &mut Bytes, end: u64) -> Result<Computation, Fault> {
    let mut own = Computation::default();
    while let Some((field, wire)) = field(source, end)? {
        match (field, wire) {
            (1, Wire::Length) => own.name = text(source, end)?,
            (2, Wire::Length) => {
                let inner = message(source, end)?;
                let instruction = instruction(source, inner)?;
                add(&mut own.instructions, instruction, source, "instructions")?;
            }
            (5, _) => own.id = number(source, end, wire)?,
            _ => skip(source, end, wire)?,
        }
    }
    Ok(own)
}

fn instruction(source: &mut Bytes, end: u64) -> Result<Instruction, Fault> {
    let mut own = Instruction::default();
    while let Some((field, wire)) = field(source, end)? {
        match (field, wire) {
            (1, Wire::Length) => own.name = text(source, end)?,
            (2, Wire::Length) => own.opcode = text(source, end)?,
            (3, Wire::Length) => {
                let inner = message(source, end)?;
                shape(source, inner, &mut Vec::new(), &mut own.shape)?;
            }
            (7, Wire::Length) => {
                let inner = message(source, end)?;
                metadata(source, inner, &mut own)?;
            }
            (9, _) => own.parameter = number(source, end, wire)?,
            (28, Wire::Length) => own.target = text(source, end)?,
            (35, _) => own.id = number(source, end, wire)?,
            (36, _) => integers(source, end, wire, MOST, &mut own.operands)?,
            (38, _) => integers(source, end, wire, MOST, &mut own.called)?,
            _ => skip(source, end, wire)?,
        }
    }
    Ok(own)
}

fn metadata(source: &mut Bytes, end: u64, own: &mut Instruction) -> Result<(), Fault> {
    while let Some((field, wire)) = field(source, end)? {
        match (field, wire) {
            (2, Wire::Length) => own.op_name = text(source, end)?,
            (3, Wire::Length) => own.file = text(source, end)?,
            (4, _) => own.line = number(source, end, wire)?,
            (15, _) => own.frame = number(source, end, wire)?,
            _ => skip(source, end, wire)?,
        }
    }
    Ok(())
}

/// Adds the arrays of a shape; `path` is its own place. Tuples deeper than [`DEEPEST`] are left out.
fn shape(source: &mut Bytes, end: u64, path: &mut Vec<i64>, leaves: &mut Vec<Leaf>) -> Result<(), Fault> {
    const TUPLE: i64 = 13;
    let mut own = Leaf { index: path.clone(), ..Leaf::default() };
    let mut members = 0;
    while let Some((field, wire)) = field(source, end)? {
        match (field, wire) {
            (2, _) => own.element = number(source, end, wire)?,
            (3, _) => integers(source, end, wire, 1 << 10, &mut own.dimensions)?,
            (4, Wire::Length) => {
                let inner = message(source, end)?;
                if path.len() as u32 >= DEEPEST {
                    source.skip(inner - source.at(), "a shape")?;
                    continue;
                }
                path.push(members);
                members += 1;
                shape(source, inner, path, leaves)?;
                path.pop();
            }
            _ => skip(source, end, wire)?,
        }
    }
    if own.element != TUPLE && own.element != 0 {
        add(leaves, own, source, "arrays of an instruction")?;
    }
    Ok(())
}

fn aliases(source: &mut Bytes, end: u64, list: &mut Vec<Alias>) -> Result<(), Fault> {
    while let Some((number_, wire)) = field(source, end)? {
        if (number_, wire) != (1, Wire::Length) {
            skip(source, end, wire)?;
            continue;
        }
        let inner = message(source, end)?;
        let mut own = Alias::default();
        while let Some((field, wire)) = field(source, inner)? {
            match field {
                1 => integers(source, inner, wire, MOST, &mut own.output)?,
                2 => own.parameter = number(source, inner, wire)?,
                3 => integers(source, inner, wire, MOST, &mut own.index)?,
                _ => skip(source, inner, wire)?,
            }
        }
        add(list, own, source, "aliases")?;
    }
    Ok(())
}

/// The product of replicas and partitions.
fn devices(source: &mut Bytes, end: u64) -> Result<u64, Fault> {
    let [mut replicas, mut partitions] = [1i64; 2];
    while let Some((field, wire)) = field(source, end)? {
        match field {
            1 => replicas = number(source, end, wire)?,
            2 => partitions = number(source, end, wire)?,
            _ => skip(source, end, wire)?,
        }
    }
    Ok(u64::try_from(replicas).unwrap_or(1).saturating_mul(u64::try_from(partitions).unwrap_or(1)))
}

fn stack_frames(source: &mut Bytes, end: u64, own: &mut Module) -> Result<(), Fault> {
    while let Some((number_, wire)) = field(source, end)? {
        match (number_, wire) {
            (1, Wire::Length) => {
                let name = text(source, end)?;
                add(&mut own.file_names, name, source, "files")?;
            }
            (2, Wire::Length) => {
                let name = text(source, end)?;
                add(&mut own.function_names, name, source, "functions")?;
            }
            (3, Wire::Length) => {
                let inner = message(source, end)?;
                let mut location = [0; 3];
                while let Some((field, wire)) = field(source, inner)? {
                    match field {
                        at @ 1..=3 => location[at as usize - 1] = number(source, inner, wire)?,
                        _ => skip(source, inner, wire)?,
                    }
                }
                add(&mut own.locations, location, source, "lines")?;
            }
            (4, Wire::Length) => {
                let inner = message(source, end)?;
                let mut frame = StackFrame::default();
                while let Some((field, wire)) = field(source, inner)? {
                    match field {
                        1 => frame.location = number(source, inner, wire)?,
                        2 => frame.parent = number(source, inner, wire)?,
                        _ => skip(source, inner, wire)?,
                    }
                }
                add(&mut own.frames, frame, source, "frames")?;
            }
            _ => skip(source, end, wire)?,
        }
    }
    Ok(())
}
