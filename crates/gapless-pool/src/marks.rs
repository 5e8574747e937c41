//! How the end of a stream's work is marked without harm to captures, whatever the program does meanwhile.
//!
//! A program may begin and end a capture of any stream between any two calls of ours. What the driver does then was
//! asked of it (`torch-bench/live/capture_rules.py`):
//!
//! * To ask whether a stream is captured harms nothing.
//! * To record an event on a captured stream harms nothing, and leaves nothing in the graph. The event belongs to the
//!   capture then.
//! * To ask about such an event, or to wait for it, ends the capture. Once that capture is over, it is an error and no
//!   more.
//!
//! So a stream is asked after the record whether it is captured, and the event counts only if it is not. If a capture
//! began and ended in between, it is over, and questions about the event give an error. If one begins after the look,
//! the event was recorded before it. An event that may belong to an open capture is never asked about: it is recorded
//! again.
//!
//! The record comes first, since it is the one call that gives an error for a stream which was destroyed a moment ago.
//!
//! The default stream cannot be captured, but an event on it ends captures of every stream that waits for it. A device
//! marks it on a stream of its own that waits for it too, and that nobody can capture.

use crate::device::DeviceError;
use crate::mutants::{self, Mutant};

/// The driver's calls that a mark is made of.
pub trait Calls {
    /// Records the event on the stream.
    ///
    /// # Errors
    /// Where the driver refuses.
    fn record(&mut self) -> Result<(), DeviceError>;

    /// Whether the stream is in a capture now: one that failed and was not ended counts.
    fn is_captured(&mut self) -> bool;
}

/// What a stream answers while it is captured.
pub const CAPTURED: DeviceError = DeviceError::Driver(900);

/// Marks the present end of a stream's work with an event that may be asked about.
///
/// # Errors
/// [`CAPTURED`] where the stream is captured, and the driver's own error. The event must not be asked about then.
pub fn mark(calls: &mut impl Calls) -> Result<(), DeviceError> {
    calls.record()?;
    if calls.is_captured() && !mutants::is(Mutant::TrustUnasked) { Err(CAPTURED) } else { Ok(()) }
}
