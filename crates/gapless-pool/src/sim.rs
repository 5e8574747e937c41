//! A simulated card, with a given capacity, events under the test's control, faults on demand, and a driver's costs.

use crate::device::{Device, DeviceError, EventHandle, PageHandle, StreamHandle};
use rustc_hash::FxHashMap;

/// The time of each call on one NVIDIA H200, in nanoseconds.
const CREATE: u64 = 14_000;
const MAP: u64 = 1_200;
const GRANT: u64 = 31_000;
const UNMAP: u64 = 22_000;

/// The stream of an event that is a fence.
const EVERY_STREAM: StreamHandle = StreamHandle(u64::MAX);

/// A simulated device.
#[derive(Clone, Debug, Default)]
pub struct SimDevice {
    capacity: u64,
    used: u64,
    next_addr: u64,
    next_handle: u64,
    /// Size of each page that was not released, and the number of its mappings.
    pages: FxHashMap<u64, (u64, u32)>,
    /// Mappings: address to size, page, and true if it is usable.
    mapped: std::collections::BTreeMap<u64, (u64, u64, bool)>,
    /// Events that are not done.
    waiting: FxHashMap<u64, StreamHandle>,
    next_event: u64,
    /// True if events are done as soon as they are recorded.
    pub instant: bool,
    /// True if every page counts as mapped by another process.
    pub is_shared: bool,
    /// True if fences are refused, as by drivers before CUDA 12.5.
    pub has_no_fences: bool,
    /// Counts down with every call that may fail. The call at 0 fails, and later ones do not.
    pub fail_in: Option<u32>,
    /// Estimated time in the driver.
    pub driver_ns: u64,
    pub creates: u64,
    pub maps: u64,
    pub unmaps: u64,
    pub fences: u64,
    pub host_waits: u64,
}

impl SimDevice {
    #[must_use]
    pub fn new(capacity: u64) -> SimDevice {
        SimDevice { capacity, next_addr: 1 << 44, instant: true, ..SimDevice::default() }
    }

    fn fails(&mut self) -> bool {
        match &mut self.fail_in {
            Some(0) => {
                self.fail_in = None;
                true
            }
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        }
    }

    /// Completes the work before all events that were recorded so far.
    pub fn finish_all(&mut self) {
        self.waiting.clear();
    }

    /// Completes the work before one event.
    pub fn finish(&mut self, event: EventHandle) {
        self.waiting.remove(&event.0);
    }

    /// The last event that was recorded.
    #[must_use]
    pub fn last_event(&self) -> EventHandle {
        EventHandle(self.next_event)
    }

    /// True if `[addr, addr + size)` is mapped and usable.
    #[must_use]
    pub fn is_usable(&self, addr: u64, size: u64) -> bool {
        let mut at = addr;
        while at < addr + size {
            match self.mapped.range(..=at).next_back() {
                Some((&start, &(length, _, true))) if at < start + length => at = start + length,
                _ => return false,
            }
        }
        true
    }

    /// The physical bytes behind `[addr, addr + size)`, as pages with offsets, so that a test can see that no two
    /// allocations share any.
    #[must_use]
    pub fn physical(&self, addr: u64, size: u64) -> Vec<(u64, u64, u64)> {
        let mut list = Vec::new();
        let mut at = addr;
        while at < addr + size {
            let Some((&start, &(length, page, _))) = self.mapped.range(..=at).next_back() else { break };
            if at >= start + length {
                break;
            }
            let end = (start + length).min(addr + size);
            list.push((page, at - start, end - at));
            at = end;
        }
        list
    }
}

impl Device for SimDevice {
    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        if self.fails() {
            return Err(DeviceError::OutOfMemory);
        }
        let addr = self.next_addr;
        self.next_addr += size;
        Ok(addr)
    }

    fn unreserve(&mut self, addr: u64, size: u64) {
        assert!(
            self.mapped.range(addr..addr + size).next().is_none(),
            "addresses go with nothing mapped there"
        );
    }

    fn create(&mut self, size: u64) -> Result<PageHandle, DeviceError> {
        if self.fails() || self.used + size > self.capacity {
            return Err(DeviceError::OutOfMemory);
        }
        self.used += size;
        self.creates += 1;
        self.driver_ns += CREATE;
        self.next_handle += 1;
        self.pages.insert(self.next_handle, (size, 0));
        Ok(PageHandle(self.next_handle))
    }

    fn release(&mut self, page: PageHandle, size: u64) {
        let (length, mapped) = self.pages.remove(&page.0).expect("a page that exists");
        assert!(length == size && mapped == 0, "a page is released whole, and mapped nowhere");
        self.used -= size;
    }

    fn map(&mut self, addr: u64, size: u64, page: PageHandle) -> Result<(), DeviceError> {
        if self.fails() {
            return Err(DeviceError::Driver(1));
        }
        let before = self.mapped.range(..addr + size).next_back();
        assert!(
            before.is_none_or(|(&start, &(length, ..))| start + length <= addr),
            "mapped twice at {addr:#x}"
        );
        let (length, count) = self.pages.get_mut(&page.0).expect("a page that exists");
        assert_eq!(*length, size, "pages are mapped whole");
        *count += 1;
        self.mapped.insert(addr, (size, page.0, false));
        self.maps += 1;
        self.driver_ns += MAP;
        Ok(())
    }

    fn grant(&mut self, addr: u64, size: u64) -> Result<(), DeviceError> {
        if self.fails() {
            return Err(DeviceError::Driver(2));
        }
        for (_, (_, _, usable)) in self.mapped.range_mut(addr..addr + size) {
            *usable = true;
            self.driver_ns += GRANT;
        }
        Ok(())
    }

    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), DeviceError> {
        let inside: Vec<u64> = self.mapped.range(addr..addr + size).map(|(&start, _)| start).collect();
        for start in inside {
            if let Some((_, page, _)) = self.mapped.remove(&start) {
                self.pages.get_mut(&page).expect("a page that exists").1 -= 1;
                self.unmaps += 1;
                self.driver_ns += UNMAP;
            }
        }
        Ok(())
    }

    fn record(&mut self, stream: StreamHandle) -> Result<EventHandle, DeviceError> {
        if self.fails() || self.has_no_fences {
            return Err(DeviceError::Driver(3));
        }
        self.fences += 1;
        self.next_event += 1;
        if !self.instant {
            self.waiting.insert(self.next_event, stream);
        }
        Ok(EventHandle(self.next_event))
    }

    fn is_done(&mut self, event: EventHandle) -> Result<bool, DeviceError> {
        Ok(!self.waiting.contains_key(&event.0))
    }

    fn wait(&mut self, event: EventHandle) -> Result<(), DeviceError> {
        self.host_waits += 1;
        // A stream works in order, so earlier events of it are done too.
        if let Some(stream) = self.waiting.remove(&event.0) {
            let is_before = |of: StreamHandle| of == stream || stream == EVERY_STREAM;
            self.waiting.retain(|earlier, of| !is_before(*of) || *earlier > event.0);
        }
        Ok(())
    }

    fn wait_for_all(&mut self) -> Result<(), DeviceError> {
        self.host_waits += 1;
        self.finish_all();
        Ok(())
    }

    fn is_covered(&self, _stream: StreamHandle) -> bool {
        true
    }

    fn is_shared(&self, _: PageHandle) -> bool {
        self.is_shared
    }

    fn discard(&mut self, event: EventHandle) {
        self.waiting.remove(&event.0);
    }

    fn memory(&mut self) -> (u64, u64) {
        (self.capacity - self.used, self.capacity)
    }
}
