//! Settings of PyTorch's allocators as PyTorch itself has them: from the environment when it read that, or from what
//! the program set since.
//!
//! PyTorch keeps them where no exported function tells. But its own allocator object is still there, without a card,
//! and its snapshot has them.

use super::layout::{CUDA, ConfigInfo, SnapshotInfo, layouts};
use crate::cxx::{CxxString, find};
use crate::foreign;
use gapless_cuda::locks::SetOnce;
use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};

/// PyTorch's own allocator, and where its table has `snapshot`.
static NATIVE: SetOnce<Native> = SetOnce::new();

struct Native {
    object: *mut c_void,
    place: usize,
}

// SAFETY: the object lives as long as the process, and may be asked from any thread; it is not looked into here.
unsafe impl Send for Native {}
// SAFETY: as above.
unsafe impl Sync for Native {}

/// Room for the longest snapshot that there is.
type Room = [u64; 32];

const _: () = assert!(size_of::<Room>() >= size_of::<SnapshotInfo>() + 8 * 8);

/// What is said of them, as far as it is true of Gapless too: pinned memory is PyTorch's own business.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) text: String,
    pub(super) register_threads: usize,
    pub(super) use_host_register: bool,
    /// The most of pinned memory that is rounded up, and that is kept.
    pub(super) pinned_limits: [usize; 2],
}

/// Finds PyTorch's own allocator; `place` says where the tables of this build's allocators have a function. That of
/// CUDA's own pools (`backend:cudaMallocAsync`), which has no snapshots, is left alone.
///
/// # Safety
/// The build is known, and another allocator was not registered yet.
pub(super) unsafe fn prepare(place: impl Fn(&str) -> Option<usize>) {
    let get = find(&[c"libc10.so"], c"_ZN3c1012GetAllocatorERKNS_10DeviceTypeE");
    let (Some(get), Some(name), Some(place)) = (get, place("name"), place("snapshot")) else { return };
    // SAFETY: the function of this name, and the place of a known build's table.
    let (object, name) = unsafe {
        let object = foreign::registered_allocator(get, &CUDA);
        (object, foreign::name_of(object, name))
    };
    if name == "native" {
        let _ = NATIVE.set(Native { object, place });
    }
}

/// The present settings; `None`: nobody can tell.
///
/// # Safety
/// Where C++ may be thrown through.
pub(crate) unsafe fn now() -> Option<Settings> {
    let Native { object, place } = NATIVE.get()?;
    let mut room = MaybeUninit::<Room>::zeroed();
    let snapshot: *mut SnapshotInfo = room.as_mut_ptr().cast();
    // SAFETY: as the caller says; the object's table is that of this build, whose snapshots fit. What the snapshot owns
    // is freed here: without a card it has no segments and no history.
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
