//! `torch.cuda.memory._snapshot` through the table: segments with their blocks, the history, and the settings.
//!
//! It shows [`gapless_pool::SegmentView`]: every physical byte once, at its present user. A part of a heap is an
//! expandable segment, because it grows at its end. An allocation in a window is a segment of its own, and the home
//! address of its pages is left out. So `total_size` adds up to the reserved bytes, and the blocks to the allocated
//! ones.

use super::layout::{
    BlockInfo, ConfigInfo, MempoolId, SegmentInfo, SnapshotInfo, StreamSegmentSize, layouts,
    write_newer_parts,
};
use super::settings::{self, Settings};
use super::traces::{write_annotation, write_trace_entry};
use super::{Refusal, This, answer};
use crate::card::Card;
use crate::cards;
use crate::conf;
use crate::cxx::{CxxString, CxxVec, SharedPtr};
use crate::history::{self, Action, Entry};
use crate::process;
use crate::regions;
use crate::watcher::{Event, Stack};
use gapless_pool::{BlockState, BlockView, PoolKey, SegmentView, StreamHandle};
use std::collections::BTreeMap;
use std::ffi::c_void;

/// The contents of a snapshot of one card.
struct Picture {
    device: i32,
    segments: Vec<Shown>,
    entries: Vec<Entry>,
}

/// A segment, with its number by age, the stack that mapped it and those of its blocks.
struct Shown {
    segment: SegmentView,
    number: i32,
    stack: Option<Stack>,
    stacks: Vec<Option<Stack>>,
}

/// `snapshot(pool)` up to 2.10: with the history.
pub(super) unsafe extern "C-unwind" fn whole_snapshot(
    out: *mut SnapshotInfo,
    this: This,
    id: MempoolId,
) -> *mut SnapshotInfo {
    // SAFETY: PyTorch's C++ called and handles exceptions; `out` is its place for the result.
    unsafe { snapshot(out, this, id, true) }
}

/// `snapshot(pool, with history)`; the default pool's id means all pools.
pub(super) unsafe extern "C-unwind" fn snapshot(
    out: *mut SnapshotInfo,
    _: This,
    id: MempoolId,
    with_history: bool,
) -> *mut SnapshotInfo {
    // SAFETY: PyTorch's C++ called and handles exceptions; no card is locked after `answer`. `out` is its place.
    unsafe {
        let pictures = answer(Vec::new(), || Ok::<_, Refusal>(take_pictures(id, with_history)));
        history::tell_trackers();
        let segments: Vec<_> =
            pictures.iter().flat_map(|p| p.segments.iter().map(|segment| (p.device, segment))).collect();
        let segments = CxxVec::build(segments.into_iter(), |place: *mut SegmentInfo, (device, segment)| {
            place.write(segment_info(device, segment));
        });
        // A list for each card that PyTorch sees, used or not.
        let cards = if with_history { process::device_count().max(0) } else { 0 };
        let device_traces = CxxVec::build(0..cards as usize, |place: *mut CxxVec<_>, device| {
            let picture = pictures.iter().find(|p| p.device == device as i32);
            let entries = picture.map_or(&[][..], |p| &p.entries);
            let write = |place, entry| write_trace_entry(place, device as i32, entry);
            place.write(CxxVec::build_with_stride(entries.iter(), layouts().trace_entry(), write));
        });
        let annotations = if with_history { history::annotations() } else { Vec::new() };
        let external_annotations = CxxVec::build(annotations.iter(), |place, a| write_annotation(place, a));
        (&raw mut (*out).segments).write(segments);
        (&raw mut (*out).device_traces).write(device_traces);
        (&raw mut (*out).external_annotations).write(external_annotations);
        let settings = settings::now();
        write_config(&raw mut (*out).config, settings.as_ref());
        let limits = settings.map_or([usize::MAX; 2], |settings| settings.pinned_limits);
        write_newer_parts(out, limits, layouts());
    }
    out
}

fn take_pictures(id: MempoolId, with_history: bool) -> Vec<Picture> {
    let mut pictures = Vec::new();
    cards::for_each(|device, card| {
        let entries =
            if with_history { card.history.entries().iter().cloned().collect() } else { Vec::new() };
        let wanted = PoolKey::from(id);
        card.pool.catch_up();
        card.keep_stacks();
        let all = card.pool.segments();
        let numbers = card.ages.look(&all);
        let is_wanted = |segment: &SegmentView| !wanted.is_private() || segment.pool == wanted;
        let stacks = |segment: &SegmentView| {
            segment.blocks.iter().map(|block| card.history.stack_of(block.addr).cloned()).collect()
        };
        let segments = all
            .into_iter()
            .zip(numbers)
            .filter(|(segment, _)| is_wanted(segment))
            .map(|(segment, number)| Shown {
                number,
                stack: card.history.mapper_of(segment.addr).cloned(),
                stacks: stacks(&segment),
                segment,
            })
            .collect();
        let picture = Picture { device, segments, entries };
        note_snapshot(card, &picture, wanted);
        pictures.push(picture);
    });
    pictures
}

/// Records this snapshot in the history, with its pool and the bytes in use there, for the next one.
fn note_snapshot(card: &mut Card, picture: &Picture, pool: PoolKey) {
    if history::is_watched() {
        let blocks = picture.segments.iter().flat_map(|shown| &shown.segment.blocks);
        let size = blocks.filter(|block| is_active(block)).map(|block| block.size).sum();
        let what = Event { addr: 0, size, stream: StreamHandle(0), pool };
        card.history.add(picture.device, Action::Snapshot, what, None);
    }
}

/// True if PyTorch's own allocator would count it as active: for a caller, or for a stream that was recorded for it.
fn is_active(block: &BlockView) -> bool {
    matches!(block.state, BlockState::Allocated | BlockState::Pending)
}

/// # Safety
/// The receiver frees the segment. C++ exceptions may pass the callers.
unsafe fn segment_info(device: i32, Shown { segment, number, stack, stacks }: &Shown) -> SegmentInfo {
    let sum = |of: fn(&BlockView) -> u64| segment.blocks.iter().map(of).sum::<u64>() as usize;
    let blocks: Vec<_> = segment.blocks.iter().zip(stacks).collect();
    // SAFETY: each block is written completely, and our caller passes the vector to C++.
    let blocks = unsafe {
        CxxVec::build(blocks.into_iter(), |place: *mut BlockInfo, (block, stack)| {
            place.write(BlockInfo {
                size: block.size as usize,
                requested_size: block.requested as usize,
                gc_counter: 0,
                allocated: block.state == BlockState::Allocated,
                active: is_active(block),
                context: stack.clone().unwrap_or(SharedPtr::NULL),
            });
        })
    };
    SegmentInfo {
        device: device as i8,
        registration_counter: *number,
        address: segment.addr as usize,
        total_size: segment.size as usize,
        requested_size: sum(|b| b.requested),
        allocated_size: sum(|b| if b.state == BlockState::Allocated { b.size } else { 0 }),
        active_size: sum(|b| if is_active(b) { b.size } else { 0 }),
        stream: segment.stream.0 as *mut c_void,
        is_large: segment.is_large,
        is_expandable: true,
        pool: regions::as_torch_sees(segment.pool).into(),
        blocks,
        context: stack.clone().unwrap_or(SharedPtr::NULL),
    }
}

/// Number of powers of two, up to 32 GiB, for which PyTorch can round sizes. Gapless does not round by them.
const DIVISIONS: usize = 16;

/// # Safety
/// `place` is valid for a write; the receiver frees it. C++ exceptions may pass the callers.
pub(super) unsafe fn write_config(place: *mut ConfigInfo, settings: Option<&Settings>) {
    let text = settings.map_or_else(conf::text, |settings| settings.text.clone());
    let threads = settings.map_or(1, |settings| settings.register_threads);
    let use_host_register = settings.is_some_and(|settings| settings.use_host_register);
    // SAFETY: `place` has room for the settings. Every field is written, and the string at its final address.
    unsafe {
        (&raw mut (*place).garbage_collection_threshold).write(0.0);
        (&raw mut (*place).max_split_size).write(usize::MAX);
        (&raw mut (*place).pinned_num_register_threads).write(threads);
        (&raw mut (*place).expandable_segments).write(true);
        (&raw mut (*place).release_lock_on_malloc).write(false);
        (&raw mut (*place).pinned_use_host_register).write(use_host_register);
        (&raw mut (*place).graph_capture_record_stream_reuse).write(false);
        CxxString::write(&raw mut (*place).last_allocator_settings, &text);
        (&raw mut (*place).roundup_power2_divisions).write(CxxVec::of(vec![0; DIVISIONS]));
    }
}

/// `getExpandableSegmentSizes(device)`: the bytes of each stream's heaps.
pub(super) unsafe extern "C-unwind" fn expandable_sizes(
    out: *mut CxxVec<StreamSegmentSize>,
    _: This,
    device: i8,
) -> *mut CxxVec<StreamSegmentSize> {
    // SAFETY: PyTorch's C++ called and handles exceptions; `out` is its place for the result.
    unsafe {
        let sizes = answer(BTreeMap::new(), || {
            let mut sizes: BTreeMap<(u64, bool), u64> = BTreeMap::new();
            if let Some(card) = cards::existing(i32::from(device)) {
                for segment in card.pool.segments() {
                    *sizes.entry((segment.stream.0, !segment.is_large)).or_default() += segment.size;
                }
            }
            Ok::<_, Refusal>(sizes)
        });
        let list: Vec<StreamSegmentSize> = sizes
            .into_iter()
            .map(|((stream, is_small), size)| StreamSegmentSize {
                stream: stream as *mut c_void,
                is_small,
                total_size: size as usize,
            })
            .collect();
        out.write(CxxVec::of(list));
    }
    out
}
