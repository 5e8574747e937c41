//! PyTorch's own memory tools, answered by this allocator: functions of its table are replaced in builds that are known
//! exactly.
//!
//! PyTorch asks its current allocator through a table of functions. The plug-in interface fills only a few of them and
//! lets the others throw. [`install`] copies the table of the one allocator object that is ours, puts functions of this
//! library into the copy, and makes the object use it. [`builds`] says where which function is, [`layout`] what the
//! structures look like; a build that is not listed, or whose table is not what the list says, is left alone, and so is
//! everything when one needed symbol is missing.
//!
//! Entries take what C++ passes: the object first, or the place for a result that does not fit into registers and then
//! the object. None of them unwinds, except with PyTorch's own exceptions.

pub mod builds;
mod checkpoint;
mod entries;
pub mod layout;
mod memory;
mod peers;
mod pools;
mod recording;
mod snapshot;

use crate::cxx::{self, find};
use crate::exception::{self, Kind};
use builds::{Build, Slots};
use std::ffi::{CStr, c_void};
use std::sync::Mutex;

/// The object that a table's functions are called on.
pub(crate) type This = *mut c_void;

/// What an entry throws.
pub(crate) type Refusal = (Kind, String);

pub(crate) fn refuse<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err((Kind::Error, message.into()))
}

/// The answer, or the exception. A panic inside becomes one too.
///
/// # Safety
/// Called from C++ that may be thrown through.
pub(crate) unsafe fn answer<T>(nothing: T, work: impl FnOnce() -> Result<T, Refusal>) -> T {
    let inside = (Kind::Error, "gapless: the allocator failed inside; please report it".to_owned());
    match crate::hooks::guarded(Err(inside), work) {
        Ok(value) => value,
        Err((kind, message)) => {
            // SAFETY: as the caller says.
            unsafe { exception::throw(kind, message) };
            nothing
        }
    }
}

const C10_CUDA: [&CStr; 1] = [c"libc10_cuda.so"];
const C10: [&CStr; 1] = [c"libc10.so"];
const TORCH_CUDA: [&CStr; 1] = [c"libtorch_cuda.so"];

/// Words before the first function: what the table says about its object.
const HEADER: usize = 2;

/// PyTorch's own functions at their places, by which a table is recognised.
fn landmarks(slots: &Slots) -> [(usize, &'static CStr); 13] {
    macro_rules! method {
        ($name:literal) => {
            // SAFETY: the literal ends with the only NUL.
            unsafe {
                CStr::from_bytes_with_nul_unchecked(
                    concat!("_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator", $name, "\0")
                        .as_bytes(),
                )
            }
        };
    }
    [
        (slots.allocate, method!("8allocateEm")),
        (slots.empty_cache, method!("10emptyCacheESt4pairIyyE")),
        (slots.device_stats, method!("14getDeviceStatsEa")),
        (slots.reset_accumulated, method!("21resetAccumulatedStatsEa")),
        (slots.reset_peak, method!("14resetPeakStatsEa")),
        (slots.raw_delete, method!("10raw_deleteEPv")),
        (slots.cache_info, method!("9cacheInfoEaPm")),
        (slots.snapshot, method!("8snapshotESt4pairIyyEb")),
        (slots.share_handle, method!("14shareIpcHandleEPv")),
        (slots.enable_peer, method!("16enablePeerAccessEaa")),
        (slots.memcpy, method!("11memcpyAsyncEPviPKvimP11CUstream_stb")),
        (slots.checkpoint, method!("18getCheckpointStateEaSt4pairIyyE")),
        (slots.name, method!("4nameB5cxx11Ev")),
    ]
}

/// Makes PyTorch's tools answer for this allocator, which is its current one.
///
/// # Errors
/// When this build is not known, or something of it is not as known: nothing was changed, and the text says what.
pub fn install(version: &str, commit: &str) -> Result<(), String> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().map_err(|_| "an earlier attempt failed".to_owned())?;
    if *installed {
        return Ok(());
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")) {
        return Err("only builds for Linux on x86-64 are known".to_owned());
    }
    let build = builds::known(version, commit)
        .ok_or_else(|| format!("torch {version} ({commit}) is not a build that is known exactly"))?;
    let missing = |what: &str| format!("torch {version} does not export {what}");
    if !exception::is_available() || !cxx::is_available() {
        return Err(missing("its exceptions"));
    }
    if !memory::prepare() {
        return Err(missing("its streams"));
    }
    let current = find(&C10_CUDA, c"_ZN3c104cuda20CUDACachingAllocator9allocatorE")
        .ok_or_else(|| missing("its allocator"))?;
    let table = find(&TORCH_CUDA, c"_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE")
        .ok_or_else(|| missing("the table of plug-in allocators"))?
        .cast_const()
        .cast::<usize>();
    // SAFETY: an atomic pointer to the current allocator, whose first word is its table pointer. The table is a
    // constant of a loaded library, with as many words as the build's headers say.
    unsafe {
        let object: *mut *const usize = current.cast::<*mut *const usize>().read();
        if object.is_null() || object.read() != table.add(HEADER) {
            return Err("torch's current allocator is not the plug-in".to_owned());
        }
        check_landmarks(build, table)?;
        crate::stats::prepare(build.counts_refusals);
        peers::prepare(table.add(build.slots.enable_peer).read());
        let mut copy: Vec<usize> = std::slice::from_raw_parts(table, build.slots.words).to_vec();
        for (slot, function) in entries::all(build.slots) {
            copy[slot] = function;
        }
        // For good: the object outlives everything.
        let copy: &'static mut [usize] = Box::leak(copy.into_boxed_slice());
        object.write_volatile(copy.as_ptr().add(HEADER));
        // torch.accelerator asks the allocator that is registered for the kind of device, which is still PyTorch's own.
        if let Some(set) = find(&C10, c"_ZN3c1012SetAllocatorENS_10DeviceTypeEPNS_9AllocatorEh") {
            let set = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(i8, *mut c_void, u8)>(set);
            set(layout::CUDA, object.cast(), u8::MAX);
        }
    }
    *installed = true;
    Ok(())
}

/// # Safety
/// `table` has as many words as the build says.
unsafe fn check_landmarks(build: &Build, table: *const usize) -> Result<(), String> {
    for (slot, name) in landmarks(build.slots) {
        // SAFETY: as the caller says.
        let found = unsafe { table.add(slot).read() };
        let expected = find(&TORCH_CUDA, name).map(|symbol| symbol as usize);
        if expected != Some(found) {
            return Err(format!(
                "torch's table has something else than {} at {slot}",
                name.to_string_lossy()
            ));
        }
    }
    Ok(())
}
