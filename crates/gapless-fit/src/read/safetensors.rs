//! Headers of `.safetensors` files as models see them: tensors with our words for their types.

use super::error::Fault;
use crate::model::{Dtype, Weight};
use std::io::{Read, Seek};

/// The tensors of one file, in the order of their data.
pub(crate) fn read<R: Read + Seek>(file: R) -> Result<Vec<Weight>, Fault> {
    let header = gapless_formats::safetensors::read(file)?;
    let weight = |tensor: gapless_formats::safetensors::Tensor| Weight {
        bytes: tensor.bytes(),
        dtype: dtype(&tensor.dtype),
        name: tensor.name,
        shape: tensor.shape,
    };
    Ok(header.tensors.into_iter().map(weight).collect())
}

/// Our word for a type, if there is one.
fn dtype(dtype: &str) -> Option<Dtype> {
    Some(match dtype {
        "F64" => Dtype::F64,
        "F32" => Dtype::F32,
        "F16" => Dtype::F16,
        "BF16" => Dtype::Bf16,
        "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => Dtype::F8,
        "I64" => Dtype::I64,
        "I32" => Dtype::I32,
        "I16" => Dtype::I16,
        "I8" => Dtype::I8,
        "U8" => Dtype::U8,
        "BOOL" => Dtype::Bool,
        _ => return None,
    })
}
