//! CUDA's IPC through the table.

use super::layout::layouts;
use super::memory::current_device;
use super::{This, answer};
use crate::cxx::{CxxString, SharedPtr};
use crate::exception::Kind;
use crate::sharing;
use std::ffi::c_void;

/// `ShareableHandle`: the offset of the block in the shared memory, and the bytes for another process.
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
    // SAFETY: PyTorch's C++ called and handles exceptions; `out` is its place for the result, which it frees.
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
    // SAFETY: PyTorch's C++ called and handles exceptions; the string is its own, and `out` its place for the result.
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
