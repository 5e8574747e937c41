//! Jobs whose target is a card's memory.
//!
//! Each thread has two slots of pinned memory. It reads a job into one slot while the card copies from the other. The
//! driver gets copies of several threads at a time (`queue`). Alternatively the card copies cached bytes from the
//! mapped file (`window`). Packed chunks go to the card as they are; the kernel checks them in a staging area there and
//! decodes them to their target. Chunks that the kernel does not support (rANS, other types than bf16) are decoded by
//! the thread into the slot.
//!
//! ```text
//! slot on the host   | descriptors | bytes of the file        | decoded chunks | error |
//! slot on the card   | descriptors | bytes of the file        |
//! ```

mod card;
mod chunk;
mod driver;
mod kept;
#[cfg(feature = "bench")]
mod measure;
mod packed;
mod pinned;
mod queue;
mod ring;
mod window;
mod worker;

pub use card::Card;
pub use chunk::Chunk;
pub use driver::Driver;
pub use kept::release;
#[cfg(feature = "bench")]
pub use measure::{Measured, measure};
pub use pinned::SLOTS;
pub use ring::STAGING;
pub use worker::work;

use crate::plan::JOB;
use crate::shared::Settings;

/// The most threads of a loading whose caller does not set them: fewer do not fill the wire on hosts with slow memory.
pub const THREADS: usize = 14;
/// The same for cold files: as many as pin at most 64 MiB. Their requests together are more than a disk needs.
const COLD_THREADS: usize = 6;
const _: () = assert!(COLD_THREADS * SLOTS * ring::ON_HOST <= 64 << 20);

/// Number of threads of a loading whose caller does not set it.
pub fn threads(is_cold: bool) -> usize {
    if is_cold { COLD_THREADS } else { crate::host::cores().min(THREADS) }
}

/// Bytes of a window of the mapped file.
const WINDOW: u64 = 64 << 20;

/// The most bytes of a job that copies bytes as they are, on a card or on the host.
pub fn piece(settings: &Settings) -> usize {
    match settings.piece {
        0 => JOB,
        piece => usize::try_from(piece).unwrap_or(JOB).clamp(64 << 10, JOB),
    }
}

/// The most jobs of one window of the mapped file.
fn window_jobs(settings: &Settings) -> usize {
    let window = if settings.window == 0 { WINDOW } else { settings.window.min(1 << 30) };
    (window as usize / piece(settings)).max(1)
}
