//! Gapless below numpy and torch's CPU tensors without preloading: `gapless.host.enable()` loads this library and calls
//! these functions, with Python's lock held.
//!
//! ```text
//!   numpy     the functions of numpy's handler for data (`PyDataMem_Handler`) are replaced by ours
//!   torch     libc10.so calls our `posix_memalign` and `free` instead of the C library's (`rebind`)
//! ```
//!
//! Older blocks, and small ones, belong to the previous allocator. So each of our functions checks where a block lies,
//! and passes blocks of others on. A hook stays for good; when it is switched off, it serves no new block.

mod numpy;
mod rebind;
mod torch;

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// Smaller blocks stay with the previous allocator, because numpy keeps lists of its own for them.
const LEAST: usize = 1024;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// True if a new block of this size is ours.
fn serves(size: usize) -> bool {
    size >= LEAST && IS_ON.load(Ordering::Relaxed)
}

/// Switches the hooks on or off for new blocks.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_hooks(is_on: bool) {
    IS_ON.store(is_on, Ordering::Relaxed);
}

/// A function of the program's own C library, even if another library has the name here.
fn of_program(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `name` ends in a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
