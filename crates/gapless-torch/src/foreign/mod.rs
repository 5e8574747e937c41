//! The only folder that calls foreign code that may throw: PyTorch's filters, trackers, observers, gatherers of stacks
//! and plain functions, and functions of the C++ library.
//!
//! A C++ exception from such a call passes through our frames to PyTorch, which turns it into a Python exception, as
//! with its own allocator. Rust (the reference, "Unwinding"; RFC 2945) demands that every function on the way is
//! `C-unwind` or Rust's own, whose destructors run. No `catch_unwind` may lie on the way, because that ends the
//! process. A lock on the way would be released while its data is half changed. So nothing of this folder is called
//!
//! * below [`guarded`](crate::guard::guarded) or the closure of `overlay::answer`, which catch panics;
//! * with a card locked;
//! * from a thread of our own, or from a function that Python calls by ctypes: there is no C++ that catches it.
//!
//! Builds with debug assertions, which the tests use, check the first two at each call ([`crate::guard::Barred`]).
//! `tests/foreign.rs` checks that no other file calls such a function. [`library`] is for objects of C++, [`functions`]
//! calls what PyTorch hands over, and [`torch`](mod@torch) has PyTorch's own functions.

pub mod functions;
pub mod library;
mod torch;

pub use functions::{Filter, Observer, Tracker};
pub(crate) use functions::{Supplier, gather};
pub use library::Deleter;
pub(crate) use library::{Invoker, Manager, New, Throw};
pub(crate) use library::{copy_callable, destroy_callable, new_bytes, throw};
pub(crate) use torch::{
    Torch, enable_peer, is_workspace_size, name_of, registered_allocator, snapshot_of, torch,
};
