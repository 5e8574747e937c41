//! Redirects the calls that one loaded library makes to a function, by its own table of addresses (the global offset
//! table), which the loader filled in. No other library is touched, and no code is changed.

use crate::elf::{DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_STRTAB, DT_SYMTAB, Object, Symbol};
use std::ffi::{CStr, c_int, c_void};

/// The symbol to redirect, and the number of entries that were changed.
struct Search<'a> {
    library: &'a CStr,
    symbol: &'a CStr,
    to: *const c_void,
    changed: usize,
}

/// Redirects calls of `symbol` in the library with this file name to `to`. False if there is no such library, or it
/// does not call the symbol.
pub(super) fn rebind(library: &CStr, symbol: &CStr, to: *const c_void) -> bool {
    let mut search = Search { library, symbol, to, changed: 0 };
    // SAFETY: `visit` gets the search, which lives until the call is done.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.changed > 0
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader passes the description of an object, and the search of `rebind`, which nothing else uses.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    if let Some(object) = Object::named(info, search.library) {
        let guarded = object.range(libc::PT_GNU_RELRO).unwrap_or((0, 0));
        change(&object, guarded, search);
    }
    0
}

#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// The kinds of entries that hold the address of a function.
const KINDS: [u32; 2] = if cfg!(target_arch = "aarch64") { [1025, 1026] } else { [6, 7] };

/// Changes the entries of an object. `guarded` is the range that the loader made read-only.
fn change(object: &Object<'_>, guarded: (usize, usize), search: &mut Search<'_>) {
    let (Some(symbols), Some(strings)) = (object.address(DT_SYMTAB), object.address(DT_STRTAB)) else {
        return;
    };
    for (table, size) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
        let (Some(start), Some(bytes)) = (object.address(table), object.number(size)) else { continue };
        for at in 0..bytes / size_of::<Relocation>() {
            // SAFETY: `at` is below the number of entries in the table.
            let entry = unsafe { &*(start as *const Relocation).add(at) };
            if !KINDS.contains(&(entry.info as u32)) {
                continue;
            }
            // SAFETY: an index into the object's own symbols, whose names lie in its own strings.
            let name = unsafe {
                let symbol = &*(symbols as *const Symbol).add((entry.info >> 32) as usize);
                CStr::from_ptr((strings + symbol.name as usize) as *const libc::c_char)
            };
            if name == search.symbol
                && write(object.base + entry.offset as usize, search.to as usize, guarded)
            {
                search.changed += 1;
            }
        }
    }
}

/// Writes an entry of the table, which may be read-only by now.
fn write(slot: usize, value: usize, (start, length): (usize, usize)) -> bool {
    const PAGE: usize = 4096;
    let is_guarded = slot >= start && slot < start + length;
    let page = slot & !(PAGE - 1);
    let protect = |rights: c_int| {
        // SAFETY: the page contains the object's own data.
        unsafe { libc::mprotect(page as *mut c_void, PAGE, rights) == 0 }
    };
    if is_guarded && !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return false;
    }
    // SAFETY: an aligned entry that holds a function's address; a thread that calls meanwhile finds the old or the new
    // one.
    unsafe {
        (*(slot as *const std::sync::atomic::AtomicUsize)).store(value, std::sync::atomic::Ordering::Release)
    };
    if is_guarded {
        protect(libc::PROT_READ);
    }
    true
}
