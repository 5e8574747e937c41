//! What runs before the program and after it.

use gapless_host::heap;

extern "C" fn begin() {
    heap::configure();
}

extern "C" fn end() {
    heap::end();
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
