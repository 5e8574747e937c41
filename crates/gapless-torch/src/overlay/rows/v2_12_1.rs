//! Written by `cargo xtask torch-table 2.12.1`.

use super::Row;

#[rustfmt::skip]
pub(super) const ROW: Row = Row {
    version: "2.12.1",
    commit: "7269437d655783a26cba32aa88195b741ff496aa",
    functions: super::v2_12_0::ROW.functions,
    structures: super::v2_12_0::ROW.structures,
};
