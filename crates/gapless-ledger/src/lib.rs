//! Counts the memory of a card among processes of one user that share it: tenants with shares, and their processes.
//!
//! [`book`] has the rules, as pure functions; [`record`] the bytes of an entry; [`ledger`] the shared file, changed
//! under an advisory lock that the kernel releases when its holder dies; [`processes`] finds live processes.
//!
//! [`promise`] has the rules for a whole cluster: promises of GPU memory to pods.
//!
//! A process enters memory before it asks the driver for it, so the sum of the entries is never below the bytes in use.
//! An entry names its process by number and start time. Any process that looks can remove the entry of a dead one.

pub mod book;
pub mod ledger;
pub mod processes;
pub mod promise;
pub mod record;
pub mod share;

pub use book::{Answer, Book, Entry, JoinError};
pub use ledger::{Ledger, LedgerError, Tick};
pub use processes::{Processes, System, Who};
pub use share::{Share, ShareError, Size};
