//! The library that PyTorch loads. No file uses one that uses it (`xtask/tests/circles.rs`). From the top down; a
//! folder stands where its head does, and has files for other layers too: the structures of `overlay/layout.rs` are
//! below all.
//!
//! 1. [`abi`] has every C function, and [`overlay`] those that replace entries of PyTorch's table in builds that are
//!    known.
//! 2. [`serve`] serves requests and frees. [`pools`] leads requests to private pools and captures, `outside` has calls
//!    that may wait, `suppliers` are the program's allocators behind memory pools, and [`elastic`] are tensors that
//!    grow. Before a request fails, [`pressure`] asks the program's handlers. Then [`oom`] writes the message, and
//!    [`exception`] throws `torch.OutOfMemoryError`.
//! 3. [`opening`] makes a card on its first use, with everything that it needs: [`quota`] limits this process and its
//!    tenant, [`planner`] plans steps that repeat, [`publisher`] writes statistics to a file for other processes.
//! 4. [`cards`] has the cards that were made, each behind its lock. [`stats`] are their statistics, [`holders`] lists
//!    who holds what now, and `queued` waits for their work.
//! 5. [`card`] is one of them. [`routing`] lists its private pools and captures, [`segments`] knows which segments
//!    trackers have seen, [`budgets`] limit parts of a program, and `regions` are memory that sleeps. [`history`] is
//!    PyTorch's, [`recorder`] our own file of it; `watcher` is the trait by which a card tells both. `forks` tells a
//!    forked child what it is.
//! 6. [`process`] has facts of this process, and `guard` catches panics. [`foreign`] alone calls code that may throw,
//!    on the C++ objects of [`cxx`]. [`interpreter`] alone decides if Python may be entered. [`background`] starts our
//!    threads.
//!
//! Beside these, `sharing` is memory of several processes, [`offload`] and [`pinned`] serve host memory to the Python
//! package, and [`tensors`] hands addresses to torch. [`checked`] fills freed memory and finds writes to it, [`hip`]
//! tries AMD's cards, [`traced`] reports to torch's sanitizer, and [`conf`] reads the settings of torch's allocator.
//!
//! The library is small, because it lives inside a training job. No entry unwinds into C++ except with the exception
//! that PyTorch expects. A forked child never touches its parent's CUDA state. At the end of the process nothing is
//! torn down.

pub mod abi;
pub mod background;
pub mod budgets;
pub mod card;
pub mod cards;
pub mod checked;
pub mod conf;
pub mod cxx;
pub mod elastic;
pub mod exception;
pub mod foreign;
mod forks;
mod guard;
pub mod hip;
pub mod history;
pub mod holders;
pub mod interpreter;
pub mod offload;
pub mod oom;
pub mod opening;
pub mod options;
mod outside;
pub mod overlay;
pub mod pinned;
pub mod planner;
pub mod pools;
pub mod pressure;
pub mod process;
pub mod publisher;
mod queued;
pub mod quota;
pub mod recorder;
mod regions;
pub mod routing;
pub mod segments;
pub mod serve;
mod sharing;
pub mod stats;
mod suppliers;
mod symbols;
pub mod tensors;
pub mod traced;
mod watcher;
