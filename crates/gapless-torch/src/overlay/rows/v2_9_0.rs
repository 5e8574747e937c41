//! Written by `cargo xtask torch-table 2.9.0`.

use super::{Row, Structure, exported, hidden};

#[rustfmt::skip]
pub(super) const ROW: Row = Row {
    version: "2.9.0",
    commit: "0fabc3ba44823f257e70ce397d989c8de5e362c1",
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
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9raw_allocEm"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator21raw_alloc_with_streamEmP11CUstream_st"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator10raw_deleteEPv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator4initEi"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator17getMemoryFractionEa"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator17setMemoryFractionEda"),
        hidden("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator6enableEb"),
        hidden("_ZNK5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9isEnabledEv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9cacheInfoEaPm"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator17getBaseAllocationEPvPm"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator12recordStreamERKN3c107DataPtrENS3_4cuda10CUDAStreamE"),
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
        super::v2_8_0::ROW.structures[0], // Stat
        super::v2_8_0::ROW.structures[1], // DeviceStats
        super::v2_8_0::ROW.structures[2], // BlockInfo
        super::v2_8_0::ROW.structures[3], // SegmentInfo
        super::v2_8_0::ROW.structures[4], // TraceEntry
        super::v2_8_0::ROW.structures[5], // AnnotationEntry
        Structure { name: "AllocatorConfigInfo", size: 88, fields: &[
            ("garbage_collection_threshold", 0), ("max_split_size", 8), ("pinned_num_register_threads", 16),
            ("expandable_segments", 24), ("release_lock_on_malloc", 25), ("pinned_use_host_register", 26),
            ("graph_capture_record_stream_reuse", 27), ("last_allocator_settings", 32),
            ("roundup_power2_divisions", 64),
        ] },
        super::v2_8_0::ROW.structures[7], // SnapshotInfo
        super::v2_8_0::ROW.structures[8], // CheckpointDelta
        super::v2_8_0::ROW.structures[9], // ShareableHandle
        super::v2_8_0::ROW.structures[10], // DataPtr
        super::v2_8_0::ROW.structures[11], // UniqueVoidPtr
        super::v2_8_0::ROW.structures[12], // CUDAStream
    ],
};
