//! Marks the end of a stream's work without harm to captures, whatever the program does meanwhile.
//!
//! A program may begin and end a capture of any stream between any two calls of ours.
//! `torch-bench/live/capture_rules.py` asked the driver for the rules:
//!
//! * A query for a stream's capture state harms nothing.
//! * A record of an event on a captured stream harms nothing and leaves nothing in the graph. The capture owns the
//!   event then.
//! * A query of such an event, or a wait for it, ends the capture. Once that capture is over, it is only an error.
//!
//! So [`mark`] records first and then queries the stream's capture state. The event counts only if the stream is not
//! captured. If a capture began and ended in between, it is over, and queries of the event give an error. If one begins
//! after the query, the event was recorded before it. An event that may belong to an open capture is recorded again,
//! not queried.
//!
//! The record comes first, because it is the only one of these calls that gives an error for a stream that was
//! destroyed a moment ago.
//!
//! The default stream cannot be captured, but an event on it ends captures of every stream that waits for it. So a
//! device marks it on a stream of its own, which waits for the default stream and cannot be captured by the program.

use crate::device::DeviceError;
use crate::mutants::{self, Mutant};

/// The driver's calls that a mark needs.
pub trait Calls {
    /// Records the event on the stream.
    ///
    /// # Errors
    /// If the driver refuses.
    fn record(&mut self) -> Result<(), DeviceError>;

    /// True if the stream is in a capture now, also in one that failed and was not ended.
    fn is_captured(&mut self) -> bool;
}

/// The driver's error for a stream that is captured.
pub const CAPTURED: DeviceError = DeviceError::Driver(900);

/// Marks the present end of a stream's work with an event that may be queried.
///
/// # Errors
/// [`CAPTURED`] if the stream is captured, or the driver's own error. The event must not be queried then.
pub fn mark(calls: &mut impl Calls) -> Result<(), DeviceError> {
    calls.record()?;
    if calls.is_captured() && !mutants::is(Mutant::TrustUnasked) { Err(CAPTURED) } else { Ok(()) }
}
