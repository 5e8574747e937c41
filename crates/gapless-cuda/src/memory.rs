//! How full a card is.

/// How full a card is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    /// By processes and by the driver itself: `total - free`.
    pub used: u64,
    pub free: u64,
}
