//! Shapes of a node's outputs from those of its inputs, and the short integer tensors that shapes themselves are
//! computed with. An operator that is not known gives nothing, never a guess.

use super::call::{Call, Output, Values};
use super::operators;
use super::proto::Node;
use crate::model::{Dtype, Graph};

/// Shape and type of the node's outputs; `None` for each that cannot be told.
pub(crate) fn outputs(node: &Node, inputs: &[Option<u32>], graph: &Graph, values: &Values) -> Vec<Output> {
    operators::outputs(&Call { node, inputs, graph, values })
}

/// The content of the node's first output, if it is a short list of integers that follows from known ones.
pub(crate) fn fold(node: &Node, inputs: &[Option<u32>], graph: &Graph, values: &mut Values) {
    /// Shapes have a few numbers; masks and ranges that are computed from them, some more.
    const LONGEST: u64 = 4096;
    let Some(at) = node.outputs.first().and_then(|name| values.place(name)) else { return };
    let tensor = &graph.tensors[at as usize];
    let elements = tensor.shape.iter().try_fold(1u64, |product, side| product.checked_mul(*side));
    if !matches!(tensor.dtype, Dtype::I64 | Dtype::I32 | Dtype::Bool)
        || elements.is_none_or(|elements| elements > LONGEST)
    {
        return;
    }
    let content = content(&Call { node, inputs, graph, values }, &tensor.shape);
    if let Some(content) = content.filter(|content| Some(content.len() as u64) == elements) {
        values.know(at, content);
    }
}

fn content(call: &Call<'_>, shape: &[u64]) -> Option<Vec<i64>> {
    let node = call.node;
    let elements = shape.iter().product::<u64>() as usize;
    let spread = |input: usize, at: usize| -> Option<i64> {
        let list = call.integers(input)?;
        if list.len() == 1 { Some(list[0]) } else { list.get(at).copied().filter(|_| list.len() == elements) }
    };
    let each = |operation: fn(i64, i64) -> Option<i64>| -> Option<Vec<i64>> {
        (0..elements).map(|at| operation(spread(0, at)?, spread(1, at)?)).collect()
    };
    match node.op.as_str() {
        "Constant" => {
            let listed = node.ints("value_int").or(node.ints("value_ints")).map(<[i64]>::to_vec);
            listed.or_else(|| node.attribute("value")?.tensor.as_ref()?.integers.clone())
        }
        "Shape" => {
            let (from, to) = operators::shape_range(node, call.shape(0)?.len());
            call.shape(0)?.get(from..to)?.iter().map(|side| i64::try_from(*side).ok()).collect()
        }
        "Size" => Some(vec![
            i64::try_from(call.shape(0)?.iter().try_fold(1u64, |all, side| all.checked_mul(*side))?).ok()?,
        ]),
        "Identity" | "Squeeze" | "Unsqueeze" | "Reshape" | "Flatten" => call.integers(0).map(<[i64]>::to_vec),
        // A fraction's content is not kept, so the input of a cast with known content was an integer.
        "Cast" => call.integers(0).map(<[i64]>::to_vec),
        "Gather" => {
            let data = call.integers(0).filter(|_| call.shape(0).is_some_and(|shape| shape.len() == 1))?;
            let length = data.len() as i64;
            call.integers(1)?
                .iter()
                .map(|at| {
                    data.get(usize::try_from(if *at < 0 { at.checked_add(length)? } else { *at }).ok()?)
                        .copied()
                })
                .collect()
        }
        "Concat" => {
            let mut all = Vec::new();
            for input in 0..call.count() {
                all.extend(
                    call.integers(input)
                        .filter(|_| call.shape(input).is_some_and(|shape| shape.len() == 1))?,
                );
            }
            Some(all)
        }
        "Slice" => {
            let data = call.integers(0).filter(|_| call.shape(0).is_some_and(|shape| shape.len() == 1))?;
            let (start, step) = operators::slice_start(call, data.len() as u64)?;
            (0..elements as i64)
                .map(|at| data.get(usize::try_from(start.checked_add(at.checked_mul(step)?)?).ok()?).copied())
                .collect()
        }
        "ConstantOfShape" => {
            let value = match node.attribute("value") {
                Some(attribute) => *attribute.tensor.as_ref()?.integers.as_ref()?.first()?,
                None => return None,
            };
            Some(vec![value; elements])
        }
        "Expand" => Some(vec![*call.integers(0).filter(|list| list.len() == 1)?.first()?; elements]),
        "Range" => {
            let [start, step] =
                [0, 2].map(|input| call.integers(input).and_then(|list| list.first().copied()));
            let (start, step) = (start?, step?);
            (0..elements as i64).map(|at| start.checked_add(at.checked_mul(step)?)).collect()
        }
        "Where" => {
            (0..elements).map(|at| if spread(0, at)? != 0 { spread(1, at) } else { spread(2, at) }).collect()
        }
        "Add" => each(i64::checked_add),
        "Sub" => each(i64::checked_sub),
        "Mul" => each(i64::checked_mul),
        "Div" => each(i64::checked_div),
        "Mod" => each(i64::checked_rem_euclid),
        "Max" if call.count() == 2 => each(|one, other| Some(one.max(other))),
        "Min" if call.count() == 2 => each(|one, other| Some(one.min(other))),
        "Equal" => each(|one, other| Some(i64::from(one == other))),
        "Less" => each(|one, other| Some(i64::from(one < other))),
        "Greater" => each(|one, other| Some(i64::from(one > other))),
        "Neg" => (0..elements).map(|at| spread(0, at)?.checked_neg()).collect(),
        "Not" => (0..elements).map(|at| Some(i64::from(spread(0, at)? == 0))).collect(),
        "ReduceProd" if elements == 1 => {
            Some(vec![call.integers(0)?.iter().try_fold(1i64, |all, one| all.checked_mul(*one))?])
        }
        _ => None,
    }
}
