//! CUDA's functions for memory of the host that a card can reach. Programs that use the runtime's library
//! (`libcudart.so`), as torch does, come here first, and each call goes on to the runtime.
//!
//! Gapless learns which memory is registered and does not give it back under the driver (`gapless_host::pinned`).
//! Memory that the runtime allocates itself counts as pinned, and in the budget. Direct calls of a program to the
//! driver (`cuMemHostRegister`, found by `dlsym`) are not seen.

use crate::driver;
use gapless_host::core::{BUDGET, LARGE, PINNED};
use gapless_host::pinned::{Entry, Request, Return, State};
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// As in CUDA's headers.
const SUCCESS: c_int = 0;
const NO_MEMORY: c_int = 2;
const NOT_SUPPORTED: c_int = 801;
const NOT_REGISTERED: c_int = 713;
/// The budget counts pages.
const PAGE: usize = 4096;

/// One of the runtime's functions, once it was found.
struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    const fn new(name: &'static CStr) -> Real {
        Real { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    fn get(&self) -> Option<*mut c_void> {
        let known = self.found.load(Ordering::Acquire);
        if !known.is_null() {
            return Some(known);
        }
        // SAFETY: the name ends in a zero.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // A runtime that came with a Python module is visible only to that module, so it is looked up by its file.
            let runtime = runtime()?;
            // SAFETY: a handle of a loaded library, which stays loaded because its users do not unload it.
            found = unsafe { libc::dlsym(runtime, self.name.as_ptr()) };
        }
        self.found.store(found, Ordering::Release);
        (!found.is_null()).then_some(found)
    }
}

/// The loaded library whose file name begins with `libcudart.so`.
fn runtime() -> Option<*mut c_void> {
    let mut path = [0u8; 4096];
    // SAFETY: `visit` gets the path, which lives until the call is done.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut path).cast()) };
    let name = CStr::from_bytes_until_nul(&path).ok().filter(|name| !name.is_empty())?;
    // SAFETY: the name ends in a zero; the flag loads nothing.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!library.is_null()).then_some(library)
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, path: *mut c_void) -> c_int {
    // SAFETY: the loader passes the description of an object, and the path of `runtime`, which nothing else uses.
    let (info, path) = unsafe { (&*info, &mut *path.cast::<[u8; 4096]>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the loader's name ends in a zero.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes_with_nul();
    let base = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    if !base.starts_with(b"libcudart.so") || name.len() > path.len() {
        return 0;
    }
    path[..name.len()].copy_from_slice(name);
    1
}

static REGISTER: Real = Real::new(c"cudaHostRegister");
static UNREGISTER: Real = Real::new(c"cudaHostUnregister");
static ALLOCATE: Real = Real::new(c"cudaHostAlloc");
static MALLOC: Real = Real::new(c"cudaMallocHost");
static FREE: Real = Real::new(c"cudaFreeHost");
static DEVICE: Real = Real::new(c"cudaGetDevice");
static SET_DEVICE: Real = Real::new(c"cudaSetDevice");

type Register = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
type OfPointer = unsafe extern "C" fn(*mut c_void) -> c_int;
type Allocate = unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int;
type Malloc = unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int;

/// The device that is current for this thread.
fn device() -> i32 {
    let mut number = 0;
    if let Some(get) = DEVICE.get() {
        // SAFETY: CUDA's function of this name has this type; `number` is valid for writing.
        unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(get)(
                &raw mut number,
            )
        };
    }
    number
}

/// Ends a kept registration. The helper calls it too, so it goes through [`driver::run`]: a driver works only in
/// threads of the program.
fn release(entry: &Entry) {
    let entry = *entry;
    driver::run(move || release_here(&entry));
}

/// Makes the registration's device current first, because a thread without a device would start one on the first card.
fn release_here(entry: &Entry) {
    let (Some(set), Some(unregister)) = (SET_DEVICE.get(), UNREGISTER.get()) else { return };
    let before = device();
    // SAFETY: CUDA's functions of these names have these types, and the driver has registered the range.
    unsafe {
        let set = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> c_int>(set);
        if before != entry.device {
            set(entry.device);
        }
        std::mem::transmute::<*mut c_void, OfPointer>(unregister)(entry.start as *mut c_void);
        if before != entry.device {
            set(before);
        }
    }
}

/// # Safety
/// As for CUDA's function of this name: `start` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaHostRegister(start: *mut c_void, length: usize, flags: c_uint) -> c_int {
    let Some(real) = REGISTER.get() else { return NOT_SUPPORTED };
    LARGE.pinned.release_by(release);
    if LARGE.pinned.wants(start as usize, length, flags) == Request::Known {
        return SUCCESS;
    }
    // SAFETY: CUDA's function of this name gets the caller's arguments unchanged (the caller's contract).
    let result = unsafe { std::mem::transmute::<*mut c_void, Register>(real)(start, length, flags) };
    if result == SUCCESS {
        driver::begin();
        let (start, device, state) = (start as usize, device(), State::Active);
        LARGE.pinned.registered(Entry { start, length, flags, device, state });
    }
    result
}

/// # Safety
/// As for CUDA's function of this name: `start` was registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaHostUnregister(start: *mut c_void) -> c_int {
    let Some(real) = UNREGISTER.get() else { return NOT_SUPPORTED };
    let held = match LARGE.pinned.returns(start as usize, LARGE.contains(start.cast())) {
        Return::Kept => return SUCCESS,
        Return::Unknown { was_kept: true } => return NOT_REGISTERED,
        Return::Unknown { was_kept: false } => None,
        Return::Over(held) => held,
    };
    // SAFETY: CUDA's function of this name gets the caller's argument unchanged (the caller's contract).
    let result = unsafe { std::mem::transmute::<*mut c_void, OfPointer>(real)(start) };
    if let Some(block) = held {
        // The program freed it before, and it was a buffer then, so it still is one.
        let _ = LARGE.free(block as *mut u8);
    }
    result
}

/// Allocates memory by the runtime, charges it and counts it.
fn allocated(place: *mut *mut c_void, length: usize, allocate: impl FnOnce() -> c_int) -> c_int {
    let bytes = length.saturating_add(PAGE - 1) / PAGE * PAGE;
    if !BUDGET.charge(bytes as u64) {
        return NO_MEMORY;
    }
    let result = allocate();
    if result != SUCCESS || length == 0 {
        BUDGET.discharge(bytes as u64);
        return result;
    }
    // SAFETY: the runtime returned success, so it wrote the address.
    let start = unsafe { place.read() } as usize;
    PINNED.registered(Entry { start, length: bytes, flags: 0, device: 0, state: State::Active });
    result
}

/// # Safety
/// As for CUDA's function of this name: `place` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaHostAlloc(place: *mut *mut c_void, length: usize, flags: c_uint) -> c_int {
    let Some(real) = ALLOCATE.get() else { return NOT_SUPPORTED };
    // SAFETY: CUDA's function of this name gets the caller's arguments unchanged (the caller's contract).
    allocated(place, length, || unsafe {
        std::mem::transmute::<*mut c_void, Allocate>(real)(place, length, flags)
    })
}

/// # Safety
/// As for CUDA's function of this name: `place` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMallocHost(place: *mut *mut c_void, length: usize) -> c_int {
    let Some(real) = MALLOC.get() else { return NOT_SUPPORTED };
    // SAFETY: CUDA's function of this name gets the caller's arguments unchanged (the caller's contract).
    allocated(place, length, || unsafe { std::mem::transmute::<*mut c_void, Malloc>(real)(place, length) })
}

/// # Safety
/// As for CUDA's function of this name: `start` was allocated by one of the two above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaFreeHost(start: *mut c_void) -> c_int {
    let Some(real) = FREE.get() else { return NOT_SUPPORTED };
    let known = PINNED.take(start as usize);
    // SAFETY: CUDA's function of this name gets the caller's argument unchanged (the caller's contract).
    let result = unsafe { std::mem::transmute::<*mut c_void, OfPointer>(real)(start) };
    match known {
        Some(entry) if result == SUCCESS => BUDGET.discharge(entry.length as u64),
        Some(entry) => PINNED.registered(entry),
        None => {}
    }
    result
}
