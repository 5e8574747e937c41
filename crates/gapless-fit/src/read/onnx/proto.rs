//! The messages of ONNX, as far as memory needs them. Field numbers are those of onnx.proto.

use crate::read::error::{Fault, Problem, malformed};
use crate::read::protobuf::{Wire, bytes, field, integers, message, skip, text, varint};
use crate::read::source::Source;
use std::io::{Read, Seek};

/// Nodes, tensors and values of one graph.
const MOST: usize = 1_000_000;
/// Numbers of an attribute.
const LONGEST: usize = 100_000;
/// As many sides as numpy has.
const SIDES: usize = 64;
/// Tensors up to here may be shapes that other shapes depend on, and are kept.
const KEPT: usize = 4096;

/// A model's graph.
#[derive(Debug, Default)]
pub(crate) struct Proto {
    pub(crate) nodes: Vec<Node>,
    pub(crate) initializers: Vec<Tensor>,
    pub(crate) inputs: Vec<ValueInfo>,
    pub(crate) outputs: Vec<ValueInfo>,
    pub(crate) values: Vec<ValueInfo>,
}

#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) op: String,
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    pub(crate) attributes: Vec<Attribute>,
}

#[derive(Debug, Default)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) integers: Option<Vec<i64>>,
    pub(crate) text: Option<String>,
    pub(crate) tensor: Option<Tensor>,
    /// The number of fractions, if it is one or a list of them: a Constant takes its shape from it.
    pub(crate) floats: Option<u64>,
    pub(crate) graph: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) kind: i64,
    /// The content, if it is a short list of integers.
    pub(crate) integers: Option<Vec<i64>>,
}

#[derive(Debug, Default)]
pub(crate) struct ValueInfo {
    pub(crate) name: String,
    pub(crate) kind: i64,
    pub(crate) shape: Option<Vec<Dim>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dim {
    Size(u64),
    Name(String),
    Open,
}

impl Node {
    pub(crate) fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|attribute| attribute.name == name)
    }

    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name)?.integers.as_ref()?.first().copied()
    }

    pub(crate) fn ints(&self, name: &str) -> Option<&[i64]> {
        self.attribute(name)?.integers.as_deref()
    }
}

fn full<T>(list: &[T], at: u64) -> Result<(), Fault> {
    if list.len() >= MOST {
        let what = "too many entries of one kind in the graph".into();
        return Err(Box::new(Problem::TooLarge { offset: at, what, limit: MOST as u64 }));
    }
    Ok(())
}

/// The graph of a `ModelProto`.
pub(crate) fn read<R: Read + Seek>(source: &mut Source<R>) -> Result<Proto, Fault> {
    let end = source.size();
    let mut proto = None;
    while let Some((number, wire)) = field(source, end)? {
        match (number, wire) {
            (7, Wire::Length) if proto.is_some() => {
                return malformed(source.at(), "a second graph in one model");
            }
            (7, Wire::Length) => {
                let inner = message(source, end)?;
                proto = Some(graph(source, inner)?);
            }
            (25, Wire::Length) => {
                return Err(Box::new(Problem::Unsupported {
                    what: "the model has functions of its own".into(),
                    help: "inline them with onnx.inliner.inline_local_functions, or export with torch.export.save".into(),
                }));
            }
            _ => skip(source, end, wire)?,
        }
    }
    match proto {
        Some(proto) => Ok(proto),
        None => malformed(0, "there is no graph in the file: this is not an ONNX model"),
    }
}

fn graph<R: Read + Seek>(source: &mut Source<R>, end: u64) -> Result<Proto, Fault> {
    let mut proto = Proto::default();
    while let Some((number, wire)) = field(source, end)? {
        let at = source.at();
        match (number, wire) {
            (1, Wire::Length) => {
                full(&proto.nodes, at)?;
                let inner = message(source, end)?;
                proto.nodes.push(node(source, inner)?);
            }
            (5, Wire::Length) => {
                full(&proto.initializers, at)?;
                let inner = message(source, end)?;
                proto.initializers.push(tensor(source, inner)?);
            }
            (11..=13, Wire::Length) => {
                let list = match number {
                    11 => &mut proto.inputs,
                    12 => &mut proto.outputs,
                    _ => &mut proto.values,
                };
                full(list, at)?;
                let inner = message(source, end)?;
                list.push(value(source, inner)?);
            }
            _ => skip(source, end, wire)?,
        }
    }
    Ok(proto)
}

fn node<R: Read + Seek>(source: &mut Source<R>, end: u64) -> Result<Node, Fault> {
    let mut node = Node::default();
    while let Some((number, wire)) = field(source, end)? {
        match (number, wire) {
            (1 | 2, Wire::Length) => {
                let list = if number == 1 { &mut node.inputs } else { &mut node.outputs };
                full(list, source.at())?;
                list.push(text(source, end, "the name of a value")?);
            }
            (3, Wire::Length) => node.name = text(source, end, "the name of a node")?,
            (4, Wire::Length) => node.op = text(source, end, "an operator's name")?,
            (5, Wire::Length) => {
                full(&node.attributes, source.at())?;
                let inner = message(source, end)?;
                node.attributes.push(attribute(source, inner)?);
            }
            _ => skip(source, end, wire)?,
        }
    }
    Ok(node)
}

fn attribute<R: Read + Seek>(source: &mut Source<R>, end: u64) -> Result<Attribute, Fault> {
    let mut attribute = Attribute::default();
    while let Some((number, wire)) = field(source, end)? {
        match (number, wire) {
            (1, Wire::Length) => attribute.name = text(source, end, "an attribute's name")?,
            (3, Wire::Varint) => attribute.integers = Some(vec![varint(source, end)? as i64]),
            (8, Wire::Varint | Wire::Length) => {
                let list = attribute.integers.get_or_insert_with(Vec::new);
                integers(source, end, wire, LONGEST, list)?;
            }
            (4, Wire::Length) => {
                let raw = bytes(source, end, 16 << 20, "an attribute's text")?;
                attribute.text = Some(String::from_utf8_lossy(&raw).into_owned());
            }
            (5, Wire::Length) => {
                let inner = message(source, end)?;
                attribute.tensor = Some(tensor(source, inner)?);
            }
            (6 | 11, Wire::Length) => {
                attribute.graph = true;
                skip(source, end, wire)?;
            }
            (2 | 7, Wire::Four) => {
                attribute.floats = Some(attribute.floats.unwrap_or(0) + 1);
                skip(source, end, wire)?;
            }
            (7, Wire::Length) => {
                let inner = message(source, end)?;
                attribute.floats = Some((inner - source.at()) / 4);
                source.skip(inner - source.at(), "an attribute")?;
            }
            _ => skip(source, end, wire)?,
        }
    }
    Ok(attribute)
}

fn tensor<R: Read + Seek>(source: &mut Source<R>, end: u64) -> Result<Tensor, Fault> {
    let mut tensor = Tensor::default();
    let mut sides = Vec::new();
    let mut raw = None;
    let mut listed: Vec<i64> = Vec::new();
    let start = source.at();
    while let Some((number, wire)) = field(source, end)? {
        match (number, wire) {
            (1, Wire::Varint | Wire::Length) => integers(source, end, wire, SIDES, &mut sides)?,
            (2, Wire::Varint) => tensor.kind = varint(source, end)? as i64,
            (8, Wire::Length) => tensor.name = text(source, end, "a tensor's name")?,
            (9, Wire::Length) => {
                let inner = message(source, end)?;
                let length = inner - source.at();
                if length <= 8 * KEPT as u64 {
                    raw = Some(source.bytes(length, 8 * KEPT as u64, "a tensor's data")?);
                } else {
                    source.skip(length, "a tensor's data")?;
                }
            }
            (5 | 7, Wire::Length) => {
                // Short lists may be shapes. A number takes at most ten bytes, so a longer one has too many.
                let at = source.at();
                let inner = message(source, end)?;
                if inner - source.at() <= 10 * KEPT as u64 {
                    source.seek(at, "a tensor's data")?;
                    integers(source, end, wire, 10 * KEPT, &mut listed)?;
                } else {
                    source.skip(inner - source.at(), "a tensor's data")?;
                }
            }
            (5 | 7, Wire::Varint) => integers(source, end, wire, 10 * KEPT, &mut listed)?,
            _ => skip(source, end, wire)?,
        }
    }
    for side in sides {
        match u64::try_from(side) {
            Ok(side) => tensor.shape.push(side),
            Err(_) => return malformed(start, format!("a tensor with a side of {side}")),
        }
    }
    let elements = tensor.shape.iter().try_fold(1u64, |product, side| product.checked_mul(*side));
    let Some(elements) = elements.filter(|elements| *elements < 1 << 56) else {
        return malformed(start, "a tensor with more elements than can be counted");
    };
    if elements <= KEPT as u64 {
        let decoded = match (tensor.kind, raw) {
            (7, Some(raw)) => raw
                .chunks_exact(8)
                .map(|eight| i64::from_le_bytes(eight.try_into().unwrap_or_default()))
                .collect(),
            (6, Some(raw)) => raw
                .chunks_exact(4)
                .map(|four| i64::from(i32::from_le_bytes(four.try_into().unwrap_or_default())))
                .collect(),
            (9, Some(raw)) => raw.iter().map(|byte| i64::from(*byte)).collect(),
            _ => listed,
        };
        if matches!(tensor.kind, 6 | 7 | 9) && decoded.len() as u64 == elements {
            tensor.integers = Some(decoded);
        }
    }
    Ok(tensor)
}

/// A value's type: name (1), type (2) of a tensor (1) with an element type (1) and a shape (2) of dimensions (1).
fn value<R: Read + Seek>(source: &mut Source<R>, end: u64) -> Result<ValueInfo, Fault> {
    let mut value = ValueInfo::default();
    while let Some((number, wire)) = field(source, end)? {
        match (number, wire) {
            (1, Wire::Length) => value.name = text(source, end, "the name of a value")?,
            (2, Wire::Length) => {
                let inner = message(source, end)?;
                while let Some((number, wire)) = field(source, inner)? {
                    if (number, wire) == (1, Wire::Length) {
                        let tensor = message(source, inner)?;
                        tensor_type(source, tensor, &mut value)?;
                    } else {
                        skip(source, inner, wire)?;
                    }
                }
            }
            _ => skip(source, end, wire)?,
        }
    }
    Ok(value)
}

fn tensor_type<R: Read + Seek>(source: &mut Source<R>, end: u64, value: &mut ValueInfo) -> Result<(), Fault> {
    while let Some((number, wire)) = field(source, end)? {
        match (number, wire) {
            (1, Wire::Varint) => value.kind = varint(source, end)? as i64,
            (2, Wire::Length) => {
                let inner = message(source, end)?;
                let mut shape = Vec::new();
                while let Some((number, wire)) = field(source, inner)? {
                    if (number, wire) != (1, Wire::Length) {
                        skip(source, inner, wire)?;
                        continue;
                    }
                    if shape.len() >= SIDES {
                        return malformed(source.at(), format!("a shape of more than {SIDES} sides"));
                    }
                    let one = message(source, inner)?;
                    shape.push(dim(source, one)?);
                }
                value.shape = Some(shape);
            }
            _ => skip(source, end, wire)?,
        }
    }
    Ok(())
}

fn dim<R: Read + Seek>(source: &mut Source<R>, end: u64) -> Result<Dim, Fault> {
    let mut dim = Dim::Open;
    while let Some((number, wire)) = field(source, end)? {
        match (number, wire) {
            (1, Wire::Varint) => {
                let at = source.at();
                let size = varint(source, end)?;
                if size > 1 << 56 {
                    return malformed(at, format!("a dimension of {}", size as i64));
                }
                dim = Dim::Size(size);
            }
            (2, Wire::Length) => dim = Dim::Name(text(source, end, "the name of a dimension")?),
            _ => skip(source, end, wire)?,
        }
    }
    Ok(dim)
}
