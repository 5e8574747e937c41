//! Places jobs on the GPUs of a cluster. The core is pure and deterministic: the same nodes, requests and seed give the
//! same placements, online and in simulation.
//!
//! [`words`] has the vocabulary: nodes, requests, pods. [`ledger`] counts free resources and never overbooks.
//! [`policy`] scores nodes, [`place`] keeps the scores and picks the best node. [`arrivals`], [`sim`] and [`check`]
//! are the simulator and an independent judge of its log; [`repack`] and [`exchange`] move pods; [`group`] places pods
//! that belong together; [`desk`] serves many callers, [`queue`] lets them wait, and [`lines`] opens both to other
//! programs; [`show`] renders runs.

pub mod advise;
pub mod arrivals;
pub mod check;
pub mod desk;
pub mod error;
pub mod exchange;
pub mod go_random;
pub mod group;
pub mod learn;
pub mod ledger;
pub mod lines;
pub mod log;
pub mod mix;
pub mod place;
pub mod policy;
pub mod queue;
pub mod read;
pub mod repack;
pub mod show;
pub mod sim;
pub mod words;

pub use error::{Error, Result};
