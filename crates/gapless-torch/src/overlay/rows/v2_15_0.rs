//! Written by `cargo xtask torch-table 2.15.0`.

use super::{Row, Structure};

#[rustfmt::skip]
pub(super) const ROW: Row = Row {
    version: "2.15.0",
    commit: "d0f2af8b66b20da4baa50644c0cd3f887a2eae2e",
    functions: super::v2_14_0::ROW.functions,
    structures: &[
        Structure { name: "Stat", size: 32, fields: &[
            ("current", 0), ("peak", 8), ("allocated", 16), ("freed", 24),
        ] },
        Structure { name: "DeviceStats", size: 1016, fields: &[
            ("allocation", 0), ("segment", 96), ("active", 192), ("inactive_split", 288),
            ("allocated_bytes", 384), ("reserved_bytes", 480), ("reserved_bytes_by_private_pools", 576),
            ("active_bytes", 608), ("inactive_split_bytes", 704), ("requested_bytes", 800),
            ("num_alloc_retries", 896), ("num_ooms", 904), ("oversize_allocations", 912),
            ("oversize_segments", 944), ("num_sync_all_streams", 976), ("num_device_alloc", 984),
            ("num_device_free", 992), ("num_oom_rejections", 1000), ("max_split_size", 1008),
        ] },
        Structure { name: "PoolMap", size: 32, fields: &[
            ("entries", 0), ("num_slots_minus_one", 8), ("hash_policy", 16), ("max_lookups", 17),
            ("_max_load_factor", 20), ("num_elements", 24),
        ] },
        Structure { name: "PoolEntry", size: 120, fields: &[
            ("distance_from_desired", 0), ("", 8),
        ] },
        Structure { name: "BlockInfo", size: 40, fields: &[
            ("size", 0), ("requested_size", 8), ("gc_counter", 16), ("allocated", 20), ("active", 21),
            ("context_when_allocated", 24),
        ] },
        Structure { name: "SegmentInfo", size: 120, fields: &[
            ("device", 0), ("registration_counter", 4), ("address", 8), ("total_size", 16),
            ("requested_size", 24), ("allocated_size", 32), ("active_size", 40), ("stream", 48),
            ("is_large", 56), ("is_expandable", 57), ("owner_private_pool_id", 64), ("blocks", 80),
            ("context_when_allocated", 104),
        ] },
        Structure { name: "TraceEntry", size: 168, fields: &[
            ("action_", 0), ("device_", 4), ("addr_", 8), ("context_", 16), ("stream_", 32), ("size_", 40),
            ("mempool_", 48), ("time_", 64), ("compile_context_", 72), ("user_metadata_", 104),
            ("internal_metadata_", 136),
        ] },
        Structure { name: "AnnotationEntry", size: 72, fields: &[
            ("device_", 0), ("time_", 8), ("metadata_", 16),
        ] },
        Structure { name: "AllocatorConfigInfo", size: 104, fields: &[
            ("garbage_collection_threshold", 0), ("max_split_size", 8), ("pinned_num_register_threads", 16),
            ("expandable_segments", 24), ("release_lock_on_malloc", 25), ("pinned_use_host_register", 26),
            ("graph_capture_record_stream_reuse", 27), ("last_allocator_settings", 32),
            ("roundup_power2_divisions", 64), ("max_round_threshold", 88), ("max_cached_size", 96),
        ] },
        Structure { name: "SnapshotInfo", size: 224, fields: &[
            ("segments", 0), ("device_traces", 24), ("external_annotations", 48), ("config_metadata", 72),
            ("host_segments", 176), ("host_traces", 200),
        ] },
        Structure { name: "CheckpointDelta", size: 48, fields: &[
            ("ptrs_freed", 0), ("dataptrs_allocd", 24),
        ] },
        Structure { name: "ShareableHandle", size: 40, fields: &[
            ("offset", 0), ("handle", 8),
        ] },
        Structure { name: "StreamSegmentSize", size: 24, fields: &[
            ("stream", 0), ("is_small_pool", 8), ("total_size", 16),
        ] },
        Structure { name: "DataPtr", size: 32, fields: &[
            ("ptr_", 0), ("device_", 24),
        ] },
        Structure { name: "UniqueVoidPtr", size: 24, fields: &[
            ("data_", 0), ("ctx_", 8),
        ] },
        Structure { name: "CUDAStream", size: 16, fields: &[
            ("stream_", 0),
        ] },
    ],
};
