//! The layout of fused experts, and the user's choice for them.

/// The order of gate and up in their tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halves {
    /// All of gate, then all of up.
    Halves,
    /// The first of gate, the first of up, the second of gate, and so on.
    Pairs,
}

/// The user's choice for fused experts.
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
