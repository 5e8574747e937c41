//! Requests and frees of callers that cannot handle a C++ exception: C and C++ programs, CuPy, Numba.
//!
//! They use PyTorch's pools and count in the same figures, limits and budgets. Before a request fails, the program's
//! handlers are asked. Nothing of [`crate::foreign`] is called, so no C++ exception can arise. It follows:
//!
//! * PyTorch's history has no stack for these events. Trackers hear of them at PyTorch's next call, and observers of
//!   failures do not hear of them. A recording of our own has their Python lines.
//! * A memory pool of PyTorch's (`use_mem_pool`) takes only PyTorch's requests, because its filter may throw. A request
//!   on a captured stream goes to the pool of that capture; the driver says if the stream is captured.

use super::{Failure, Request, Used, asleep_text, explained, from_front, given_back, record_stream};
use crate::cards;
use crate::checked;
use crate::guard::guarded;
use crate::history;
use crate::process;
use crate::recorder;
use crate::regions;
use gapless_cuda::driver::{LEGACY_STREAM, PER_THREAD_STREAM};
use gapless_cuda::streams;
use gapless_pool::{DeviceError, PoolKey, StreamHandle};
use std::ffi::c_void;

/// The reason why a call failed.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    OutOfMemory(String),
    /// The caller passed an invalid argument.
    Argument(String),
    /// The card, the driver or this process cannot serve the call.
    Unavailable(String),
}

/// Allocates `size` bytes; `size` is not 0.
///
/// # Errors
/// If there is no memory, or if the stream or the process cannot have any.
pub fn request(size: u64, device: i32, stream: u64) -> Result<u64, Refused> {
    if stream == PER_THREAD_STREAM {
        let message = "the per-thread default stream cannot be told from that of another thread: pass a stream \
                       that the program made";
        return Err(Refused::Argument(message.to_owned()));
    }
    // CUDA has two names for the legacy default stream.
    let stream = if stream == LEGACY_STREAM { 0 } else { stream };
    let stream = streams::named(stream) as *mut c_void;
    let line = guarded(0, recorder::stack);
    if !history::is_watched()
        && !checked::is_on()
        && let Some(addr) = from_front(size, device, stream, regions::current(), line)
    {
        return Ok(addr);
    }
    let who = guarded(None, checked::who);
    if let Some(found) = guarded(None, checked::take_found) {
        return Err(Refused::Unavailable(found));
    }
    let pool = guarded(PoolKey(0, 0), || pool_of(device, stream));
    Request { size, device, stream, pool, stack: None, line, who }.serve_plainly()
}

/// The pool of a request: that of the capture that its stream is in, else the current region's.
fn pool_of(device: i32, stream: *mut c_void) -> PoolKey {
    let stream = StreamHandle(stream as u64);
    cards::existing(device)
        .filter(|card| card.routings.has_capture() && card.pool.device().is_captured(stream))
        .and_then(|card| card.routings.pool_of_captured(stream))
        .unwrap_or_else(regions::current)
}

impl Request {
    fn serve_plainly(self) -> Result<u64, Refused> {
        self.attempt().or_else(|failure| match failure {
            Failure::OutOfMemory(error) => self.refused_plainly(error),
            Failure::Wrong(message) | Failure::Other(message) => Err(Refused::Unavailable(message)),
        })
    }

    #[cold]
    fn refused_plainly(&self, error: DeviceError) -> Result<u64, Refused> {
        let (served, handlers) = self.ask_handlers(|| self.attempt().inspect_err(Failure::put_off).ok());
        served.ok_or_else(|| {
            let message = self.seen(error, handlers).map_or_else(|| super::PLAIN.to_owned(), explained);
            Refused::OutOfMemory(message)
        })
    }
}

/// Frees the allocation at `addr`. If `stream` is given, the memory is reused only after that stream's work up to now.
/// Does nothing in a forked child, because destructors of the parent's objects run there too.
///
/// # Errors
/// If no allocation is there.
pub fn give_back(addr: u64, stream: Option<u64>) -> Result<(), Refused> {
    if addr == 0 || process::is_forked() {
        return Ok(());
    }
    if let Some(stream) = stream {
        use_on(addr, stream)?;
    }
    if given_back(addr as *mut c_void, None, None) { Ok(()) } else { Err(not_there(addr)) }
}

/// Notes that `stream` uses the allocation at `addr`.
///
/// # Errors
/// If no allocation is there, or if it sleeps.
pub fn use_on(addr: u64, stream: u64) -> Result<(), Refused> {
    if process::is_forked() {
        return Ok(());
    }
    match record_stream(addr, StreamHandle(stream)) {
        Used::Here => Ok(()),
        Used::Nothing => Err(not_there(addr)),
        Used::Asleep => Err(Refused::Argument(asleep_text(addr))),
    }
}

fn not_there(addr: u64) -> Refused {
    Refused::Argument(format!(
        "there is no allocation at {addr:#x}: it was freed, or is not from this library"
    ))
}
