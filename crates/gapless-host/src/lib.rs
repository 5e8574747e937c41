//! The host's memory: what stands behind `malloc` in a process that preloads `libgapless_malloc.so`.
//!
//! ```text
//!   heap      one door: plain or checked
//!   ├─ record     a sample of all allocations in a file (`GAPLESS_HOST_RECORD=run.gtrace`)
//!   ├─ check      guards, poison, and stacks for wrong frees (`GAPLESS_HOST_CHECK=1`)
//!   └─ core       small or large, by size; fork; what the helper does
//!      ├─ small      objects below 1 MiB: size classes, caches of threads
//!      ├─ large      buffers from 1 MiB: memory is kept for the next buffer
//!      │   ├─ huge       whether huge pages pay on this machine, by measurement
//!      │   ├─ numa       the node that a thread runs on: each has an arena
//!      │   └─ pinned     what a driver has registered
//!      ├─ arena      reserved addresses, for both
//!      │   └─ space      which addresses are free, and which of them have memory: pure, no system call
//!      ├─ budget     what this process and its relatives may hold together
//!      ├─ cgroup     what control groups allow, and whether memory is short
//!      ├─ decay      how much of the kept memory nobody needed lately: pure
//!      └─ helper     the thread that gives memory back; it is stopped around a fork
//!   global    the same for Rust programs, as `#[global_allocator]`
//!   sampler   which allocations are recorded: every so many bytes, by chance
//!   local     what a thread knows
//!   sys       every system call
//! ```
//!
//! Nothing here allocates from `malloc`: it would call itself. The lock order is: helper, recorder, caches,
//! shelves, writable part, space. No system call that can take long is made under the lock of the space.
#![cfg(target_os = "linux")]

pub mod arena;
pub mod bell;
pub mod budget;
pub mod cgroup;
pub mod check;
pub mod core;
pub mod decay;
pub mod global;
pub mod heap;
pub mod helper;
pub mod huge;
pub mod large;
pub mod local;
pub mod lock;
pub mod numa;
pub mod options;
pub mod pinned;
pub mod record;
pub mod sampler;
pub mod small;
pub mod space;
pub mod stats;
pub mod sys;
pub mod text;
pub mod units;
mod wrong;

pub use global::Gapless;
