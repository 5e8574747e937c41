//! What can be chosen, with the defaults that the measurements led to.

/// Choices of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The largest page that growth takes. Large pages are quick to map and hard to find wholly free.
    pub largest_page: u64,
    /// A page is at most this part of what is held: small heaps have small pages.
    pub page_part: u64,
    /// But a request's own pages may be this part of it, whatever is held.
    pub request_part: u64,
    /// What may be held beyond the peak of live bytes before free pages are harvested, in thousandths of it; 16 MiB are
    /// always allowed, and 4 MiB for each lane that holds something.
    pub slack: u64,
    /// Windows that are kept mapped for the next request of their size.
    pub windows: usize,
    /// Whether private pools have windows too.
    pub private_windows: bool,
    /// Whether lanes lend each other memory that no work uses any more.
    pub lending: bool,
    /// The most bytes to hold; `None`: what the card gives.
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
            limit: None,
        }
    }
}
