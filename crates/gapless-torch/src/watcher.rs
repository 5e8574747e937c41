//! Who hears what a card's allocator does: the history that PyTorch asks for, and the flight recorder.
//!
//! Both are told by the same calls (`state.rs`), under the lock that orders what happened: the card's, or a lane's. A
//! watcher never throws and takes no lock that somebody holds while asking for memory. What may throw (trackers,
//! handlers, the sanitizer) is called after the lock is gone, in `serve.rs`.

use crate::cxx::SharedPtr;
use gapless_pool::{Change, PoolKey, StreamHandle};

/// A stack that PyTorch gathered: `std::shared_ptr<GatheredContext>`.
pub type Stack = SharedPtr;

/// Where and how much.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub addr: u64,
    pub size: u64,
    pub stream: StreamHandle,
    pub pool: PoolKey,
}

/// Who had it done, as each watcher tells it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller<'a> {
    /// The stack that PyTorch gathered, for the history.
    pub stack: Option<&'a Stack>,
    /// The Python lines, for the recorder; 0: none are kept.
    pub line: u32,
    /// The program chose the address.
    pub at_address: bool,
    /// It asked for memory, and did not give some back.
    pub asks: bool,
}

impl Caller<'_> {
    /// The library itself.
    pub const NOBODY: Caller<'static> = Caller { stack: None, line: 0, at_address: false, asks: false };
}

/// One who hears. Sizes are what was asked for.
pub trait Watcher {
    fn is_on(&self) -> bool;

    /// A request was served.
    fn allocated(&mut self, device: i32, what: Event, by: &Caller<'_>);

    /// A caller gave a block back. With `is_free` it can be used again already, which is among the changes that follow.
    fn given_back(&mut self, device: i32, what: Event, by: &Caller<'_>, is_free: bool);

    /// What the pool did.
    fn changed(&mut self, device: i32, changes: &[Change], by: &Caller<'_>);

    /// A request failed: `what.addr` is what the device had left.
    fn failed(&mut self, device: i32, what: Event, by: &Caller<'_>);

    /// A block is live again without a request, since a graph's pool is as it was. PyTorch's history has no such entry.
    fn restored(&mut self, _device: i32, _what: Event) {}
}
