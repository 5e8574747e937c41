//! Python's own objects. Python cuts objects of at most 512 bytes out of blocks of its own, so `malloc` does not see
//! them. While samples are recorded, Python takes its objects from the core of Gapless instead, by
//! `PyMem_SetAllocator`. There an object that is not a sample costs one subtraction more. A function around Python's
//! allocator would cost a quarter of the time of a program that makes little but objects.
//!
//! Older objects still exist, and an allocator that a program puts around this one may bring further ones. So memory
//! that is not of Gapless goes to Python's own allocator. Python calls these functions with its lock held. Builds
//! without that lock keep their allocator, because their garbage collector looks for objects in it.

use super::{blocks, slots};
use crate::core::{self, OWN};
use crate::small::Own;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// As in Python's headers since 3.5.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Allocator {
    context: *mut c_void,
    malloc: Malloc,
    calloc: Calloc,
    realloc: Realloc,
    free: Free,
}

type Malloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Calloc = unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// Python's numbers of the two kinds of requests that its own allocator serves.
const DOMAINS: [c_int; 2] = [1, 2];
/// The previous allocators, in memory that is never freed.
static BEFORE: [AtomicPtr<Allocator>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

/// Replaces Python's allocator, if the program has Python. Called before Python begins.
pub fn hook() {
    let find = |name: &std::ffi::CStr| {
        // SAFETY: `name` ends in a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    type Access = unsafe extern "C" fn(c_int, *mut Allocator);
    let (Some(get), Some(set)) = (find(c"PyMem_GetAllocator"), find(c"PyMem_SetAllocator")) else { return };
    if super::python::is_free_threaded() {
        return;
    }
    // SAFETY: Python's headers give these names this type.
    let (get, set) = unsafe {
        (std::mem::transmute::<*mut c_void, Access>(get), std::mem::transmute::<*mut c_void, Access>(set))
    };
    for (domain, before) in DOMAINS.into_iter().zip(&BEFORE) {
        let Some(place) = crate::sys::map(size_of::<Allocator>()) else { return };
        let place: *mut Allocator = place.cast();
        // SAFETY: `get` fills in `place`, which has room for an allocator; our functions are never unloaded.
        unsafe {
            get(domain, place);
            before.store(place, Ordering::Release);
            let mut ours = Allocator { context: place.cast(), malloc, calloc, realloc, free };
            set(domain, &raw mut ours);
        }
    }
}

unsafe extern "C" fn malloc(_: *mut c_void, size: usize) -> *mut c_void {
    let block = Own::quick_allocate(size);
    if block.is_null() { blocks::allocate_object(size, false).cast() } else { block.cast() }
}

unsafe extern "C" fn calloc(_: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return std::ptr::null_mut() };
    let block = Own::quick_allocate(bytes);
    if block.is_null() {
        return blocks::allocate_object(bytes, true).cast();
    }
    // SAFETY: the block is new and has at least `bytes` bytes.
    unsafe { block.write_bytes(0, bytes) };
    block.cast()
}

/// True if a block belongs to Gapless.
fn is_ours(block: *mut u8) -> bool {
    slots::contains(block) || core::may_own(block)
}

unsafe extern "C" fn realloc(context: *mut c_void, block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: Python passes null, or a block of this allocator that it did not free. A block that is not ours came from
    // the previous allocator, which gets its own context.
    unsafe {
        if block.is_null() {
            return malloc(context, size);
        }
        if is_ours(block.cast()) {
            return blocks::reallocate(block.cast(), size.max(1)).cast();
        }
        let before = &*context.cast::<Allocator>();
        (before.realloc)(before.context, block, size)
    }
}

unsafe extern "C" fn free(context: *mut c_void, block: *mut c_void) {
    // SAFETY: Python passes null, or a block of this allocator that it did not free.
    if !unsafe { OWN.quick_free(block.cast()) } {
        // SAFETY: `quick_free` did not free the block, so the same still holds.
        unsafe { free_other(context, block) };
    }
}

/// # Safety
/// `block` is null, or a block that Python got from this allocator or the one before, and did not free.
#[cold]
#[inline(never)]
unsafe fn free_other(context: *mut c_void, block: *mut c_void) {
    // SAFETY: Python passes an unfreed block (the caller's contract). One that is not ours came from the previous
    // allocator, which gets its own context.
    unsafe {
        if block.is_null() {
            return;
        }
        if is_ours(block.cast()) {
            blocks::free(block.cast());
        } else {
            let before = &*context.cast::<Allocator>();
            (before.free)(before.context, block);
        }
    }
}
