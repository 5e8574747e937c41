//! torch's own exceptions thrown from Rust: objects of the libraries that are already loaded.
//!
//! c10 exports what this needs: the constructor of `c10::Error`, and the tables and types of the classes derived from
//! it, which add no members. If an unknown build lacks one of them, the throw returns. Its caller then returns a null
//! pointer or nothing.

use crate::cxx::{CxxString, find};
use crate::foreign::{self, Throw};
use gapless_cuda::locks::SetOnce;
use std::ffi::{CStr, c_char, c_void};

/// `c10::SourceLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// Kinds of exceptions; each comment is the name in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `torch.OutOfMemoryError`.
    OutOfMemory,
    /// `RuntimeError`.
    Error,
    /// `NotImplementedError`.
    NotImplemented,
}

/// Larger than any c10::Error so far (under 128 bytes).
const OBJECT: usize = 256;

struct Thrower {
    allocate: unsafe extern "C" fn(usize) -> *mut c_void,
    construct: unsafe extern "C" fn(*mut c_void, SourceLocation, *const CxxString),
    throw: Throw,
    /// Table and type of each kind.
    kinds: [Option<(*const *const c_void, *const c_void)>; 3],
}

// SAFETY: addresses of code and constants of libraries that PyTorch keeps loaded.
unsafe impl Send for Thrower {}
// SAFETY: addresses of code and constants, which no thread writes to.
unsafe impl Sync for Thrower {}

fn thrower() -> Option<&'static Thrower> {
    static FOUND: SetOnce<Option<Thrower>> = SetOnce::new();
    FOUND
        .get_or_init(|| {
            let c10 = [c"libc10.so", c"libc10_cuda.so", c"libc10_hip.so"];
            let cxx = [c"libstdc++.so.6"];
            let construct = find(
                &c10,
                c"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
            )?;
            let kind = |table: &CStr, type_info: &CStr| {
                let table = find(&c10, table)?;
                let type_info = find(&[c"libc10_cuda.so", c"libc10_hip.so", c"libc10.so"], type_info)?;
                Some((table.cast_const().cast(), type_info.cast_const()))
            };
            let kinds = [
                kind(c"_ZTVN3c1016OutOfMemoryErrorE", c"_ZTIN3c1016OutOfMemoryErrorE"),
                kind(c"_ZTVN3c105ErrorE", c"_ZTIN3c105ErrorE"),
                kind(c"_ZTVN3c1019NotImplementedErrorE", c"_ZTIN3c1019NotImplementedErrorE"),
            ];
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
                    throw: std::mem::transmute::<*mut c_void, Throw>(throw),
                    kinds,
                }
            })
        })
        .as_ref()
}

/// True if every kind can be thrown here.
#[must_use]
pub fn is_available() -> bool {
    thrower().is_some_and(|thrower| thrower.kinds.iter().all(Option::is_some))
}

/// Throws; returns if this build lacks the symbols for it.
///
/// # Safety
/// C++ exceptions may pass the callers: our caller is C++, with no guard of ours between, and no card is locked.
pub unsafe fn throw(kind: Kind, message: String) {
    let Some(thrower) = thrower() else { return };
    let Some((table, type_info)) = thrower.kinds[kind as usize] else { return };
    // The exception takes the text out of its argument and frees it as malloc's memory. Rust's allocator uses malloc
    // too.
    let text: &'static mut [u8] = Box::leak(format!("{message}\0").into_bytes().into_boxed_slice());
    drop(message);
    let string = CxxString::owning(text);
    let location = SourceLocation { function: c"gapless".as_ptr(), file: c"gapless".as_ptr(), line: 0 };
    // SAFETY: the object has room for a c10::Error. Its first word is the table pointer, which is replaced by that of
    // the derived class, which adds no members. The destructor is the table's first entry.
    unsafe {
        let object = (thrower.allocate)(OBJECT);
        (thrower.construct)(object, location, &raw const string);
        let first = table.add(2);
        object.cast::<*const c_void>().write(first.cast());
        let destructor = first.read();
        foreign::throw(thrower.throw, object, type_info, destructor);
    }
}
