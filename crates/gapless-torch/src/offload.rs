//! Pinned host memory, for the Python package, which moves tensors to the host and back, and for regions.
//!
//! One pool serves all cards. It is made on first use, behind a lock of its own that is taken last. A forked child gets
//! no memory from it and gives none back: pinned memory belongs to its parent. Nothing is torn down at exit.

use crate::forks;
use crate::process;
use gapless_cuda::Pinned;
use gapless_cuda::locks::{Guard, Lock};
use gapless_pool::host::{HostPool, HostStats};

static HOST: Lock<Option<HostPool<Pinned>>> = Lock::new(|| None);

fn host() -> Guard<'static, Option<HostPool<Pinned>>> {
    HOST.lock()
}

/// Pinned host memory for `size` bytes. The pool holds at most `limit` bytes if that is not 0.
///
/// # Errors
/// If the host has none.
pub(crate) fn alloc(device: i32, size: u64, limit: u64) -> Result<u64, String> {
    if process::is_forked() {
        return Err(process::CardError::Forked.to_string());
    }
    let mut host = host();
    let pool = match &mut *host {
        Some(pool) => pool,
        None => {
            let pinned = Pinned::new(device).map_err(|error| error.to_string())?;
            forks::watch();
            host.insert(HostPool::new(pinned))
        }
    };
    pool.alloc(size, (limit > 0).then_some(limit)).map_err(|error| error.to_string())
}

/// Frees a block of [`alloc`] that no copy uses any more. False if there is no such block. Does nothing in a forked
/// child.
pub(crate) fn free(addr: u64) -> bool {
    process::is_forked() || host().as_mut().is_some_and(|pool| pool.free(addr))
}

/// Unpins memory that is not in use, and returns its bytes.
pub(crate) fn trim() -> u64 {
    host().as_mut().map_or(0, HostPool::trim)
}

/// The figures of the pool.
pub(crate) fn stats() -> HostStats {
    host().as_ref().map(HostPool::stats).unwrap_or_default()
}
