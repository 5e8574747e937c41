//! Facts that had to be inferred while a history was rebuilt, and their notes.

use crate::history::History;
use crate::numbers::{plural, verb};
use crate::trace::Note;
use crate::words::{Bytes, Tick};

/// Counts of inferred facts; each becomes a note when it is not 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Repairs {
    pub(super) restarts: u32,
    pub(super) implied_segment_frees: u32,
    pub(super) trimmed_blocks: u32,
    pub(super) final_differences: u32,
    pub(super) began_late: bool,
}

impl Repairs {
    pub(super) fn notes(&self, history: &History) -> Vec<Note> {
        let mut notes = Vec::new();
        let mut note = |code, text| notes.push(Note { code, text });
        if self.began_late && history.last_tick == Tick(0) {
            let text = "no events were recorded: the heap is shown as it stood when the snapshot was taken";
            note("no-history", text.to_owned());
        } else if self.began_late {
            let held: Bytes =
                history.allocations.iter().take_while(|a| a.start == Tick(0)).map(|a| a.block).sum();
            // A block keeps the stack of its allocation only if its allocation was recorded.
            let seen = history
                .allocations
                .iter()
                .take_while(|a| a.start == Tick(0))
                .filter(|a| a.end > history.last_tick && !a.stack.is_none())
                .count();
            let mut text = format!(
                "the recording begins with {held} in {} already held; they were rebuilt from the \
                 final segments, and peaks before the recording are not known",
                plural(u64::from(history.preexisting), "allocation")
            );
            if seen > 0 {
                text += &format!(
                    "; {seen} of them have stacks, so their allocation was recorded and lost: the ring of events was \
                     too short (max_entries), or recording was started again"
                );
            }
            note("recording-began-late", text);
        }
        if self.restarts > 0 {
            note(
                "recording-restarts",
                format!(
                    "the recording begins again {} at the addresses of its first events: what was held \
                     before is taken as released there",
                    plural(u64::from(self.restarts), "time")
                ),
            );
        }
        if self.implied_segment_frees > 0 {
            note(
                "segment-frees-missing",
                format!(
                    "{} {} taken again without a recorded release; the release is taken as implied",
                    plural(u64::from(self.implied_segment_frees), "segment"),
                    verb(u64::from(self.implied_segment_frees), "was", "were")
                ),
            );
        }
        if self.trimmed_blocks > 0 {
            note(
                "blocks-trimmed",
                format!(
                    "{} {} smaller than the recorded settings say (were they changed during the run?)",
                    plural(u64::from(self.trimmed_blocks), "block"),
                    verb(u64::from(self.trimmed_blocks), "was", "were")
                ),
            );
        }
        if self.final_differences > 0 {
            note(
                "final-state-differs",
                format!(
                    "{} of the final snapshot {} from what the events lead to: figures \
                     may be off by their sizes",
                    plural(u64::from(self.final_differences), "block"),
                    verb(u64::from(self.final_differences), "differs", "differ")
                ),
            );
        }
        notes
    }
}
