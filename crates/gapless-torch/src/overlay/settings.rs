//! Settings of PyTorch's allocators as PyTorch itself has them: from the environment when it read that, or from the
//! program since then.
//!
//! No function that PyTorch exports returns them. But its own allocator object still exists, without a card, and its
//! snapshot contains them.

use super::layout::{CUDA, ConfigInfo, SnapshotInfo, layouts};
use crate::cxx::{CxxString, find};
use crate::foreign;
use gapless_cuda::locks::SetOnce;
use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};

/// PyTorch's own allocator, and the place of `snapshot` in its table.
static NATIVE: SetOnce<Native> = SetOnce::new();

struct Native {
    object: *mut c_void,
    place: usize,
}

// SAFETY: the object lives as long as the process, any thread may ask it, and we never look into it.
unsafe impl Send for Native {}
// SAFETY: the object lives as long as the process, any thread may ask it, and we never look into it.
unsafe impl Sync for Native {}

/// Room for the longest snapshot of all known builds.
type Room = [u64; 32];

const _: () = assert!(size_of::<Room>() >= size_of::<SnapshotInfo>() + 8 * 8);

/// The settings that apply to Gapless too: PyTorch itself manages pinned memory.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) text: String,
    pub(super) register_threads: usize,
    pub(super) use_host_register: bool,
    /// The largest pinned sizes that are rounded up and that are cached.
    pub(super) pinned_limits: [usize; 2],
}

/// Finds PyTorch's own allocator; `place` returns a function's place in the tables of this build's allocators. The
/// allocator of CUDA's own pools (`backend:cudaMallocAsync`) has no snapshots and is left alone.
///
/// # Safety
/// The build is known, and no other allocator was registered yet.
pub(super) unsafe fn prepare(place: impl Fn(&str) -> Option<usize>) {
    let get = find(&[c"libc10.so"], c"_ZN3c1012GetAllocatorERKNS_10DeviceTypeE");
    let (Some(get), Some(name), Some(place)) = (get, place("name"), place("snapshot")) else { return };
    // SAFETY: c10 exports this function with this type, and `name` is its place in the table of a known build.
    let (object, name) = unsafe {
        let object = foreign::registered_allocator(get, &CUDA);
        (object, foreign::name_of(object, name))
    };
    if name == "native" {
        let _ = NATIVE.set(Native { object, place });
    }
}

/// The present settings; `None` if they cannot be read.
///
/// # Safety
/// C++ exceptions may pass the callers: no guard, and no card locked.
pub(crate) unsafe fn now() -> Option<Settings> {
    let Native { object, place } = NATIVE.get()?;
    let mut room = MaybeUninit::<Room>::zeroed();
    let snapshot: *mut SnapshotInfo = room.as_mut_ptr().cast();
    // SAFETY: our caller lets exceptions pass. The object's table is that of this build, whose snapshots fit into
    // `room`. The strings and vectors in the snapshot are freed here: without a card it has no segments and no history.
    unsafe {
        foreign::snapshot_of(*object, *place, snapshot.cast());
        let config: *mut ConfigInfo = &raw mut (*snapshot).config;
        let has_limits = layouts().pinned_limits;
        let limits = snapshot.add(1).cast::<[usize; 2]>();
        let settings = Settings {
            text: (*config).last_allocator_settings.to_text(),
            register_threads: (*config).pinned_num_register_threads,
            use_host_register: (*config).pinned_use_host_register,
            pinned_limits: if has_limits { limits.read() } else { [usize::MAX; 2] },
        };
        CxxString::end(&raw mut (*config).last_allocator_settings);
        (*config).roundup_power2_divisions.end();
        Some(settings)
    }
}

const _: () =
    assert!(offset_of!(SnapshotInfo, config) + size_of::<ConfigInfo>() == size_of::<SnapshotInfo>());
