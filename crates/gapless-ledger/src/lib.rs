//! Who holds how much of a card, among processes of one user that share it: tenants with shares, and the processes of
//! each.
//!
//! [`book`] is the rules, pure; [`record`] an entry as bytes; [`ledger`] a file of them, changed under an advisory lock
//! that the kernel releases when its holder dies; [`processes`] who is alive.
//!
//! A process enters what it is about to take before it asks the driver for it, so the sum of the entries is never below
//! what is held. What a killed process held comes back when anybody looks: its entry says which process it was, down to
//! its start.

pub mod book;
pub mod ledger;
pub mod processes;
pub mod record;
pub mod share;

pub use book::{Answer, Book, Entry, JoinError};
pub use ledger::{Ledger, LedgerError, Tick};
pub use processes::{Processes, System, Who};
pub use share::{Share, ShareError, Size};
