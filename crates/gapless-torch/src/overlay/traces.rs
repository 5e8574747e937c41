//! Entries and annotations of the history in PyTorch's layout.

use super::layout::{AnnotationEntry, Layouts, LongTraceEntry, TraceEntry, layouts};
use crate::cxx::{CxxString, SharedPtr, StringMap};
use crate::history::{Annotation, Entry};
use crate::regions;
use std::ffi::c_void;

/// The mark of an allocation at an address that the program chose.
const AT_ADDRESS: &str = "mallocWithAddress";

/// Builds an entry at `place`.
///
/// # Safety
/// `place` has room for the running build's entry; the receiver frees it. C++ exceptions may pass the callers.
pub unsafe fn write_trace_entry(place: *mut TraceEntry, device: i32, entry: &Entry) {
    let Layouts { user_metadata, internal_metadata: has_own_text, .. } = layouts();
    let mark = if entry.at_address { AT_ADDRESS } else { "" };
    let said = entry.metadata.as_deref().unwrap_or("");
    let both = match (entry.at_address && !has_own_text, said.is_empty()) {
        (false, _) => said.to_owned(),
        (true, true) => mark.to_owned(),
        (true, false) => format!("{said}\n{mark}"),
    };
    // SAFETY: `place` has room for the build's entry. Every field is written, and strings at their final address.
    unsafe {
        (&raw mut (*place).action).write(entry.action as i32);
        (&raw mut (*place).device).write(device as i8);
        (&raw mut (*place).addr).write(entry.addr as usize);
        (&raw mut (*place).context).write(entry.stack.clone().unwrap_or(SharedPtr::NULL));
        (&raw mut (*place).stream).write(entry.stream.0 as *mut c_void);
        (&raw mut (*place).size).write(entry.size as usize);
        (&raw mut (*place).pool).write(regions::as_torch_sees(entry.pool).into());
        (&raw mut (*place).time).write(entry.time);
        CxxString::write(&raw mut (*place).compile_context, entry.compiled.as_deref().unwrap_or("N/A"));
        if user_metadata {
            CxxString::write(&raw mut (*place).user_metadata, &both);
        }
        if has_own_text {
            let long = place.cast::<LongTraceEntry>();
            CxxString::write(&raw mut (*long).internal_metadata, mark);
        }
    }
}

/// Frees an entry that C++ only read.
///
/// # Safety
/// [`write_trace_entry`] made it, and it is not used afterwards.
pub unsafe fn end_trace_entry(place: *mut TraceEntry) {
    // SAFETY: `write_trace_entry` wrote these fields, in the same layout, and nothing uses them any more.
    unsafe {
        std::ptr::drop_in_place(&raw mut (*place).context);
        CxxString::end(&raw mut (*place).compile_context);
        if layouts().user_metadata {
            CxxString::end(&raw mut (*place).user_metadata);
        }
        if layouts().internal_metadata {
            CxxString::end(&raw mut (*place.cast::<LongTraceEntry>()).internal_metadata);
        }
    }
}

/// Builds an annotation at `place`.
///
/// # Safety
/// As [`write_trace_entry`].
pub unsafe fn write_annotation(place: *mut AnnotationEntry, annotation: &Annotation) {
    // SAFETY: `place` has room for an annotation. Every field is written, and the map at its final address.
    unsafe {
        (&raw mut (*place).device).write(annotation.device);
        (&raw mut (*place).time).write(annotation.time);
        StringMap::write(&raw mut (*place).metadata, &annotation.pairs);
    }
}
