//! One card behind the allocator: pages, addresses and events through the driver.

use crate::context::{Entered, check, enter, told};
use crate::driver::{
    ACCESS_READ_WRITE, ALLOCATION_PINNED, ATTRIBUTE_EXPORTS_FILES, ATTRIBUTE_INTEGRATED, ATTRIBUTE_RDMA,
    AllocationProperties, CAPTURE_IMPLICIT, Driver, DriverError, EVENT_DISABLE_TIMING, HANDLE_FILE, Handle,
    INVALID_HANDLE, INVALID_VALUE, LEGACY_STREAM, LOCATION_DEVICE, Location, NOT_CAPTURED, NOT_PERMITTED,
    NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, PER_THREAD_STREAM, SUCCESS, Status, WaitDriver,
};
use crate::identity::{self, Identity};
use crate::mapped::Mapped;
use crate::meter::Meter;
use crate::shared_pages::SharedPages;
use crate::{peers, places, room, streams};
use gapless_pool::marks::{self, Calls};
use gapless_pool::{Device, DeviceError, EventHandle, PageHandle, StreamHandle};
use std::time::Instant;

/// One card.
#[derive(Debug)]
pub struct CudaDevice {
    pub(crate) driver: &'static Driver,
    ordinal: i32,
    context: Handle,
    /// A stream of our own that waits for the default one, so no program can capture it; null until it is made.
    beside_default: Handle,
    /// Events that are not in use.
    events: Vec<Handle>,
    /// Events of other contexts, for their streams: these are not reused.
    foreign: Vec<Handle>,
    /// Properties of pages, as PyTorch asks for them for its expandable segments: other processes can get them as
    /// files, and network cards can reach them.
    exports_files: bool,
    rdma: bool,
    /// True if its memory is the host's.
    is_unified: bool,
    /// True if this is not the device of the card's pool. Then its grants are noted, for peers that come later.
    is_beside: bool,
    /// Pages that other processes know of.
    pub(crate) shared: SharedPages,
    /// The page behind each address; kept in checked mode.
    pub mapped: Option<Mapped>,
    /// Time spent in calls that map memory, in nanoseconds.
    pub driver_ns: u64,
    pub creates: u64,
    pub maps: u64,
}

// SAFETY: contexts and events are handles of the driver, which any thread may use; a lock guards the struct.
unsafe impl Send for CudaDevice {}

/// True if the driver says for good that it lacks something. A value that it calls invalid counts too: the caller then
/// asks without it, and that works.
fn is_unsupported(status: Status) -> bool {
    matches!(status, INVALID_VALUE | NOT_PERMITTED | NOT_SUPPORTED)
}

impl CudaDevice {
    /// The card with this number. It uses the primary context, like CUDA's runtime.
    ///
    /// # Errors
    /// If there is no driver or no such card.
    pub fn new(ordinal: i32) -> Result<CudaDevice, DriverError> {
        let driver = Driver::get()?;
        let mut device = 0;
        let mut context: Handle = std::ptr::null_mut();
        let call = |name: &'static str, status: Status| {
            if status == SUCCESS { Ok(()) } else { Err(DriverError::Call(name, status)) }
        };
        // SAFETY: out-pointers of our own.
        unsafe {
            call("cuInit", (driver.init)(0))?;
            call("cuDeviceGet", (driver.device_get)(&mut device, ordinal))?;
            call("cuDevicePrimaryCtxRetain", (driver.primary_context)(&mut context, device))?;
        }
        let has = |attribute| {
            let mut value = 0;
            // SAFETY: an out-pointer of our own.
            (unsafe { (driver.device_attribute)(&mut value, attribute, device) }) == SUCCESS && value != 0
        };
        streams::note_card(ordinal, context);
        Ok(CudaDevice {
            driver,
            ordinal: device,
            context,
            beside_default: std::ptr::null_mut(),
            events: Vec::new(),
            foreign: Vec::new(),
            exports_files: has(ATTRIBUTE_EXPORTS_FILES),
            rdma: has(ATTRIBUTE_RDMA),
            is_unified: has(ATTRIBUTE_INTEGRATED),
            is_beside: false,
            shared: SharedPages::default(),
            mapped: None,
            driver_ns: 0,
            creates: 0,
            maps: 0,
        })
    }

    /// The total bytes and the identity of a card. It needs no context and makes none.
    ///
    /// # Errors
    /// If there is no driver or no such card.
    pub fn about(ordinal: i32) -> Result<(u64, Identity), DriverError> {
        let driver = Driver::get()?;
        let (mut device, mut total) = (0, 0);
        let call = |name: &'static str, status: Status| {
            if status == SUCCESS { Ok(()) } else { Err(DriverError::Call(name, status)) }
        };
        // SAFETY: out-pointers of our own.
        unsafe {
            call("cuInit", (driver.init)(0))?;
            call("cuDeviceGet", (driver.device_get)(&mut device, ordinal))?;
            call("cuDeviceTotalMem", (driver.total_memory)(&mut total, device))?;
        }
        Ok((total as u64, identity::of(ordinal)))
    }

    /// True if there is such a card; `None` if the driver does not say.
    #[must_use]
    pub fn exists(ordinal: i32) -> Option<bool> {
        let driver = Driver::get().ok()?;
        let mut device = 0;
        // SAFETY: an out-pointer of our own.
        unsafe {
            if (driver.init)(0) != SUCCESS {
                return None;
            }
            Some((driver.device_get)(&mut device, ordinal) == SUCCESS)
        }
    }

    /// A second device of the same card, for memory that the card's pool does not know.
    #[must_use]
    pub fn beside(self) -> CudaDevice {
        CudaDevice { is_beside: true, ..self }
    }

    /// Lets another card use memory that is granted from now on, and all memory beside the pool at once. True if it
    /// could not before: the pool then grants its own memory again.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn add_peer(&mut self, ordinal: i32) -> Result<bool, DeviceError> {
        let mut device = 0;
        // SAFETY: an out-pointer of our own.
        if unsafe { (self.driver.device_get)(&mut device, ordinal) } != SUCCESS {
            return Ok(false);
        }
        let _entered = self.enter();
        peers::of(self.ordinal).add(self.driver, self.ordinal, device).map_err(DeviceError::Driver)
    }

    /// Undoes [`CudaDevice::add_peer`], because the pool could not grant its memory.
    pub fn remove_peer(&mut self, ordinal: i32) {
        peers::of(self.ordinal).remove(ordinal);
    }

    /// True if a stream is in a capture now, including one that failed and was not ended. False for a stream that the
    /// driver does not know. The program has just named the stream, or it is the legacy stream.
    #[must_use]
    pub fn is_captured(&self, stream: StreamHandle) -> bool {
        let (context, handle) = streams::place_of(stream.0).unwrap_or((self.context, stream.0 as Handle));
        let _entered = enter(self.driver, context);
        self.is_captured_here(handle)
    }

    /// [`CudaDevice::is_captured`] after the caller entered the stream's context.
    fn is_captured_here(&self, stream: Handle) -> bool {
        let mut status = NOT_CAPTURED;
        // SAFETY: the program has just named the stream, so it exists; the out-pointer is valid.
        match unsafe { (self.driver.is_capturing)(stream, &mut status) } {
            SUCCESS => status != NOT_CAPTURED,
            // The default stream was asked while a captured stream waits for it.
            error => error == CAPTURE_IMPLICIT,
        }
    }

    pub(crate) fn enter(&self) -> Entered<'static> {
        enter(self.driver, self.context)
    }

    pub(crate) fn context(&self) -> Handle {
        self.context
    }

    pub(crate) fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Asks for the card's memory and waits for its work, on other threads.
    #[must_use]
    pub fn meter(&self) -> Meter {
        Meter { driver: self.driver, context: self.context, is_unified: self.is_unified }
    }

    /// A new page. Some sandboxes promise properties that they do not allow; plain pages serve everything but exports.
    /// Only if the driver refuses a property for good is it not asked for again, because other failures may pass.
    fn created(&mut self, size: u64) -> Result<u64, DeviceError> {
        let (mut files, mut rdma) = (self.exports_files, self.rdma);
        let (mut handle, mut is_for_good) = (0, true);
        loop {
            let properties = self.properties(files, rdma);
            // SAFETY: both pointers are to variables of this function.
            match unsafe { (self.driver.create)(&mut handle, size as usize, &properties, 0) } {
                SUCCESS => break,
                error if error != OUT_OF_MEMORY && (files || rdma) => {
                    is_for_good &= is_unsupported(error);
                    (files, rdma) = (files && rdma, false);
                }
                error => return Err(check(error).err().unwrap_or(DeviceError::OutOfMemory)),
            }
        }
        if is_for_good {
            (self.exports_files, self.rdma) = (files, rdma);
        }
        Ok(handle)
    }

    fn properties(&self, files: bool, rdma: bool) -> AllocationProperties {
        AllocationProperties {
            kind: ALLOCATION_PINNED,
            handle_types: if files { HANDLE_FILE } else { 0 },
            location: Location { kind: LOCATION_DEVICE, id: self.ordinal },
            win32: std::ptr::null_mut(),
            compression: 0,
            rdma: u8::from(rdma),
            usage: 0,
            reserved: [0; 4],
        }
    }

    /// An event of the card's own context.
    fn event(&mut self) -> Result<Handle, DeviceError> {
        if let Some(event) = self.events.pop() {
            return Ok(event);
        }
        let mut event: Handle = std::ptr::null_mut();
        // SAFETY: an out-pointer of our own; the callers have entered the context.
        check(unsafe { (self.driver.event_create)(&mut event, EVENT_DISABLE_TIMING) })?;
        Ok(event)
    }

    /// [`Device::record`] for a stream of another context: of another card, or of a part of this one. Its events belong
    /// to that context.
    fn record_elsewhere(&mut self, (context, stream): (Handle, Handle)) -> Result<EventHandle, DeviceError> {
        let _entered = enter(self.driver, context);
        let mut event: Handle = std::ptr::null_mut();
        // SAFETY: an out-pointer of our own.
        check(unsafe { (self.driver.event_create)(&mut event, EVENT_DISABLE_TIMING) })?;
        if let Err(error) = marks::mark(&mut Mark { device: self, event, stream }) {
            // SAFETY: the event was made above, and nothing else uses it.
            unsafe { (self.driver.event_destroy)(event) };
            return Err(error);
        }
        self.foreign.push(event);
        Ok(EventHandle(event as u64))
    }

    /// [`Device::record`] for a stream of the card's own context.
    fn record_here(&mut self, stream: Handle) -> Result<EventHandle, DeviceError> {
        let _entered = self.enter();
        let stream = if stream as u64 <= LEGACY_STREAM { self.beside_default()? } else { stream };
        let event = self.event()?;
        let marked = marks::mark(&mut Mark { device: self, event, stream });
        if let Err(error) = marked {
            // The event is recorded again before it is queried.
            self.events.push(event);
            return Err(error);
        }
        Ok(EventHandle(event as u64))
    }

    /// A stream that stands for the default one: its work begins when that of the default stream is done. An event on
    /// the default stream itself would end the captures of all streams that wait for it.
    fn beside_default(&mut self) -> Result<Handle, DeviceError> {
        let Some(streams) = WaitDriver::get() else { return Ok(std::ptr::null_mut()) };
        if self.beside_default.is_null() {
            // SAFETY: an out-pointer of our own; the callers have entered the context. The flag 0 makes it wait for the
            // default stream.
            check(unsafe { (streams.stream_create)(&mut self.beside_default, 0) })?;
        }
        Ok(self.beside_default)
    }

    fn timed<T>(&mut self, call: impl FnOnce(&mut Self) -> T) -> T {
        let start = Instant::now();
        let result = call(self);
        self.driver_ns += start.elapsed().as_nanos() as u64;
        result
    }
}

/// The calls of one mark. The stream's context is entered.
struct Mark<'a> {
    device: &'a CudaDevice,
    event: Handle,
    stream: Handle,
}

impl Calls for Mark<'_> {
    fn record(&mut self) -> Result<(), DeviceError> {
        // SAFETY: a live event, and a stream that the program named for its memory. PyTorch's own allocator too records
        // an event for such a stream, even if it may be gone.
        check(unsafe { (self.device.driver.event_record)(self.event, self.stream) })
    }

    fn is_captured(&mut self) -> bool {
        self.device.is_captured_here(self.stream)
    }
}

impl Device for CudaDevice {
    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        let _entered = self.enter();
        let mut addr = 0;
        // SAFETY: plain numbers and an out-pointer of our own.
        check(unsafe { (self.driver.reserve)(&mut addr, size as usize, 2 << 20, 0, 0) })?;
        places::note(addr, size, self.ordinal);
        Ok(addr)
    }

    fn address_room(&self) -> u64 {
        room::left()
    }

    fn unreserve(&mut self, addr: u64, size: u64) {
        places::forget(addr, size);
        let _entered = self.enter();
        // SAFETY: the pool passes a range of one `reserve`, with nothing mapped in it.
        unsafe { (self.driver.unreserve)(addr, size as usize) };
    }

    fn create(&mut self, size: u64) -> Result<PageHandle, DeviceError> {
        self.timed(|this| {
            let _entered = this.enter();
            let handle = this.created(size)?;
            this.creates += 1;
            Ok(PageHandle(handle))
        })
    }

    fn release(&mut self, page: PageHandle, _size: u64) {
        self.shared.release(page);
        let _entered = self.enter();
        // SAFETY: the pool releases each page of `create` once.
        unsafe { (self.driver.release)(page.0) };
        if let Some(mapped) = &mut self.mapped {
            mapped.release(page);
        }
    }

    fn map(&mut self, addr: u64, size: u64, page: PageHandle) -> Result<(), DeviceError> {
        self.timed(|this| {
            let _entered = this.enter();
            this.maps += 1;
            // SAFETY: the pool maps a range of its `reserve` that has no mapping.
            check(unsafe { (this.driver.map)(addr, size as usize, 0, page.0, 0) })?;
            if let Some(mapped) = &mut this.mapped {
                mapped.map(addr, size, page);
            }
            Ok(())
        })
    }

    fn grant(&mut self, addr: u64, size: u64) -> Result<(), DeviceError> {
        self.timed(|this| {
            let _entered = this.enter();
            let mut reach = peers::of(this.ordinal);
            let range = (addr, size);
            check(if this.is_beside {
                reach.grant_beside(this.driver, this.ordinal, range, ACCESS_READ_WRITE)
            } else {
                reach.grant(this.driver, this.ordinal, range, ACCESS_READ_WRITE)
            })
        })
    }

    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), DeviceError> {
        self.timed(|this| {
            let _entered = this.enter();
            if this.is_beside {
                peers::of(this.ordinal).forget(addr, size);
            }
            // SAFETY: the pool unmaps a range only when no queued work uses it (the contract of `Device::unmap`).
            check(unsafe { (this.driver.unmap)(addr, size as usize) })?;
            if let Some(mapped) = &mut this.mapped {
                mapped.unmap(addr, size);
            }
            Ok(())
        })
    }

    fn record(&mut self, stream: StreamHandle) -> Result<EventHandle, DeviceError> {
        let elsewhere = streams::place_of(stream.0);
        let handle = elsewhere.map_or(stream.0, |(_, handle)| handle as u64);
        // Only the thread that used the stream could tell which stream this is.
        if handle == PER_THREAD_STREAM {
            return Err(DeviceError::Driver(INVALID_HANDLE));
        }
        match elsewhere {
            Some(place) => self.record_elsewhere(place),
            None => self.record_here(handle as Handle),
        }
    }

    fn wait_for_all(&mut self) -> Result<(), DeviceError> {
        self.meter().wait_for_all()
    }

    fn is_covered(&self, stream: StreamHandle) -> bool {
        streams::is_covered(stream.0)
    }

    fn is_done(&mut self, event: EventHandle) -> Result<bool, DeviceError> {
        let _entered = self.enter();
        // SAFETY: the pool passes an event of `record` that it has not discarded.
        match unsafe { (self.driver.event_query)(event.0 as Handle) } {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            other => Err(DeviceError::Driver(other)),
        }
    }

    fn wait(&mut self, event: EventHandle) -> Result<(), DeviceError> {
        let _entered = self.enter();
        // SAFETY: the pool passes an event of `record` that it has not discarded.
        check(unsafe { (self.driver.event_wait)(event.0 as Handle) })
    }

    fn is_shared(&self, page: PageHandle) -> bool {
        self.is_held_elsewhere(page)
    }

    fn discard(&mut self, event: EventHandle) {
        let event = event.0 as Handle;
        if let Some(at) = self.foreign.iter().position(|&foreign| foreign == event) {
            self.foreign.swap_remove(at);
            // SAFETY: `record_elsewhere` made it, and the pool does not use it after it discarded it.
            unsafe { (self.driver.event_destroy)(event) };
        } else {
            self.events.push(event);
        }
    }

    fn memory(&mut self) -> (u64, u64) {
        let _entered = self.enter();
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: out-pointers of our own.
        unsafe { (self.driver.mem_info)(&mut free, &mut total) };
        told(self.is_unified, free as u64, total as u64)
    }
}
