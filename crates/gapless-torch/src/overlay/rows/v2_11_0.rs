//! Written by `cargo xtask torch-table 2.11.0`.

use super::{Row, Structure, exported, hidden};

#[rustfmt::skip]
pub(super) const ROW: Row = Row {
    version: "2.11.0",
    commit: "70d99e998b4955e0049d13a98d77ae1b14db1f45",
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
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator11releasePoolEaSt4pairIyyE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator15getPoolUseCountEaSt4pairIyyE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator18createOrIncrefPoolEaSt4pairIyyESt10shared_ptrIS2_E"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator11setUseOnOOMEaSt4pairIyyEb"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator10setNoSplitEaSt4pairIyyE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator24checkPoolLiveAllocationsEaSt4pairIyyERKSt13unordered_setIPvSt4hashIS6_ESt8equal_toIS6_ESaIS6_EE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator14shareIpcHandleEPv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator12getIpcDevPtrENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator16isHistoryEnabledEv"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator13recordHistoryEbPFSt10shared_ptrIN3c1015GatheredContextEEvEmNS4_22CachingDeviceAllocator13RecordContextEbRKSt6vectorINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESaISH_EE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator16recordAnnotationERKSt6vectorISt4pairINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESA_ESaISB_EE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator18pushCompileContextERNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator17popCompileContextEv"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator15setUserMetadataERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"),
        hidden("_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator15getUserMetadataB5cxx11Ev"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator25attachOutOfMemoryObserverESt8functionIFvlmmmEE"),
        exported("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator27attachAllocatorTraceTrackerESt8functionIFvRKN3c1022CachingDeviceAllocator10TraceEntryEEE"),
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
        Structure { name: "SegmentInfo", size: 120, fields: &[
            ("device", 0), ("registration_counter", 4), ("address", 8), ("total_size", 16),
            ("requested_size", 24), ("allocated_size", 32), ("active_size", 40), ("stream", 48),
            ("is_large", 56), ("is_expandable", 57), ("owner_private_pool_id", 64), ("blocks", 80),
            ("context_when_allocated", 104),
        ] },
        super::v2_10_0::ROW.structures[4], // TraceEntry
        super::v2_8_0::ROW.structures[5], // AnnotationEntry
        super::v2_9_0::ROW.structures[6], // AllocatorConfigInfo
        super::v2_8_0::ROW.structures[7], // SnapshotInfo
        super::v2_8_0::ROW.structures[8], // CheckpointDelta
        super::v2_8_0::ROW.structures[9], // ShareableHandle
        super::v2_10_0::ROW.structures[10], // StreamSegmentSize
        super::v2_8_0::ROW.structures[10], // DataPtr
        super::v2_8_0::ROW.structures[11], // UniqueVoidPtr
        super::v2_8_0::ROW.structures[12], // CUDAStream
    ],
};
