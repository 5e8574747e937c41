//! Replays of a run on other allocators, for people and programs: a table, the JSON contract `gapless.replay/1`, and
//! one page with all curves in one picture.

pub mod html;
pub mod model;
pub mod text;

mod picture;

pub use model::{Replay, Replayed, RunInfo};

/// The replays as JSON: schema `gapless.replay/1`.
///
/// # Errors
/// Never for a replay; serde's signature.
pub fn json(replay: &Replay) -> serde_json::Result<String> {
    serde_json::to_string_pretty(replay).map(|text| text + "\n")
}
