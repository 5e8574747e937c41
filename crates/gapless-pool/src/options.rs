//! Options of a pool, with defaults from measurements.

/// Options of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The largest page that growth takes. Large pages are fast to map, but rarely wholly free.
    pub largest_page: u64,
    /// A page is at most this part of the held bytes, so small heaps have small pages.
    pub page_part: u64,
    /// A request's own pages may be this part of the request, however little is held.
    pub request_part: u64,
    /// Bytes that may be held beyond the peak of live bytes before free pages are harvested, in thousandths of the
    /// peak. 16 MiB are always allowed, and 4 MiB for each lane that holds something.
    pub slack: u64,
    /// Idle windows that stay mapped for the next request of their size.
    pub windows: usize,
    /// True if private pools have windows too.
    pub private_windows: bool,
    /// True if lanes lend each other settled memory.
    pub lending: bool,
    /// The bytes of freed memory that may wait for other streams before a request waits for the oldest of it instead of
    /// taking new memory; `None` for no bound.
    pub run_ahead: Option<u64>,
    /// The limit on held bytes; `None` for all that the card has.
    pub limit: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            largest_page: 32 << 20,
            page_part: 256,
            request_part: 8,
            slack: 10,
            windows: 1024,
            private_windows: true,
            lending: true,
            run_ahead: None,
            limit: None,
        }
    }
}
