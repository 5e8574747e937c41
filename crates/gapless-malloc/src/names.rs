//! Makes the C library's names lead here for every lookup.
//!
//! A preloaded library is the first in which the loader looks for a name, but some lookups go elsewhere. A library that
//! is loaded with `RTLD_DEEPBIND` (PHP's extensions) searches its own libraries first, and `dlsym` on a handle of
//! `libc.so.6` (`ctypes.CDLL("libc.so.6").free`, P/Invoke, Fiddle) only that one. Both find the C library's own `free`,
//! which crashes on our blocks. So its symbol table is changed: these names have our addresses there too.

use crate::elf::{DT_SYMTAB, Object};
use crate::{PAGE, fork, glibc, kernel, loader};
use gapless_host::sys;
use std::ffi::{CStr, c_int, c_void};

/// Our functions by the C library's names for them.
fn ours() -> [(&'static CStr, *const c_void); 41] {
    macro_rules! functions {
        ($($path:path as $name:literal),* $(,)?) => { [$(($name, $path as *const c_void)),*] };
    }
    functions![
        crate::malloc as c"malloc",
        crate::calloc as c"calloc",
        crate::free as c"free",
        crate::free as c"cfree",
        crate::realloc as c"realloc",
        crate::reallocarray as c"reallocarray",
        crate::memalign as c"memalign",
        crate::aligned_alloc as c"aligned_alloc",
        crate::posix_memalign as c"posix_memalign",
        crate::valloc as c"valloc",
        crate::pvalloc as c"pvalloc",
        crate::malloc_usable_size as c"malloc_usable_size",
        crate::malloc as c"__libc_malloc",
        crate::calloc as c"__libc_calloc",
        crate::free as c"__libc_free",
        crate::realloc as c"__libc_realloc",
        crate::reallocarray as c"__libc_reallocarray",
        crate::memalign as c"__libc_memalign",
        crate::valloc as c"__libc_valloc",
        crate::pvalloc as c"__libc_pvalloc",
        crate::posix_memalign as c"__posix_memalign",
        crate::free as c"__libc_cfree",
        glibc::malloc_trim as c"malloc_trim",
        glibc::mallopt as c"mallopt",
        glibc::mallopt as c"__libc_mallopt",
        glibc::mallinfo2 as c"mallinfo2",
        glibc::mallinfo as c"mallinfo",
        glibc::mallinfo as c"__libc_mallinfo",
        glibc::malloc_stats as c"malloc_stats",
        glibc::malloc_info as c"malloc_info",
        kernel::unshare as c"unshare",
        kernel::setns as c"setns",
        kernel::prctl as c"prctl",
        kernel::mprotect as c"mprotect",
        kernel::setrlimit as c"setrlimit",
        kernel::setrlimit64 as c"setrlimit64",
        kernel::prlimit as c"prlimit",
        kernel::prlimit64 as c"prlimit64",
        kernel::mlockall as c"mlockall",
        loader::dlclose as c"dlclose",
        fork::__register_atfork as c"__register_atfork",
    ]
}

/// Called before the program begins, and after the functions behind ours were found. Does nothing if another allocator
/// serves the process: the program's own, or a library's that was preloaded before.
pub(crate) fn lead_here() {
    // SAFETY: the name ends in a zero.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    if std::ptr::eq(first, crate::malloc as *const c_void) {
        // SAFETY: `visit` ignores its last argument, which is null.
        unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::null_mut()) };
    }
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader passes the description of an object.
    let Some(libc) = Object::named(unsafe { &*info }, c"libc.so.6") else { return 0 };
    let Some((start, bytes, rights)) =
        libc.address(DT_SYMTAB).and_then(|table| libc.segment(table)).map(|(start, bytes, rights)| {
            let first = start & !(PAGE - 1);
            (first as *mut u8, (start + bytes).next_multiple_of(PAGE) - first, rights)
        })
    else {
        return 1;
    };
    if sys::protect(start, bytes, rights | libc::PROT_WRITE) != 0 {
        return 1;
    }
    for (name, to) in ours() {
        // The loader adds the object's base to a symbol's value, and the sum wraps.
        let value = (to as usize).wrapping_sub(libc.base) as u64;
        // SAFETY: a symbol of the table, which is writable now. The program has not begun: no other thread reads it.
        libc.each_function(name, |symbol| unsafe { (*symbol).value = value });
    }
    // Pages that stay writable do no harm.
    let _ = sys::protect(start, bytes, rights);
    1
}
