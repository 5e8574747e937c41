//! Objects below 1 MiB, behind a trait with two cores: our own, and mimalloc 3.

pub mod mimalloc;
pub mod own;

pub use mimalloc::Mimalloc;
pub use own::Own;

/// A core for small objects. Every function is called by many threads at once, and may be called while another thread
/// forks.
pub trait Small {
    /// Null where there is no memory.
    fn allocate(&self, size: usize, zeroed: bool) -> *mut u8;
    fn allocate_aligned(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8;
    /// # Safety
    /// `block` came from this core and was not freed; the block is invalid afterwards unless null is returned.
    unsafe fn reallocate(&self, block: *mut u8, size: usize) -> *mut u8;
    /// # Safety
    /// `block` came from this core and was not freed.
    unsafe fn free(&self, block: *mut u8);
    /// # Safety
    /// `block` came from this core and was not freed.
    unsafe fn usable(&self, block: *mut u8) -> usize;
    /// Gives back what is idle; `all`: also what was freed just now.
    fn collect(&self, all: bool);
    /// Bytes that it holds from the kernel.
    fn held(&self) -> u64;
    /// Whether an address can be one of its blocks.
    fn may_own(&self, block: *const u8) -> bool;
}
