//! Written by `cargo xtask torch-table 2.8.0`.

use super::{Row, Structure, exported, hidden};

#[rustfmt::skip]
pub(super) const ROW: Row = Row {
    version: "2.8.0",
    commit: "a1cb3cc05d46d198467bebbb6e8fba50a325d4e7",
    functions: &[
        hidden("_ZN3c109AllocatorD2Ev"),
        hidden("_ZN3c109AllocatorD2Ev"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator8allocateEm"),
        exported("_ZNK3c109Allocator18is_simple_data_ptrERKNS_7DataPtrE"),
        exported("_ZNK5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator11raw_deleterEv"),
        exported("_ZNK5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9copy_dataEPvPKvm"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9raw_allocEm"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator21raw_alloc_with_streamEmP11CUstream_st"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator10raw_deleteEPv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator4initEi"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator11initializedEv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator17getMemoryFractionEa"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator17setMemoryFractionEda"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator10emptyCacheESt4pairIyyE"),
        hidden("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator6enableEb"),
        hidden("_ZNK5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9isEnabledEv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9cacheInfoEaPm"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator17getBaseAllocationEPvPm"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator12recordStreamERKN3c107DataPtrENS3_4cuda10CUDAStreamE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator14getDeviceStatsEa"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator21resetAccumulatedStatsEa"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator14resetPeakStatsEa"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator8snapshotESt4pairIyyE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator19beginAllocateToPoolEaSt4pairIyyESt8functionIFbP11CUstream_stEE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator17endAllocateToPoolEaSt4pairIyyE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator11releasePoolEaSt4pairIyyE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator15getPoolUseCountEaSt4pairIyyE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator18createOrIncrefPoolEaSt4pairIyyEPS2_"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator11setUseOnOOMEaSt4pairIyyE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator24checkPoolLiveAllocationsEaSt4pairIyyERKSt13unordered_setIPvSt4hashIS6_ESt8equal_toIS6_ESaIS6_EE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator14shareIpcHandleEPv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator12getIpcDevPtrENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator16isHistoryEnabledEv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator13recordHistoryEbPFSt10shared_ptrIN3c1015GatheredContextEEvEmNS4_4cuda20CUDACachingAllocator13RecordContextEb"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator16recordAnnotationERKSt6vectorISt4pairINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESA_ESaISB_EE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator18pushCompileContextERNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator17popCompileContextEv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator25attachOutOfMemoryObserverESt8functionIFvlmmmEE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator27attachAllocatorTraceTrackerESt8functionIFvRKN3c104cuda20CUDACachingAllocator10TraceEntryEEE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator16enablePeerAccessEaa"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator11memcpyAsyncEPviPKvimP11CUstream_stb"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator18getCheckpointStateEaSt4pairIyyE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator22setCheckpointPoolStateEaSt10shared_ptrIN3c104cuda20CUDACachingAllocator14AllocatorStateEE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator4nameB5cxx11Ev"),
    ],
    structures: &[
        Structure { name: "Stat", size: 32, fields: &[
            ("current", 0), ("peak", 8), ("allocated", 16), ("freed", 24),
        ] },
        Structure { name: "DeviceStats", size: 976, fields: &[
            ("allocation", 0), ("segment", 96), ("active", 192), ("inactive_split", 288),
            ("allocated_bytes", 384), ("reserved_bytes", 480), ("active_bytes", 576),
            ("inactive_split_bytes", 672), ("requested_bytes", 768), ("num_alloc_retries", 864),
            ("num_ooms", 872), ("oversize_allocations", 880), ("oversize_segments", 912),
            ("num_sync_all_streams", 944), ("num_device_alloc", 952), ("num_device_free", 960),
            ("max_split_size", 968),
        ] },
        Structure { name: "BlockInfo", size: 40, fields: &[
            ("size", 0), ("requested_size", 8), ("gc_counter", 16), ("allocated", 20), ("active", 21),
            ("context_when_allocated", 24),
        ] },
        Structure { name: "SegmentInfo", size: 120, fields: &[
            ("device", 0), ("address", 8), ("total_size", 16), ("requested_size", 24),
            ("allocated_size", 32), ("active_size", 40), ("stream", 48), ("is_large", 56),
            ("is_expandable", 57), ("owner_private_pool_id", 64), ("blocks", 80),
            ("context_when_allocated", 104),
        ] },
        Structure { name: "TraceEntry", size: 104, fields: &[
            ("action_", 0), ("device_", 4), ("addr_", 8), ("context_", 16), ("stream_", 32), ("size_", 40),
            ("mempool_", 48), ("time_", 64), ("compile_context_", 72),
        ] },
        Structure { name: "AnnotationEntry", size: 72, fields: &[
            ("device_", 0), ("time_", 8), ("metadata_", 16),
        ] },
        Structure { name: "AllocatorConfigInfo", size: 88, fields: &[
            ("garbage_collection_threshold", 0), ("max_split_size", 8), ("pinned_num_register_threads", 16),
            ("expandable_segments", 24), ("release_lock_on_malloc", 25), ("pinned_use_host_register", 26),
            ("last_allocator_settings", 32), ("roundup_power2_divisions", 64),
        ] },
        Structure { name: "SnapshotInfo", size: 160, fields: &[
            ("segments", 0), ("device_traces", 24), ("external_annotations", 48), ("config_metadata", 72),
        ] },
        Structure { name: "CheckpointDelta", size: 48, fields: &[
            ("ptrs_freed", 0), ("dataptrs_allocd", 24),
        ] },
        Structure { name: "ShareableHandle", size: 40, fields: &[
            ("offset", 0), ("handle", 8),
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
