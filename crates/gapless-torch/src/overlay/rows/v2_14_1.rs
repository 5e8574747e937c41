//! Written by `cargo xtask torch-table 2.14.1`.

use super::Row;

#[rustfmt::skip]
pub(super) const ROW: Row = Row {
    version: "2.14.1",
    commit: "5c4886908584029761b579af026dcfb627c84070",
    functions: super::v2_14_0::ROW.functions,
    structures: super::v2_14_0::ROW.structures,
};
