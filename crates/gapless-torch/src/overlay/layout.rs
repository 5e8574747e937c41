//! PyTorch's structures that cross the border, as the known builds lay them out: c10/core/CachingDeviceAllocator.h,
//! c10/core/Allocator.h and c10/cuda/CUDACachingAllocator.h. Sizes and offsets were printed by a compiler over the
//! headers of each known build, and are asserted here.

use crate::cxx::{CxxString, CxxVec, SharedPtr, StringMap};
use crate::foreign::Deleter;
use crate::history::{Annotation, Entry};
use crate::routing::MempoolId;
use std::ffi::c_void;
use std::mem::offset_of;

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

/// `c10::CachingDeviceAllocator::DeviceStats`.
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
    pub user_metadata: CxxString,
}

/// `AnnotationEntry`.
#[repr(C)]
#[derive(Debug)]
pub struct AnnotationEntry {
    pub device: i8,
    pub time: i64,
    pub metadata: StringMap,
}

/// `AllocatorConfigInfo`.
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

/// `SnapshotInfo`.
#[repr(C)]
#[derive(Debug)]
pub struct SnapshotInfo {
    pub segments: CxxVec<SegmentInfo>,
    pub device_traces: CxxVec<CxxVec<TraceEntry>>,
    pub external_annotations: CxxVec<AnnotationEntry>,
    pub config: ConfigInfo,
}

/// `c10::DataPtr`: the data, and its owner with what ends it.
#[repr(C)]
#[derive(Debug)]
pub struct DataPtr {
    pub data: *mut c_void,
    pub deleter: Deleter,
    pub context: *mut c_void,
    pub device: Device,
}

/// `c10::Device`: what kind, and which.
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
    assert!(size_of::<DeviceStats>() == 976 && offset_of!(DeviceStats, num_alloc_retries) == 864);
    assert!(
        offset_of!(DeviceStats, requested_bytes) == 768 && offset_of!(DeviceStats, max_split_size) == 968
    );
    assert!(size_of::<BlockInfo>() == 40 && offset_of!(BlockInfo, context) == 24);
    assert!(offset_of!(BlockInfo, allocated) == 20 && offset_of!(BlockInfo, active) == 21);
    assert!(size_of::<SegmentInfo>() == 120 && offset_of!(SegmentInfo, stream) == 48);
    assert!(offset_of!(SegmentInfo, pool) == 64 && offset_of!(SegmentInfo, blocks) == 80);
    assert!(offset_of!(SegmentInfo, context) == 104 && offset_of!(SegmentInfo, is_expandable) == 57);
    assert!(size_of::<TraceEntry>() == 136 && offset_of!(TraceEntry, context) == 16);
    assert!(offset_of!(TraceEntry, pool) == 48 && offset_of!(TraceEntry, user_metadata) == 104);
    assert!(size_of::<AnnotationEntry>() == 72 && offset_of!(AnnotationEntry, metadata) == 16);
    assert!(size_of::<SnapshotInfo>() == 160 && offset_of!(SnapshotInfo, config) == 72);
    assert!(size_of::<ConfigInfo>() == 88 && offset_of!(ConfigInfo, last_allocator_settings) == 32);
    assert!(size_of::<DataPtr>() == 32 && offset_of!(DataPtr, device) == 24);
    assert!(size_of::<CheckpointDelta>() == 48 && size_of::<StreamSegmentSize>() == 24);
};

/// Builds an entry in its place.
///
/// # Safety
/// `place` is valid for a write; whoever gets the entry frees it.
pub unsafe fn write_trace_entry(place: *mut TraceEntry, device: i32, entry: &Entry) {
    // SAFETY: every field is written, the strings where they stay.
    unsafe {
        (&raw mut (*place).action).write(entry.action as i32);
        (&raw mut (*place).device).write(device as i8);
        (&raw mut (*place).addr).write(entry.addr as usize);
        (&raw mut (*place).context).write(entry.stack.clone().unwrap_or(SharedPtr::NULL));
        (&raw mut (*place).stream).write(entry.stream.0 as *mut c_void);
        (&raw mut (*place).size).write(entry.size as usize);
        (&raw mut (*place).pool).write(entry.pool.into());
        (&raw mut (*place).time).write(entry.time);
        CxxString::write(&raw mut (*place).compile_context, entry.compiled.as_deref().unwrap_or("N/A"));
        CxxString::write(&raw mut (*place).user_metadata, entry.metadata.as_deref().unwrap_or(""));
    }
}

/// Ends an entry that C++ only looked at.
///
/// # Safety
/// It was made by [`write_trace_entry`], and is not used any more.
pub unsafe fn end_trace_entry(place: *mut TraceEntry) {
    // SAFETY: as the caller says.
    unsafe {
        std::ptr::drop_in_place(&raw mut (*place).context);
        CxxString::end(&raw mut (*place).compile_context);
        CxxString::end(&raw mut (*place).user_metadata);
    }
}

/// Builds an annotation in its place.
///
/// # Safety
/// As [`write_trace_entry`].
pub unsafe fn write_annotation(place: *mut AnnotationEntry, annotation: &Annotation) {
    // SAFETY: every field is written, the map where it stays.
    unsafe {
        (&raw mut (*place).device).write(annotation.device);
        (&raw mut (*place).time).write(annotation.time);
        StringMap::write(&raw mut (*place).metadata, &annotation.pairs);
    }
}
