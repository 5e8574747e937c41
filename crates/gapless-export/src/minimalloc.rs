//! Lifetimes as the CSV that MiniMalloc and other offline packers read: `id,lower,upper,size`, half-open intervals of
//! ticks.
//!
//! Ids are allocation ids of the history. An allocation without bytes needs no place and is not written.

use crate::ExportError;
use gapless_trace::{Bytes, History, Tick};
use std::io::Write;
use std::ops::Range;

/// The choice of a buffer's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// The allocator's block, whose waste a packer could avoid.
    #[default]
    Block,
    /// The requested size.
    Requested,
}

#[derive(Clone, Debug, Default)]
pub struct Options {
    pub size: Size,
    /// Only allocations that are active within these ticks, cut to them; `None`: the whole run.
    pub ticks: Option<Range<Tick>>,
}

/// Writes the lifetimes of one device.
///
/// # Errors
/// When writing fails.
pub fn write(history: &History, options: &Options, out: &mut dyn Write) -> Result<(), ExportError> {
    let ticks = options.ticks.clone().unwrap_or(Tick(0)..history.forever());
    let mut buffer = b"id,lower,upper,size\n".to_vec();
    for id in history.allocations.ids() {
        let a = history.allocations.get(id);
        let (lower, upper) = (a.start.max(ticks.start), a.end.min(ticks.end).min(history.forever()));
        let size = match options.size {
            Size::Block => a.block,
            Size::Requested => a.requested,
        };
        if lower < upper && size > Bytes::ZERO {
            writeln!(buffer, "{},{lower},{upper},{}", id.0, size.0)?;
        }
        if buffer.len() >= 1 << 16 {
            out.write_all(&buffer)?;
            buffer.clear();
        }
    }
    out.write_all(&buffer)?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn written(history: &History, options: &Options) -> Vec<[u64; 4]> {
        let mut out = Vec::new();
        write(history, options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("id,lower,upper,size"));
        lines
            .map(|line| {
                let fields: Vec<u64> = line.split(',').map(|field| field.parse().unwrap()).collect();
                fields.try_into().unwrap()
            })
            .collect()
    }

    #[test]
    fn the_whole_run_holds_its_peak() {
        let sample = Sample::new();
        let history = &sample.histories[0];
        for (size, peak) in
            [(Size::Block, history.usage.active.peak), (Size::Requested, history.usage.requested.peak)]
        {
            let buffers = written(history, &Options { size, ticks: None });
            assert_eq!(buffers.len(), history.allocations.len());
            let at = |tick: u64| -> u64 {
                buffers
                    .iter()
                    .filter(|[_, lower, upper, _]| (*lower..*upper).contains(&tick))
                    .map(|b| b[3])
                    .sum()
            };
            let most = (0..=u64::from(history.last_tick.0)).map(at).max();
            assert_eq!(most, Some(peak.0));
        }
    }

    #[test]
    fn a_range_of_ticks_cuts_lifetimes_and_leaves_out_what_lies_outside() {
        let sample = Sample::new();
        let ticks = Some(Tick(3)..Tick(5));
        let buffers = written(&sample.histories[0], &Options { ticks, ..Options::default() });
        assert_eq!(buffers, [[0, 3, 5, 1024], [1, 3, 5, 512]]);
        let nothing = Some(Tick(5)..Tick(5));
        assert!(written(&sample.histories[0], &Options { ticks: nothing, ..Options::default() }).is_empty());
    }
}
