//! The model that is compared with the real library.

use crate::subject::Subject;

/// A fresh model of torch 2.`minor` with these settings, over a card of `capacity` bytes; `None` while the crate has none.
pub(crate) fn open(_minor: u32, _settings: &str, _capacity: u64) -> Option<Box<dyn Subject>> {
    None
}
