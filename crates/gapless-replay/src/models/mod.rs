//! Allocators of other systems, as exact models, to find one that would have served this run with less.
//!
//! | name | allocator |
//! |---|---|
//! | `bfc` | TensorFlow's, XLA's and JAX's best fit with coalescing |
//! | `rmm-pool` | RMM's pool: best fit with a list for each stream |
//! | `rmm-arena` | RMM's arenas: first fit in superblocks lent to streams |
//! | `buddy` | powers of two, halved and joined |
//! | `exact` | no allocator: every request to the device |
//!
//! A new one is a file with its settings, which implement `Recipe`, and a line in `models!` below.
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
mod recipe;
mod segments;

pub use bfc::{Bfc, BfcSettings};
pub use buddy::{Buddy, BuddySettings};
pub use exact::{Exact, ExactSettings};
pub use rmm_arena::{RmmArena, RmmArenaSettings};
pub use rmm_pool::{RmmPool, RmmPoolSettings};
pub use settings::{Keys, SettingsError};

use crate::allocator::{Allocator, Lane};
use crate::device::Device;
use recipe::Recipe;
use std::str::FromStr;

/// A model's description, for help and messages.
#[derive(Clone, Copy, Debug)]
pub struct About {
    pub name: &'static str,
    pub what: &'static str,
    /// Its settings, each with a value as an example.
    pub keys: Keys,
}

impl About {
    const fn of<R: Recipe>() -> About {
        About { name: R::NAME, what: R::ABOUT, keys: R::KEYS }
    }
}

/// Makes [`Model`] from the settings of each model, which implement [`Recipe`].
macro_rules! models {
    ($($model:ident($settings:ty)),* $(,)?) => {
        /// A model with its settings, from text such as `bfc`, `bfc:preallocate:0.75` or
        /// `rmm-pool:initial:10GiB,maximum:30GiB`.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Model {
            $($model($settings)),*
        }

        /// All models.
        pub const MODELS: &[About] = &[$(About::of::<$settings>()),*];

        impl FromStr for Model {
            type Err = SettingsError;

            fn from_str(text: &str) -> Result<Model, SettingsError> {
                let (name, settings) = text.split_once(':').unwrap_or((text, ""));
                match name.trim() {
                    $(<$settings>::NAME => Ok(Model::$model(settings.parse()?)),)*
                    name => Err(SettingsError::UnknownModel { name: name.to_owned(), known: NAMES }),
                }
            }
        }

        /// The names of the models.
        pub const NAMES: &[&str] = &[$(<$settings>::NAME),*];

        impl Model {
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Model::$model(_) => <$settings>::NAME),*
                }
            }

            /// True if it takes a share of the card at once: the bytes that it holds then mean nothing without a card.
            #[must_use]
            pub fn takes_a_share(&self) -> bool {
                match self {
                    $(Model::$model(settings) => settings.takes_a_share()),*
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
                match self {
                    $(Model::$model(settings) => settings.build(device, lanes)),*
                }
            }
        }
    };
}

models![
    Bfc(BfcSettings),
    RmmPool(RmmPoolSettings),
    RmmArena(RmmArenaSettings),
    Buddy(BuddySettings),
    Exact(ExactSettings),
];

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
        let names = NAMES.join(", ");
        assert_eq!(message("slab"), format!("unknown allocator \"slab\": use one of {names}"));
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
