//! The sizes of symbols, from the loader.

use std::ffi::{c_int, c_void};

/// `Dl_info`.
#[repr(C)]
struct DlInfo {
    file: *const c_void,
    base: *const c_void,
    name: *const c_void,
    address: *const c_void,
}

/// `Elf64_Sym`.
#[repr(C)]
struct ElfSymbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

unsafe extern "C" {
    fn dladdr1(
        address: *const c_void,
        info: *mut DlInfo,
        extra: *mut *const ElfSymbol,
        flags: c_int,
    ) -> c_int;
}

/// The size of the symbol at this address, as its library says.
#[must_use]
pub fn size_of_symbol(address: *mut c_void) -> Option<usize> {
    const RTLD_DL_SYMENT: c_int = 1;
    let null = std::ptr::null();
    let mut info = DlInfo { file: null, base: null, name: null, address: null };
    let mut symbol: *const ElfSymbol = std::ptr::null();
    // SAFETY: both out-pointers are ours. The symbol is part of a loaded library's constant data.
    unsafe {
        if dladdr1(address, &raw mut info, &raw mut symbol, RTLD_DL_SYMENT) == 0 || symbol.is_null() {
            return None;
        }
        (info.address == address.cast_const()).then_some((*symbol).size as usize)
    }
}
