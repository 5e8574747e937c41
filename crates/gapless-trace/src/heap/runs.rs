//! Runs: segments, and maximal mapped stretches of expandable ones.

use crate::trace::SizeClass;

/// Data that all blocks of a segment, or of a mapped stretch, share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunInfo {
    pub(crate) stream: u16,
    pub(crate) pool: u16,
    pub(crate) class: SizeClass,
    pub(crate) expandable: bool,
}
