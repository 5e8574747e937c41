//! The allocator of a Rust program:
//!
//! ```text
//! #[global_allocator]
//! static MEMORY: gapless_host::Gapless = gapless_host::Gapless;
//! ```
//!
//! It reads no variable of the environment and has no budget. A program that preloads `libgapless_malloc.so` has both.

use crate::heap;
use crate::units::MIN_ALIGNMENT;
use std::alloc::{GlobalAlloc, Layout};

#[derive(Clone, Copy, Debug, Default)]
pub struct Gapless;

// SAFETY: the heap returns blocks of at least the requested size and alignment, each to one owner at a time, and never
// unwinds.
unsafe impl GlobalAlloc for Gapless {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= MIN_ALIGNMENT {
            heap::allocate(layout.size())
        } else {
            heap::allocate_aligned(layout.size(), layout.align())
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= MIN_ALIGNMENT {
            return heap::allocate_zeroed(layout.size());
        }
        let block = heap::allocate_aligned(layout.size(), layout.align());
        if !block.is_null() {
            // SAFETY: the block is new and has `layout.size()` bytes.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller passes a block of this allocator that was not freed (the contract of `GlobalAlloc`).
        unsafe { heap::free(block) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= MIN_ALIGNMENT {
            // SAFETY: the caller passes a block of this allocator that was not freed (the contract of `GlobalAlloc`).
            return unsafe { heap::reallocate(block, size) };
        }
        // SAFETY: `size`, rounded up to the alignment, does not overflow (the contract of `GlobalAlloc`).
        let larger = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !larger.is_null() {
            // SAFETY: the blocks do not overlap, and each has at least the smaller of the two sizes.
            unsafe {
                larger.copy_from_nonoverlapping(block, layout.size().min(size));
                heap::free(block);
            }
        }
        larger
    }
}
