//! Written by `cargo xtask torch-table 2.9.1`.

use super::Row;

#[rustfmt::skip]
pub(super) const ROW: Row = Row {
    version: "2.9.1",
    commit: "5811a8d7da873dd699ff6687092c225caffcf1bb",
    functions: super::v2_9_0::ROW.functions,
    structures: super::v2_9_0::ROW.structures,
};
