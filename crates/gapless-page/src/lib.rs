//! Statistics pages: what a process holds right now, in shared memory, for other processes of the same user.
//!
//! A page is one small file on tmpfs, in a folder that only its user may enter ([`folder`]). Its process writes it a
//! few times a second ([`writer`]); anybody who may open it reads it ([`reader`]) without the process noticing.
//! [`page`] is what stands in it, [`layout`] how, [`process`] who wrote it and whether that one still lives. A reader
//! trusts nothing in a file: what is torn is read again, what is wrong is an error in words.
//!
//! No `unsafe` and nothing mapped: positioned reads and writes of a file in memory are enough, and a process that ends
//! while it is read hurts nobody.

pub mod error;
pub mod folder;
pub mod layout;
pub mod page;
pub mod process;
pub mod reader;
pub mod writer;

pub use error::PageError;
pub use folder::{Folder, FolderError};
pub use page::{Card, Counters, Holder, Lane, Page, Sample, Tenant};
pub use process::Process;
pub use reader::{Readings, read_all};
pub use writer::Writer;
