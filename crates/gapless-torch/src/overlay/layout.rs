//! PyTorch's structures that are passed through the table, in the layout of the known builds:
//! c10/core/CachingDeviceAllocator.h, c10/core/Allocator.h and c10/cuda/CUDACachingAllocator.h.
//!
//! The structures here are those of the oldest known build. Newer ones add fields, in the middle or at the end:
//! [`Layouts`] says which of them the running build has, and the writers add them. The rows of [`super::rows`] have
//! each build's sizes and offsets; tests compare them with these structures.

use super::rows::Row;
use crate::cxx::{CxxString, CxxVec, PairMap, SharedPtr, StringMap};
use crate::foreign::Deleter;
use gapless_cuda::locks::SetOnce;
use gapless_pool::PoolKey;
use std::ffi::c_void;
use std::mem::offset_of;

/// Fields that the running build has and the oldest known build has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layouts {
    /// `DeviceStats` counts requests that are refused without an attempt (2.12).
    pub refusals: bool,
    /// `DeviceStats` counts the memory of private pools (2.13).
    pub pools: bool,
    /// `AllocatorConfigInfo` has two limits of pinned memory (2.13).
    pub pinned_limits: bool,
    /// `SnapshotInfo` has lists of pinned memory (2.14).
    pub host: bool,
    /// `TraceEntry` has a text that the program sets (2.10).
    pub user_metadata: bool,
    /// `TraceEntry` has a text of the allocator (2.15).
    pub internal_metadata: bool,
}

static LAYOUTS: SetOnce<Layouts> = SetOnce::new();

/// The layouts of the running build, which are set before anything is written.
#[must_use]
pub fn layouts() -> Layouts {
    LAYOUTS.get().copied().unwrap_or_default()
}

/// Sets the layouts of the running build, once.
pub fn set_layouts(layouts: Layouts) {
    let _ = LAYOUTS.set(layouts);
}

impl Layouts {
    /// The layouts of a known build. `None` if one of its structures has an unknown size.
    #[must_use]
    pub fn of(row: &Row) -> Option<Layouts> {
        let (refusals, pools) = match row.size_of("DeviceStats")? {
            976 => (false, false),
            984 => (true, false),
            1016 => (true, true),
            _ => return None,
        };
        let (user_metadata, internal_metadata) = match row.size_of("TraceEntry")? {
            104 => (false, false),
            136 => (true, false),
            168 => (true, true),
            _ => return None,
        };
        let (pinned_limits, host) = match (row.size_of("AllocatorConfigInfo")?, row.size_of("SnapshotInfo")?)
        {
            (88, 160) => (false, false),
            (104, 176) => (true, false),
            (104, 224) => (true, true),
            _ => return None,
        };
        Some(Layouts { refusals, pools, pinned_limits, host, user_metadata, internal_metadata })
    }

    /// Bytes of a `TraceEntry`.
    #[must_use]
    pub fn trace_entry(self) -> usize {
        match (self.user_metadata, self.internal_metadata) {
            (_, true) => size_of::<LongTraceEntry>(),
            (true, false) => size_of::<TraceEntry>(),
            (false, false) => offset_of!(TraceEntry, user_metadata),
        }
    }
}

/// `c10::MempoolId_t`, a pair of numbers, passed in two registers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MempoolId {
    pub first: u64,
    pub second: u64,
}

impl From<MempoolId> for PoolKey {
    fn from(id: MempoolId) -> PoolKey {
        PoolKey(id.first, id.second)
    }
}

impl From<PoolKey> for MempoolId {
    fn from(key: PoolKey) -> MempoolId {
        MempoolId { first: key.0, second: key.1 }
    }
}

/// `c10::CachingAllocator::Stat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    pub current: i64,
    pub peak: i64,
    pub allocated: i64,
    pub freed: i64,
}

/// In all, small, large.
pub type StatArray = [Stat; 3];

/// `c10::CachingDeviceAllocator::DeviceStats`. [`write_stats`] adds fields of newer builds between these.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    pub allocation: StatArray,
    pub segment: StatArray,
    pub active: StatArray,
    pub inactive_split: StatArray,
    pub allocated_bytes: StatArray,
    pub reserved_bytes: StatArray,
    pub active_bytes: StatArray,
    pub inactive_split_bytes: StatArray,
    pub requested_bytes: StatArray,
    pub num_alloc_retries: i64,
    pub num_ooms: i64,
    pub oversize_allocations: Stat,
    pub oversize_segments: Stat,
    pub num_sync_all_streams: i64,
    pub num_device_alloc: i64,
    pub num_device_free: i64,
    /// Only written if the build has it.
    pub num_oom_rejections: i64,
    pub max_split_size: i64,
}

/// `BlockInfo`.
#[repr(C)]
#[derive(Debug)]
pub struct BlockInfo {
    pub size: usize,
    pub requested_size: usize,
    pub gc_counter: i32,
    pub allocated: bool,
    pub active: bool,
    pub context: SharedPtr,
}

/// `SegmentInfo`.
#[repr(C)]
#[derive(Debug)]
pub struct SegmentInfo {
    pub device: i8,
    pub registration_counter: i32,
    pub address: usize,
    pub total_size: usize,
    pub requested_size: usize,
    pub allocated_size: usize,
    pub active_size: usize,
    pub stream: *mut c_void,
    pub is_large: bool,
    pub is_expandable: bool,
    pub pool: MempoolId,
    pub blocks: CxxVec<BlockInfo>,
    pub context: SharedPtr,
}

/// `TraceEntry`.
#[repr(C)]
#[derive(Debug)]
pub struct TraceEntry {
    pub action: i32,
    pub device: i8,
    pub addr: usize,
    pub context: SharedPtr,
    pub stream: *mut c_void,
    pub size: usize,
    pub pool: MempoolId,
    pub time: i64,
    pub compile_context: CxxString,
    /// Not in the oldest builds.
    pub user_metadata: CxxString,
}

/// `TraceEntry` of builds that add to it.
#[repr(C)]
#[derive(Debug)]
pub struct LongTraceEntry {
    pub entry: TraceEntry,
    pub internal_metadata: CxxString,
}

/// `AnnotationEntry`.
#[repr(C)]
#[derive(Debug)]
pub struct AnnotationEntry {
    pub device: i8,
    pub time: i64,
    pub metadata: StringMap,
}

/// `AllocatorConfigInfo`; newer builds add two sizes at its end.
#[repr(C)]
#[derive(Debug)]
pub struct ConfigInfo {
    pub garbage_collection_threshold: f64,
    pub max_split_size: usize,
    pub pinned_num_register_threads: usize,
    pub expandable_segments: bool,
    pub release_lock_on_malloc: bool,
    pub pinned_use_host_register: bool,
    pub graph_capture_record_stream_reuse: bool,
    pub last_allocator_settings: CxxString,
    pub roundup_power2_divisions: CxxVec<usize>,
}

/// `SnapshotInfo`. Newer builds add to the settings, and two lists after them.
#[repr(C)]
#[derive(Debug)]
pub struct SnapshotInfo {
    pub segments: CxxVec<SegmentInfo>,
    pub device_traces: CxxVec<CxxVec<TraceEntry>>,
    pub external_annotations: CxxVec<AnnotationEntry>,
    pub config: ConfigInfo,
}

/// `c10::DataPtr`: the data, and its owner with a deleter.
#[repr(C)]
#[derive(Debug)]
pub struct DataPtr {
    pub data: *mut c_void,
    pub deleter: Deleter,
    pub context: *mut c_void,
    pub device: Device,
}

/// `c10::Device`: kind and index.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub kind: i8,
    pub index: i8,
}

/// The kind of CUDA's devices.
pub const CUDA: i8 = 1;

/// `CheckpointDelta`.
#[repr(C)]
#[derive(Debug)]
pub struct CheckpointDelta {
    pub freed: CxxVec<*mut c_void>,
    pub allocated: CxxVec<DataPtr>,
}

/// `StreamSegmentSize`.
#[repr(C)]
#[derive(Debug)]
pub struct StreamSegmentSize {
    pub stream: *mut c_void,
    pub is_small: bool,
    pub total_size: usize,
}

const _: () = {
    assert!(size_of::<DeviceStats>() == 984 && offset_of!(DeviceStats, max_split_size) == 976);
    assert!(size_of::<BlockInfo>() == 40 && offset_of!(BlockInfo, context) == 24);
    assert!(offset_of!(BlockInfo, allocated) == 20 && offset_of!(BlockInfo, active) == 21);
    assert!(size_of::<SegmentInfo>() == 120 && offset_of!(SegmentInfo, stream) == 48);
    assert!(offset_of!(SegmentInfo, pool) == 64 && offset_of!(SegmentInfo, blocks) == 80);
    assert!(offset_of!(SegmentInfo, context) == 104 && offset_of!(SegmentInfo, is_expandable) == 57);
    assert!(size_of::<LongTraceEntry>() == 168 && offset_of!(LongTraceEntry, internal_metadata) == 136);
    assert!(size_of::<TraceEntry>() == 136 && offset_of!(TraceEntry, context) == 16);
    assert!(offset_of!(TraceEntry, pool) == 48 && offset_of!(TraceEntry, user_metadata) == 104);
    assert!(size_of::<AnnotationEntry>() == 72 && offset_of!(AnnotationEntry, metadata) == 16);
    assert!(size_of::<SnapshotInfo>() == 160 && offset_of!(SnapshotInfo, config) == 72);
    assert!(size_of::<ConfigInfo>() == 88 && offset_of!(ConfigInfo, last_allocator_settings) == 32);
    assert!(size_of::<DataPtr>() == 32 && offset_of!(DataPtr, device) == 24);
    assert!(size_of::<CheckpointDelta>() == 48 && size_of::<StreamSegmentSize>() == 24);
};

/// Writes values one after the other.
struct Writer(*mut u8);

impl Writer {
    /// # Safety
    /// There is room for `value`, aligned to 8 bytes.
    unsafe fn put<T>(&mut self, value: T) {
        // SAFETY: the place has room for `value` and is aligned to 8 bytes: `write_stats` and `write_newer_parts` write
        // no more than their structures have.
        unsafe {
            self.0.cast::<T>().write(value);
            self.0 = self.0.add(size_of::<T>());
        }
    }
}

/// Writes statistics in the layout of a build; `pools` is the memory of each private pool.
///
/// # Safety
/// `place` is valid for a write of the build's `DeviceStats`; the receiver destroys it.
pub unsafe fn write_stats(
    place: *mut DeviceStats,
    stats: &DeviceStats,
    pools: &[([u64; 2], StatArray)],
    layouts: Layouts,
) {
    let mut out = Writer(place.cast());
    // SAFETY: the fields together are the build's `DeviceStats`, for which `place` has room, each a multiple of 8
    // bytes.
    unsafe {
        out.put([stats.allocation, stats.segment, stats.active, stats.inactive_split]);
        out.put([stats.allocated_bytes, stats.reserved_bytes]);
        if layouts.pools {
            let map = out.0.cast::<PairMap<StatArray>>();
            PairMap::write(map, pools);
            out.0 = map.add(1).cast();
        }
        out.put([stats.active_bytes, stats.inactive_split_bytes, stats.requested_bytes]);
        out.put([stats.num_alloc_retries, stats.num_ooms]);
        out.put([stats.oversize_allocations, stats.oversize_segments]);
        out.put([stats.num_sync_all_streams, stats.num_device_alloc, stats.num_device_free]);
        if layouts.refusals {
            out.put(stats.num_oom_rejections);
        }
        out.put(stats.max_split_size);
    }
}

/// Writes the fields that newer builds have in a snapshot after the common ones.
///
/// # Safety
/// `place` is valid for a write of the build's `SnapshotInfo`.
pub unsafe fn write_newer_parts(place: *mut SnapshotInfo, pinned_limits: [usize; 2], layouts: Layouts) {
    let mut out = Writer(place.wrapping_add(1).cast());
    // SAFETY: the fields together end with the build's `SnapshotInfo`, for which `place` has room.
    unsafe {
        if layouts.pinned_limits {
            // The largest sizes that are rounded up and that are cached.
            out.put(pinned_limits);
        }
        if layouts.host {
            // PyTorch fills these itself.
            out.put([CxxVec::<u64>::EMPTY, CxxVec::<u64>::EMPTY]);
        }
    }
}
