//! A history from the events of a device, by the heap that follows them.

use super::{Ahead, Heap};
use crate::allocations::HistoryError;
use crate::block_notes::BlockNotes;
use crate::history::History;
use crate::trace::{DeviceTrace, Note, Trace};

impl History {
    /// Rebuilds the history of `device` of `trace`.
    ///
    /// # Errors
    /// When the events contradict each other: overlapping blocks, a free of something never allocated.
    pub fn rebuild(trace: &Trace, device: &DeviceTrace) -> Result<History, HistoryError> {
        History::rebuild_from(trace, device, None)
    }

    /// The same if the events were followed while they were read.
    ///
    /// # Errors
    /// As for [`History::rebuild`].
    pub fn rebuild_from(
        trace: &Trace,
        device: &DeviceTrace,
        ahead: Option<Ahead>,
    ) -> Result<History, HistoryError> {
        let followed = ahead.and_then(|ahead| ahead.history(trace, device));
        let mut history = match followed {
            Some(history) => history,
            None => Heap::rebuild(trace, device)?,
        };
        history.block_notes = BlockNotes::of(trace, device, &history.allocations);
        let unmatched = history.block_notes.unmatched;
        if unmatched > 0 {
            history.notes.push(Note {
                code: "annotations-unmatched",
                text: format!(
                    "{unmatched} annotation(s) name an address at which no block was in use; they were left out"
                ),
            });
        }
        Ok(history)
    }
}
