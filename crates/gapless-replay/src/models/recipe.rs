//! A model's description of itself: its name, its purpose, its settings, and its constructor. Each model implements it
//! for its settings, in its own file; the list in `mod.rs` makes all else from it: parsing, messages and the help.

use super::settings::{Keys, SettingsError};
use crate::allocator::{Allocator, Lane};
use crate::device::Device;
use std::str::FromStr;

/// The settings of a model, read from text such as `initial:10GiB,maximum:30GiB`.
pub(super) trait Recipe: FromStr<Err = SettingsError> {
    const NAME: &'static str;
    /// The kind of allocator, in at most 50 characters: a line of the table that `gapless replay` prints.
    const ABOUT: &'static str;
    /// Its settings, each with a value for the help and for messages.
    const KEYS: Keys;

    /// The allocator over `device`, for requests from `lanes`.
    fn build<D: Device + 'static>(
        &self,
        device: D,
        lanes: &[Lane],
    ) -> Result<Box<dyn Allocator>, SettingsError>;

    /// True if it takes a share of the card at once: the bytes that it holds then mean nothing without a card.
    fn takes_a_share(&self) -> bool {
        false
    }
}
