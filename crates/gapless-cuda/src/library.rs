//! Shared libraries that are loaded when they are needed, never linked to. An open library is never closed.

use std::ffi::{CStr, c_char, c_int, c_void};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;
const RTLD_NOLOAD: c_int = 4;

/// An open library.
#[derive(Clone, Copy, Debug)]
pub struct Library(*mut c_void);

// SAFETY: the loader's handle of a library that is never closed; any thread may look up names in it.
unsafe impl Send for Library {}
// SAFETY: the loader's handle of a library that is never closed; any thread may look up names in it.
unsafe impl Sync for Library {}

impl Library {
    /// Opens a library by its name; `None` if the loader finds none.
    #[must_use]
    pub fn open(name: &CStr) -> Option<Library> {
        // SAFETY: the name is NUL-terminated.
        let library = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
        (!library.is_null()).then_some(Library(library))
    }

    /// A library that the process has loaded already.
    #[must_use]
    pub fn loaded(name: &CStr) -> Option<Library> {
        // SAFETY: the name is NUL-terminated.
        let library = unsafe { dlopen(name.as_ptr(), RTLD_NOW | RTLD_NOLOAD) };
        (!library.is_null()).then_some(Library(library))
    }

    /// The symbol of this name.
    #[must_use]
    pub fn find(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the library is open and the name NUL-terminated.
        let symbol = unsafe { dlsym(self.0, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    }
}
