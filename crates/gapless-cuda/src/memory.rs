//! The free and used memory of a card.

/// The free and used memory of a card, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    /// Used by processes and by the driver itself: `total - free`.
    pub used: u64,
    pub free: u64,
}
