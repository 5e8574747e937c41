//! The functions that PyTorch calls: those of `torch.cuda.memory.CUDAPluggableAllocator`.

use crate::cxx::Function;
use crate::exception::{self, Kind};
use crate::foreign::Filter;
use crate::guard::{guarded, set_error};
use crate::overlay::layout::MempoolId;
use crate::process::{self, CardError};
use crate::serve::{self, Used};
use crate::{conf, opening, outside, overlay, pools};
use gapless_pool::StreamHandle;
use std::ffi::c_void;

/// Allocates `size` bytes on `device`, for work on `stream`. Throws `torch.OutOfMemoryError` if there is no memory.
///
/// # Safety
/// Called as PyTorch calls an allocator: from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_alloc(size: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    // SAFETY: PyTorch's C++ handles exceptions, and no guard or lock of ours is around this call.
    unsafe { serve::request(size, device, stream) }
}

/// Gives memory back. Unknown pointers are ignored.
///
/// # Safety
/// Called as PyTorch calls an allocator: from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_free(
    pointer: *mut c_void,
    _size: usize,
    device: i32,
    _stream: *mut c_void,
) {
    // SAFETY: PyTorch's C++ handles exceptions, and no guard or lock of ours is around this call.
    unsafe { serve::give_back(pointer, Some(device)) };
}

/// PyTorch initialises CUDA. Each card is made on its first use, with the settings that hold now.
///
/// # Safety
/// Called from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_init(device_count: i32) {
    // SAFETY: PyTorch's C++ handles exceptions, and no guard or lock of ours is around this call.
    if let Some(settings) = unsafe { overlay::settings::now() } {
        conf::note(settings.text);
    }
    process::set_device_count(device_count);
}

/// `torch.cuda.empty_cache()`.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_reset() {
    guarded((), outside::trim_all);
}

/// `torch.cuda.set_per_process_memory_fraction`.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_memory_fraction(fraction: f64, device: i32) {
    guarded((), || {
        let _: Result<(), CardError> = opening::with_card(device, |card| card.set_fraction(fraction));
    });
}

/// Returns the pointer and the size of the allocation that begins there. Throws if none begins there.
///
/// # Safety
/// `size` is null or valid for a write. Called from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_base_alloc(pointer: *mut c_void, size: *mut usize) -> *mut c_void {
    let Some(bytes) = serve::size_at(pointer as u64) else {
        // SAFETY: PyTorch's C++ handles exceptions; the guard in `size_at` has ended, and no card is locked.
        unsafe { exception::throw(Kind::Error, format!("invalid device pointer: {pointer:?}")) };
        return std::ptr::null_mut();
    };
    if !size.is_null() {
        // SAFETY: not null, so PyTorch passes a place for the size.
        unsafe { size.write(bytes as usize) };
    }
    pointer
}

/// Notes that another stream uses a block. Throws if the block sleeps.
///
/// # Safety
/// Called as PyTorch calls an allocator: from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_record_stream(pointer: *mut c_void, stream: *mut c_void) {
    if serve::record_stream(pointer as u64, StreamHandle(stream as u64)) == Used::Asleep {
        let message = format!("gapless: {}", serve::asleep_text(pointer as u64));
        set_error(&message);
        // SAFETY: PyTorch's C++ handles exceptions, and no card is locked here.
        unsafe { exception::throw(Kind::Error, message) };
    }
}

/// A capture or a memory pool begins to take requests.
///
/// # Safety
/// `filter` points to a live `std::function<bool(cudaStream_t)>`, passed by value. Called from C++ that handles
/// exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_begin_pool(device: i32, id: MempoolId, filter: *const Function) {
    // SAFETY: PyTorch's C++ handles exceptions, and `filter` is its argument, which lives until this call returns.
    unsafe { pools::begin(device, id, Filter(Function::copy_of(filter))) };
}

/// A capture or a memory pool takes no more requests.
///
/// # Safety
/// Called from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_end_pool(device: i32, id: MempoolId) {
    // SAFETY: PyTorch's C++ handles exceptions, and no guard or lock of ours is around this call.
    unsafe { pools::end(device, id) };
}

/// A private pool has one user less.
///
/// # Safety
/// Called from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_release_pool(device: i32, id: MempoolId) {
    // SAFETY: PyTorch's C++ handles exceptions, and no guard or lock of ours is around this call.
    unsafe { pools::release(device, id) };
}
