//! The bytes of a tensor, from the type that an ONNX model declares for it (`ValueInfoProto`).

use std::collections::{BTreeMap, BTreeSet};

use gapless_trace::Bytes;

use super::quoted;
use super::wire::Message;
use crate::error::Result;

/// The size of a tensor, or the reason why it is not known.
pub(super) type Size = std::result::Result<Bytes, String>;

/// The user's values for named dimensions, and the names in the model.
#[derive(Default)]
pub(super) struct Dims<'d> {
    pub(super) given: BTreeMap<&'d str, u64>,
    pub(super) seen: BTreeSet<&'d str>,
}

/// The name of a `ValueInfoProto` and the size of its tensor.
pub(super) fn value_info<'f: 'd, 'd>(mut info: Message<'f>, dims: &mut Dims<'d>) -> Result<(&'f str, Size)> {
    let mut name = "";
    let mut size = Err("no type".to_owned());
    while let Some(field) = info.next()? {
        match field.number {
            1 => name = field.text()?,
            2 => size = type_size(field.message()?, dims)?,
            _ => {}
        }
    }
    Ok((name, size))
}

fn type_size<'f: 'd, 'd>(mut of_value: Message<'f>, dims: &mut Dims<'d>) -> Result<Size> {
    let mut size = Err("no type".to_owned());
    while let Some(field) = of_value.next()? {
        match field.number {
            1 => size = tensor_size(field.message()?, dims)?,
            4 => size = Err("a sequence, not a tensor".to_owned()),
            5 => size = Err("a map, not a tensor".to_owned()),
            7 => size = Err("an opaque value, not a tensor".to_owned()),
            8 => size = Err("a sparse tensor".to_owned()),
            9 => size = Err("an optional value, not a tensor".to_owned()),
            _ => {}
        }
    }
    Ok(size)
}

fn tensor_size<'f: 'd, 'd>(mut tensor: Message<'f>, dims: &mut Dims<'d>) -> Result<Size> {
    let mut element = 0;
    let mut elements = Err("no shape".to_owned());
    while let Some(field) = tensor.next()? {
        match field.number {
            1 => element = field.number()?,
            2 => elements = shape(field.message()?, dims)?,
            _ => {}
        }
    }
    Ok(elements.and_then(|elements| {
        let bits = u128::from(element_bits(element)?);
        let bytes = elements.checked_mul(bits).map(|bits| bits.div_ceil(8));
        let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok()).map(Bytes);
        bytes.filter(|bytes| *bytes <= Bytes::LIMIT).ok_or_else(|| "more than 2^60 bytes".to_owned())
    }))
}

/// The number of elements: the product of the dimensions, 1 if there is none.
fn shape<'f: 'd, 'd>(
    mut shape: Message<'f>,
    dims: &mut Dims<'d>,
) -> Result<std::result::Result<u128, String>> {
    let mut elements = Ok(1u128);
    let mut position = 0usize;
    while let Some(field) = shape.next()? {
        if field.number != 1 {
            continue;
        }
        let dim = dimension(field.message()?, position, dims)?;
        position += 1;
        elements = match (elements, dim) {
            // A zero makes the tensor empty, however large the others are; so the product saturates.
            (Ok(product), Ok(dim)) => Ok(product.saturating_mul(u128::from(dim))),
            (Err(why), _) | (_, Err(why)) => Err(why),
        };
    }
    Ok(elements)
}

fn dimension<'f: 'd, 'd>(
    mut dim: Message<'f>,
    position: usize,
    dims: &mut Dims<'d>,
) -> Result<std::result::Result<u64, String>> {
    let mut value = Err(format!("dimension {position} has neither value nor name"));
    while let Some(field) = dim.next()? {
        match field.number {
            1 => {
                // Signed; some exporters write -1 for what they don't know.
                let number = field.number()?.cast_signed();
                value = u64::try_from(number).map_err(|_| format!("dimension {position} is {number}"));
            }
            2 => {
                let name = field.text()?;
                if !name.is_empty() {
                    dims.seen.insert(name);
                    let given = dims.given.get(name).copied();
                    value = given.ok_or_else(|| format!("dimension {} has no value", quoted(name)));
                }
            }
            _ => {}
        }
    }
    Ok(value)
}

/// The width of an element of `TensorProto.DataType`. Types of less than a byte are packed, the last byte filled up.
fn element_bits(element: u64) -> std::result::Result<u64, String> {
    Ok(match element {
        // complex128
        15 => 128,
        // int64, double, uint64, complex64
        7 | 11 | 13 | 14 => 64,
        // float, int32, uint32
        1 | 6 | 12 => 32,
        // uint16, int16, float16, bfloat16
        4 | 5 | 10 | 16 => 16,
        // uint8, int8, bool, float8 e4m3fn, e4m3fnuz, e5m2, e5m2fnuz, e8m0
        2 | 3 | 9 | 17..=20 | 24 => 8,
        // uint4, int4, float4 e2m1
        21..=23 => 4,
        // float6 e2m3, e3m2: four in three bytes
        27 | 28 => 6,
        // uint2, int2
        25 | 26 => 2,
        8 => return Err("strings, which have no fixed size".to_owned()),
        0 => return Err("no element type".to_owned()),
        other => return Err(format!("element type {other} is not known")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_type_has_its_width() {
        let widths: Vec<Option<u64>> = (0..=28).map(|element| element_bits(element).ok()).collect();
        let expected = [
            0, 32, 8, 8, 16, 16, 32, 64, 0, 8, 16, 64, 32, 64, 64, 128, 16, 8, 8, 8, 8, 4, 4, 4, 8, 2, 2, 6,
            6,
        ];
        assert_eq!(widths, expected.map(|bits| Some(bits).filter(|bits| *bits > 0)));
    }
}
