//! Fused experts: one tensor `*.experts.gate_up_proj` and one `*.experts.down_proj` with three dimensions hold all
//! experts of a layer. They become a matrix for each expert, as llm-compressor writes them and engines load them:
//!
//! ```text
//! experts.gate_up_proj [E, 2I, H] or [E, H, 2I]   experts.N.gate_proj.weight [I, H], experts.N.up_proj.weight [I, H]
//! experts.down_proj    [E, H, I]  or [E, I, H]    experts.N.down_proj.weight [H, I]
//! ```
//!
//! Which of the two it is follows from both shapes: no pair of shapes fits both, as long as no size is zero. Shapes
//! do not show if gate and up are halves or alternate; the architecture or the user tells. All tensors of one layer
//! are split or none, because engines load the experts of a layer in one way.

use super::architecture::{Architecture, Fused};
pub use super::layout::{Experts, Halves};
use super::matrix::Kind;

/// Columns that are gathered at a time.
const TILE: usize = 64;
/// Layers of more experts stay whole: each expert takes memory for its names before anything is written.
const MOST: u64 = 1 << 16;

/// The places of a matrix's values within its tensor, in elements: (r, c) is at begin + r * row + c * column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) begin: u64,
    pub(super) row: u64,
    pub(super) column: u64,
    /// Elements of the matrix's expert, which begins at a multiple of this.
    pub(super) block: u64,
}

impl View {
    /// The rows of a whole tensor.
    pub(super) fn whole(rows: u64, columns: u64) -> View {
        View { begin: 0, row: columns, column: 1, block: rows * columns }
    }

    /// True if rows of so many columns follow each other without gaps.
    pub(super) fn is_plain(self, columns: u64) -> bool {
        self.column == 1 && self.row == columns
    }

    /// The beginning of its expert.
    pub(super) fn block_begin(self) -> u64 {
        self.begin / self.block * self.block
    }

    /// Rows `first` to `first + count` of `columns` values of `width` bytes, out of the bytes of its expert.
    pub(super) fn gather(self, block: &[u8], first: u64, count: u64, columns: u64, width: usize) -> Vec<u8> {
        let begin = (self.begin - self.block_begin() + first * self.row) as usize;
        let sizes = (count as usize, columns as usize);
        match width {
            2 => self.gathered::<2>(block, begin, sizes),
            _ => self.gathered::<4>(block, begin, sizes),
        }
    }

    fn gathered<const W: usize>(
        self,
        block: &[u8],
        begin: usize,
        (count, columns): (usize, usize),
    ) -> Vec<u8> {
        let (row, column) = (self.row as usize, self.column as usize);
        let mut out = vec![0; count * columns * W];
        // A few columns at a time, so that their source lines stay in the cache from one row to the next.
        for left in (0..columns).step_by(TILE) {
            let wide = TILE.min(columns - left);
            for r in 0..count {
                let to = (r * columns + left) * W;
                let mut from = (begin + r * row + left * column) * W;
                for value in out[to..to + wide * W].as_chunks_mut::<W>().0 {
                    value.copy_from_slice(&block[from..from + W]);
                    from += column * W;
                }
            }
        }
        out
    }
}

/// One matrix or bias of an expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) name: String,
    /// Rows and columns; a bias has one column.
    pub(super) rows: u64,
    pub(super) columns: u64,
    pub(super) is_bias: bool,
    pub(super) view: View,
}

/// A tensor as its file's header has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Described<'a> {
    pub(super) name: &'a str,
    pub(super) dtype: &'a str,
    pub(super) shape: &'a [u64],
}

/// The role of a tensor among a layer's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    GateUp,
    Down,
    GateUpBias,
    DownBias,
}

/// The module of a layer's experts, and this tensor's role.
pub(super) fn role<'a>(tensor: Described<'a>) -> Option<(&'a str, Role)> {
    let is_weight = !tensor.name.ends_with("bias");
    let name = if is_weight {
        tensor.name.strip_suffix(".weight").unwrap_or(tensor.name)
    } else {
        tensor.name.strip_suffix("_bias").or_else(|| tensor.name.strip_suffix(".bias"))?
    };
    let (parent, last) = name.rsplit_once('.')?;
    if !(parent == "experts" || parent.ends_with(".experts"))
        || tensor.shape.len() != 2 + usize::from(is_weight)
    {
        return None;
    }
    match (last, is_weight) {
        ("gate_up_proj", true) => Some((parent, Role::GateUp)),
        ("down_proj", true) => Some((parent, Role::Down)),
        ("gate_up_proj", false) => Some((parent, Role::GateUpBias)),
        ("down_proj", false) => Some((parent, Role::DownBias)),
        _ => None,
    }
}

/// The experts of a layer: their number, their sizes, and the layout of their tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    experts: u64,
    pub(super) hidden: u64,
    pub(super) inner: u64,
    /// True if tensors have inputs before outputs, so that the matrices are transposed.
    by_columns: bool,
    halves: Halves,
}

/// The layout of a layer's two tensors of experts, or the reason why they stay as they are.
pub(super) fn layer(
    (gate_up, down): (Option<Described<'_>>, Option<Described<'_>>),
    experts: Experts,
    architecture: &Architecture,
) -> Result<Layer, String> {
    let (Some(gate_up), Some(down)) = (gate_up, down) else {
        return Err("fused experts: their gate_up_proj or down_proj is not in the model".to_owned());
    };
    let halves = match (experts, architecture.fused()) {
        (Experts::Leave, _) => return Err("fused experts: --experts leave".to_owned()),
        (Experts::Split(halves), _) | (Experts::Auto, Fused::Known(halves)) => halves,
        (Experts::Auto, Fused::Whole) => {
            return Err(format!(
                "fused experts of {}: no engine is known to load them split; --experts pairs splits them",
                architecture.name()
            ));
        }
        (Experts::Auto, Fused::Unknown) => {
            return Err(format!(
                "fused experts of {}: how they hold gate and up is not known; say it with --experts halves or pairs",
                architecture.name()
            ));
        }
    };
    if Kind::of(gate_up.dtype).is_none() || gate_up.dtype != down.dtype {
        let types = format!("{} and {}", gate_up.dtype, down.dtype);
        return Err(format!("fused experts of types {types}: both must be BF16, F16 or F32"));
    }
    let (&[experts, a, b], &[others, c, d]) = (gate_up.shape, down.shape) else {
        return Err("fused experts: their tensors do not have three dimensions".to_owned());
    };
    if experts > MOST {
        return Err(format!("fused experts: {experts} of them, the limit is {MOST}"));
    }
    let is_there = experts == others && [experts, a, b, c, d].iter().all(|size| *size > 0);
    if is_there && Some(a) == d.checked_mul(2) && b == c {
        Ok(Layer { experts, hidden: b, inner: d, by_columns: false, halves })
    } else if is_there && Some(b) == c.checked_mul(2) && a == d {
        Ok(Layer { experts, hidden: a, inner: c, by_columns: true, halves })
    } else {
        let shapes = format!("{:?} and {:?}", gate_up.shape, down.shape);
        Err(format!("fused experts: the shapes {shapes} are not those of gate_up_proj and down_proj"))
    }
}

impl Layer {
    /// True if a bias fits the experts.
    pub(super) fn takes_bias(&self, role: Role, shape: &[u64]) -> bool {
        let length = if role == Role::GateUpBias { 2 * self.inner } else { self.hidden };
        shape == [self.experts, length]
    }

    /// The matrices that one tensor of the module `parent` becomes.
    pub(super) fn split(&self, parent: &str, role: Role) -> Vec<Split> {
        let (hidden, inner) = (self.hidden, self.inner);
        let mut all = Vec::new();
        for expert in 0..self.experts {
            let mut add = |part: &str, rows, columns, view| {
                let is_bias = matches!(role, Role::GateUpBias | Role::DownBias);
                let leaf = if is_bias { "bias" } else { "weight" };
                all.push(Split {
                    name: format!("{parent}.{expert}.{part}.{leaf}"),
                    rows,
                    columns,
                    is_bias,
                    view,
                });
            };
            match role {
                Role::Down | Role::DownBias => {
                    let is_bias = role == Role::DownBias;
                    let (rows, columns) = if is_bias { (hidden, 1) } else { (hidden, inner) };
                    let block = rows * columns;
                    let (row, column) = if self.by_columns && !is_bias { (1, hidden) } else { (columns, 1) };
                    add("down_proj", rows, columns, View { begin: expert * block, row, column, block });
                }
                Role::GateUp | Role::GateUpBias => {
                    let columns = if role == Role::GateUpBias { 1 } else { hidden };
                    let block = 2 * inner * columns;
                    // Steps along the 2I values that gate and up share, and along the inputs.
                    let (along, column) =
                        if self.by_columns && columns > 1 { (1, 2 * inner) } else { (columns, 1) };
                    for (at, part) in ["gate_proj", "up_proj"].into_iter().enumerate() {
                        let at = at as u64;
                        let (row, offset) = match self.halves {
                            Halves::Halves => (along, at * inner * along),
                            Halves::Pairs => (2 * along, at * along),
                        };
                        add(
                            part,
                            inner,
                            columns,
                            View { begin: expert * block + offset, row, column, block },
                        );
                    }
                }
            }
        }
        all
    }
}

/// The pattern by which engines ignore a module of experts that stays whole: vLLM asks for `experts.0.gate_proj`,
/// with its own prefix before `layers`.
pub(super) fn ignored(parent: &str) -> String {
    let tail = parent.find("layers.").map_or(parent, |at| &parent[at..]);
    let prefix = if tail.len() < parent.len() { "(.*\\.)?" } else { "" };
    format!("re:{prefix}{}\\.\\d+\\..*", tail.replace('.', "\\."))
}

#[cfg(test)]
mod tests {
    use super::{Described, Experts, Halves, Role, View, ignored, layer, role};
    use crate::quantize::architecture::Architecture;

    fn described<'a>(name: &'a str, shape: &'a [u64]) -> Described<'a> {
        Described { name, dtype: "BF16", shape }
    }

    #[test]
    fn no_pair_of_shapes_fits_both_orders() {
        let said = Experts::Split(Halves::Halves);
        for hidden in 1..9 {
            for inner in 1..9 {
                for by_columns in [false, true] {
                    let swap = |a: u64, b: u64| if by_columns { vec![3, b, a] } else { vec![3, a, b] };
                    let (up, down) = (swap(2 * inner, hidden), swap(hidden, inner));
                    let pair = (Some(described("a", &up)), Some(described("b", &down)));
                    let found = layer(pair, said, &Architecture::default()).unwrap();
                    assert_eq!((found.hidden, found.inner, found.by_columns), (hidden, inner, by_columns));
                }
            }
        }
    }

    #[test]
    fn names_of_experts_are_known_with_and_without_weight() {
        let three = [1, 2, 3];
        for (name, expected) in [
            ("a.experts.gate_up_proj", Some(("a.experts", Role::GateUp))),
            ("a.experts.gate_up_proj.weight", Some(("a.experts", Role::GateUp))),
            ("experts.down_proj", Some(("experts", Role::Down))),
            ("a.shared_experts.down_proj.weight", None),
            ("a.experts.3.down_proj.weight", None),
            ("a.experts.up_proj", None),
        ] {
            assert_eq!(role(described(name, &three)), expected, "{name}");
        }
        let two = [1, 2];
        assert_eq!(role(described("experts.gate_up_proj_bias", &two)), Some(("experts", Role::GateUpBias)));
        assert_eq!(role(described("experts.down_proj", &two)), None);
    }

    #[test]
    fn a_view_gives_the_rows_of_a_transposed_part() {
        // Two experts of [2, 4]: inputs by outputs.
        let bytes: Vec<u8> = (0..16u16).flat_map(u16::to_le_bytes).collect();
        let view = View { begin: 8 + 1, row: 2, column: 4, block: 8 };
        assert_eq!(view.gather(&bytes[16..], 0, 2, 2, 2), [9, 0, 13, 0, 11, 0, 15, 0]);
        assert_eq!(view.gather(&bytes[16..], 1, 1, 2, 2), [11, 0, 15, 0]);
        let bytes: Vec<u8> = (0..16u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(view.gather(&bytes[32..], 1, 1, 2, 4), [11, 0, 0, 0, 15, 0, 0, 0]);
    }

    #[test]
    fn engines_hear_of_whole_experts_under_their_own_prefix() {
        let expected = r"re:(.*\.)?layers\.3\.mlp\.experts\.\d+\..*";
        assert_eq!(ignored("model.layers.3.mlp.experts"), expected);
        assert_eq!(ignored("experts"), r"re:experts\.\d+\..*");
    }
}
