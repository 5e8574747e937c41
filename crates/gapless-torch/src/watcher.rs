//! Watchers hear what a card's allocator does: the history that PyTorch asks for, and the flight recorder.
//!
//! The same calls (`card.rs`) tell both, under the lock that orders events: the card's, or a lane's. A watcher never
//! throws, and takes no lock that another thread holds while it asks for memory. Code that may throw (trackers,
//! handlers, the sanitizer) is called after the lock is released, in `serve.rs`.

use crate::cxx::SharedPtr;
use gapless_pool::{Change, PoolKey, StreamHandle};

/// A stack that PyTorch gathered: `std::shared_ptr<GatheredContext>`.
pub type Stack = SharedPtr;

/// Place and size of an event.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub addr: u64,
    pub size: u64,
    pub stream: StreamHandle,
    pub pool: PoolKey,
}

/// The caller behind an event, in each watcher's terms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller<'a> {
    /// The stack that PyTorch gathered, for the history.
    pub stack: Option<&'a Stack>,
    /// The Python lines, for the recorder; 0: none are kept.
    pub line: u32,
    /// The program chose the address.
    pub at_address: bool,
    /// True for a request, false for a free.
    pub asks: bool,
}

impl Caller<'_> {
    /// The library itself.
    pub const NOBODY: Caller<'static> = Caller { stack: None, line: 0, at_address: false, asks: false };
}

/// A listener to a card's events. Sizes are those that the program asked for.
pub trait Watcher {
    fn is_on(&self) -> bool;

    /// A request was served.
    fn allocated(&mut self, device: i32, what: Event, by: &Caller<'_>);

    /// A caller gave a block back. `is_free`: it can be reused at once, which the changes that follow report too.
    fn given_back(&mut self, device: i32, what: Event, by: &Caller<'_>, is_free: bool);

    /// The pool changed its memory.
    fn changed(&mut self, device: i32, changes: &[Change], by: &Caller<'_>);

    /// A request failed; `what.addr` is the memory that the device had left.
    fn failed(&mut self, device: i32, what: Event, by: &Caller<'_>);

    /// A block is live again, because a graph's pool was restored. PyTorch's history has no such entry.
    fn restored(&mut self, _device: i32, _what: Event) {}
}
