//! The report for a terminal: the most useful figures first, in one screen and a half.

mod device;
mod host_leaks;
mod host_run;
pub(crate) mod layout;
pub(crate) mod paint;
mod report;
pub(crate) mod source;
pub(crate) mod table;
mod tree;

pub use gapless_trace::numbers::{count, plural, verb};
pub use host_leaks::render as render_leaks;
pub use report::render;
pub use tree::{Branches, render as render_tree};

pub use layout::{DEFAULT_WIDTH, ascii, fit, set_width, shorten, width, wrap};
pub(crate) use layout::{facts, indent, visible};
pub(crate) use paint::{BOLD, CYAN, DIM, GREEN, RED, RESET, YELLOW, bars, bytes, clean, duration, percent};
