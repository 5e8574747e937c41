//! A device that knows time, and programs that prove the allocator safe on it.
//!
//! The device keeps a queue for each stream and runs work only when it is told to. Independent of that schedule it
//! knows which work happens before which, by vector clocks: an error is found in every run that contains it, not only
//! in the run where two kernels meet. Each rule that is broken is a [`Violation`] with a name ([`Rule`]).
//!
//! Relies on: programs that are right on native PyTorch. A freed block may serve its own stream at once. Another
//! stream's use is announced with `record_stream`, or the owner's stream waits for it before the free, or after the
//! free but before the owner allocates again (a *late wait*).
//!
//! Promises: a program is a list of [`Op`] values from a seed, every sublist of a program is a program too, and the
//! same program gives the same result. [`shrink`] uses all three to find a short program.
//!
//! Leaves out: the values that kernels compute, and races that the program itself has.
//!
//! Read [`world`](World) first for the model, then `run` for the actions of programs.

mod campaign;
mod clock;
mod device;
mod driver;
mod generate;
mod growing;
mod memory;
mod native;
mod ops;
mod planner;
mod random;
mod run;
mod shrink;
mod streams;
mod totals;
mod violation;
mod world;

pub use campaign::{Campaign, Found, Outcome};
pub use device::TimedDevice;
pub use generate::generate;
pub use ops::{Config, Op, Plans, Program};
pub use run::run;
pub use shrink::shrink;
pub use totals::Totals;
pub use violation::{Rule, Violation};
pub use world::World;
