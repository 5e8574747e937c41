//! Python's own objects. Those of at most 512 bytes come from blocks that Python cuts up itself, so `malloc` does not
//! see them. The recorder puts itself before Python's allocator (`PyMem_SetAllocator`, which is made for it) and lets
//! it work as before: only sampled objects have a place of their own.
//!
//! Python calls these functions with its lock held. Larger objects reach `malloc`, and are counted there.

use super::{Otherwise, sample, sampler, slots};
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

/// What Python's own allocator serves itself.
const SMALL: usize = 512;
/// Python's numbers of the two kinds of requests that its own allocator serves.
const DOMAINS: [c_int; 2] = [1, 2];
/// The allocators that were there before, in memory that stays.
static BEFORE: [AtomicPtr<Allocator>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

/// Puts the recorder before Python's allocator, where there is one: before Python begins.
pub fn hook() {
    let find = |name: &std::ffi::CStr| {
        // SAFETY: `name` ends in a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    type Access = unsafe extern "C" fn(c_int, *mut Allocator);
    let (Some(get), Some(set)) = (find(c"PyMem_GetAllocator"), find(c"PyMem_SetAllocator")) else { return };
    // SAFETY: Python's headers give these names this type.
    let (get, set) = unsafe {
        (std::mem::transmute::<*mut c_void, Access>(get), std::mem::transmute::<*mut c_void, Access>(set))
    };
    for (domain, before) in DOMAINS.into_iter().zip(&BEFORE) {
        let Some(place) = crate::sys::map(size_of::<Allocator>()) else { return };
        let place: *mut Allocator = place.cast();
        // SAFETY: the function fills in what it is given; the new allocator's functions live for good.
        unsafe {
            get(domain, place);
            before.store(place, Ordering::Release);
            let mut ours = Allocator { context: place.cast(), malloc, calloc, realloc, free };
            set(domain, &raw mut ours);
        }
    }
}

struct Before(*mut c_void);

impl Otherwise for Before {
    const OBJECTS: bool = true;

    fn allocate(&self, size: usize, _: usize, zeroed: bool) -> *mut u8 {
        // SAFETY: the allocator of `hook`, with its own context.
        unsafe {
            let before = &*self.0.cast::<Allocator>();
            if zeroed {
                (before.calloc)(before.context, 1, size).cast()
            } else {
                (before.malloc)(before.context, size).cast()
            }
        }
    }
}

unsafe extern "C" fn malloc(context: *mut c_void, size: usize) -> *mut c_void {
    if size <= SMALL && sampler::passes(size.max(1)) {
        return sample(size.max(1), 16, false, Before(context)).cast();
    }
    Before(context).allocate(size, 16, false).cast()
}

unsafe extern "C" fn calloc(context: *mut c_void, count: usize, size: usize) -> *mut c_void {
    if let Some(bytes) = count.checked_mul(size).filter(|bytes| *bytes <= SMALL)
        && sampler::passes(bytes.max(1))
    {
        return sample(bytes.max(1), 16, true, Before(context)).cast();
    }
    // SAFETY: the allocator of `hook`, with its own context.
    unsafe {
        let before = &*context.cast::<Allocator>();
        (before.calloc)(before.context, count, size)
    }
}

unsafe extern "C" fn realloc(context: *mut c_void, block: *mut c_void, size: usize) -> *mut c_void {
    let old: *mut u8 = block.cast();
    if !slots::contains(old) {
        if old.is_null() {
            // SAFETY: as Python calls it.
            return unsafe { malloc(context, size) };
        }
        // SAFETY: the allocator of `hook`, with its own context.
        return unsafe {
            let before = &*context.cast::<Allocator>();
            (before.realloc)(before.context, block, size)
        };
    }
    // SAFETY: as Python calls it.
    let moved: *mut u8 = unsafe { malloc(context, size) }.cast();
    if !moved.is_null() {
        let length = slots::usable(old).unwrap_or(0).min(size);
        // SAFETY: both blocks are valid for the smaller of their lengths, and are two.
        unsafe {
            moved.copy_from_nonoverlapping(old, length);
            super::free(old);
        }
    }
    moved.cast()
}

unsafe extern "C" fn free(context: *mut c_void, block: *mut c_void) {
    if slots::contains(block.cast()) {
        // SAFETY: a sampled block.
        unsafe { super::free(block.cast()) };
        return;
    }
    // SAFETY: the allocator of `hook`, with its own context.
    unsafe {
        let before = &*context.cast::<Allocator>();
        (before.free)(before.context, block);
    }
}
