//! ONNX files: nodes, initializers and shapes of a `ModelProto`; the data of initializers is passed over. If a file
//! gives no shape for a tensor, it is inferred; dimensions that are names become the batch.

mod call;
mod infer;
mod operators;
mod proto;
mod windows;

use super::error::{Fault, unsupported};
use super::json::brief;
use super::source::Source;
use crate::model::{Architecture, Dtype, Graph, GraphNode, GraphTensor, Model, Weight};
use call::Values;
use proto::{Dim, Node, Proto};
use std::collections::{HashMap, HashSet};
use std::io::{Read, Seek};

/// The model in a file, with `batch` for the dimension that the file leaves open.
pub(crate) fn read<R: Read + Seek>(name: String, file: R, batch: Option<u64>) -> Result<Model, Fault> {
    let mut source = Source::new(file)?;
    let proto = proto::read(&mut source)?;
    let mut notes = Vec::new();
    let graph = build(&proto, batch, &mut notes)?;
    super::bounded(&graph)?;
    let weights = graph.parameters.iter().chain(&graph.buffers).map(|at| {
        let tensor = &graph.tensors[*at as usize];
        let bytes = tensor.shape.iter().product::<u64>() * tensor.dtype.bytes();
        Weight { name: tensor.name.clone(), shape: tensor.shape.clone(), dtype: Some(tensor.dtype), bytes }
    });
    let weights = Some(weights.collect());
    Ok(Model { name, architecture: Some(Architecture::Graph(Box::new(graph))), weights, stored: None, notes })
}

/// Our word for an element type; unsigned ones have the size of their signed twins.
fn dtype(number: i64) -> Option<Dtype> {
    Some(match number {
        1 => Dtype::F32,
        2 => Dtype::U8,
        3 => Dtype::I8,
        4 | 5 => Dtype::I16,
        6 | 12 => Dtype::I32,
        7 | 13 => Dtype::I64,
        9 => Dtype::Bool,
        10 => Dtype::F16,
        11 | 14 => Dtype::F64,
        16 => Dtype::Bf16,
        17..=20 => Dtype::F8,
        // Two to a byte; here each takes one.
        21..=23 => Dtype::I8,
        _ => return None,
    })
}

fn known(number: i64, tensor: &str) -> Result<Dtype, Fault> {
    match dtype(number) {
        Some(dtype) => Ok(dtype),
        None => unsupported(
            format!("the tensor \"{}\" has the element type {number}", brief(tensor)),
            "only numbers and booleans are modelled",
        ),
    }
}

/// Names of dimensions and their values: the first one on the first axis of an input is the batch.
fn symbols(
    proto: &Proto,
    batch: Option<u64>,
    notes: &mut Vec<String>,
) -> Result<HashMap<String, u64>, Fault> {
    let mut symbols = HashMap::new();
    let stored: HashSet<&str> = proto.initializers.iter().map(|one| one.name.as_str()).collect();
    for input in proto.inputs.iter().filter(|input| !stored.contains(input.name.as_str())) {
        for (axis, dim) in input.shape.iter().flatten().enumerate() {
            let symbol = match dim {
                Dim::Size(_) => continue,
                Dim::Name(symbol) if symbols.contains_key(symbol) => continue,
                Dim::Name(symbol) if axis == 0 => symbol.clone(),
                Dim::Open if axis == 0 => String::new(),
                Dim::Name(_) | Dim::Open => {
                    let symbol =
                        if let Dim::Name(symbol) = dim { brief(symbol) } else { "without a name".into() };
                    return unsupported(
                        format!("axis {axis} of the input \"{}\" is open ({symbol})", brief(&input.name)),
                        "export the model with a size for it; only the batch may be left open",
                    );
                }
            };
            let size = batch.unwrap_or(1);
            notes.push(format!("axis 0 of the input \"{}\" is open: {size} is taken", brief(&input.name)));
            symbols.insert(symbol, size);
        }
    }
    Ok(symbols)
}

fn concrete(shape: &[Dim], symbols: &HashMap<String, u64>) -> Option<Vec<u64>> {
    shape
        .iter()
        .map(|dim| match dim {
            Dim::Size(size) => Some(*size),
            Dim::Name(name) => symbols.get(name).copied(),
            Dim::Open => symbols.get("").copied(),
        })
        .collect()
}

fn build(proto: &Proto, batch: Option<u64>, notes: &mut Vec<String>) -> Result<Graph, Fault> {
    let symbols = symbols(proto, batch, notes)?;
    if let (Some(batch), true) = (batch, symbols.is_empty()) {
        notes.push(format!("the file's shapes are fixed: the batch of {batch} is not used"));
    }
    let mut graph = Graph::default();
    let mut values = Values::default();
    for one in &proto.initializers {
        let dtype = known(one.kind, &one.name)?;
        let at = push(&mut graph, &one.name, one.shape.clone(), dtype);
        let floating = matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F8);
        if floating {
            graph.parameters.push(at);
        } else {
            graph.buffers.push(at);
        }
        values.set(&one.name, at, one.integers.clone());
    }
    for input in &proto.inputs {
        if values.place(&input.name).is_some() {
            continue;
        }
        let Some(shape) = input.shape.as_deref().and_then(|shape| concrete(shape, &symbols)) else {
            return unsupported(
                format!("the input \"{}\" has no shape", brief(&input.name)),
                "export the model with the shapes of its inputs",
            );
        };
        let at = push(&mut graph, &input.name, shape, known(input.kind, &input.name)?);
        graph.inputs.push(at);
        values.set(&input.name, at, None);
    }
    let given: HashMap<&str, &proto::ValueInfo> =
        proto.values.iter().chain(&proto.outputs).map(|value| (value.name.as_str(), value)).collect();
    for node in &proto.nodes {
        run(node, &symbols, &given, &mut graph, &mut values)?;
    }
    for output in &proto.outputs {
        let Some(at) = values.place(&output.name) else {
            return unsupported(
                format!("no node makes the output \"{}\"", brief(&output.name)),
                "check the file with onnx.checker",
            );
        };
        graph.outputs.push(at);
    }
    Ok(graph)
}

fn push(graph: &mut Graph, name: &str, shape: Vec<u64>, dtype: Dtype) -> u32 {
    graph.tensors.push(GraphTensor { name: name.to_owned(), shape, strides: Vec::new(), dtype });
    graph.tensors.len() as u32 - 1
}

/// One node: its outputs get shapes, from the file if it has them, else by inference.
fn run(
    node: &Node,
    symbols: &HashMap<String, u64>,
    given: &HashMap<&str, &proto::ValueInfo>,
    graph: &mut Graph,
    values: &mut Values,
) -> Result<(), Fault> {
    let shown = format!("{} \"{}\"", brief(&node.op), brief(&node.name));
    let mut inputs = Vec::new();
    for name in &node.inputs {
        inputs.push(match values.place(name) {
            _ if name.is_empty() => None,
            Some(at) => Some(at),
            None => {
                return unsupported(
                    format!("the node {shown} uses \"{}\" before anything makes it", brief(name)),
                    "sort the graph's nodes, or check the file with onnx.checker",
                );
            }
        });
    }
    let inferred = infer::outputs(node, &inputs, graph, values);
    let mut outputs = Vec::new();
    for (number, name) in node.outputs.iter().enumerate() {
        if name.is_empty() {
            continue;
        }
        let stated = given.get(name.as_str());
        let from_file =
            stated.and_then(|value| Some((concrete(value.shape.as_deref()?, symbols)?, dtype(value.kind)?)));
        let ours = inferred.get(number).cloned().flatten();
        let Some((shape, dtype)) = from_file.or(ours) else {
            return unsupported(
                format!("the shape of \"{}\", made by the node {shown}, is not known", brief(name)),
                "store shapes in the file with onnx.shape_inference.infer_shapes, or export with static shapes",
            );
        };
        if shape
            .iter()
            .try_fold(1u64, |product, side| product.checked_mul(*side))
            .is_none_or(|elements| elements > 1 << 56)
        {
            return unsupported(
                format!("\"{}\" has more elements than can be counted", brief(name)),
                "check the file's sizes",
            );
        }
        if values.place(name).is_some() {
            return unsupported(
                format!("two nodes make \"{}\"", brief(name)),
                "check the file with onnx.checker",
            );
        }
        let at = push(graph, name, shape, dtype);
        values.set(name, at, None);
        outputs.push(at);
    }
    infer::fold(node, &inputs, graph, values);
    if node.op == "Constant" {
        graph.buffers.extend(outputs);
        return Ok(());
    }
    let attributes = node
        .attributes
        .iter()
        .filter_map(|attribute| Some((attribute.name.clone(), attribute.integers.clone()?)));
    graph.nodes.push(GraphNode {
        op: format!("onnx.{}", node.op),
        inputs: inputs.into_iter().flatten().collect(),
        outputs,
        attributes: attributes.collect(),
    });
    Ok(())
}
