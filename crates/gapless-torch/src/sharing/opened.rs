//! Memory of other processes, mapped here once for each handle. It stays mapped as long as a tensor has it, and a
//! moment longer ([`resting`]).

mod resting;

pub(crate) use resting::close_all;

use super::handle::{self, Files, Passed, Plain, Shared};
use super::passing::{self, Taken};
use crate::cards;
use crate::cxx::{Control, ControlTable, SharedPtr};
use crate::guard::guarded;
use crate::interpreter;
use crate::opening;
use crate::process;
use gapless_cuda::locks::{Guard, Lock};
use gapless_cuda::sharing::{Attached, Imported, Importer, PlainlyAttached};
use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// Mapped memory.
#[derive(Debug)]
enum Memory {
    Pages {
        pages: Attached,
        /// Declared after the pages, so that their owner hears of the end after they are unmapped.
        _taken: Option<Taken>,
    },
    Whole(PlainlyAttached),
}

impl Memory {
    fn size(&self) -> u64 {
        match self {
            Memory::Pages { pages, .. } => pages.mapped(),
            // The driver does not tell the size; a segment of PyTorch's has this many bytes.
            Memory::Whole(_) => 20 << 20,
        }
    }

    fn addr(&self) -> u64 {
        match self {
            Memory::Pages { pages, .. } => pages.addr(),
            Memory::Whole(whole) => whole.addr(),
        }
    }
}

/// The card, and the handle's bytes.
type Key = (i32, Vec<u8>);

/// The object whose users a `std::shared_ptr` counts.
#[repr(C)]
struct Opened {
    control: Control,
    key: Key,
    memory: Option<Memory>,
}

struct Listed(*mut Opened);

// SAFETY: while it has users, only its atomic counts change; after that one thread owns it.
unsafe impl Send for Listed {}

/// Everything that is open. An entry leaves the list before it is freed, so listed pointers are valid.
static OPEN: Lock<HashMap<Key, Listed>> = Lock::new(HashMap::new);

fn list() -> Guard<'static, HashMap<Key, Listed>> {
    OPEN.lock()
}

/// Another user of the memory that is open under `key`, unless its last user is leaving.
fn again(key: &Key) -> Option<SharedPtr> {
    let listed = list();
    let &Listed(opened) = listed.get(key)?;
    // SAFETY: an `Opened` leaves the list before it is freed, and the list is locked here.
    let Opened { control, memory, .. } = unsafe { &*opened };
    let one_more = |uses| if uses > 0 { Some(uses + 1) } else { None };
    control.uses.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
    let addr = memory.as_ref()?.addr();
    Some(SharedPtr { object: addr as *mut c_void, control: opened.cast() })
}

/// Called when no user is left.
unsafe extern "C" fn dispose(control: *mut Control) {
    let opened = control.cast::<Opened>();
    guarded((), || {
        let mut listed = list();
        // SAFETY: the counts are the first field of an `Opened`, which `destroy` frees after this.
        let (key, memory) = unsafe { (&(*opened).key, (*opened).memory.take()) };
        if listed.get(key).is_some_and(|Listed(other)| *other == opened) {
            listed.remove(key);
        }
        drop(listed);
        let Some(memory) = memory else { return };
        if process::is_forked() {
            // A forked child has no mappings of the card.
            std::mem::forget(memory);
        } else {
            resting::put(key.clone(), memory);
        }
    });
}

/// Unmaps memory behind all work of its card, as CUDA's own IPC does. Returns the memory if PyTorch has a capture open,
/// because a wait would break that, or if the driver refuses.
///
/// Waits without the card's lock and without Python's: the work may free memory itself, in a host function.
fn close(device: i32, memory: Memory) -> Option<Memory> {
    if let Some(card) = cards::existing(device) {
        if card.routings.has_capture() {
            return Some(memory);
        }
        let meter = card.pool.device().meter();
        drop(card);
        let mut is_done = false;
        interpreter::without_its_lock(|| is_done = meter.wait_for_all().is_ok());
        if !is_done {
            return Some(memory);
        }
    }
    drop(memory);
    None
}

unsafe extern "C" fn destroy(control: *mut Control) {
    // SAFETY: `listed` made it as a box, and with the last weak use no pointer to it is left.
    drop(unsafe { Box::from_raw(control.cast::<Opened>()) });
}

static CONTROL: ControlTable = ControlTable::new(dispose, destroy);

/// Maps the memory that another process described by `bytes`, for the card `device`.
///
/// # Errors
/// If the bytes are invalid, or if the memory cannot be had. The text says why.
pub(crate) fn open(device: i32, bytes: Vec<u8>) -> Result<SharedPtr, String> {
    let key = (device, bytes);
    if let Some(known) = again(&key) {
        return Ok(known);
    }
    if let Some(memory) = resting::take(&key) {
        return Ok(listed(key, memory));
    }
    let said = |error: String| format!("gapless: memory of another process cannot be opened: {error}");
    let shared =
        handle::read(&key.1).map_err(|error| said(format!("its handle is not understood: {error}")))?;
    let importer = opening::with_card(device, |card| card.pool.device().importer())
        .map_err(|error| said(error.to_string()))?;
    let memory = mapped(&importer, shared).map_err(said)?;
    // Another thread may have opened the same memory meanwhile.
    if let Some(known) = again(&key) {
        return Ok(known);
    }
    Ok(listed(key, memory))
}

/// The first user of mapped memory.
fn listed(key: Key, memory: Memory) -> SharedPtr {
    let object = memory.addr() as *mut c_void;
    let control = Control { table: &CONTROL, uses: AtomicI32::new(1), weak: AtomicI32::new(1) };
    let opened = Box::into_raw(Box::new(Opened { control, key: key.clone(), memory: Some(memory) }));
    list().insert(key, Listed(opened));
    SharedPtr { object, control: opened.cast() }
}

fn mapped(importer: &Importer, shared: Shared) -> Result<Memory, String> {
    match shared {
        Shared::Whole(handle) => {
            importer.open_plain(handle).map(Memory::Whole).map_err(|error| error.to_string())
        }
        Shared::Pages { passed, plain } => {
            let first = passed.map(|passed| through_socket(importer, &passed));
            match (first, plain) {
                (Some(Ok((pages, taken))), _) => Ok(Memory::Pages { pages, _taken: Some(taken) }),
                // The way of a process without Gapless.
                (first, Some(plain)) => as_pytorch(importer, &plain)
                    .map(|pages| Memory::Pages { pages, _taken: None })
                    .map_err(|error| first.and_then(Result::err).unwrap_or(error)),
                (Some(Err(error)), None) => Err(error),
                (None, None) => Err("its handle names no pages".to_owned()),
            }
        }
    }
}

fn through_socket(importer: &Importer, passed: &Passed) -> Result<(Attached, Taken), String> {
    let total = passed.pages.iter().map(|page| page.1).sum();
    let mut pages = importer.begin(total).map_err(|error| error.to_string())?;
    let taken = passing::receive(passed.token, &passed.pages, |file, size| {
        pages.add(Imported::File(file.as_raw_fd()), size).map_err(|error| error.to_string())
    })?;
    pages.grant().map_err(|error| error.to_string())?;
    Ok((pages, taken))
}

fn as_pytorch(importer: &Importer, plain: &Plain) -> Result<Attached, String> {
    let begin = |count: usize| importer.begin(plain.size * count as u64).map_err(|error| error.to_string());
    let pages = match &plain.files {
        Files::Descriptors(files) => {
            let files = passing::taken_from(plain.process, files)?;
            let mut pages = begin(files.len())?;
            for file in files {
                pages.add(Imported::File(file.as_raw_fd()), plain.size).map_err(|error| error.to_string())?;
            }
            pages
        }
        Files::Fabric(handles) => {
            let mut pages = begin(handles.len())?;
            for handle in handles {
                pages.add(Imported::Fabric(handle), plain.size).map_err(|error| error.to_string())?;
            }
            pages
        }
    };
    pages.grant().map_err(|error| error.to_string())?;
    Ok(pages)
}
