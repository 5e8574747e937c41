//! CUDA's IPC through the table.

use super::layout::layouts;
use super::memory::current_device;
use super::{This, answer};
use crate::cxx::{CxxString, SharedPtr};
use crate::exception::Kind;
use crate::sharing;
use std::ffi::c_void;

/// `ShareableHandle`: where in the shared memory the block begins, and the bytes that another process is sent.
#[repr(C)]
pub(super) struct ShareableHandle {
    offset: i64,
    handle: CxxString,
}

const _: () = assert!(size_of::<ShareableHandle>() == 40);

/// `shareIpcHandle(pointer)`.
pub(super) unsafe extern "C-unwind" fn share(
    out: *mut ShareableHandle,
    _: This,
    pointer: *mut c_void,
) -> *mut ShareableHandle {
    // PyTorch 2.13 writes and reads another header.
    let newer = layouts().pinned_limits;
    // SAFETY: C++ called, and may be thrown through; `out` is the place for the result, which C++ frees.
    unsafe {
        let (offset, bytes) = answer((0, Vec::new()), || {
            sharing::share(pointer as u64, newer).map_err(|error| (Kind::Error, error))
        });
        (&raw mut (*out).offset).write(offset as i64);
        CxxString::write_bytes(&raw mut (*out).handle, &bytes);
    }
    out
}

/// `getIpcDevPtr(handle)`.
pub(super) unsafe extern "C-unwind" fn open(
    out: *mut SharedPtr,
    _: This,
    handle: *const CxxString,
) -> *mut SharedPtr {
    // SAFETY: C++ called, and may be thrown through; the string is the caller's, and `out` the place for the result.
    unsafe {
        let device = current_device();
        let bytes = (*handle).to_bytes();
        let opened = answer(SharedPtr::NULL, || {
            sharing::open(i32::from(device), bytes).map_err(|error| (Kind::Error, error))
        });
        out.write(opened);
    }
    out
}
