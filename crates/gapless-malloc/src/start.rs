//! Functions that run before the program and after it.

use crate::{fork, loader, names, publish};
use gapless_host::{core, heap};

extern "C" fn begin() {
    loader::prepare();
    fork::prepare();
    names::lead_here();
    if heap::configure().stats {
        core::publish_by(publish::publish);
    }
}

extern "C" fn end() {
    publish::end();
    heap::end();
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
