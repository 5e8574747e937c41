//! Jobs whose target is a card's memory.
//!
//! Each thread has a stream and two slots of pinned memory. It reads a job into one slot while the card copies from the
//! other. Packed chunks go to the card as they are, and the kernel decodes them from a staging area there into their
//! place. Chunks that the kernel does not know (rANS, other types than bf16) are decoded by the thread into the slot.
//!
//! ```text
//! slot on the host   | descriptors | bytes of the file        | decoded chunks | error |
//! slot on the card   | descriptors | bytes of the file        |
//! ```

mod card;
mod chunk;
mod driver;
mod measure;
mod ring;
mod worker;

pub use card::Card;
pub use chunk::Chunk;
pub use driver::Driver;
pub use measure::{Measured, measure};
pub use ring::{SLOTS, STAGING};
pub use worker::work;
