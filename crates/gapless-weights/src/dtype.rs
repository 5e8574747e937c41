//! The codec for each type of a safetensors file.

use crate::codec::Kind;

/// The split of a type's values.
pub fn kind_of(dtype: &str) -> Kind {
    match dtype {
        "BF16" => Kind::Bf16,
        "F16" => Kind::Fp16,
        "F32" => Kind::Fp32,
        "I16" | "U16" => Kind::Two,
        "I32" | "U32" => Kind::Four,
        "F64" | "I64" | "U64" | "C64" => Kind::Eight,
        // Bytes, types of 8 bits, and those that pack several values into a byte.
        _ => Kind::One,
    }
}
