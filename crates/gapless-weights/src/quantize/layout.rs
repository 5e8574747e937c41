//! How fused experts are stored, and what to do with them.

/// How gate and up share their tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halves {
    /// All of gate, then all of up.
    Halves,
    /// The first of gate, the first of up, the second of gate, and so on.
    Pairs,
}

/// What the user says of fused experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Experts {
    /// Split them if the layout of the architecture is known.
    #[default]
    Auto,
    /// Leave them as they are.
    Leave,
    /// Split them, with this layout.
    Split(Halves),
}
