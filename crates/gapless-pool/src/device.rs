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

/// Reason why the device refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// No memory or no addresses are left.
    OutOfMemory,
    /// Another error, with the driver's number.
    Driver(i32),
    /// The device was not asked.
    Refused(Refusal),
}

/// The limit that refused memory before the device was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The pool's limit.
    Limit,
    /// The process's limit on the card.
    Process,
    /// The share of the process's tenant.
    Share,
    /// The process is within that share, but other tenants borrowed from it and did not give it back in time.
    Lent,
    /// The tenants' ledger cannot be used, so the sum of what they hold is unknown.
    Ledger,
    /// The budget of the request.
    Budget,
    /// The common budget of host and card.
    Host,
}

/// Sizes and addresses are multiples of 2 MiB throughout.
pub trait Device {
    /// Reserves addresses with nothing behind them.
    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError>;

    /// Bytes of addresses that can still be reserved, if there is a bound.
    fn address_room(&self) -> u64 {
        u64::MAX
    }

    /// Gives back addresses, all that one [`Device::reserve`] returned; nothing is mapped there.
    fn unreserve(&mut self, addr: u64, size: u64);

    /// Takes a physical page of `size` bytes from the card.
    fn create(&mut self, size: u64) -> Result<PageHandle, DeviceError>;

    /// Gives a physical page back to the card. The page is mapped nowhere.
    fn release(&mut self, page: PageHandle, size: u64);

    /// Maps a page at reserved addresses where nothing is mapped. A page may be mapped at several addresses.
    fn map(&mut self, addr: u64, size: u64, page: PageHandle) -> Result<(), DeviceError>;

    /// Makes mapped addresses usable; `size` may span several pages.
    fn grant(&mut self, addr: u64, size: u64) -> Result<(), DeviceError>;

    /// Unmaps everything in the range. No queued work uses these addresses any more.
    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), DeviceError>;

    /// Marks the present end of a stream's work. The caller of the allocator has just named the stream: a handle that
    /// was kept longer may be that of a destroyed stream, on which the driver crashes.
    ///
    /// The program may begin a capture of the stream at any moment, also during this call, and does not report it. The
    /// call must not harm the capture, nor may a later query of the event ([`marks`](crate::marks) shows how). It fails
    /// for a captured stream, and for the handle that names another stream in each thread.
    fn record(&mut self, stream: StreamHandle) -> Result<EventHandle, DeviceError>;

    /// True if the work before an event is done. Fails for an event that a capture took in while it was recorded.
    fn is_done(&mut self, event: EventHandle) -> Result<bool, DeviceError>;

    /// Waits on the host until the work before an event is done.
    fn wait(&mut self, event: EventHandle) -> Result<(), DeviceError>;

    /// Waits on the host until the work of every stream of the card's own context is done, as the driver's own free of
    /// memory does. This includes streams that the allocator does not know, and streams that were destroyed with work
    /// queued. Harms no capture.
    ///
    /// # Errors
    /// If the device fails. Then no work counts as done.
    fn wait_for_all(&mut self) -> Result<(), DeviceError>;

    /// True if such a wait covers a stream that the caller of the allocator has just named. It does not cover streams
    /// of another card or context.
    fn is_covered(&self, stream: StreamHandle) -> bool;

    /// True if another process may have the page mapped. No default: a device around another must forward it.
    fn is_shared(&self, page: PageHandle) -> bool;

    /// Drops an event.
    fn discard(&mut self, event: EventHandle);

    /// The free bytes and all bytes of the card.
    fn memory(&mut self) -> (u64, u64);
}
