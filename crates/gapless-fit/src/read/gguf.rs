//! GGUF files as models see them: the metadata, and tensors with our words for their types.

use super::error::Fault;
use crate::model::{Dtype, Weight};
pub(crate) use gapless_formats::gguf::Meta;
use std::collections::HashMap;
use std::io::{Read, Seek};

/// The metadata and tensors of a file.
#[derive(Debug)]
pub(crate) struct Gguf {
    pub(crate) meta: HashMap<String, Meta>,
    pub(crate) weights: Vec<Weight>,
    /// The quantised types, and the bytes in each.
    pub(crate) types: Vec<(&'static str, u64)>,
}

/// The header of one file.
pub(crate) fn read<R: Read + Seek>(file: R) -> Result<Gguf, Fault> {
    let read = gapless_formats::gguf::read(file)?;
    let weight = |tensor: gapless_formats::gguf::Tensor| Weight {
        dtype: dtype(tensor.kind.name),
        name: tensor.name,
        shape: tensor.shape,
        bytes: tensor.bytes,
    };
    Ok(Gguf { meta: read.meta, weights: read.tensors.into_iter().map(weight).collect(), types: read.types })
}

/// Our word for a type that is not a block format.
fn dtype(kind: &str) -> Option<Dtype> {
    Some(match kind {
        "F64" => Dtype::F64,
        "F32" => Dtype::F32,
        "F16" => Dtype::F16,
        "BF16" => Dtype::Bf16,
        "I64" => Dtype::I64,
        "I32" => Dtype::I32,
        "I16" => Dtype::I16,
        "I8" => Dtype::I8,
        _ => return None,
    })
}
