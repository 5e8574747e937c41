//! Shared libraries found when they are needed, never linked to; an open one stays open for good.

use std::ffi::{CStr, c_char, c_int, c_void};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;

/// An open library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library(*mut c_void);

impl Library {
    /// Opens a library by its name, where the loader finds one.
    pub(crate) fn open(name: &CStr) -> Option<Library> {
        // SAFETY: the name is NUL-terminated.
        let library = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
        (!library.is_null()).then_some(Library(library))
    }

    /// What it has under a name.
    pub(crate) fn find(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the library is open and the name NUL-terminated.
        let symbol = unsafe { dlsym(self.0, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    }
}
