//! Offline packing: given buffers with sizes and lifetimes, an offset for each so that no two that are alive together
//! share a byte, and the peak is as low as it can be.
//!
//! [`Problem`] in, [`solve`] with [`Options`], [`Solution`] out; [`validate`] judges any plan and shares no code with
//! the solvers. [`solve_spaces`] chooses the memory of each buffer among several, [`solve_sharing`] lets buffers take
//! each other's places, [`replan`] follows small changes of a problem.
//!
//! This crate packs and nothing else. `gapless-problems` reads problems from files and makes random ones. The planners
//! of other projects, for comparison, are in `examples/plan_bench/baseline.rs`: they work over [`compact`] and
//! [`shelves`], as the passes here do.

pub mod bound;
pub mod compact;
pub mod error;
pub mod options;
pub mod problem;
pub mod repeated;
pub mod replan;
pub mod rng;
pub mod sharing;
pub mod shelves;
pub mod solve;
pub mod spaces;
pub mod validate;
pub mod watch;

mod conflict;
mod connected_part;
mod exact;
mod gaps_and_fixed;
#[cfg(test)]
mod generated;
mod improve;
mod join;
mod load;
mod passes;
mod split;
mod sweep;

pub use error::{Error, Result};
pub use options::{Options, Tricks};
pub use problem::{Buffer, Lifetime, Plan, Problem};
pub use replan::{Replan, carry_over, replan};
pub use sharing::{Shares, sharing_lower_bound, solve_sharing};
pub use solve::{Solution, solve};
pub use spaces::{
    Accesses, Allowed, Residence, Space, SpacePlan, SpaceProgress, SpaceWatch, Spaces, Usage, solve_spaces,
    solve_spaces_watched,
};
pub use validate::{Invalid, validate, validate_chunks, validate_sharing, validate_spaces};
pub use watch::{Progress, Watch};
