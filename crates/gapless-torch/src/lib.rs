//! The library that PyTorch loads. [`hooks`] is the C ABI, [`state`] the allocators of this process, [`exception`] how a failure becomes a
//! `torch.OutOfMemoryError`, [`routing`] private pools and captures, [`stats`] what Python reads.
//!
//! Small on purpose: it lives inside a training job. No entry unwinds into C++ except with the exception that PyTorch expects; a forked
//! child never touches its parent's CUDA state; at the end of the process nothing is torn down.

pub mod exception;
pub mod hooks;
pub mod options;
pub mod routing;
pub mod state;
pub mod stats;
