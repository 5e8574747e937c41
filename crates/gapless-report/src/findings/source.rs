//! Findings about the recording itself: GAP5xx. Each names a gap in the recording and how to close it.

use super::{Context, Rule};
use crate::finding::{Finding, Severity};

pub(super) const RULES: &[Rule] = &[began_late, no_stacks, no_steps, skipped_actions, no_history, differs];

fn note_text<'a>(c: &'a Context<'_>, code: &str) -> Option<&'a str> {
    let here = |device: Option<u32>| device.is_none_or(|d| d == c.device.device);
    c.report.source.notes.iter().find(|n| n.code == code && here(n.device)).map(|n| n.text.as_str())
}

/// GAP501: the recording began in the middle of the run.
fn began_late(c: &Context<'_>) -> Option<Finding> {
    if c.device.events == 0 {
        return None;
    }
    let text = note_text(c, "recording-began-late")?;
    Some(
        c.finding("GAP501", Severity::Info, 0, "the recording started after the run began".to_owned())
            .evidence(text)
            .suggest("torch.cuda.memory._record_memory_history(max_entries=1_000_000)")
            .help(
                "record from the start, or with a larger ring: \
             torch.cuda.memory._record_memory_history(max_entries=1_000_000) before the model is built",
            ),
    )
}

/// GAP502: no stacks.
fn no_stacks(c: &Context<'_>) -> Option<Finding> {
    let held = c.device.holders.iter().all(|h| h.stack.is_empty());
    if !held || c.device.holders.is_empty() || c.device.allocations == 0 {
        return None;
    }
    Some(
        c.finding("GAP502", Severity::Info, 0, "no stacks were recorded: holders are named by size".to_owned())
            .suggest("torch.cuda.memory._record_memory_history(context=\"all\", stacks=\"python\")")
            .help(
                "torch.cuda.memory._record_memory_history(context=\"all\", stacks=\"python\") records who asked for each block",
            ),
    )
}

/// GAP503: no steps found in a recording long enough to have some.
fn no_steps(c: &Context<'_>) -> Option<Finding> {
    if c.device.steps.count > 0 || c.device.allocations < 1000 {
        return None;
    }
    Some(
        c.finding("GAP503", Severity::Info, 0, "no steps were found: growth from step to step is not known".to_owned())
            .evidence(c.device.steps.evidence.clone())
            .suggest("with torch.profiler.record_function(\"step\"):")
            .help("mark them: `with torch.profiler.record_function(\"step\"):` around each, while memory history is recorded"),
    )
}

/// GAP504: kinds of events are missing.
fn skipped_actions(c: &Context<'_>) -> Option<Finding> {
    let text = note_text(c, "actions-skipped").or_else(|| note_text(c, "segment-frees-missing"))?;
    Some(
        c.finding("GAP504", Severity::Info, 0, "kinds of events are missing from the recording".to_owned())
            .evidence(text)
            .help("leave skip_actions out of _record_memory_history, so that every figure can be exact"),
    )
}

/// GAP505: a snapshot without history.
fn no_history(c: &Context<'_>) -> Option<Finding> {
    if c.device.events > 0 {
        return None;
    }
    Some(
        c.finding(
            "GAP505",
            Severity::Info,
            0,
            "the snapshot has no history: the report can only show the heap at its end".to_owned(),
        )
        .suggest("torch.cuda.memory._record_memory_history()")
        .help("call torch.cuda.memory._record_memory_history() before the run, then dump the snapshot again"),
    )
}

/// GAP506: the events do not lead to the final heap.
fn differs(c: &Context<'_>) -> Option<Finding> {
    if !c.has_note("final-state-differs") {
        return None;
    }
    Some(
        c.finding(
            "GAP506",
            Severity::Warning,
            0,
            "the recorded events do not lead to the recorded heap: figures may be inexact".to_owned(),
        )
        .evidence(note_text(c, "final-state-differs").unwrap_or_default())
        .help(
            "settings that were changed during the run do this: set them once, before the first allocation",
        ),
    )
}
