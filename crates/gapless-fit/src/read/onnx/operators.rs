//! Shape rules of ONNX operators, each after the operator's specification.

use super::call::{Call, Output, sizes};
use super::proto::Node;
use super::windows::{convolution, pool, transposed};
use crate::model::Dtype;

/// Operators whose output has the shape and the dtype of their first input.
const AS_INPUT: &str = "Relu Gelu Sigmoid Tanh Erf Exp Log Sqrt Reciprocal Neg Abs Softmax LogSoftmax Identity Clip LeakyRelu \
    Elu HardSigmoid HardSwish Mish Softplus Softsign Sin Cos Floor Ceil Round Sign InstanceNormalization \
    GroupNormalization RMSNormalization LpNormalization LRN CumSum Trilu PRelu Selu Celu ThresholdedRelu \
    Hardmax Not ScatterND ScatterElements FastGelu BiasGelu QuickGelu Swish RotaryEmbedding \
    SimplifiedLayerNormalization";

/// Shape and dtype of every output of a call.
pub(crate) fn outputs(call: &Call<'_>) -> Vec<Output> {
    if let Some(many) = several(call) {
        return many;
    }
    let one = |shape: Option<Vec<u64>>, dtype: Option<Dtype>| vec![shape.zip(dtype)];
    let same = || call.shape(0).map(<[u64]>::to_vec);
    let dtype = call.dtype(0);
    match call.node.op.as_str() {
        "Constant" => vec![constant(call.node)],
        "Cast" => one(same(), call.node.int("to").and_then(super::dtype)),
        "CastLike" => one(same(), call.dtype(1)),
        "QuantizeLinear" => one(same(), call.dtype(2).or(Some(Dtype::U8))),
        "DequantizeLinear" => one(same(), call.dtype(1)),
        "IsNaN" | "IsInf" => one(same(), Some(Dtype::Bool)),
        "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "And" | "Or" | "Xor" => {
            one(broadcast_all(call, 0), Some(Dtype::Bool))
        }
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Mod" | "Max" | "Min" | "Sum" | "Mean" | "BitShift" => {
            one(broadcast_all(call, 0), dtype)
        }
        "Where" => one(broadcast_all(call, 0), call.dtype(1)),
        "MatMul" => one(matmul(call.shape(0), call.shape(1)), dtype),
        "MatMulInteger" => one(matmul(call.shape(0), call.shape(1)), Some(Dtype::I32)),
        "Gemm" => one(gemm(call), dtype),
        "Conv" => one(convolution(call), dtype),
        "ConvTranspose" => one(transposed(call), dtype),
        "AveragePool" | "LpPool" => one(pool(call), dtype),
        "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" => one(global(call), dtype),
        "Flatten" => one(flatten(call), dtype),
        "Reshape" => one(reshape(call), dtype),
        "Transpose" => one(transpose(call), dtype),
        "Squeeze" => one(squeeze(call), dtype),
        "Unsqueeze" => one(unsqueeze(call), dtype),
        "Concat" => one(concat(call), dtype),
        "Slice" => one(slice(call), dtype),
        "Gather" => one(gather(call), dtype),
        "GatherElements" => one(call.shape(1).map(<[u64]>::to_vec), dtype),
        "GatherND" => one(gather_nd(call), dtype),
        "Expand" => one(expand(call), dtype),
        "Tile" => one(tile(call), dtype),
        "Shape" => {
            let length = call.shape(0).map(|shape| {
                let (from, to) = shape_range(call.node, shape.len());
                vec![to.saturating_sub(from) as u64]
            });
            one(length, Some(Dtype::I64))
        }
        "Size" => one(Some(Vec::new()), Some(Dtype::I64)),
        "ConstantOfShape" => {
            let tensor = call.node.attribute("value").and_then(|attribute| attribute.tensor.as_ref());
            one(sizes(call.integers(0)), tensor.map_or(Some(Dtype::F32), |tensor| super::dtype(tensor.kind)))
        }
        "Range" => one(range(call), dtype),
        "ArgMax" | "ArgMin" => one(arg(call), Some(Dtype::I64)),
        "Pad" => one(pad(call), dtype),
        "Resize" => one(sizes(call.integers(3)), dtype),
        "OneHot" => one(one_hot(call), call.dtype(2)),
        "DepthToSpace" | "SpaceToDepth" => one(blocks(call), dtype),
        name if AS_INPUT.split(' ').any(|known| known == name) => one(same(), dtype),
        name if name.starts_with("Reduce") => one(reduce(call), dtype),
        _ => Vec::new(),
    }
}

/// Operators of more than one output.
fn several(call: &Call<'_>) -> Option<Vec<Output>> {
    let shape = call.shape(0).map(<[u64]>::to_vec);
    let dtype = call.dtype(0);
    Some(match call.node.op.as_str() {
        "LayerNormalization" => {
            let axis =
                shape.as_ref().and_then(|shape| axis(call.node.int("axis").unwrap_or(-1), shape.len()));
            let kept = shape.as_ref().zip(axis).map(|(shape, axis)| {
                shape
                    .iter()
                    .enumerate()
                    .map(|(at, side)| if at < axis { *side } else { 1 })
                    .collect::<Vec<u64>>()
            });
            let figures = kept.zip(Some(Dtype::F32));
            vec![shape.zip(dtype), figures.clone(), figures]
        }
        "BatchNormalization" => {
            let channels =
                shape.as_ref().and_then(|shape| shape.get(1)).map(|channels| vec![*channels]).zip(dtype);
            vec![shape.zip(dtype), channels.clone(), channels]
        }
        "Dropout" => vec![shape.clone().zip(dtype), shape.zip(Some(Dtype::Bool))],
        "MaxPool" => {
            let pooled = pool(call);
            vec![pooled.clone().zip(dtype), pooled.zip(Some(Dtype::I64))]
        }
        "TopK" => {
            let top = || -> Option<Vec<u64>> {
                let mut top = shape.clone()?;
                let axis = axis(call.node.int("axis").unwrap_or(-1), top.len())?;
                top[axis] = u64::try_from(*call.integers(1)?.first()?).ok()?;
                Some(top)
            };
            vec![top().zip(dtype), top().zip(Some(Dtype::I64))]
        }
        "Split" => split(call)
            .map_or_else(Vec::new, |parts| parts.into_iter().map(|part| Some(part).zip(dtype)).collect()),
        _ => return None,
    })
}

/// An axis that may count from the end.
fn axis(axis: i64, sides: usize) -> Option<usize> {
    let at = if axis < 0 { axis.checked_add(sides as i64)? } else { axis };
    usize::try_from(at).ok().filter(|at| *at < sides)
}

fn product(sides: &[u64]) -> Option<u64> {
    sides.iter().try_fold(1u64, |all, side| all.checked_mul(*side))
}

fn constant(node: &Node) -> Output {
    if let Some(tensor) = node.attribute("value").and_then(|attribute| attribute.tensor.as_ref()) {
        return Some((tensor.shape.clone(), super::dtype(tensor.kind)?));
    }
    if node.attribute("value_int").is_some() {
        return Some((Vec::new(), Dtype::I64));
    }
    if let Some(list) = node.ints("value_ints") {
        return Some((vec![list.len() as u64], Dtype::I64));
    }
    if node.attribute("value_float").is_some() {
        return Some((Vec::new(), Dtype::F32));
    }
    node.attribute("value_floats").and_then(|attribute| Some((vec![attribute.floats?], Dtype::F32)))
}

fn broadcast(one: &[u64], other: &[u64]) -> Option<Vec<u64>> {
    let sides = one.len().max(other.len());
    let side = |shape: &[u64], at: usize| (at + shape.len()).checked_sub(sides).map_or(1, |at| shape[at]);
    (0..sides)
        .map(|at| match (side(one, at), side(other, at)) {
            (one, other) if one == other || other == 1 => Some(one),
            (1, other) => Some(other),
            _ => None,
        })
        .collect()
}

fn broadcast_all(call: &Call<'_>, from: usize) -> Option<Vec<u64>> {
    let mut shape = call.shape(from)?.to_vec();
    for input in from + 1..call.count() {
        shape = broadcast(&shape, call.shape(input)?)?;
    }
    Some(shape)
}

fn matmul(one: Option<&[u64]>, other: Option<&[u64]>) -> Option<Vec<u64>> {
    let (one, other) = (one?, other?);
    let left = if one.len() == 1 { vec![1, one[0]] } else { one.to_vec() };
    let right = if other.len() == 1 { vec![other[0], 1] } else { other.to_vec() };
    let (rows, inner) = left.split_at(left.len().checked_sub(2)?).1.split_first()?;
    let (outer, columns) = right.split_at(right.len().checked_sub(2)?).1.split_first()?;
    if inner.first() != Some(outer) {
        return None;
    }
    let mut shape = broadcast(&left[..left.len() - 2], &right[..right.len() - 2])?;
    if one.len() > 1 {
        shape.push(*rows);
    }
    if other.len() > 1 {
        shape.push(*columns.first()?);
    }
    Some(shape)
}

fn gemm(call: &Call<'_>) -> Option<Vec<u64>> {
    let [rows, inner] = <[u64; 2]>::try_from(call.shape(0)?).ok()?;
    let [outer, columns] = <[u64; 2]>::try_from(call.shape(1)?).ok()?;
    let flipped = |name| call.node.int(name).unwrap_or(0) != 0;
    let rows = if flipped("transA") { inner } else { rows };
    Some(vec![rows, if flipped("transB") { outer } else { columns }])
}

fn global(call: &Call<'_>) -> Option<Vec<u64>> {
    let input = call.shape(0).filter(|input| input.len() >= 2)?;
    Some(input.iter().enumerate().map(|(at, side)| if at < 2 { *side } else { 1 }).collect())
}

fn flatten(call: &Call<'_>) -> Option<Vec<u64>> {
    let input = call.shape(0)?;
    let at = call.node.int("axis").unwrap_or(1);
    let at = usize::try_from(if at < 0 { at.checked_add(input.len() as i64)? } else { at }).ok()?;
    Some(vec![product(input.get(..at)?)?, product(&input[at..])?])
}

fn reshape(call: &Call<'_>) -> Option<Vec<u64>> {
    let input = call.shape(0)?;
    let target = call.numbers("shape", 1)?;
    let keeps_zero = call.node.int("allowzero").unwrap_or(0) != 0;
    let mut shape = Vec::new();
    let mut open = None;
    for (at, side) in target.iter().enumerate() {
        match side {
            -1 if open.is_none() => {
                open = Some(at);
                shape.push(1);
            }
            0 if !keeps_zero => shape.push(*input.get(at)?),
            side => shape.push(u64::try_from(*side).ok()?),
        }
    }
    let (have, want) = (product(input)?, product(&shape)?);
    match open {
        Some(at) if want > 0 && have % want == 0 => shape[at] = have / want,
        None if have == want => {}
        _ => return None,
    }
    Some(shape)
}

fn transpose(call: &Call<'_>) -> Option<Vec<u64>> {
    let input = call.shape(0)?;
    match call.node.ints("perm") {
        None => Some(input.iter().rev().copied().collect()),
        Some(order) if order.len() == input.len() => {
            order.iter().map(|at| input.get(usize::try_from(*at).ok()?).copied()).collect()
        }
        Some(_) => None,
    }
}

fn axes(numbers: &[i64], sides: usize) -> Option<Vec<usize>> {
    numbers.iter().map(|at| axis(*at, sides)).collect()
}

fn squeeze(call: &Call<'_>) -> Option<Vec<u64>> {
    let input = call.shape(0)?;
    let gone = match call.numbers("axes", 1) {
        Some(list) => axes(list, input.len())?,
        None if call.given(1) => return None,
        None => (0..input.len()).filter(|at| input[*at] == 1).collect(),
    };
    Some(input.iter().enumerate().filter(|(at, _)| !gone.contains(at)).map(|(_, side)| *side).collect())
}

fn unsqueeze(call: &Call<'_>) -> Option<Vec<u64>> {
    let input = call.shape(0)?;
    let list = call.numbers("axes", 1)?;
    let sides = input.len() + list.len();
    let new = axes(list, sides)?;
    let mut old = input.iter().copied();
    (0..sides).map(|at| if new.contains(&at) { Some(1) } else { old.next() }).collect()
}

fn concat(call: &Call<'_>) -> Option<Vec<u64>> {
    let mut shape = call.shape(0)?.to_vec();
    let at = axis(call.node.int("axis")?, shape.len())?;
    for input in 1..call.count() {
        let other = call.shape(input).filter(|other| other.len() == shape.len())?;
        shape[at] = shape[at].checked_add(other[at])?;
    }
    Some(shape)
}

fn split(call: &Call<'_>) -> Option<Vec<Vec<u64>>> {
    let input = call.shape(0)?;
    let at = axis(call.node.int("axis").unwrap_or(0), input.len())?;
    let parts = match call.numbers("split", 1) {
        Some(list) => sizes(Some(list))?,
        None if call.given(1) => return None,
        None => {
            let count = call.node.outputs.len() as u64;
            let each = input[at].div_ceil(count.max(1));
            // The last part takes the rest.
            (0..count).map(|part| input[at].saturating_sub(part.saturating_mul(each)).min(each)).collect()
        }
    };
    let shapes = parts.into_iter().map(|part| {
        let mut shape = input.to_vec();
        shape[at] = part;
        shape
    });
    Some(shapes.collect())
}

/// Begin, end and step of one axis, brought into `0..=side`.
fn bounds(begin: i64, end: i64, step: i64, side: u64) -> Option<(i64, u64)> {
    let side = i64::try_from(side).ok()?;
    let from_end = |at: i64| if at < 0 { at.saturating_add(side) } else { at };
    let (low, high) = if step > 0 { (0, side) } else { (-1, side - 1) };
    let begin = from_end(begin).clamp(low.max(0), high.max(0));
    let end = if step < 0 && end < -side { -1 } else { from_end(end).clamp(low, high) };
    let room = if step > 0 { end.checked_sub(begin)? } else { begin.checked_sub(end)? };
    let count = if room <= 0 { 0 } else { (room as u64).div_ceil(step.unsigned_abs()) };
    Some((begin, count))
}

fn slice(call: &Call<'_>) -> Option<Vec<u64>> {
    let mut shape = call.shape(0)?.to_vec();
    let (starts, ends) = (call.numbers("starts", 1)?, call.numbers("ends", 2)?);
    let listed = call.numbers("axes", 3);
    if (listed.is_none() && call.given(3)) || (call.given(4) && call.integers(4).is_none()) {
        return None;
    }
    for (at, start) in starts.iter().enumerate() {
        let axis = axis(listed.map_or(Some(at as i64), |list| list.get(at).copied())?, shape.len())?;
        let step =
            call.integers(4).map_or(Some(1), |list| list.get(at).copied()).filter(|step| *step != 0)?;
        shape[axis] = bounds(*start, *ends.get(at)?, step, shape[axis])?.1;
    }
    Some(shape)
}

/// First place of a slice of a list, and its step.
pub(super) fn slice_start(call: &Call<'_>, length: u64) -> Option<(i64, i64)> {
    let step = call.integers(4).map_or(Some(1), |list| list.first().copied()).filter(|step| *step != 0)?;
    let (start, end) = (*call.numbers("starts", 1)?.first()?, *call.numbers("ends", 2)?.first()?);
    Some((bounds(start, end, step, length)?.0, step))
}

fn gather(call: &Call<'_>) -> Option<Vec<u64>> {
    let (data, indices) = (call.shape(0)?, call.shape(1)?);
    let at = axis(call.node.int("axis").unwrap_or(0), data.len())?;
    Some([&data[..at], indices, &data[at + 1..]].concat())
}

fn gather_nd(call: &Call<'_>) -> Option<Vec<u64>> {
    let (data, indices) = (call.shape(0)?, call.shape(1)?);
    let batch = usize::try_from(call.node.int("batch_dims").unwrap_or(0)).ok()?;
    let (depth, outer) = indices.split_last()?;
    let from = batch.checked_add(usize::try_from(*depth).ok()?)?;
    Some([outer, data.get(from..)?].concat())
}

fn expand(call: &Call<'_>) -> Option<Vec<u64>> {
    broadcast(call.shape(0)?, &sizes(call.integers(1))?)
}

fn tile(call: &Call<'_>) -> Option<Vec<u64>> {
    let (input, repeats) = (call.shape(0)?, sizes(call.integers(1))?);
    if input.len() != repeats.len() {
        return None;
    }
    input.iter().zip(repeats).map(|(side, repeat)| side.checked_mul(repeat)).collect()
}

/// The part of a shape that `Shape` gives.
pub(super) fn shape_range(node: &Node, sides: usize) -> (usize, usize) {
    let bound = |name: &str, default: i64| {
        let at = node.int(name).unwrap_or(default);
        (if at < 0 { at.saturating_add(sides as i64) } else { at }).clamp(0, sides as i64) as usize
    };
    let (from, to) = (bound("start", 0), bound("end", sides as i64));
    (from, to.max(from))
}

fn range(call: &Call<'_>) -> Option<Vec<u64>> {
    let [start, limit, step] =
        [0, 1, 2].map(|input| call.integers(input).and_then(|list| list.first().copied()));
    let (room, step) = (limit?.checked_sub(start?)?, step.filter(|step| *step != 0)?);
    if (room < 0) != (step < 0) {
        return Some(vec![0]);
    }
    Some(vec![room.unsigned_abs().div_ceil(step.unsigned_abs())])
}

fn reduced(input: &[u64], gone: &[usize], keep: bool) -> Vec<u64> {
    let sides = input.iter().enumerate();
    if keep {
        sides.map(|(at, side)| if gone.contains(&at) { 1 } else { *side }).collect()
    } else {
        sides.filter(|(at, _)| !gone.contains(at)).map(|(_, side)| *side).collect()
    }
}

fn reduce(call: &Call<'_>) -> Option<Vec<u64>> {
    let input = call.shape(0)?;
    let keep = call.node.int("keepdims").unwrap_or(1) != 0;
    let gone = match call.numbers("axes", 1) {
        Some(list) if !list.is_empty() => axes(list, input.len())?,
        None if call.given(1) => return None,
        _ if call.node.int("noop_with_empty_axes").unwrap_or(0) != 0 => Vec::new(),
        _ => (0..input.len()).collect(),
    };
    Some(reduced(input, &gone, keep))
}

fn arg(call: &Call<'_>) -> Option<Vec<u64>> {
    let input = call.shape(0)?;
    let at = axis(call.node.int("axis").unwrap_or(0), input.len())?;
    Some(reduced(input, &[at], call.node.int("keepdims").unwrap_or(1) != 0))
}

fn pad(call: &Call<'_>) -> Option<Vec<u64>> {
    let input = call.shape(0)?;
    let pads = call.numbers("pads", 1)?;
    let which = match call.integers(3) {
        Some(list) => axes(list, input.len())?,
        None if call.given(3) => return None,
        None => (0..input.len()).collect(),
    };
    let mut shape = input.to_vec();
    for (number, at) in which.iter().enumerate() {
        let both = pads.get(number)?.checked_add(*pads.get(number + which.len())?)?;
        shape[*at] = shape[*at].checked_add_signed(both)?;
    }
    Some(shape)
}

fn one_hot(call: &Call<'_>) -> Option<Vec<u64>> {
    let mut shape = call.shape(0)?.to_vec();
    let depth = u64::try_from(*call.integers(1)?.first()?).ok()?;
    let at = axis(call.node.int("axis").unwrap_or(-1), shape.len() + 1)?;
    shape.insert(at, depth);
    Some(shape)
}

fn blocks(call: &Call<'_>) -> Option<Vec<u64>> {
    let [batch, channels, height, width] = <[u64; 4]>::try_from(call.shape(0)?).ok()?;
    let block =
        u64::try_from(call.node.int("blocksize")?).ok().filter(|block| *block > 0 && *block < 1 << 16)?;
    Some(if call.node.op == "DepthToSpace" {
        vec![batch, channels / (block * block), height.checked_mul(block)?, width.checked_mul(block)?]
    } else {
        vec![batch, channels.checked_mul(block * block)?, height / block, width / block]
    })
}
