//! ONNX: the tensors of a model's graphs, in place. Field numbers are those of onnx.proto.

use super::{Listed, Place, elements};
use crate::input::Input;
use gapless_formats::fault::{Fault, Problem, malformed};
use gapless_formats::protobuf::{Wire, field, integers, message, skip, text, varint};
use gapless_formats::source::Source;
use std::ops::Range;

const MOST: usize = 1_000_000;
const SIDES: usize = 64;

/// The type of an open message.
#[derive(Clone, Copy)]
enum Part {
    Model,
    Function,
    Graph,
    Node,
    Attribute,
    Sparse,
}

pub(super) fn read(input: &Input) -> Result<(Vec<Listed>, Vec<String>), Fault> {
    let mut source = Source::new(input.file())?;
    let end = source.size();
    // Open messages, the innermost last. A list in place of recursion, so that a file cannot overflow the stack.
    let mut open = vec![(Part::Model, end)];
    let (mut tensors, mut notes, mut outside) = (Vec::new(), Vec::new(), 0);
    while let Some((part, end)) = open.last().copied() {
        let Some((number, wire)) = field(&mut source, end)? else {
            open.pop();
            continue;
        };
        let inner = match (part, number, wire) {
            (Part::Model, 7, Wire::Length) | (Part::Attribute, 6 | 11, Wire::Length) => Some(Part::Graph),
            (Part::Model, 25, Wire::Length) => Some(Part::Function),
            (Part::Graph, 1, Wire::Length) | (Part::Function, 7, Wire::Length) => Some(Part::Node),
            (Part::Graph, 15, Wire::Length) | (Part::Attribute, 22 | 23, Wire::Length) => Some(Part::Sparse),
            (Part::Node, 5, Wire::Length) => Some(Part::Attribute),
            _ => None,
        };
        let is_tensor = matches!(
            (part, number, wire),
            (Part::Graph | Part::Attribute, 5, Wire::Length)
                | (Part::Attribute, 10, Wire::Length)
                | (Part::Sparse, 1 | 2, Wire::Length)
        );
        if let Some(inner) = inner {
            if open.len() > 64 {
                return malformed(source.at(), "graphs are nested deeper than 16 levels");
            }
            let end = message(&mut source, end)?;
            open.push((inner, end));
        } else if is_tensor {
            if tensors.len() + notes.len() >= MOST {
                let what = format!("more than {MOST} tensors");
                return Err(Box::new(Problem::TooLarge { offset: source.at(), what, limit: MOST as u64 }));
            }
            let end = message(&mut source, end)?;
            let unnamed = format!("constant {}", tensors.len());
            match tensor(&mut source, end, unnamed)? {
                Ok(tensor) => {
                    outside += usize::from(matches!(tensor.place, Place::Elsewhere(_)));
                    tensors.push(tensor);
                }
                Err(note) => notes.push(note),
            }
        } else {
            skip(&mut source, end, wire)?;
        }
    }
    if outside > 0 {
        notes.push(format!(
            "{outside} tensors are in external files or lists of numbers: they were not sampled"
        ));
    }
    Ok((tensors, notes))
}

/// One tensor, or a note why it is not listed.
fn tensor<R: std::io::Read + std::io::Seek>(
    source: &mut Source<R>,
    end: u64,
    unnamed: String,
) -> Result<Result<Listed, String>, Fault> {
    let at = source.at();
    let (mut name, mut shape, mut kind) = (unnamed, Vec::new(), 0);
    let mut data: Option<Range<u64>> = None;
    while let Some((number, wire)) = field(source, end)? {
        match (number, wire) {
            (1, Wire::Varint | Wire::Length) => integers(source, end, wire, SIDES, &mut shape)?,
            (2, Wire::Varint) => kind = varint(source, end)?,
            (8, Wire::Length) => {
                let given = text(source, end, "a tensor's name")?;
                if !given.is_empty() {
                    name = given;
                }
            }
            // Raw bytes, or packed fractions of 4 or 8 bytes, which are the same.
            (9 | 4 | 10, Wire::Length) => {
                let stop = message(source, end)?;
                data = Some(source.at()..stop);
                source.skip(stop - source.at(), "a tensor's data")?;
            }
            _ => skip(source, end, wire)?,
        }
    }
    let Some((dtype, bits)) = dtype(kind) else {
        return Ok(Err(format!("{name}: the type {kind} of ONNX is not known, so it is not listed")));
    };
    let sizes: Option<Vec<u64>> = shape.iter().map(|size| u64::try_from(*size).ok()).collect();
    let bytes = sizes.as_deref().and_then(elements).and_then(|count| count.checked_mul(bits));
    let (Some(shape), Some(bits)) = (sizes, bytes) else {
        return malformed(at, format!("tensor \"{name}\" has a size that cannot be counted"));
    };
    let bytes = bits.div_ceil(8);
    let place = match data {
        Some(range) if range.end - range.start == bytes => Place::Range(range),
        _ => Place::Elsewhere("in an external file, or as a list of numbers"),
    };
    Ok(Ok(Listed { name, dtype: dtype.to_owned(), shape, bytes, file: 0, place }))
}

/// The word for a number of `TensorProto.DataType`, and its bits.
fn dtype(kind: u64) -> Option<(&'static str, u64)> {
    Some(match kind {
        1 => ("F32", 32),
        2 => ("U8", 8),
        3 => ("I8", 8),
        4 => ("U16", 16),
        5 => ("I16", 16),
        6 => ("I32", 32),
        7 => ("I64", 64),
        8 => ("STRING", 0),
        9 => ("BOOL", 8),
        10 => ("F16", 16),
        11 => ("F64", 64),
        12 => ("U32", 32),
        13 => ("U64", 64),
        14 => ("C64", 64),
        15 => ("C128", 128),
        16 => ("BF16", 16),
        17 => ("F8_E4M3", 8),
        18 => ("F8_E4M3FNUZ", 8),
        19 => ("F8_E5M2", 8),
        20 => ("F8_E5M2FNUZ", 8),
        21 => ("U4", 4),
        22 => ("I4", 4),
        23 => ("F4", 4),
        24 => ("F8_E8M0", 8),
        25 => ("U2", 2),
        26 => ("I2", 2),
        27 => ("F6_E2M3", 6),
        28 => ("F6_E3M2", 6),
        _ => return None,
    })
}
