//! Facts of this process that every part asks for: how many cards it may use, how many PyTorch sees, and if it is a
//! forked child.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Cards that a process may use.
pub const CARDS: usize = 64;

/// Set in a forked child. CUDA does not survive a fork, so a child must not touch the driver or the pool.
static FORKED: AtomicBool = AtomicBool::new(false);

/// True in a forked child.
#[inline]
#[must_use]
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Called in a forked child.
pub(crate) fn set_forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Cards that PyTorch sees.
static DEVICES: AtomicI32 = AtomicI32::new(0);

pub fn set_device_count(count: i32) {
    DEVICES.store(count.max(0), Ordering::Relaxed);
}

#[must_use]
pub fn device_count() -> i32 {
    DEVICES.load(Ordering::Relaxed)
}

/// A card that cannot be used.
#[derive(Debug)]
pub enum CardError {
    NoSuchCard(i32),
    Forked,
    Driver(String),
    /// The process's tenant cannot have its share of it.
    Share(String),
}

impl std::fmt::Display for CardError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CardError::NoSuchCard(device) => write!(f, "there is no card {device}"),
            CardError::Forked => {
                f.write_str("this process was forked from one that used CUDA; use spawn or forkserver")
            }
            CardError::Driver(error) | CardError::Share(error) => f.write_str(error),
        }
    }
}
