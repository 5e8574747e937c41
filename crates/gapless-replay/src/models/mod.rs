//! Allocators of other systems, as exact models: which of them would have served this run with less?
//!
//! | name | what it is |
//! |---|---|
//! | `bfc` | TensorFlow's, XLA's and JAX's best fit with coalescing |
//! | `rmm-pool` | RMM's pool: best fit with a list for each stream |
//! | `rmm-arena` | RMM's arenas: first fit in superblocks lent to streams |
//! | `buddy` | powers of two, halved and joined |
//! | `exact` | no allocator: every request to the device |
//!
//! A block that was freed while a stream may still use it can be used again when its free is completed. None of them
//! knows private pools: lanes that differ only in their pool share a heap. A request of nothing gets the smallest
//! block. `Stats::syncs` counts waits for all streams that the allocator asks for; that each `cudaFree` waits as well
//! is in `device_frees`.

pub mod bfc;
pub mod buddy;
pub mod exact;
pub mod rmm_arena;
pub mod rmm_pool;
pub mod settings;

mod chunks;
mod first_fit;
mod ledger;
mod segments;

pub use bfc::{Bfc, BfcSettings};
pub use buddy::{Buddy, BuddySettings};
pub use exact::{Exact, ExactSettings};
pub use rmm_arena::{RmmArena, RmmArenaSettings};
pub use rmm_pool::{RmmPool, RmmPoolSettings};
pub use settings::SettingsError;

use crate::allocator::{Allocator, Lane};
use crate::device::Device;
use std::str::FromStr;

/// The names of the models.
pub const NAMES: &[&str] = &["bfc", "rmm-pool", "rmm-arena", "buddy", "exact"];

/// A model with its settings, from text such as `bfc`, `bfc:preallocate:0.75` or
/// `rmm-pool:initial:10GiB,maximum:30GiB`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Model {
    Bfc(BfcSettings),
    RmmPool(RmmPoolSettings),
    RmmArena(RmmArenaSettings),
    Buddy(BuddySettings),
    Exact(ExactSettings),
}

impl FromStr for Model {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Model, SettingsError> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        Ok(match name.trim() {
            "bfc" => Model::Bfc(settings.parse()?),
            "rmm-pool" => Model::RmmPool(settings.parse()?),
            "rmm-arena" => Model::RmmArena(settings.parse()?),
            "buddy" => Model::Buddy(settings.parse()?),
            "exact" => Model::Exact(settings.parse()?),
            name => return Err(SettingsError::UnknownModel { name: name.to_owned(), known: NAMES }),
        })
    }
}

impl Model {
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Model::Bfc(_) => "bfc",
            Model::RmmPool(_) => "rmm-pool",
            Model::RmmArena(_) => "rmm-arena",
            Model::Buddy(_) => "buddy",
            Model::Exact(_) => "exact",
        }
    }

    /// The allocator over `device`, for requests from `lanes`.
    ///
    /// # Errors
    /// When it takes memory at its start that the device does not have.
    pub fn build<D: Device + 'static>(
        &self,
        device: D,
        lanes: &[Lane],
    ) -> Result<Box<dyn Allocator>, SettingsError> {
        Ok(match self {
            Model::Bfc(settings) => Box::new(Bfc::new(device, lanes, settings)),
            Model::RmmPool(settings) => Box::new(RmmPool::new(device, lanes, settings)?),
            Model::RmmArena(settings) => Box::new(RmmArena::new(device, lanes, settings)?),
            Model::Buddy(settings) => Box::new(Buddy::new(device, lanes, settings)),
            Model::Exact(settings) => Box::new(Exact::new(device, lanes, settings)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::SimDevice;
    use gapless_trace::Bytes;

    #[test]
    fn every_name_makes_its_model() {
        for &name in NAMES {
            let model: Model = name.parse().expect("a model");
            assert_eq!(model.name(), name);
            assert!(model.build(SimDevice::new(1 << 30), &[Lane::default()]).is_ok());
        }
        let settings = BfcSettings { preallocate: Some(0.75), ..BfcSettings::default() };
        assert_eq!("bfc:preallocate:0.75".parse(), Ok(Model::Bfc(settings)));
        let settings = RmmPoolSettings { initial: Some(10 << 30), maximum: Some(30 << 30) };
        assert_eq!("rmm-pool:initial:10GiB,maximum:30GiB".parse(), Ok(Model::RmmPool(settings)));
    }

    #[test]
    fn what_there_is_not_is_refused_with_what_there_is() {
        let message = |text: &str| text.parse::<Model>().expect_err("refused").to_string();
        assert_eq!(
            message("slab"),
            "unknown allocator \"slab\": use one of bfc, rmm-pool, rmm-arena, buddy, exact"
        );
        assert_eq!(message("exact:round:1"), "exact has no setting \"round\"; it has none");
    }

    #[test]
    fn no_size_is_too_large_to_be_refused_and_nothing_gets_the_smallest_block() {
        for &name in NAMES {
            let model: Model = name.parse().expect("a model");
            let mut allocator = model.build(SimDevice::new(64 << 20), &[Lane::default()]).expect("it fits");
            for size in [u64::MAX, u64::MAX - 255, 1 << 63, (1 << 62) + 1] {
                assert!(allocator.alloc(0, Bytes(size), 0).is_err(), "{name}: {size}");
            }
            assert!(allocator.alloc(0, Bytes(0), 0).is_ok(), "{name}");
            assert!((256..=512).contains(&allocator.stats().allocated.current), "{name}");
            allocator.free(0);
            allocator.free(0);
            allocator.free(7);
            assert_eq!(
                allocator.stats().active_blocks.current,
                0,
                "{name}: what is not held cannot be freed"
            );
        }
    }
}
