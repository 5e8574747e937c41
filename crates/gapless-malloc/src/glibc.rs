//! The functions that glibc has beyond the standard: other names, settings, and statistics.

use gapless_host::stats;
use gapless_host::text::{Size, write_to};
use gapless_host::{core, heap};
use std::ffi::c_int;

#[unsafe(no_mangle)]
pub extern "C" fn __libc_malloc(size: usize) -> *mut u8 {
    crate::malloc(size)
}

#[unsafe(no_mangle)]
pub extern "C" fn __libc_calloc(count: usize, size: usize) -> *mut u8 {
    crate::calloc(count, size)
}

/// # Safety
/// As for [`realloc`](crate::realloc).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_realloc(block: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: `block` is null, or a block of the heap that was not freed: the contract of realloc(3).
    unsafe { crate::realloc(block, size) }
}

/// # Safety
/// As for [`free`](crate::free).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_free(block: *mut u8) {
    // SAFETY: `block` is null, or a block of the heap that was not freed: the contract of free(3).
    unsafe { heap::free(block) }
}

/// The loader's own name of `memalign`, for the memory of threads.
#[unsafe(no_mangle)]
pub extern "C" fn __libc_memalign(alignment: usize, size: usize) -> *mut u8 {
    crate::memalign(alignment, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn __libc_valloc(size: usize) -> *mut u8 {
    crate::valloc(size)
}

#[unsafe(no_mangle)]
pub extern "C" fn __libc_pvalloc(size: usize) -> *mut u8 {
    crate::pvalloc(size)
}

/// # Safety
/// `block` is valid for writing (posix_memalign(3)).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __posix_memalign(block: *mut *mut u8, alignment: usize, size: usize) -> c_int {
    // SAFETY: `block` is valid for writing (the caller's contract).
    unsafe { crate::posix_memalign(block, alignment, size) }
}

/// True if the program's C library refuses alignments of `aligned_alloc` that are not powers of two, as it does since
/// 2.38.
pub(crate) fn refuses_odd_alignments() -> bool {
    // SAFETY: returns a static text such as "2.36".
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) }.to_bytes();
    let mut numbers = version.split(|byte| *byte == b'.').filter_map(gapless_host::sys::number);
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (2, 38)
}

/// Gives back idle memory. Returns 1 if there was some.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_keep: usize) -> c_int {
    c_int::from(core::trim() > 0)
}

/// Ignores glibc's settings, which have no meaning here. Returns 1 for success, because programs check for that.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(_setting: c_int, _value: c_int) -> c_int {
    1
}

/// As in malloc.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Mallinfo2 {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}

/// As in malloc.h: glibc's older structure, whose numbers wrap.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Mallinfo {
    fields: [c_int; 10],
}

/// `uordblks` are the program's bytes, `fordblks` those that are kept for reuse, `arena` and `hblkhd` small and large
/// ones.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> Mallinfo2 {
    let s = stats::now();
    let small_free = s.small_held.saturating_sub(s.small_live);
    Mallinfo2 {
        arena: s.small_held as usize,
        hblks: s.allocations.saturating_sub(s.frees) as usize,
        hblkhd: s.large_live as usize,
        fsmblks: s.lists_kept as usize,
        uordblks: (s.small_live + s.large_live) as usize,
        fordblks: (small_free + s.large_kept) as usize,
        keepcost: s.large_kept as usize,
        ..Mallinfo2::default()
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> Mallinfo {
    let info = mallinfo2();
    let fields =
        [info.arena, 0, 0, info.hblks, info.hblkhd, 0, 0, info.uordblks, info.fordblks, info.keepcost];
    Mallinfo { fields: fields.map(|value| value as c_int) }
}

/// Writes a few lines to standard error.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    let s = stats::now();
    let yes = if s.huge_pages { "yes" } else { "no" };
    write_to(
        2,
        format_args!(
            "gapless: large buffers {} in use (at most {}), {} kept for reuse, {} given back\n\
             gapless: small objects {} in use, {} held; {} in the lists of {} threads\n\
             gapless: {} large allocations, {} frees, {} of {} handed out needed no fresh memory, huge pages: {yes}\n",
            Size(s.large_live),
            Size(s.large_most),
            Size(s.large_kept),
            Size(s.given_back),
            Size(s.small_live),
            Size(s.small_held),
            Size(s.lists_kept),
            s.threads,
            s.allocations,
            s.frees,
            Size(s.reused),
            Size(s.handed_out),
        ),
    );
    if s.pinned + s.pinned_kept > 0 {
        write_to(
            2,
            format_args!(
                "gapless: pinned {}, and {} registered for reuse; {} registrations needed no driver\n",
                Size(s.pinned),
                Size(s.pinned_kept),
                s.pinned_reused
            ),
        );
    }
    if s.limit > 0 {
        write_to(
            2,
            format_args!(
                "gapless: budget {} of {} held, {} requests refused\n",
                Size(s.total),
                Size(s.limit),
                s.refused
            ),
        );
    }
}

/// Writes XML to a stream, as glibc does. Returns 0 if it was written.
///
/// # Safety
/// `stream` is an open `FILE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut libc::FILE) -> c_int {
    if options != 0 {
        gapless_host::sys::set_errno(libc::EINVAL);
        return -1;
    }
    let s = stats::now();
    // SAFETY: `stream` is open (the caller's contract), and the arguments have the types that the format names.
    let written = unsafe {
        libc::fprintf(
            stream,
            c"<malloc version=\"gapless-1\">\n<system type=\"current\" size=\"%llu\"/>\n<large live=\"%llu\" kept=\"%llu\" most=\"%llu\"/>\n<small live=\"%llu\" held=\"%llu\" lists=\"%llu\" threads=\"%llu\"/>\n<pinned bytes=\"%llu\" kept=\"%llu\"/>\n<limit bytes=\"%llu\" held=\"%llu\" refused=\"%llu\"/>\n".as_ptr(),
            s.large_live + s.large_kept + s.small_held,
            s.large_live,
            s.large_kept,
            s.large_most,
            s.small_live,
            s.small_held,
            s.lists_kept,
            s.threads,
            s.pinned,
            s.pinned_kept,
            s.limit,
            s.total,
            s.refused,
        )
    };
    let mut is_written = written >= 0;
    stats::each_class(|size, live| {
        // SAFETY: `stream` is open (the caller's contract), and the arguments have the types that the format names.
        is_written &= unsafe {
            libc::fprintf(stream, c"<class size=\"%llu\" live=\"%llu\"/>\n".as_ptr(), size, live) >= 0
        };
    });
    // SAFETY: `stream` is open (the caller's contract).
    is_written &= unsafe { libc::fputs(c"</malloc>\n".as_ptr(), stream) } >= 0;
    if is_written { 0 } else { -1 }
}

/// Notes that a step of the program begins: memory that the last steps used stays for the next one.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_step() {
    heap::step();
}

/// Figures of the process's memory, for the Python package. Returns their number.
///
/// # Safety
/// `into` is valid for writing `room` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_host_stats(into: *mut u64, room: usize) -> usize {
    let s = stats::now();
    let all = [
        s.large_live,
        s.large_most,
        s.large_kept,
        s.small_held,
        s.allocations,
        s.frees,
        s.handed_out,
        s.reused,
        s.moved,
        s.copied,
        s.given_back,
        u64::from(s.huge_pages),
        s.limit,
        s.total,
        s.refused,
        s.small_live,
        s.lists_kept,
        s.lists_most,
        s.threads,
        s.pinned,
        s.pinned_kept,
        s.pinned_reused,
    ];
    for (at, value) in all.iter().enumerate().take(room) {
        // SAFETY: `at < room`, and `into` has room for that many numbers (the caller's contract).
        unsafe { into.add(at).write(*value) };
    }
    all.len()
}
