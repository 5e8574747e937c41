//! `libgapless_malloc.so`, for `LD_PRELOAD`: the C library's and C++'s functions for memory, on `gapless-host`.
//!
//! Each function translates one call. What a program may request is in the manual pages malloc(3), posix_memalign(3),
//! mallopt(3), and in the C++ standard; each function relies on what these require of the program.
#![cfg(target_os = "linux")]

mod account;
mod cuda;
mod cxx;
mod driver;
mod elf;
mod fork;
mod glibc;
mod hooks;
mod kernel;
mod loader;
mod names;
mod next;
mod publish;
mod start;

use gapless_host::heap;
use std::ffi::c_int;

const PAGE: usize = 4096;

fn invalid() -> *mut u8 {
    gapless_host::sys::set_errno(libc::EINVAL);
    std::ptr::null_mut()
}

fn no_memory() -> *mut u8 {
    gapless_host::sys::set_errno(libc::ENOMEM);
    std::ptr::null_mut()
}

#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut u8 {
    heap::allocate(size)
}

#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut u8 {
    match count.checked_mul(size) {
        Some(bytes) => heap::allocate_zeroed(bytes),
        None => no_memory(),
    }
}

/// # Safety
/// `block` is null, or a block of this library that was not freed (free(3)).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut u8) {
    // SAFETY: `block` is null, or a block of the heap that was not freed: the contract of free(3).
    unsafe { heap::free(block) }
}

/// # Safety
/// `block` is null, or a block of this library that was not freed (free(3)).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: *mut u8) {
    // SAFETY: `block` is null, or a block of the heap that was not freed: the contract of free(3).
    unsafe { heap::free(block) }
}

/// `realloc(p, 0)` frees the block and returns null, as glibc does.
///
/// # Safety
/// `block` is null, or a block of this library that was not freed (realloc(3)).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut u8, size: usize) -> *mut u8 {
    if size == 0 && !block.is_null() {
        // SAFETY: `block` is a block of the heap that was not freed: the contract of realloc(3).
        unsafe { heap::free(block) };
        return std::ptr::null_mut();
    }
    // SAFETY: `block` is null, or a block of the heap that was not freed: the contract of realloc(3).
    unsafe { heap::reallocate(block, size) }
}

/// # Safety
/// As for [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut u8, count: usize, size: usize) -> *mut u8 {
    match count.checked_mul(size) {
        // SAFETY: `block` is null, or a block of the heap that was not freed: the contract of realloc(3).
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => no_memory(),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: usize, size: usize) -> *mut u8 {
    // glibc rounds up to a power of two.
    match alignment.max(1).checked_next_power_of_two() {
        Some(alignment) => heap::allocate_aligned(size, alignment),
        None => invalid(),
    }
}

/// An alignment that is not a power of two is rounded up, as in the C library up to 2.37, or refused, as since then.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut u8 {
    if alignment.is_power_of_two() {
        return heap::allocate_aligned(size, alignment);
    }
    if glibc::refuses_odd_alignments() { invalid() } else { memalign(alignment, size) }
}

/// # Safety
/// `block` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(block: *mut *mut u8, alignment: usize, size: usize) -> c_int {
    // SAFETY: `block` is valid for writing: the contract of posix_memalign(3).
    unsafe { aligned_at(block, alignment, size) }
}

/// [`posix_memalign`] for this library: if it is not preloaded, the exported name leads to the C library's function.
///
/// # Safety
/// `block` is valid for writing.
unsafe fn aligned_at(block: *mut *mut u8, alignment: usize, size: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let found = heap::allocate_aligned(size, alignment);
    if found.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: `block` is valid for writing (the caller's contract).
    unsafe { block.write(found) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut u8 {
    heap::allocate_aligned(size, PAGE)
}

#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut u8 {
    match size.max(1).checked_next_multiple_of(PAGE) {
        Some(size) => heap::allocate_aligned(size, PAGE),
        None => no_memory(),
    }
}

/// # Safety
/// `block` is null, or a block of this library that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut u8) -> usize {
    // SAFETY: `block` is null, or a block of the heap that was not freed (the caller's contract).
    unsafe { heap::usable(block) }
}
