//! Memory of several processes: pages that leave this one as files, and pages of others that are mapped here.
//!
//! The card's memory behind a page lives as long as one process has it mapped, or has a file or a handle of it. So a
//! reader keeps its mappings when the process that made the page ends.

use crate::context::enter;
use crate::device::CudaDevice;
use crate::driver::{
    ACCESS_READ, ACCESS_READ_WRITE, CopyDriver, Driver, HANDLE_FABRIC, HANDLE_FILE, Handle, IpcHandle,
    LAZY_PEERS, NOT_SUPPORTED, SUCCESS, SharingDriver, Status,
};
use crate::shared_pages::{self, KeptFile, SharedPage, SharedPages};
use crate::{peers, room};
use gapless_pool::PageHandle;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A call of the driver that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharingError {
    pub call: &'static str,
    pub status: Status,
}

impl std::fmt::Display for SharingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed with CUDA error {}", self.call, self.status)
    }
}

impl std::error::Error for SharingError {}

fn check(call: &'static str, status: Status) -> Result<(), SharingError> {
    if status == SUCCESS { Ok(()) } else { Err(SharingError { call, status }) }
}

fn functions() -> Result<&'static SharingDriver, SharingError> {
    SharingDriver::get().ok_or(SharingError { call: "cuMemExportToShareableHandle", status: NOT_SUPPORTED })
}

impl CudaDevice {
    /// The number of a page for other processes.
    pub fn number_of(&mut self, page: PageHandle) -> SharedPage {
        self.shared.told().number_of(page.0)
    }

    /// True if a process that knows of a page has it.
    pub(crate) fn is_held_elsewhere(&self, page: PageHandle) -> bool {
        let number = self.shared.told().by_page.get(&page.0).map(|shared| shared.number);
        number.is_some_and(self.shared.is_held)
    }

    /// Sets the function that knows if other processes still have a page.
    pub fn ask_readers(&mut self, is_held: fn(SharedPage) -> bool) {
        self.shared.is_held = is_held;
    }

    /// Hands pages of this card to other processes.
    #[must_use]
    pub fn exporter(&self) -> Exporter {
        Exporter { driver: self.driver, context: self.context(), shared: self.shared.clone() }
    }

    /// The number of a file of `page` that stays open until the page is released. `None` if the page has no number, if
    /// enough files are kept open, or if this process has no room for another.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn kept_file(&mut self, page: PageHandle) -> Result<Option<RawFd>, SharingError> {
        let mut told = self.shared.told();
        let Some(shared) = told.by_page.get_mut(&page.0) else { return Ok(None) };
        if let Some(file) = &shared.file {
            return Ok(Some(file.number()));
        }
        if shared_pages::keeps_many() {
            return Ok(None);
        }
        let file = match exported(self.driver, self.context(), page) {
            Ok(file) => file,
            Err(_) if !shared_pages::has_room_for_a_file() => return Ok(None),
            Err(error) => return Err(error),
        };
        let number = file.as_raw_fd();
        shared.file = Some(KeptFile::new(file));
        Ok(Some(number))
    }

    /// The handle of memory of `cuMemAlloc` at `addr`, for another process.
    ///
    /// # Errors
    /// If the memory at `addr` is not from `cuMemAlloc`.
    pub fn plain_handle(&self, addr: u64) -> Result<[u8; 64], SharingError> {
        let sharing = functions()?;
        let _entered = self.enter();
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: an out-pointer of our own; the driver refuses an address that it does not know.
        check("cuIpcGetMemHandle", unsafe { (sharing.plain_handle)(&raw mut handle, addr) })?;
        Ok(handle.0)
    }

    /// Maps memory of other processes for this card.
    #[must_use]
    pub fn importer(&self) -> Importer {
        Importer { driver: self.driver, context: self.context(), ordinal: self.ordinal() }
    }
}

/// A file of a page, which must not be released meanwhile.
fn exported(driver: &'static Driver, context: Handle, page: PageHandle) -> Result<OwnedFd, SharingError> {
    let sharing = functions()?;
    let _entered = enter(driver, context);
    let mut file: RawFd = -1;
    // SAFETY: the page exists as long as it is among the shared ones, whose lock the caller has. The driver writes a
    // descriptor to `file`.
    let status = unsafe { (sharing.export)((&raw mut file).cast::<c_void>(), page.0, HANDLE_FILE, 0) };
    check("cuMemExportToShareableHandle", status)?;
    // SAFETY: the driver opened this descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// The result of lending pages.
#[derive(Debug)]
pub enum Lent<T> {
    Done(T),
    /// One of them was released, or belongs to another card.
    Gone,
    /// This process has no room for a file of the first page.
    Full,
    Refused(SharingError),
}

/// Hands pages of a card to other processes, without the card's lock.
#[derive(Clone, Debug)]
pub struct Exporter {
    driver: &'static Driver,
    context: Handle,
    shared: SharedPages,
}

// SAFETY: the context is a handle of the driver, which any thread may use. `CudaDevice::new` retained it for good.
unsafe impl Send for Exporter {}

impl Exporter {
    /// True if both belong to one card.
    #[must_use]
    pub fn is_of_card_of(&self, other: &Exporter) -> bool {
        self.context == other.context
    }

    /// True if it knows this page.
    #[must_use]
    pub fn has(&self, number: SharedPage) -> bool {
        self.shared.told().get(number).is_some()
    }

    /// Fails if the driver does not let a page of this process leave it. If this process has no room for another file,
    /// that is unknown, and this succeeds.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn can_export(&self, number: SharedPage) -> Result<(), SharingError> {
        match self.lend(&[number], |_| ()) {
            Lent::Refused(error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Calls `work` with files of these pages, or of as many of the first ones as this process has room for. They are
    /// open as long as `work` runs, and no page is released meanwhile.
    pub fn lend<T>(&self, pages: &[SharedPage], work: impl FnOnce(&[RawFd]) -> T) -> Lent<T> {
        let told = self.shared.told();
        let mut opened = Vec::new();
        let mut numbers = Vec::with_capacity(pages.len());
        for &number in pages {
            let Some((page, shared)) = told.get(number) else { return Lent::Gone };
            if let Some(kept) = &shared.file {
                numbers.push(kept.number());
                continue;
            }
            match exported(self.driver, self.context, PageHandle(page)) {
                Ok(file) => {
                    numbers.push(file.as_raw_fd());
                    opened.push(file);
                }
                Err(error) if shared_pages::has_room_for_a_file() => return Lent::Refused(error),
                Err(_) if numbers.is_empty() => return Lent::Full,
                Err(_) => break,
            }
        }
        Lent::Done(work(&numbers))
    }
}

/// Maps memory of other processes, without the card's lock.
#[derive(Clone, Debug)]
pub struct Importer {
    driver: &'static Driver,
    context: Handle,
    ordinal: i32,
}

// SAFETY: the context is a handle of the driver, which any thread may use. `CudaDevice::new` retained it for good.
unsafe impl Send for Importer {}

impl Importer {
    /// Copies `bytes` to the card's address `addr`, and returns when they are there.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn upload(&self, addr: u64, bytes: &[u8]) -> Result<(), SharingError> {
        const CALL: &str = "cuMemcpyHtoD";
        let copies = CopyDriver::get().ok_or(SharingError { call: CALL, status: NOT_SUPPORTED })?;
        let _entered = enter(self.driver, self.context);
        // SAFETY: the bytes live during the call; the driver refuses an address that it does not know.
        check(CALL, unsafe { (copies.to_card)(addr, bytes.as_ptr().cast(), bytes.len()) })
    }
}

/// A page of another process.
#[derive(Clone, Copy, Debug)]
pub enum Imported<'a> {
    File(RawFd),
    /// For machines whose cards share a fabric.
    Fabric(&'a [u8; 64]),
}

impl Importer {
    /// Reserves addresses for `size` bytes of another process's pages.
    ///
    /// # Errors
    /// If there are none. The text says why.
    pub fn begin(&self, size: u64) -> Result<Attached, String> {
        let _entered = enter(self.driver, self.context);
        let mut addr = 0;
        // SAFETY: plain numbers and an out-pointer of our own.
        let status = unsafe { (self.driver.reserve)(&mut addr, size as usize, 2 << 20, 0, 0) };
        check("cuMemAddressReserve", status).map_err(|error| format!("{error}: {}", room::why_not(size)))?;
        Ok(Attached { importer: self.clone(), addr, size, mapped: 0 })
    }

    /// Maps memory of another process's `cuMemAlloc`.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn open_plain(&self, handle: [u8; 64]) -> Result<PlainlyAttached, SharingError> {
        let sharing = functions()?;
        let _entered = enter(self.driver, self.context);
        let mut addr = 0;
        // SAFETY: the driver checks the handle; an out-pointer of our own.
        let status = unsafe { (sharing.open_plain)(&mut addr, IpcHandle(handle), LAZY_PEERS) };
        check("cuIpcOpenMemHandle", status)?;
        Ok(PlainlyAttached { importer: self.clone(), addr })
    }
}

/// Pages of another process, mapped side by side. They are unmapped on drop, so no queued work may use them then.
#[derive(Debug)]
pub struct Attached {
    importer: Importer,
    addr: u64,
    size: u64,
    mapped: u64,
}

impl Attached {
    /// Number of mapped bytes.
    #[must_use]
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    #[must_use]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Maps the next page of `size` bytes.
    ///
    /// # Errors
    /// If the driver refuses. Pages that were mapped before are unmapped with this object.
    pub fn add(&mut self, page: Imported<'_>, size: u64) -> Result<(), SharingError> {
        if size > self.size - self.mapped {
            return Err(SharingError { call: "cuMemMap", status: 1 });
        }
        let sharing = functions()?;
        let Importer { driver, context, .. } = self.importer;
        let _entered = enter(driver, context);
        let (what, kind) = match page {
            Imported::File(file) => (file as usize as *mut c_void, HANDLE_FILE),
            Imported::Fabric(handle) => (handle.as_ptr().cast_mut().cast(), HANDLE_FABRIC),
        };
        let mut handle = 0;
        // SAFETY: a descriptor by value, or a handle that lives to the end of this function; an out-pointer of our own.
        check("cuMemImportFromShareableHandle", unsafe { (sharing.import)(&mut handle, what, kind) })?;
        // SAFETY: the addresses are reserved and have no mapping; after the mapping the handle is not needed any more.
        let mapped = unsafe {
            let mapped = (driver.map)(self.addr + self.mapped, size as usize, 0, handle, 0);
            (driver.release)(handle);
            mapped
        };
        check("cuMemMap", mapped)?;
        self.mapped += size;
        Ok(())
    }

    /// Lets the card, and the cards that may use its memory, read and write all of it.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn grant(&self) -> Result<(), SharingError> {
        self.set_access(ACCESS_READ_WRITE)
    }

    /// Lets them read all of it. The driver refuses a copy or a fill that would write there. A kernel that writes there
    /// fails with an error in this process only.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn grant_to_read(&self) -> Result<(), SharingError> {
        self.set_access(ACCESS_READ)
    }

    fn set_access(&self, flags: i32) -> Result<(), SharingError> {
        let Importer { driver, context, ordinal } = self.importer;
        let _entered = enter(driver, context);
        let range = (self.addr, self.mapped);
        check("cuMemSetAccess", peers::of(ordinal).grant_beside(driver, ordinal, range, flags))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Importer { driver, context, ordinal } = self.importer;
        let _entered = enter(driver, context);
        peers::of(ordinal).forget(self.addr, self.size);
        // SAFETY: `begin` reserved and `add` mapped this range, which the owner does not use when it drops this.
        unsafe {
            if self.mapped == 0 || (driver.unmap)(self.addr, self.mapped as usize) == SUCCESS {
                (driver.unreserve)(self.addr, self.size as usize);
            }
        }
    }
}

/// Memory of another process's `cuMemAlloc`. It is unmapped when this is dropped, so no queued work may use it then.
#[derive(Debug)]
pub struct PlainlyAttached {
    importer: Importer,
    addr: u64,
}

impl PlainlyAttached {
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.addr
    }
}

impl Drop for PlainlyAttached {
    fn drop(&mut self) {
        let Ok(sharing) = functions() else { return };
        let _entered = enter(self.importer.driver, self.importer.context);
        // SAFETY: `open_plain` gave the address, which is closed once.
        unsafe { (sharing.close_plain)(self.addr) };
    }
}
