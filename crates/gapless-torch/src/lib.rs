//! The library that PyTorch loads. [`hooks`] is its C ABI, [`capi`] the one for other programs, [`serve`] what a
//! request and a free do, [`state`] the allocators of this process, [`pressure`] who is asked before a request fails,
//! [`oom`] what it then says, [`exception`] how that becomes a `torch.OutOfMemoryError`, [`routing`] private pools and
//! captures, [`budgets`] limits of what a program allocates in parts of itself, [`quota`] those of what this process
//! and its tenant may take of a card, [`stats`] the statistics, [`segments`] which segments others know of,
//! [`regions`] memory that sleeps, [`suppliers`] allocators of the program's own behind memory pools, [`sharing`]
//! memory that several processes have, [`history`] what happened, as PyTorch asks for it, [`holders`] who holds what
//! right now, [`publisher`] the statistics page that other processes of the user read, [`recorder`] the history as a
//! file of our own, [`planner`] plans for steps that repeat, [`offload`] what Python needs to move tensors to the
//! host, [`checked`] the mode that fills what is freed and looks whether somebody wrote there. [`overlay`] makes
//! PyTorch's own tools answer, in builds that are known; [`cxx`] are the C++ objects that this takes, and [`foreign`]
//! is the one place that calls code of others that may throw; [`interpreter`] is how Python is entered, and when it is
//! not. [`hip`] asks whether AMD's cards can be used, [`traced`] tells torch's sanitizer of allocations. [`tensors`]
//! hands addresses to torch, [`elastic`] are tensors that grow, [`pinned`] is host memory that tensors hold, [`conf`]
//! settings of torch's own allocator.
//!
//! Small on purpose: it lives inside a training job. No entry unwinds into C++ except with the exception that PyTorch
//! expects; a forked child never touches its parent's CUDA state; at the end of the process nothing is torn down.

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
