//! PyTorch's zip archives: `data.pkl` describes the tensors, and `data/KEY` are their storages.

use super::pickle::{Id, Pickle, Value};
use super::{Listed, Place, elements};
use gapless_formats::fault::{Fault, Problem, malformed};
use gapless_formats::zip::{Member, Zip};
use std::collections::HashMap;
use std::io::{Read, Seek};

/// The longest pickle that is read.
const LONGEST: u64 = 256 << 20;
/// The most values that are visited, because a pickle may hold one value in many places.
const VISITS: usize = 5_000_000;
const DEPTH: usize = 64;

pub(super) fn read<R: Read + Seek>(zip: &mut Zip<R>) -> Result<(Vec<Listed>, Vec<String>), Fault> {
    let Some(pickled) = zip.members.iter().find(|member| member.name.ends_with("data.pkl")).cloned() else {
        return malformed(0, "the archive has no data.pkl");
    };
    let folder = pickled.name.trim_end_matches("data.pkl").to_owned();
    let big_endian = format!("{folder}byteorder");
    let order = zip.members.iter().find(|member| member.name == big_endian).cloned();
    if let Some(order) = order
        && zip.read(&order, 16)? == b"big"
    {
        return Err(Box::new(Problem::Unsupported {
            what: "the archive was written on a big-endian machine".into(),
            help: "load it in torch and save it again".into(),
        }));
    }
    let pickle = Pickle::parse(&zip.read(&pickled, LONGEST)?)?;
    let storages: HashMap<String, Member> = zip
        .members
        .iter()
        .filter_map(|member| {
            Some((member.name.strip_prefix(&folder)?.strip_prefix("data/")?.to_owned(), member.clone()))
        })
        .collect();
    let mut tensors = Vec::new();
    let mut notes = Vec::new();
    // Values to visit, with their names and depths.
    let mut open = vec![(pickle.root, String::new(), 0)];
    let (mut visits, mut arrays) = (0, 0);
    while let Some((id, name, depth)) = open.pop() {
        visits += 1;
        if visits > VISITS {
            notes.push("the file refers to its values too often: the list is not complete".into());
            break;
        }
        if depth > DEPTH {
            continue;
        }
        if let Some(tensor) = tensor(&pickle, id) {
            let (listed, note) = placed(zip, &storages, &tensor, &name)?;
            notes.extend(note);
            tensors.extend(listed);
            continue;
        }
        let below = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
        match &pickle.values[id] {
            Value::Dict(entries) => {
                for (at, (key, value)) in entries.iter().enumerate().rev() {
                    let key = match &pickle.values[*key] {
                        Value::Text(text) => text.clone(),
                        Value::Int(number) => number.to_string(),
                        // Tuples, fractions, booleans: the entry's place is its name.
                        _ => format!("[{at}]"),
                    };
                    // Modules keep their tensors under these keys, which are no part of a name.
                    let inner = if ["_parameters", "_buffers", "_modules"].contains(&key.as_str()) {
                        name.clone()
                    } else {
                        below(&key)
                    };
                    open.push((*value, inner, depth + 1));
                }
            }
            Value::List(items) => {
                open.extend(
                    items.iter().enumerate().rev().map(|(k, item)| (*item, below(&k.to_string()), depth + 1)),
                );
            }
            Value::Call { callable, args, state } => {
                arrays += usize::from(is_array(&pickle, *callable));
                open.push((*args, name.clone(), depth + 1));
                open.extend(state.map(|state| (state, name.clone(), depth + 1)));
            }
            _ => {}
        }
    }
    if arrays > 0 {
        notes.push(format!("{arrays} arrays of NumPy's stand in the pickle itself and are not listed"));
    }
    Ok((tensors, notes))
}

/// True if a call makes an array of NumPy's.
fn is_array(pickle: &Pickle, callable: Id) -> bool {
    matches!(&pickle.values[callable], Value::Global(module, name)
        if module.starts_with("numpy") && matches!(name.as_str(), "_reconstruct" | "_frombuffer"))
}

/// A tensor as the pickle describes it.
struct Described<'a> {
    storage: &'a str,
    key: &'a str,
    offset: u64,
    shape: Vec<u64>,
    stride: Vec<i64>,
}

/// The tensor that a call would rebuild: `_rebuild_tensor_v2(storage, offset, shape, stride, ..)`, a quantised one, one
/// of another class, or a parameter of one.
fn tensor(pickle: &Pickle, id: Id) -> Option<Described<'_>> {
    let Value::Call { callable, args, .. } = &pickle.values[id] else { return None };
    let Value::Global(module, name) = &pickle.values[*callable] else { return None };
    let args = pickle.list(*args)?;
    if !module.starts_with("torch") {
        return None;
    }
    if matches!(name.as_str(), "_rebuild_from_type" | "_rebuild_from_type_v2") {
        // A tensor of another class, or with attributes: the function that makes it, the class, arguments, state.
        let Value::Global(module, name) = &pickle.values[*args.first()?] else { return None };
        return described(pickle, module, name, pickle.list(*args.get(2)?)?);
    }
    described(pickle, module, name, args)
}

/// The tensor that a function of torch's makes of these arguments.
fn described<'a>(pickle: &'a Pickle, module: &str, name: &str, args: &[Id]) -> Option<Described<'a>> {
    if !module.starts_with("torch") {
        return None;
    }
    if name.starts_with("_rebuild_parameter") {
        let inner = *args.first()?;
        // A parameter of a parameter does not exist, so one step suffices and nothing recurses.
        let Value::Call { callable, .. } = &pickle.values[inner] else { return None };
        let Value::Global(_, name) = &pickle.values[*callable] else { return None };
        return if name.starts_with("_rebuild_parameter") { None } else { tensor(pickle, inner) };
    }
    // All of them begin with the storage, the offset, the shape and the strides.
    if !matches!(name, "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3" | "_rebuild_qtensor") {
        return None;
    }
    let Value::Persistent(storage) = &pickle.values[*args.first()?] else { return None };
    // ("storage", class, key, location, elements)
    let storage = pickle.list(*storage)?;
    let Value::Global(_, class) = &pickle.values[*storage.get(1)?] else { return None };
    let sizes =
        |id: Id| -> Option<Vec<i64>> { pickle.list(id)?.iter().map(|size| pickle.int(*size)).collect() };
    // The third version has the type apart from the storage.
    let class = match args.get(6).map(|dtype| &pickle.values[*dtype]) {
        Some(Value::Global(_, dtype)) if name.ends_with("v3") => dtype,
        _ => class,
    };
    Some(Described {
        storage: class,
        key: pickle.text(*storage.get(2)?)?,
        offset: u64::try_from(pickle.int(*args.get(1)?)?).ok()?,
        shape: sizes(*args.get(2)?)?
            .into_iter()
            .map(|size| u64::try_from(size).ok())
            .collect::<Option<_>>()?,
        stride: sizes(*args.get(3)?)?,
    })
}

/// The tensor with its place in the file; a note if it cannot be listed.
fn placed<R: Read + Seek>(
    zip: &mut Zip<R>,
    storages: &HashMap<String, Member>,
    tensor: &Described<'_>,
    name: &str,
) -> Result<(Option<Listed>, Option<String>), Fault> {
    let Some((dtype, width)) = kind(tensor.storage) else {
        return Ok((None, Some(format!("{name}: the type {} is not listed", tensor.storage))));
    };
    let Some(bytes) = elements(&tensor.shape).and_then(|count| count.checked_mul(width)) else {
        return malformed(0, format!("tensor \"{name}\" has a size that cannot be counted"));
    };
    let Some(member) = storages.get(tensor.key) else {
        return malformed(
            0,
            format!("the storage \"{}\" of tensor \"{name}\" is not in the archive", tensor.key),
        );
    };
    let mut dense = 1i64;
    let is_dense = tensor.shape.iter().zip(&tensor.stride).rev().all(|(size, stride)| {
        let fits = *size == 1 || *stride == dense;
        dense = dense.saturating_mul(i64::try_from(*size).unwrap_or(i64::MAX));
        fits
    });
    let place = match zip.place(member)? {
        None => Place::Elsewhere("compressed in the archive"),
        Some(_) if !is_dense => Place::Elsewhere("a view with gaps or another order"),
        Some(range) => {
            let start = tensor.offset.checked_mul(width).and_then(|offset| range.start.checked_add(offset));
            let end = start.and_then(|start| start.checked_add(bytes)).filter(|end| *end <= range.end);
            match (start, end) {
                (Some(start), Some(end)) => Place::Range(start..end),
                _ => {
                    return malformed(
                        0,
                        format!("tensor \"{name}\" ends past its storage \"{}\"", tensor.key),
                    );
                }
            }
        }
    };
    let (name, dtype, shape) = (name.to_owned(), dtype.to_owned(), tensor.shape.clone());
    Ok((Some(Listed { name, dtype, shape, bytes, file: 0, place }), None))
}

/// The word for a class of storages or a type, and its bytes.
fn kind(class: &str) -> Option<(&'static str, u64)> {
    Some(match class {
        "DoubleStorage" | "float64" => ("F64", 8),
        "FloatStorage" | "float32" => ("F32", 4),
        "HalfStorage" | "float16" => ("F16", 2),
        "BFloat16Storage" | "bfloat16" => ("BF16", 2),
        "LongStorage" | "int64" => ("I64", 8),
        "IntStorage" | "int32" => ("I32", 4),
        "ShortStorage" | "int16" => ("I16", 2),
        "CharStorage" | "int8" | "QInt8Storage" => ("I8", 1),
        "ByteStorage" | "uint8" | "UntypedStorage" | "QUInt8Storage" => ("U8", 1),
        "BoolStorage" | "bool" => ("BOOL", 1),
        "ComplexFloatStorage" | "complex64" => ("C64", 8),
        "ComplexDoubleStorage" | "complex128" => ("C128", 16),
        "ComplexHalfStorage" | "complex32" => ("C32", 4),
        "QInt32Storage" => ("I32", 4),
        "uint16" => ("U16", 2),
        "uint32" => ("U32", 4),
        "uint64" => ("U64", 8),
        "float8_e4m3fn" => ("F8_E4M3", 1),
        "float8_e5m2" => ("F8_E5M2", 1),
        "float8_e4m3fnuz" => ("F8_E4M3FNUZ", 1),
        "float8_e5m2fnuz" => ("F8_E5M2FNUZ", 1),
        "float8_e8m0fnu" => ("F8_E8M0", 1),
        // Two values in a byte: torch counts such a byte as one value.
        "float4_e2m1fn_x2" => ("F4_X2", 1),
        _ => return None,
    })
}
