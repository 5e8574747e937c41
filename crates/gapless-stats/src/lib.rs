//! Statistics files: the present memory of a process, in shared memory, for other processes of the same user.
//!
//! A statistics file is a small file on tmpfs, in a folder that only its user may enter ([`folder`]). Its process
//! writes it a few times a second ([`writer`]). Any process that may open it reads it ([`reader`]); the writer does not
//! notice. [`statistics`] has the content, [`layout`] the bytes, [`process`] the identity of the writer and a check
//! that it is alive. A reader trusts nothing in a file: it reads a torn file again, and reports a damaged one as an
//! error.
//!
//! The crate has no `unsafe` and maps nothing. It uses positioned reads and writes, so a writer that ends during a read
//! does no harm. The writer's files are not among the program's descriptors ([`gapless_aside`]).

pub mod error;
pub mod folder;
pub mod host;
pub mod layout;
pub mod process;
pub mod reader;
pub mod statistics;
pub mod writer;

pub use error::StatisticsError;
pub use folder::{Folder, FolderError};
pub use host::{HostStatistics, read_hosts};
pub use process::Process;
pub use reader::{Readings, read_all};
pub use statistics::{Card, Counters, Holder, Lane, Region, Sample, Statistics, Tenant};
pub use writer::Writer;
