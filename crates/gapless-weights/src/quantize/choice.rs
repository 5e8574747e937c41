//! Which tensors are quantised: weights of Linear layers, as far as names, types and shapes tell.

use super::matrix::{Fault, Kind};
use super::scheme::Scheme;
use crate::error::{Error, Result};
use gapless_formats::safetensors::Tensor;
use std::cell::Cell;
use std::path::Path;

/// A matrix that is quantised.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix {
    pub(super) kind: Kind,
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// The scale of the whole matrix, of `nvfp4` alone.
    pub(super) whole: f32,
    /// Values that are stored, of `sparse-bitmask` alone.
    pub(super) kept: u64,
}

/// What becomes of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Choice {
    Taken(Matrix),
    /// A matrix that is left as it is, and why; engines are told to leave it alone.
    Left(String),
    /// What no scheme is for.
    Other,
}

impl Choice {
    pub(super) fn is_taken(&self) -> bool {
        matches!(self, Choice::Taken(_))
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        match self {
            Choice::Taken(matrix) => Some(matrix.kind),
            _ => None,
        }
    }
}

/// The names that a user wants left.
#[derive(Debug)]
pub(super) struct Patterns {
    patterns: Vec<(String, Cell<bool>)>,
}

impl Patterns {
    pub(super) fn new(patterns: &[String], input: &Path) -> Result<Patterns> {
        for pattern in patterns {
            if pattern.is_empty() {
                return Error::refused(input, "a pattern of --ignore is empty", HELP);
            }
            if pattern.starts_with("re:") {
                let what = format!("the pattern {pattern:?} of --ignore is a regular expression");
                return Error::refused(input, what, HELP);
            }
        }
        Ok(Patterns { patterns: patterns.iter().map(|text| (text.clone(), Cell::new(false))).collect() })
    }

    /// The first pattern that a tensor's or its module's name fits.
    fn find(&self, tensor: &str) -> Option<&str> {
        let mut found = None;
        for (pattern, is_used) in &self.patterns {
            if fits(pattern, module(tensor)) || fits(pattern, tensor) {
                is_used.set(true);
                found = found.or(Some(pattern.as_str()));
            }
        }
        found
    }

    pub(super) fn unmatched(&self) -> Vec<String> {
        self.patterns.iter().filter(|(_, used)| !used.get()).map(|(text, _)| text.clone()).collect()
    }
}

const HELP: &str =
    "give the name of a module, such as model.layers.0.mlp.down_proj; * stands for any characters";

/// Whether a name fits a pattern, in which `*` stands for any characters.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The module of a tensor: its name without the last part.
pub(super) fn module(tensor: &str) -> &str {
    tensor.rsplit_once('.').map_or(tensor, |(module, _)| module)
}

/// The name of what is stored for `tensor`.
pub(super) fn part_name(tensor: &str, part: &str) -> String {
    format!("{}.{part}", module(tensor))
}

/// Parts of the names of matrices that are left: embeddings, the output layer, norms, routers of experts.
const KEPT: [&str; 7] = ["embed", "lm_head", "wte", "wpe", "norm", "router", "gate.weight"];

/// What becomes of a tensor.
pub(super) fn of(tensor: &Tensor, scheme: Scheme, patterns: &Patterns) -> Choice {
    decide((&tensor.name, &tensor.dtype, &tensor.shape), scheme, patterns.find(&tensor.name))
}

/// What becomes of a tensor of this name, type and shape, which a pattern of the user names.
pub(super) fn decide(tensor: (&str, &str, &[u64]), scheme: Scheme, ignored: Option<&str>) -> Choice {
    let (name, dtype, shape) = tensor;
    let is_float = Kind::of(dtype).is_some() || dtype == "F64";
    let is_weight = name.ends_with(".weight");
    if is_float && shape.len() == 3 && (is_weight || name.contains("experts.")) {
        return Choice::Left("it has 3 dimensions: fused experts and convolutions are not split".to_owned());
    }
    let (&[rows, columns], true, true) = (shape, is_float, is_weight) else {
        return Choice::Other;
    };
    if let Some(pattern) = ignored {
        return Choice::Left(format!("--ignore {pattern}"));
    }
    if let Some(word) = KEPT.iter().find(|word| name.contains(**word)) {
        return Choice::Left(format!("left by default: its name has {word:?}"));
    }
    let Some(kind) = Kind::of(dtype) else {
        return Choice::Left(format!("its type is {dtype}: BF16, F16 and F32 are quantised"));
    };
    if rows == 0 || columns == 0 {
        return Choice::Left("it is empty".to_owned());
    }
    if !columns.is_multiple_of(scheme.multiple()) {
        let (name, multiple) = (scheme.name(), scheme.multiple());
        return Choice::Left(format!("it has {columns} columns: {name} takes multiples of {multiple}"));
    }
    Choice::Taken(Matrix { kind, rows, columns, whole: 1.0, kept: 0 })
}

/// Why a matrix is left whose values cannot be quantised.
pub(super) fn why(fault: Fault) -> String {
    match fault {
        Fault::NotFinite => "a value is infinite or not a number".to_owned(),
        Fault::TooLarge => "a value is so large that its scale is infinite".to_owned(),
    }
}

/// Modules that engines fuse into one matrix when they stand side by side.
const FUSED: [&[&str]; 4] = [
    &["q_proj", "k_proj", "v_proj"],
    &["gate_proj", "up_proj"],
    &["q_a_proj", "kv_a_proj_with_mqa"],
    &["w1", "w3"],
];

/// The group of a matrix that is fused with others: where they stand, and which group it is.
pub(super) fn fused(tensor: &str) -> Option<(String, usize)> {
    let module = module(tensor);
    let (parent, last) = module.rsplit_once('.').unwrap_or(("", module));
    let group = FUSED.iter().position(|names| names.contains(&last))?;
    Some((parent.to_owned(), group))
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, expected) in [
            ("lm_head", "lm_head", true),
            ("lm_head", "model.lm_head", false),
            ("*head", "model.lm_head", true),
            ("model.*.mlp.*", "model.layers.0.mlp.down_proj", true),
            ("model.*.attn.*", "model.layers.0.mlp.down_proj", false),
            ("*", "", true),
            ("a*a", "a", false),
            ("a*b*b", "ab", false),
            ("a**b", "ab", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
