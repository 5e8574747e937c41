//! Makes PyTorch's own memory tools report on this allocator: functions of PyTorch's table are replaced, in builds that
//! are known exactly.
//!
//! PyTorch asks its current allocator through a table of functions. The plug-in interface fills only a few of them and
//! lets the others throw. [`install`] copies the table of our allocator object, puts functions of this library into the
//! copy, and makes the object use it. [`rows`] has the places of the functions, and [`layout`] the structures. A build
//! without a row, one whose table differs from its row, and one without a needed symbol is left unchanged. [`probe`]
//! tries a build in a forked child first.
//!
//! Entries take the arguments of C++: the object first; for a result that does not fit into registers, the place for it
//! before the object. They unwind only with PyTorch's own exceptions.

mod checkpoint;
mod entries;
pub mod layout;
mod memory;
mod peers;
mod pools;
pub mod probe;
mod recording;
pub mod rows;
pub(crate) mod settings;
mod sharing;
mod snapshot;
mod stats;
pub(crate) mod traces;

use crate::cards;
use crate::cxx::{self, find};
use crate::exception::{self, Kind};
use crate::process;
use crate::symbols::size_of_symbol;
use gapless_cuda::CudaDevice;
use gapless_cuda::locks::{Lock, SetOnce};
use layout::Layouts;
use rows::{HEADER, ROWS, Row};
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The object that a table's functions are called on.
pub(crate) type This = *mut c_void;

/// The exception that an entry throws.
pub(crate) type Refusal = (Kind, String);

pub(crate) fn refuse<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err((Kind::Error, message.into()))
}

/// Returns the result of `work`, or throws its exception. A panic in it becomes one too.
///
/// # Safety
/// Called from C++ that handles exceptions, without a guard or a card's lock in between.
pub(crate) unsafe fn answer<T>(nothing: T, work: impl FnOnce() -> Result<T, Refusal>) -> T {
    let inside = (Kind::Error, "gapless: the allocator failed inside; please report it".to_owned());
    match crate::guard::guarded(Err(inside), work) {
        Ok(value) => value,
        Err((kind, message)) => {
            // SAFETY: our caller lets exceptions pass; the guard has ended, and no card is locked.
            unsafe { exception::throw(kind, message) };
            nothing
        }
    }
}

/// Refuses a question about a card that this process does not have, as PyTorch does.
pub(crate) fn must_exist(device: i8) -> Result<(), Refusal> {
    let is_known = cards::is_used(i32::from(device));
    if is_known || process::is_forked() || CudaDevice::exists(i32::from(device)) != Some(false) {
        return Ok(());
    }
    refuse(format!("Allocator not initialized for device {device}: did you call init?"))
}

/// [`must_exist`] with the message of PyTorch's statistics.
pub(crate) fn must_be_valid(device: i8) -> Result<(), Refusal> {
    must_exist(device).or_else(|_| refuse(format!("Invalid device argument {device}: did you call init?")))
}

const C10_CUDA: [&CStr; 1] = [c"libc10_cuda.so"];
const C10: [&CStr; 1] = [c"libc10.so"];
const TORCH_CUDA: [&CStr; 1] = [c"libtorch_cuda.so"];

const CLASS: &str = "N5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE";

/// The row of this build, if it is known.
#[must_use]
pub fn known(version: &str, commit: &str) -> Option<&'static Row> {
    let release = version.split('+').next().unwrap_or(version);
    ROWS.iter().find(|row| row.version == release && row.commit == commit)
}

/// The place of a function in the table of a known build.
#[must_use]
pub fn word(version: &str, commit: &str, name: &str) -> Option<usize> {
    known(version, commit)?.word_of(name).map(|(word, _)| word)
}

/// The places of `raw_alloc` and `raw_delete` in the tables of this build's allocators; set before the overlay is.
static SUPPLIER_PLACES: SetOnce<(usize, usize)> = SetOnce::new();
/// Our allocator object.
static OURS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The places of a supplier's functions in an allocator's table in this build.
fn supplier_places() -> (usize, usize) {
    *SUPPLIER_PLACES.get().unwrap_or(&(0, 0))
}

/// True if an allocator object is ours.
fn is_ours(object: *mut c_void) -> bool {
    object == OURS.load(Ordering::Relaxed)
}

/// The table that was installed last.
static PUT: AtomicPtr<usize> = AtomicPtr::new(std::ptr::null_mut());

/// A build that agrees with its row.
struct Ready {
    layouts: Layouts,
    /// The allocator object, which begins with its table pointer.
    object: *mut *const usize,
    table: *const usize,
    words: usize,
    entries: Vec<entries::Entry>,
    /// The places of destructors and of CUDA's start, which trials do not change.
    kept: Vec<usize>,
}

/// Compares the running build with its row. Changes nothing.
fn ready(version: &str, commit: &str) -> Result<Ready, String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")) {
        return Err("only builds for Linux on x86-64 are known".to_owned());
    }
    let row = known(version, commit).ok_or_else(|| unknown(version, commit))?;
    let layouts = Layouts::of(row).ok_or("a structure has a size that is not known")?;
    let entries = entries::all(row)?;
    let missing = |what: &str| format!("torch {version} does not export {what}");
    if !exception::is_available() || !cxx::is_available() {
        return Err(missing("its exceptions"));
    }
    if !memory::prepare() {
        return Err(missing("its streams"));
    }
    let current = find(&C10_CUDA, c"_ZN3c104cuda20CUDACachingAllocator9allocatorE")
        .ok_or_else(|| missing("its allocator"))?;
    let table = symbol(&format!("_ZTV{CLASS}")).ok_or_else(|| missing("the table of plug-in allocators"))?;
    let words = row.words();
    if size_of_symbol(table) != Some(8 * words) {
        return Err(format!("torch {version} has a table of another size than {words} words"));
    }
    let table = table.cast_const().cast::<usize>();
    // SAFETY: `current` is an atomic pointer to the current allocator, whose first word is its table pointer. The table
    // is a constant of a loaded library, with as many words as were compared above.
    let object = unsafe {
        let object: *mut *const usize = current.cast::<*mut *const usize>().read();
        let is_ours = |used: *const usize| {
            used == table.add(HEADER) || used == PUT.load(Ordering::Relaxed).cast_const()
        };
        if object.is_null() || !is_ours(object.read()) {
            return Err("torch's current allocator is not the plug-in".to_owned());
        }
        compare(row, std::slice::from_raw_parts(table, words))?;
        object
    };
    let ends = row.functions.iter().take_while(|function| function.parts().0 == "~").count();
    let starts = ["initialized", "init"].iter().filter_map(|name| row.word_of(name)).map(|(word, _)| word);
    let kept = (HEADER..HEADER + ends).chain(starts).collect();
    Ok(Ready { layouts, object, table, words, entries, kept })
}

/// The message for a build without a row.
fn unknown(version: &str, commit: &str) -> String {
    let releases: Vec<&str> = ROWS.iter().map(|row| row.version).collect();
    let release = version.split('+').next().unwrap_or(version);
    if releases.contains(&release) {
        return format!("torch {version} ({commit}) is not the build of {release} that Gapless knows");
    }
    let (first, last) = (releases.first().unwrap_or(&""), releases.last().unwrap_or(&""));
    format!("this Gapless knows the tables of torch {first} to {last}, and not that of torch {version}")
}

/// A symbol of the plug-in's library, or of one that it depends on.
fn symbol(name: &str) -> Option<*mut c_void> {
    find(&TORCH_CUDA, &CString::new(name).ok()?)
}

/// Compares all words of the table that the library exports under names.
fn compare(row: &Row, table: &[usize]) -> Result<(), String> {
    let address = |name: &str| symbol(name).map(|symbol| symbol as usize);
    if table[0] != 0 || address(&format!("_ZTI{CLASS}")) != Some(table[1]) {
        return Err("torch's table is not that of plug-in allocators".to_owned());
    }
    for (at, function) in row.functions.iter().enumerate().filter(|(_, function)| function.is_exported) {
        let word = at + HEADER;
        if address(function.symbol) != Some(table[word]) {
            return Err(format!("torch's table has something else than {} at {word}", function.parts().0));
        }
    }
    if table[HEADER..].contains(&0) {
        return Err("torch's table has an empty place".to_owned());
    }
    Ok(())
}

impl Ready {
    /// Gives the object a table of its own, which `change` has changed.
    ///
    /// # Safety
    /// Each function that `change` puts in takes the arguments of its place.
    unsafe fn put(&self, change: impl FnOnce(&mut [usize])) {
        // SAFETY: `ready` found the table with this many words, and the object that uses it. The copy is never freed.
        unsafe {
            let mut copy: Vec<usize> = std::slice::from_raw_parts(self.table, self.words).to_vec();
            change(&mut copy);
            // Leaked, because the object lives as long as the process.
            let copy: &'static mut [usize] = Box::leak(copy.into_boxed_slice());
            let used = copy.as_mut_ptr().add(HEADER);
            PUT.store(used, Ordering::Relaxed);
            self.object.write_volatile(used);
        }
    }

    /// The place of a replaced function in the table.
    fn word_of(&self, name: &str) -> Option<usize> {
        self.entries.iter().find(|entry| entry.name == name).map(|entry| entry.word)
    }
}

/// Compares the running build with its row.
///
/// # Errors
/// If the build is unknown or differs. The text says how.
pub fn check(version: &str, commit: &str) -> Result<(), String> {
    ready(version, commit).map(drop)
}

/// Makes PyTorch's tools report on this allocator, which is PyTorch's current one.
///
/// # Errors
/// If the build is unknown or differs from its row. Nothing has changed then, and the text says how it differs.
pub fn install(version: &str, commit: &str) -> Result<(), String> {
    static INSTALLED: Lock<bool> = Lock::new(|| false);
    let mut installed = INSTALLED.lock();
    if *installed {
        return Ok(());
    }
    let ready = ready(version, commit)?;
    layout::set_layouts(ready.layouts);
    // SAFETY: `ready` compared the table with its row, by which the entries were chosen. So each entry takes the
    // arguments of the function that it replaces.
    unsafe {
        if let (Some(alloc), Some(free)) = (ready.word_of("raw_alloc"), ready.word_of("raw_delete")) {
            let _ = SUPPLIER_PLACES.set((alloc - HEADER, free - HEADER));
        }
        OURS.store(ready.object.cast(), Ordering::Relaxed);
        if let Some(word) = ready.word_of("enablePeerAccess") {
            peers::prepare(ready.table.add(word).read());
        }
        ready.put(|table| {
            for entry in &ready.entries {
                table[entry.word] = entry.function;
            }
        });
        settings::prepare(|name| known(version, commit)?.word_of(name).map(|(word, _)| word - HEADER));
        // torch.accelerator asks the allocator that is registered for the kind of device, which is still PyTorch's own.
        if let Some(set) = find(&C10, c"_ZN3c1012SetAllocatorENS_10DeviceTypeEPNS_9AllocatorEh") {
            let set = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(i8, *mut c_void, u8)>(set);
            set(layout::CUDA, ready.object.cast(), u8::MAX);
        }
    }
    *installed = true;
    Ok(())
}

#[cfg(test)]
mod tests;
