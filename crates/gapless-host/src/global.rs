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

// SAFETY: the heap gives blocks of at least the size and alignment that were asked for, to one owner at a time, and
// unwinds from nowhere.
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
            // SAFETY: a new block of this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: as the caller says.
        unsafe { heap::free(block) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= MIN_ALIGNMENT {
            // SAFETY: as the caller says.
            return unsafe { heap::reallocate(block, size) };
        }
        // SAFETY: the caller says that `size`, rounded up to the alignment, does not overflow.
        let larger = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !larger.is_null() {
            // SAFETY: two blocks, each at least as long as the smaller of the two sizes.
            unsafe {
                larger.copy_from_nonoverlapping(block, layout.size().min(size));
                heap::free(block);
            }
        }
        larger
    }
}
