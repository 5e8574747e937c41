//! Markdown for pull requests and chats: [`report`] and [`diff`] whole, and the pieces that `check` uses too.
//!
//! Names come from untrusted files: [`escape`] leaves nothing in them that Markdown or HTML could take for markup.

mod diff;
mod report;
mod table;

pub use diff::diff;
pub use report::report;

pub(crate) use report::{finding, findings, holders};
pub(crate) use table::{Side, Table, code, details, escape};
