//! The host's memory, which stands behind `malloc` in a process that preloads `libgapless_malloc.so`.
//!
//! ```text
//!   heap      one door: plain or checked
//!   ├─ record     a sample of all allocations in a file (`GAPLESS_HOST_RECORD=run.gtrace`)
//!   ├─ check      guards, poison, and stacks for wrong frees (`GAPLESS_HOST_CHECK=1`)
//!   └─ core       small or large, by size; fork; the helper's work
//!      ├─ small      objects below 1 MiB: size classes, caches of threads
//!      ├─ large      buffers from 1 MiB: memory is kept for the next buffer
//!      │   ├─ huge       measures if huge pages pay on this machine
//!      │   ├─ numa       the node on which a thread runs: each has an arena
//!      │   └─ pinned     memory that a driver has registered
//!      ├─ arena      reserved addresses, for both
//!      │   └─ space      the free addresses, and those that have memory: pure, no system call
//!      ├─ budget     the bytes that this process and its relatives may hold together
//!      ├─ cgroup     the limits of control groups, and a check for short memory
//!      ├─ decay      the part of the kept memory that no request needed lately: pure
//!      └─ helper_thread  gives memory back; it is stopped around a fork
//!   global    the same for Rust programs, as `#[global_allocator]`
//!   sampler   the allocations that are recorded: one in so many bytes, by chance
//!   local     the data of each thread
//!   sys       every system call
//! ```
//!
//! Nothing here allocates from `malloc`: it would call itself. The lock order is: helper, recorder, caches,
//! shelves, writable part, space. No system call that can take long is made under the lock of the space.
#![cfg(target_os = "linux")]

pub mod arena;
pub mod budget;
pub mod cgroup;
pub mod check;
pub mod core;
pub mod decay;
pub mod global;
pub mod heap;
pub mod helper_thread;
pub mod helper_wakeup;
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

mod invalid_free;

pub use global::Gapless;
