//! Chooses the tensors to quantise: weights of Linear layers, as far as names, types, shapes and the architecture tell.

use super::architecture::{self, Architecture};
use super::experts::{Split, View};
use super::matrix::{Fault, Kind};
use super::scheme::Scheme;
use crate::error::{Error, Result};
use std::cell::Cell;
use std::path::Path;

/// A matrix that is quantised.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix {
    pub(super) kind: Kind,
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// The scale of the whole matrix, for `nvfp4` only.
    pub(super) whole: f32,
    /// Values that are stored, for `sparse-bitmask` only.
    pub(super) kept: u64,
}

impl Matrix {
    fn new(kind: Kind, rows: u64, columns: u64) -> Matrix {
        Matrix { kind, rows, columns, whole: 1.0, kept: 0 }
    }
}

/// A part of a tensor that becomes a tensor of its own, quantised or as it is. Most tensors are one piece.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
    pub(super) view: View,
    pub(super) fate: Fate,
}

/// The fate of a piece.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fate {
    Quantised(Matrix),
    /// A matrix that is left, with the reason. Engines are told to ignore it.
    Left(String),
    /// A tensor that no scheme applies to.
    Copied,
}

impl Piece {
    pub(super) fn matrix(&self) -> Option<&Matrix> {
        match &self.fate {
            Fate::Quantised(matrix) => Some(matrix),
            _ => None,
        }
    }

    /// A part of fused experts, which the user may exclude by its own name. A bias may be of any type.
    pub(super) fn split(of: Split, kind: Option<Kind>, patterns: &Patterns) -> Piece {
        let Split { name, rows, columns, is_bias, view } = of;
        let fate = match (patterns.find(&name), kind) {
            (_, None) => Fate::Copied,
            _ if is_bias => Fate::Copied,
            (Some(pattern), _) => Fate::Left(format!("--ignore {pattern}")),
            (None, Some(kind)) => Fate::Quantised(Matrix::new(kind, rows, columns)),
        };
        let shape = if is_bias { vec![rows] } else { vec![rows, columns] };
        Piece { name, shape, view, fate }
    }
}

/// The fate of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Choice {
    /// Its pieces take its place, in this order.
    Taken(Vec<Piece>),
    /// A matrix that is left as it is, with the reason. Engines are told to ignore it.
    Left(String),
    /// A tensor that no scheme applies to.
    Other,
}

impl Choice {
    pub(super) fn pieces(&self) -> &[Piece] {
        match self {
            Choice::Taken(pieces) => pieces,
            _ => &[],
        }
    }

    pub(super) fn piece(&self, at: usize) -> Option<&Piece> {
        self.pieces().get(at)
    }

    pub(super) fn matrix_mut(&mut self, at: usize) -> Option<&mut Matrix> {
        let Choice::Taken(pieces) = self else { return None };
        match &mut pieces.get_mut(at)?.fate {
            Fate::Quantised(matrix) => Some(matrix),
            _ => None,
        }
    }

    /// Leaves a piece as it is; if the tensor is one piece, it stays whole.
    pub(super) fn leave(&mut self, at: usize, why: String) {
        match self {
            Choice::Taken(pieces) if pieces.len() > 1 => pieces[at].fate = Fate::Left(why),
            _ => *self = Choice::Left(why),
        }
    }
}

/// The names that the user excludes.
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

    /// The first pattern that matches a tensor's name or its module's.
    pub(super) fn find(&self, tensor: &str) -> Option<&str> {
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

/// True if a name matches a pattern, in which `*` stands for any characters.
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

/// The module of a tensor from its first number on, and the word before that: `layers.0.mlp.down_proj`.
pub(super) fn tail(tensor: &str) -> Option<&str> {
    let module = module(tensor);
    let (mut before, mut at) = (0, 0);
    for part in module.split('.') {
        if at > 0 && part.parse::<u32>().is_ok() {
            return Some(&module[before..]);
        }
        (before, at) = (at, at + part.len() + 1);
    }
    None
}

/// A pattern for engines that load a part of a model under another prefix.
pub(super) fn under_any_prefix(tail: &str) -> String {
    format!("re:(.*\\.)?{}$", tail.replace('.', "\\."))
}

/// The name of a part that is stored for `tensor`.
pub(super) fn part_name(tensor: &str, part: &str) -> String {
    format!("{}.{part}", module(tensor))
}

/// Parts of the names of matrices that are left: embeddings, the output layer, norms, routers of experts, blocks that
/// several layers share (Zamba stores them once, under one of their names), low-rank adapters.
const KEPT: [&str; 10] = [
    "embed",
    "lm_head",
    "wte",
    "wpe",
    "norm",
    "router",
    "gate.weight",
    "relative_attention_bias",
    "shared_transf",
    "lora_",
];
/// The last part of the names of modules that are left: embeddings of other names, codebooks, learned queries and
/// tokens, heads that classify. Most are not Linear layers. Heads are small, and their errors go into the answer.
const KEPT_MODULES: [&str; 13] = [
    "classifier",
    "codebook",
    "emb",
    "qa_outputs",
    "queries_features",
    "query_feat",
    "reference_points",
    "score",
    "seq_relationship",
    "shared",
    "token",
    "tokens",
    "w",
];

/// The word of a name for which its tensor is left, if there is one.
fn kept(name: &str) -> Option<&'static str> {
    let module = module(name);
    let last = module.rsplit('.').next().unwrap_or(module);
    let ends = |word: &str| last == word || last.strip_suffix(word).is_some_and(|rest| rest.ends_with('_'));
    let by_part = KEPT.into_iter().find(|word| name.contains(word));
    by_part.or_else(|| KEPT_MODULES.into_iter().find(|word| ends(word)))
}

/// The fate of a tensor of this name, type and shape; `ignored` is the user's pattern that matches it. Fused experts
/// are left here; their own module handles them.
pub(super) fn decide(
    tensor: (&str, &str, &[u64]),
    scheme: Scheme,
    architecture: &Architecture,
    ignored: Option<&str>,
) -> Choice {
    let (name, dtype, shape) = tensor;
    let is_float = Kind::of(dtype).is_some() || dtype == "F64";
    let is_weight = name.ends_with(".weight");
    if is_float && shape.len() == 3 && (is_weight || name.contains("experts.")) {
        return Choice::Left("it has 3 dimensions: Linear layers have 2".to_owned());
    }
    let (&[rows, columns], true, true) = (shape, is_float, is_weight) else {
        return Choice::Other;
    };
    if let Some(pattern) = ignored {
        return Choice::Left(format!("--ignore {pattern}"));
    }
    if let Some(word) = kept(name) {
        return Choice::Left(format!("left by default: its name has {word:?}"));
    }
    // Names of layers have a number; those of embeddings and output layers have none.
    let is_in_layer = name.split('.').any(|part| part.parse::<u32>().is_ok());
    if !is_in_layer && architecture.is_vocabulary(rows) {
        return Choice::Left("left by default: it has a row for each word of the vocabulary".to_owned());
    }
    if let Some(why) = architecture.not_linear(module(name)) {
        return Choice::Left(why.to_owned());
    }
    let Some(kind) = Kind::of(dtype) else {
        return Choice::Left(format!("its type is {dtype}: BF16, F16 and F32 are quantised"));
    };
    if rows == 0 || columns == 0 {
        return Choice::Left("it is empty".to_owned());
    }
    if let Some(why) = too_narrow(columns, scheme) {
        return Choice::Left(why);
    }
    Choice::Taken(vec![Piece {
        name: name.to_owned(),
        shape: shape.to_vec(),
        view: View::whole(rows, columns),
        fate: Fate::Quantised(Matrix::new(kind, rows, columns)),
    }])
}

/// The reason why a scheme does not take a matrix of so many columns, if there is one.
pub(super) fn too_narrow(columns: u64, scheme: Scheme) -> Option<String> {
    let (name, multiple) = (scheme.name(), scheme.multiple());
    (!columns.is_multiple_of(multiple))
        .then(|| format!("it has {columns} columns: {name} takes multiples of {multiple}"))
}

/// Leaves the matrices of a file without config.json if one of them shows that the model has GPT-2's Conv1D.
pub(super) fn leave_conv1d(tensors: &[(&str, &[u64])], choices: &mut [Choice]) {
    let shows = |(name, shape): &(&str, &[u64])| match shape {
        &[rows, columns] => architecture::is_conv1d(name, *rows, *columns),
        _ => false,
    };
    if !tensors.iter().any(shows) {
        return;
    }
    let gpt2 = Architecture::read(&serde_json::json!({"model_type": "gpt2"}));
    for ((name, _), choice) in tensors.iter().zip(choices) {
        if let (Choice::Taken(_), Some(why)) = (&*choice, gpt2.not_linear(module(name))) {
            *choice = Choice::Left(why.to_owned());
        }
    }
}

/// The reason why a matrix with such values is left.
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

/// The group of a matrix that is fused with others: their parent module, and the index of the group.
pub(super) fn fused(tensor: &str) -> Option<(String, usize)> {
    let module = module(tensor);
    let (parent, last) = module.rsplit_once('.').unwrap_or(("", module));
    let group = FUSED.iter().position(|names| names.contains(&last))?;
    Some((parent.to_owned(), group))
}

#[cfg(test)]
mod tests {
    use super::{Architecture, Choice, decide, fits, tail, under_any_prefix};
    use crate::quantize::scheme::Scheme;
    use serde_json::json;

    /// Lines of `testdata/weights/modules.tsv`: kind, model type, name, rows, columns, 1 if rows are a vocabulary's.
    fn modules() -> Vec<(&'static str, &'static str, &'static str, [u64; 2], bool)> {
        let text = include_str!("../../../../testdata/weights/modules.tsv");
        text.lines()
            .map(|line| {
                let parts: Vec<&str> = line.split('\t').collect();
                let number = |at: usize| parts[at].parse().unwrap();
                (parts[0], parts[1], parts[2], [number(3), number(4)], number(5) == 1)
            })
            .collect()
    }

    fn chosen(model_type: &str, name: &str, shape: [u64; 2], is_vocabulary: bool) -> Choice {
        let size = if is_vocabulary { shape[0] } else { 7_777_777 };
        let config = json!({"model_type": model_type, "vocab_size": size});
        decide((name, "BF16", &shape), Scheme::Fp8, &Architecture::read(&config), None)
    }

    #[test]
    fn adapters_are_left() {
        let name = "base_model.model.model.layers.0.self_attn.q_proj";
        for part in ["lora_A.weight", "lora_B.default.weight"] {
            assert!(matches!(chosen("llama", &format!("{name}.{part}"), [64, 128], false), Choice::Left(_)));
        }
        assert!(matches!(
            chosen("llama", &format!("{name}.base_layer.weight"), [64, 128], false),
            Choice::Taken(_)
        ));
    }

    #[test]
    fn no_architecture_of_transformers_has_another_layer_quantised() {
        let wrong: Vec<_> = modules()
            .into_iter()
            .filter(|(kind, model_type, name, shape, is_vocabulary)| {
                *kind == "other"
                    && matches!(chosen(model_type, name, *shape, *is_vocabulary), Choice::Taken(_))
            })
            .collect();
        assert!(wrong.is_empty(), "{} are not Linear layers: {wrong:#?}", wrong.len());
    }

    #[test]
    fn most_linear_layers_of_transformers_are_quantised() {
        let all: Vec<_> = modules().into_iter().filter(|line| line.0 == "linear").collect();
        let left: Vec<_> = all
            .iter()
            .filter(|(_, model_type, name, shape, is_vocabulary)| {
                !matches!(chosen(model_type, name, *shape, *is_vocabulary), Choice::Taken(_))
            })
            .map(|line| line.2)
            .collect();
        assert!(all.len() > 100 && left.len() * 5 < all.len(), "{} of {}: {left:#?}", left.len(), all.len());
    }

    #[test]
    fn engines_are_told_of_every_output_layer_that_shares_an_embedding() {
        let mut wrong = Vec::new();
        for (kind, model_type, name, ..) in modules() {
            let module = name.strip_suffix(".weight").unwrap();
            // `lm_head` is ignored for every model, and blocks that layers share by a pattern.
            if kind != "tied" || module == "lm_head" || module.contains("shared_transf") {
                continue;
            }
            let found = Architecture::read(&json!({"model_type": model_type}));
            let names = |output: &str| match output.strip_prefix("re:") {
                Some(pattern) => module.starts_with(&pattern.replace('\\', "").replace(".*", "")),
                None => output == module,
            };
            if !found.outputs().any(names) {
                wrong.push((model_type, module));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn a_tail_begins_before_the_first_number() {
        assert_eq!(tail("model.language.layers.3.mlp.2.up.weight"), Some("layers.3.mlp.2.up"));
        assert_eq!(tail("h.0.weight"), Some("h.0"));
        assert_eq!(tail("0.a.weight"), None);
        assert_eq!(tail("lm_head.weight"), None);
        assert_eq!(under_any_prefix("h.0.fc"), r"re:(.*\.)?h\.0\.fc$");
    }

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
