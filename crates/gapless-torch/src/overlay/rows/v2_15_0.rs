//! Written by `cargo xtask torch-table 2.15.0`.

use super::{Row, Structure};

#[rustfmt::skip]
pub(super) const ROW: Row = Row {
    version: "2.15.0",
    commit: "d0f2af8b66b20da4baa50644c0cd3f887a2eae2e",
    functions: super::v2_14_0::ROW.functions,
    structures: &[
        super::v2_8_0::ROW.structures[0], // Stat
        super::v2_13_0::ROW.structures[1], // DeviceStats
        super::v2_13_0::ROW.structures[2], // PoolMap
        super::v2_13_0::ROW.structures[3], // PoolEntry
        super::v2_8_0::ROW.structures[2], // BlockInfo
        super::v2_11_0::ROW.structures[3], // SegmentInfo
        Structure { name: "TraceEntry", size: 168, fields: &[
            ("action_", 0), ("device_", 4), ("addr_", 8), ("context_", 16), ("stream_", 32), ("size_", 40),
            ("mempool_", 48), ("time_", 64), ("compile_context_", 72), ("user_metadata_", 104),
            ("internal_metadata_", 136),
        ] },
        super::v2_8_0::ROW.structures[5], // AnnotationEntry
        super::v2_13_0::ROW.structures[8], // AllocatorConfigInfo
        super::v2_14_0::ROW.structures[9], // SnapshotInfo
        super::v2_8_0::ROW.structures[8], // CheckpointDelta
        super::v2_8_0::ROW.structures[9], // ShareableHandle
        super::v2_10_0::ROW.structures[10], // StreamSegmentSize
        super::v2_8_0::ROW.structures[10], // DataPtr
        super::v2_8_0::ROW.structures[11], // UniqueVoidPtr
        super::v2_8_0::ROW.structures[12], // CUDAStream
    ],
};
