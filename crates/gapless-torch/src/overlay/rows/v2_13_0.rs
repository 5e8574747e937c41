//! Written by `cargo xtask torch-table 2.13.0`.

use super::{Row, Structure, exported, hidden};

#[rustfmt::skip]
pub(super) const ROW: Row = Row {
    version: "2.13.0",
    commit: "cf30153c4c131c8164ee7798e5022d810682e2cb",
    functions: &[
        hidden("_ZN3c109AllocatorD2Ev"),
        hidden("_ZN3c109AllocatorD2Ev"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator8allocateEm"),
        exported("_ZNK3c109Allocator18is_simple_data_ptrERKNS_7DataPtrE"),
        exported("_ZNK5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator11raw_deleterEv"),
        exported("_ZNK5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9copy_dataEPvPKvm"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator11initializedEv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator10emptyCacheESt4pairIyyE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator12recordStreamERKNS_7DataPtrENS_6StreamE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator14getDeviceStatsEa"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator21resetAccumulatedStatsEa"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator14resetPeakStatsEa"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator13getMemoryInfoEa"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9raw_allocEm"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator21raw_alloc_with_streamEmP11CUstream_st"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator10raw_deleteEPv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator4initEi"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator17getMemoryFractionEa"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator17setMemoryFractionEda"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator25getExpandableSegmentSizesEa"),
        hidden("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator6enableEb"),
        hidden("_ZNK5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9isEnabledEv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9cacheInfoEaPm"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator17getBaseAllocationEPvPm"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator12recordStreamERKN3c107DataPtrENS3_4cuda10CUDAStreamE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator8snapshotESt4pairIyyEb"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator19beginAllocateToPoolEaSt4pairIyyESt8functionIFbP11CUstream_stEE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator17endAllocateToPoolEaSt4pairIyyE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator16markCaptureBeginEa"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator14markCaptureEndEa"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator11releasePoolEaSt4pairIyyE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator15getPoolUseCountEaSt4pairIyyE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator18createOrIncrefPoolEaSt4pairIyyESt10shared_ptrIS2_E"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator11setUseOnOOMEaSt4pairIyyEb"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator10setNoSplitEaSt4pairIyyE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator24checkPoolLiveAllocationsEaSt4pairIyyERKSt13unordered_setIPvSt4hashIS6_ESt8equal_toIS6_ESaIS6_EE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator14shareIpcHandleEPv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator12getIpcDevPtrENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator16isHistoryEnabledEv"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator20getContextForPointerEPKv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator13recordHistoryEbPFSt10shared_ptrIN3c1015GatheredContextEEvEmNS4_22CachingDeviceAllocator13RecordContextEbRKSt6vectorINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESaISH_EE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator16recordAnnotationERKSt6vectorISt4pairINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESA_ESaISB_EE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator18pushCompileContextERNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator17popCompileContextEv"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator15setUserMetadataERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator15getUserMetadataB5cxx11Ev"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator25attachOutOfMemoryObserverESt8functionIFvlmmmEE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator26attachOomRejectionObserverESt8functionIFvlmmmEE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator27attachAllocatorTraceTrackerESt8functionIFvRKN3c1022CachingDeviceAllocator10TraceEntryEEE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator16enablePeerAccessEaa"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator11memcpyAsyncEPviPKvimP11CUstream_stb"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator18getCheckpointStateEaSt4pairIyyE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator22setCheckpointPoolStateEaSt10shared_ptrIN3c104cuda20CUDACachingAllocator14AllocatorStateEE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator19allocateWithAddressEmPv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator4nameB5cxx11Ev"),
    ],
    structures: &[
        super::v2_8_0::ROW.structures[0], // Stat
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
        super::v2_8_0::ROW.structures[2], // BlockInfo
        super::v2_11_0::ROW.structures[3], // SegmentInfo
        super::v2_10_0::ROW.structures[4], // TraceEntry
        super::v2_8_0::ROW.structures[5], // AnnotationEntry
        Structure { name: "AllocatorConfigInfo", size: 104, fields: &[
            ("garbage_collection_threshold", 0), ("max_split_size", 8), ("pinned_num_register_threads", 16),
            ("expandable_segments", 24), ("release_lock_on_malloc", 25), ("pinned_use_host_register", 26),
            ("graph_capture_record_stream_reuse", 27), ("last_allocator_settings", 32),
            ("roundup_power2_divisions", 64), ("max_round_threshold", 88), ("max_cached_size", 96),
        ] },
        Structure { name: "SnapshotInfo", size: 176, fields: &[
            ("segments", 0), ("device_traces", 24), ("external_annotations", 48), ("config_metadata", 72),
        ] },
        super::v2_8_0::ROW.structures[8], // CheckpointDelta
        super::v2_8_0::ROW.structures[9], // ShareableHandle
        super::v2_10_0::ROW.structures[10], // StreamSegmentSize
        super::v2_8_0::ROW.structures[10], // DataPtr
        super::v2_8_0::ROW.structures[11], // UniqueVoidPtr
        super::v2_8_0::ROW.structures[12], // CUDAStream
    ],
};
