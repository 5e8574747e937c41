//! The library that PyTorch loads. [`hooks`] is its C ABI, and [`capi`] the one for other programs. [`serve`] serves
//! requests and frees, and [`state`] has the allocators of this process. Before a request fails, [`pressure`] asks the
//! program's handlers. Then [`oom`] writes the message, and [`exception`] throws `torch.OutOfMemoryError`. [`routing`]
//! leads requests to private pools and captures, and [`segments`] knows which segments trackers have seen. [`budgets`]
//! limit parts of a program, [`quota`] limits this process and its tenant. [`regions`] are memory that sleeps,
//! [`suppliers`] the program's allocators behind memory pools, and [`sharing`] is memory of several processes.
//! [`stats`] are the statistics, [`publisher`] writes them to a file for other processes, and [`holders`] lists who
//! holds what now. [`history`] is PyTorch's, [`recorder`] our own file of it, and [`planner`] plans steps that repeat.
//! [`offload`] and [`pinned`] serve host memory to the Python package; [`tensors`] hands addresses to torch, and
//! [`elastic`] are tensors that grow. [`checked`] fills freed memory and finds writes to it. [`overlay`] makes
//! PyTorch's own tools report on Gapless in builds that are known, with the C++ objects of [`cxx`]. [`foreign`] alone
//! calls code that may throw, and [`interpreter`] alone decides if Python may be entered. [`hip`] tries AMD's cards,
//! [`traced`] reports to torch's sanitizer, and [`conf`] reads the settings of torch's allocator.
//!
//! The library is small, because it lives inside a training job. No entry unwinds into C++ except with the exception
//! that PyTorch expects. A forked child never touches its parent's CUDA state. At the end of the process nothing is
//! torn down.

pub mod background;
pub mod budgets;
pub mod capi;
pub mod checked;
pub mod conf;
pub mod cxx;
pub mod elastic;
pub mod exception;
pub mod foreign;
pub mod hip;
pub mod history;
pub mod holders;
pub mod hooks;
pub mod interpreter;
pub mod offload;
pub mod oom;
pub mod options;
pub mod overlay;
pub mod pinned;
pub mod planner;
pub mod pressure;
pub mod publisher;
mod queued;
pub mod quota;
pub mod recorder;
mod regions;
pub mod routing;
pub mod segments;
pub mod serve;
mod sharing;
pub mod state;
pub mod stats;
mod suppliers;
mod symbols;
pub mod tensors;
pub mod traced;
mod watcher;
