//! `torch.OutOfMemoryError` thrown from Rust: the exception object of the libraries that are already loaded.
//!
//! c10 exports what it takes: the constructor of `c10::Error`, and the table and type of `c10::OutOfMemoryError`. Where one of them is missing, in a
//! build that is not known, the caller falls back to a null pointer, which PyTorch reports in its own way.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// `c10::SourceLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// `std::string` of libstdc++: pointer, length, and the short text itself.
#[repr(C)]
struct CxxString {
    text: *const c_char,
    length: usize,
    local: [u8; 16],
}

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;
const RTLD_NOLOAD: c_int = 4;
/// More than any c10::Error so far (under 128 bytes).
const OBJECT: usize = 256;

struct Thrower {
    allocate: unsafe extern "C" fn(usize) -> *mut c_void,
    construct: unsafe extern "C" fn(*mut c_void, SourceLocation, *const CxxString),
    throw: unsafe extern "C-unwind" fn(*mut c_void, *const c_void, *const c_void) -> !,
    table: *const *const c_void,
    type_info: *const c_void,
}

// SAFETY: addresses of code and constants of loaded libraries.
unsafe impl Send for Thrower {}
unsafe impl Sync for Thrower {}

fn find(libraries: &[&CStr], name: &CStr) -> Option<*mut c_void> {
    libraries.iter().find_map(|library| {
        // SAFETY: NUL-terminated names; a library that is not loaded is not loaded now.
        let symbol = unsafe {
            let library = dlopen(library.as_ptr(), RTLD_NOW | RTLD_NOLOAD);
            if library.is_null() {
                return None;
            }
            dlsym(library, name.as_ptr())
        };
        (!symbol.is_null()).then_some(symbol)
    })
}

fn thrower() -> Option<&'static Thrower> {
    static FOUND: OnceLock<Option<Thrower>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            let c10 = [c"libc10.so", c"libc10_cuda.so"];
            let cxx = [c"libstdc++.so.6"];
            let construct = find(
                &c10,
                c"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
            )?;
            let table = find(&c10, c"_ZTVN3c1016OutOfMemoryErrorE")
                .or_else(|| find(&[c"libc10_cuda.so"], c"_ZTVN3c1016OutOfMemoryErrorE"))?;
            let type_info = find(&[c"libc10_cuda.so", c"libc10.so"], c"_ZTIN3c1016OutOfMemoryErrorE")?;
            let allocate = find(&cxx, c"__cxa_allocate_exception")?;
            let throw = find(&cxx, c"__cxa_throw")?;
            // SAFETY: these names have these types in the C++ ABI and in c10's headers.
            Some(unsafe {
                Thrower {
                    allocate: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> *mut c_void>(
                        allocate,
                    ),
                    construct: std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn(*mut c_void, SourceLocation, *const CxxString),
                    >(construct),
                    throw: std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C-unwind" fn(*mut c_void, *const c_void, *const c_void) -> !,
                    >(throw),
                    table: table.cast_const().cast(),
                    type_info: type_info.cast_const(),
                }
            })
        })
        .as_ref()
}

/// Whether a real `torch.OutOfMemoryError` can be thrown here.
#[must_use]
pub fn is_available() -> bool {
    thrower().is_some()
}

/// Throws `torch.OutOfMemoryError` with `message`; returns where this build has no such thing.
///
/// # Safety
/// Only from a function that C++ called as one that may throw, with nothing on the stack that must be dropped.
pub unsafe fn throw_out_of_memory(message: &str) {
    let Some(thrower) = thrower() else { return };
    // A copy that lives as long as the process: the exception's own string is made from it, and nothing here is dropped by the throw.
    let text: &'static [u8] = Box::leak(format!("{message}\0").into_bytes().into_boxed_slice());
    let string = CxxString { text: text.as_ptr().cast(), length: text.len() - 1, local: [0; 16] };
    let location = SourceLocation { function: c"gapless_alloc".as_ptr(), file: c"gapless".as_ptr(), line: 0 };
    // SAFETY: the object is large enough for a c10::Error; its first word is the table pointer, which is exchanged for that of the derived
    // class, which adds no members; the destructor is the table's first entry.
    unsafe {
        let object = (thrower.allocate)(OBJECT);
        (thrower.construct)(object, location, &raw const string);
        let first = thrower.table.add(2);
        object.cast::<*const c_void>().write(first.cast());
        let destructor = first.read();
        (thrower.throw)(object, thrower.type_info, destructor);
    }
}
