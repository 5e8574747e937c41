//! The types of ggml's tensors: elements and bytes of one block.

use crate::model::Dtype;

/// One type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) name: &'static str,
    /// Elements of a block; rows are whole numbers of blocks.
    pub(crate) elements: u64,
    pub(crate) bytes: u64,
    /// Where it is not a block format.
    pub(crate) dtype: Option<Dtype>,
}

/// The type of a number in the file; some were withdrawn and have no meaning any more.
pub(crate) fn of(number: u32) -> Option<Type> {
    let (name, elements, bytes, dtype) = match number {
        0 => ("F32", 1, 4, Some(Dtype::F32)),
        1 => ("F16", 1, 2, Some(Dtype::F16)),
        2 => ("Q4_0", 32, 18, None),
        3 => ("Q4_1", 32, 20, None),
        6 => ("Q5_0", 32, 22, None),
        7 => ("Q5_1", 32, 24, None),
        8 => ("Q8_0", 32, 34, None),
        9 => ("Q8_1", 32, 36, None),
        10 => ("Q2_K", 256, 84, None),
        11 => ("Q3_K", 256, 110, None),
        12 => ("Q4_K", 256, 144, None),
        13 => ("Q5_K", 256, 176, None),
        14 => ("Q6_K", 256, 210, None),
        15 => ("Q8_K", 256, 292, None),
        16 => ("IQ2_XXS", 256, 66, None),
        17 => ("IQ2_XS", 256, 74, None),
        18 => ("IQ3_XXS", 256, 98, None),
        19 => ("IQ1_S", 256, 50, None),
        20 => ("IQ4_NL", 32, 18, None),
        21 => ("IQ3_S", 256, 110, None),
        22 => ("IQ2_S", 256, 82, None),
        23 => ("IQ4_XS", 256, 136, None),
        24 => ("I8", 1, 1, Some(Dtype::I8)),
        25 => ("I16", 1, 2, Some(Dtype::I16)),
        26 => ("I32", 1, 4, Some(Dtype::I32)),
        27 => ("I64", 1, 8, Some(Dtype::I64)),
        28 => ("F64", 1, 8, Some(Dtype::F64)),
        29 => ("IQ1_M", 256, 56, None),
        30 => ("BF16", 1, 2, Some(Dtype::Bf16)),
        34 => ("TQ1_0", 256, 54, None),
        35 => ("TQ2_0", 256, 66, None),
        39 => ("MXFP4", 32, 17, None),
        40 => ("NVFP4", 64, 36, None),
        41 => ("Q1_0", 128, 18, None),
        _ => return None,
    };
    Some(Type { name, elements, bytes, dtype })
}
