//! C++'s operators. An operator that must not return null throws `std::bad_alloc`, with the C++ library that the
//! program loaded.

use crate::next::Next;
use gapless_host::heap;
use gapless_host::units::MIN_ALIGNMENT;
use std::ffi::c_void;

type Handler = unsafe extern "C-unwind" fn();

fn find(name: &std::ffi::CStr) -> Option<*mut c_void> {
    // SAFETY: `name` ends in a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Calls the program's new-handler and tries again as long as there is one, then throws.
#[cold]
unsafe fn again(size: usize, alignment: usize, throws: bool) -> *mut u8 {
    loop {
        // std::get_new_handler()
        let handler = find(c"_ZSt15get_new_handlerv").and_then(|get| {
            // SAFETY: the C++ library's function of this name returns a handler or null.
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> Option<Handler>>(get)() }
        });
        let Some(handler) = handler else { break };
        if !throws && let Some(operator) = catching(alignment) {
            return operator(size, alignment);
        }
        // SAFETY: the program's own function. An exception that it throws passes through here, which this ABI allows.
        unsafe { handler() };
        let block = allocate(size, alignment);
        if !block.is_null() {
            return block;
        }
    }
    // SAFETY: the caller is a C++ operator, which may throw if `throws` is true.
    unsafe { refuse(size, throws) }
}

/// The C++ library's operator that returns null where another one throws: a handler may throw what only C++ can catch.
fn catching(alignment: usize) -> Option<impl Fn(usize, usize) -> *mut u8> {
    static PLAIN: Next = Next::new(c"_ZnwmRKSt9nothrow_t");
    static ALIGNED: Next = Next::new(c"_ZnwmSt11align_val_tRKSt9nothrow_t");
    let is_plain = alignment <= MIN_ALIGNMENT;
    let found = if is_plain { PLAIN.get() } else { ALIGNED.get() };
    type Plain = extern "C" fn(usize, *const u8) -> *mut u8;
    type Aligned = extern "C" fn(usize, usize, *const u8) -> *mut u8;
    // The operators ignore their last argument, a reference to an object without contents.
    let tag = (&raw const TAG).cast();
    (!found.is_null()).then_some(move |size, alignment| {
        if is_plain {
            // SAFETY: the C++ library's function of this name has this type.
            unsafe { std::mem::transmute::<*mut c_void, Plain>(found)(size, tag) }
        } else {
            // SAFETY: the C++ library's function of this name has this type.
            unsafe { std::mem::transmute::<*mut c_void, Aligned>(found)(size, alignment, tag) }
        }
    })
}

static TAG: u8 = 0;

/// Throws, or returns null.
#[cold]
unsafe fn refuse(size: usize, throws: bool) -> *mut u8 {
    if throws && let Some(throw) = find(c"_ZSt17__throw_bad_allocv") {
        // SAFETY: std::__throw_bad_alloc() of the C++ library, which takes no argument.
        unsafe { std::mem::transmute::<*mut c_void, Handler>(throw)() };
    }
    if throws {
        gapless_host::text::say(format_args!(
            "gapless: operator new({size}): no memory, and nobody to throw\n"
        ));
        gapless_host::sys::abort();
    }
    std::ptr::null_mut()
}

fn allocate(size: usize, alignment: usize) -> *mut u8 {
    if alignment <= MIN_ALIGNMENT { heap::allocate(size) } else { heap::allocate_aligned(size, alignment) }
}

macro_rules! new {
    ($($symbol:literal $name:ident($($argument:ident),*) $alignment:expr, $throws:literal;)*) => {$(
        /// # Safety
        /// The caller is C++ code that handles exceptions of this operator.
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C-unwind" fn $name(size: usize $(, $argument: usize)*) -> *mut u8 {
            if !usize::is_power_of_two($alignment) {
                // SAFETY: the caller is C++ code, through which an exception may pass.
                return unsafe { refuse(size, $throws) };
            }
            let block = allocate(size, $alignment);
            if block.is_null() {
                // SAFETY: the caller is C++ code, through which an exception may pass.
                return unsafe { again(size, $alignment, $throws) };
            }
            block
        }
    )*};
}

new! {
    "_Znwm" new() 16, true;
    "_Znam" new_array() 16, true;
    "_ZnwmRKSt9nothrow_t" new_nothrow(_tag) 16, false;
    "_ZnamRKSt9nothrow_t" new_array_nothrow(_tag) 16, false;
    "_ZnwmSt11align_val_t" new_aligned(alignment) alignment, true;
    "_ZnamSt11align_val_t" new_array_aligned(alignment) alignment, true;
    "_ZnwmSt11align_val_tRKSt9nothrow_t" new_aligned_nothrow(alignment, _tag) alignment, false;
    "_ZnamSt11align_val_tRKSt9nothrow_t" new_array_aligned_nothrow(alignment, _tag) alignment, false;
}

macro_rules! delete {
    ($($symbol:literal $name:ident($($argument:ident),*);)*) => {$(
        /// # Safety
        /// `block` is null, or was allocated by one of the operators above and not freed.
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C" fn $name(block: *mut u8 $(, $argument: usize)*) {
            // SAFETY: `block` is null, or a block of the heap that was not freed: the C++ standard's contract.
            unsafe { heap::free(block) }
        }
    )*};
}

delete! {
    "_ZdlPv" delete();
    "_ZdaPv" delete_array();
    "_ZdlPvm" delete_sized(_size);
    "_ZdaPvm" delete_array_sized(_size);
    "_ZdlPvRKSt9nothrow_t" delete_nothrow(_tag);
    "_ZdaPvRKSt9nothrow_t" delete_array_nothrow(_tag);
    "_ZdlPvSt11align_val_t" delete_aligned(_alignment);
    "_ZdaPvSt11align_val_t" delete_array_aligned(_alignment);
    "_ZdlPvmSt11align_val_t" delete_sized_aligned(_size, _alignment);
    "_ZdaPvmSt11align_val_t" delete_array_sized_aligned(_size, _alignment);
    "_ZdlPvSt11align_val_tRKSt9nothrow_t" delete_aligned_nothrow(_alignment, _tag);
    "_ZdaPvSt11align_val_tRKSt9nothrow_t" delete_array_aligned_nothrow(_alignment, _tag);
}
