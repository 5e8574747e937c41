//! The trace itself as `.gtrace`: nothing is lost, and `gapless` reads it back many times faster than
//! the original file.

use crate::ExportError;
use gapless_trace::Trace;
use gapless_trace::gtrace::{Options, write_trace};
use std::io::Write;

/// Writes all of `trace`.
///
/// # Errors
/// When writing fails or the trace contradicts itself.
pub fn write(trace: &Trace, out: &mut dyn Write) -> Result<(), ExportError> {
    write_trace(trace, out, Options::default())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    #[test]
    fn what_is_written_reads_back() {
        let sample = Sample::new();
        let mut out = Vec::new();
        write(&sample.trace, &mut out).unwrap();
        let read = gapless_trace::gtrace::read(&out).unwrap();
        assert_eq!(read.devices.len(), sample.trace.devices.len());
        for (a, b) in read.devices.iter().zip(&sample.trace.devices) {
            assert_eq!(a.events, b.events);
            assert_eq!(a.segments, b.segments);
        }
        assert!(read.source.notes.is_empty());
    }
}
