//! The device as the allocator sees it: addresses, physical pages, events. Everything that is slow, can fail, or
//! differs between a real card and a simulated one is behind this trait; the allocator itself does no I/O.

/// A physical page's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageHandle(pub u64);

/// A point in a stream's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventHandle(pub u64);

/// A stream as the device knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamHandle(pub u64);

/// Why the device refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// No memory, or no addresses, left.
    OutOfMemory,
    /// Anything else, with the driver's own number.
    Driver(i32),
    /// The device was not asked.
    Refused(Refusal),
}

/// Which promise refused memory that the device may have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The most that the pool may hold.
    Limit,
    /// The most that this process may hold of the card.
    Process,
    /// The share of the process's tenant.
    Share,
    /// Within that share, but others have borrowed it and did not give it back in time.
    Lent,
    /// What all tenants hold cannot be told: their ledger cannot be used.
    Ledger,
    /// The budget that the request is charged to.
    Budget,
    /// The budget that host and card have together.
    Host,
}

/// Sizes and addresses are multiples of 2 MiB throughout.
pub trait Device {
    /// Reserves addresses with nothing behind them.
    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError>;

    /// How many bytes of addresses can still be reserved, where something bounds that.
    fn address_room(&self) -> u64 {
        u64::MAX
    }

    /// Gives reserved addresses back, all that one [`Device::reserve`] gave; nothing is mapped there.
    fn unreserve(&mut self, addr: u64, size: u64);

    /// Takes a physical page of `size` bytes from the card.
    fn create(&mut self, size: u64) -> Result<PageHandle, DeviceError>;

    /// Gives a physical page back; it is mapped nowhere.
    fn release(&mut self, page: PageHandle, size: u64);

    /// Puts a page behind reserved addresses, where nothing is mapped. A page may be mapped at several addresses.
    fn map(&mut self, addr: u64, size: u64, page: PageHandle) -> Result<(), DeviceError>;

    /// Makes mapped addresses usable; `size` may span several pages.
    fn grant(&mut self, addr: u64, size: u64) -> Result<(), DeviceError>;

    /// Takes what is mapped in the range away. No work that uses these addresses is queued any more.
    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), DeviceError>;

    /// Marks the present end of a stream's work. The stream is one that the caller of the allocator has just named: a
    /// handle that was kept may be that of a stream which is gone, and the driver does not survive those.
    ///
    /// The program may capture the stream, without a word and at any moment, also during this call. No capture is
    /// harmed by it, nor by a question about the event later ([`marks`](crate::marks) has how). It fails for a stream
    /// that is captured, and for the handle that names another stream in each thread.
    fn record(&mut self, stream: StreamHandle) -> Result<EventHandle, DeviceError>;

    /// Whether the work before an event is done. It fails for an event that a capture took in while it was recorded.
    fn is_done(&mut self, event: EventHandle) -> Result<bool, DeviceError>;

    /// Waits on the host until the work before an event is done.
    fn wait(&mut self, event: EventHandle) -> Result<(), DeviceError>;

    /// Waits on the host until the work of every stream of the card's own context is done, as the driver's own free of
    /// memory does: also of streams that the allocator never heard of, and of streams that were destroyed with work
    /// queued. No capture is harmed.
    ///
    /// # Errors
    /// Where the device fails: nothing is known then.
    fn wait_for_all(&mut self) -> Result<(), DeviceError>;

    /// Whether such a wait covers a stream that the caller of the allocator has just named. One of another card or
    /// context it does not cover.
    fn is_covered(&self, stream: StreamHandle) -> bool;

    /// Whether another process may have a page mapped. No default: a device around another one has to ask it.
    fn is_shared(&self, page: PageHandle) -> bool;

    /// Forgets an event.
    fn discard(&mut self, event: EventHandle);

    /// What the card has free, and in all.
    fn memory(&mut self) -> (u64, u64);
}
