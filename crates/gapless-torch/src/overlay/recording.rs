//! `_record_memory_history` and its listeners, through the table. [`crate::history`] records.

use super::{Refusal, This, answer, memory, refuse};
use crate::card;
use crate::cards;
use crate::cxx::{CxxString, CxxVec, Function, SharedPtr};
use crate::foreign::{Observer, Tracker};
use crate::history::{self, Wanted, level};
use crate::recorder;
use gapless_trace::Stage;
use std::ffi::c_void;

/// `isHistoryEnabled()`.
pub(super) unsafe extern "C-unwind" fn is_enabled(_: This) -> bool {
    history::is_recording()
}

/// `recordHistory(enabled, recorder, most, when, clear, skipped)`.
pub(super) unsafe extern "C-unwind" fn record_history(
    _: This,
    enabled: bool,
    recorder: usize,
    most: usize,
    when: i32,
    clear: bool,
    skipped: *const CxxVec<CxxString>,
) {
    // SAFETY: PyTorch's C++ called and handles exceptions; the last argument is a live vector of strings.
    unsafe {
        answer((), || {
            let mut bits = 0;
            for name in (*skipped).as_slice() {
                let name = name.to_text();
                match history::action_bit(&name) {
                    Some(bit) => bits |= bit,
                    None => return refuse(format!("Unknown TraceEntry action: {name}")),
                }
            }
            set(enabled, recorder, most, when, clear, bits)
        });
    }
}

/// `recordHistory(enabled, recorder, most, when, clear)` up to 2.10.
pub(super) unsafe extern "C-unwind" fn record_all(
    _: This,
    enabled: bool,
    recorder: usize,
    most: usize,
    when: i32,
    clear: bool,
) {
    // SAFETY: PyTorch's C++ called and handles exceptions; no card is locked.
    unsafe { answer((), || set(enabled, recorder, most, when, clear, 0)) };
}

fn set(on: bool, recorder: usize, most: usize, when: i32, clear: bool, skipped: u16) -> Result<(), Refusal> {
    if when != 0 && recorder == 0 {
        return refuse("recordHistory: stacks are asked for, and no function that gathers them was given");
    }
    let level = when.clamp(0, 3) as u8;
    history::set_wanted(Wanted { on, recorder, most, level, skipped }, clear);
    cards::for_each(|_, card| {
        // As in PyTorch, live blocks keep their stacks, even while nothing is recorded.
        card.keep_stacks();
        if !on || clear {
            card.history.clear();
        }
        if !on {
            card.history.forget_mapped();
        }
        card.pool.set_log(card::needs_log());
    });
    Ok(())
}

/// `recordAnnotation(pairs)`.
pub(super) unsafe extern "C-unwind" fn annotate(_: This, pairs: *const CxxVec<[CxxString; 2]>) {
    if !history::is_recording() && !recorder::is_on() {
        return;
    }
    // SAFETY: PyTorch's C++ called and handles exceptions; the argument is a live vector of pairs of strings.
    unsafe {
        let device = memory::current_device();
        answer((), || {
            let pairs = (*pairs).as_slice().iter().map(|[key, value]| (key.to_text(), value.to_text()));
            let mut list: Vec<(String, String)> = Vec::new();
            for (key, value) in pairs {
                // The last pair of a name counts.
                list.retain(|(before, _)| *before != key);
                list.push((key, value));
            }
            let said =
                |wanted: &str| list.iter().find(|(key, _)| key == wanted).map(|(_, value)| value.as_str());
            if let (Some(name), Some(stage)) = (said("name"), said("stage")) {
                let stage = if stage.eq_ignore_ascii_case("end") { Stage::End } else { Stage::Start };
                recorder::mark(name, stage, device.max(0) as u32);
            }
            history::annotate(device, list);
            Ok(())
        });
    }
}

/// `pushCompileContext(name)`.
pub(super) unsafe extern "C-unwind" fn enter_compiled(_: This, name: *const CxxString) {
    // SAFETY: PyTorch's C++ called and handles exceptions; the argument is a live string.
    unsafe {
        answer((), || {
            history::enter_compiled(&(*name).to_text());
            Ok(())
        });
    }
}

/// `popCompileContext()`.
pub(super) unsafe extern "C-unwind" fn leave_compiled(_: This) {
    history::leave_compiled();
}

/// `supportsUserMetadata()`.
pub(super) unsafe extern "C-unwind" fn has_metadata(_: This) -> bool {
    true
}

/// `annotateMemory(pointer, note)`: adds a note about a live block to the history.
pub(super) unsafe extern "C-unwind" fn annotate_memory(
    _: This,
    pointer: *const c_void,
    note: *const CxxString,
) {
    // SAFETY: PyTorch's C++ called and handles exceptions; the last argument is a live string. No card is locked when
    // the stack is gathered, nor when trackers are told.
    unsafe {
        let (note, stack) = ((*note).to_text(), history::stack(level::ALLOC));
        answer((), || {
            let mut is_there = false;
            cards::for_each(|_, card| {
                is_there = is_there || card.annotate(pointer as u64, &note, stack.clone());
            });
            if is_there {
                return Ok(());
            }
            refuse(format!("annotateMemory: no live allocation found at pointer {pointer:?}"))
        });
        history::tell_trackers();
    }
}

/// `setUserMetadata(text)`.
pub(super) unsafe extern "C-unwind" fn set_metadata(_: This, text: *const CxxString) {
    // SAFETY: PyTorch's C++ called and handles exceptions; the argument is a live string.
    unsafe {
        answer((), || {
            history::set_metadata(&(*text).to_text());
            Ok(())
        });
    }
}

/// `getUserMetadata()`.
pub(super) unsafe extern "C-unwind" fn metadata(out: *mut CxxString, _: This) -> *mut CxxString {
    // SAFETY: PyTorch's C++ called and handles exceptions; `out` is its place for the result.
    unsafe { CxxString::write(out, history::metadata().as_deref().unwrap_or("")) };
    out
}

/// `attachOutOfMemoryObserver(observer)`.
pub(super) unsafe extern "C-unwind" fn observe_failures(_: This, observer: *const Function) {
    // SAFETY: PyTorch's C++ called and handles exceptions; the argument is a live function object.
    history::add_observer(Observer(unsafe { Function::copy_of(observer) }));
}

/// `attachOomRejectionObserver(observer)`: every request is tried before it fails, so there is nothing to report.
pub(super) unsafe extern "C-unwind" fn observe_refusals(_: This, _: *const Function) {}

/// `getContextForPointer(pointer)`: the stack with which a block was allocated.
pub(super) unsafe extern "C-unwind" fn stack_of(
    out: *mut SharedPtr,
    _: This,
    pointer: *const c_void,
) -> *mut SharedPtr {
    // SAFETY: PyTorch's C++ called and handles exceptions; `out` is its place for the result.
    unsafe {
        let stack = answer(None, || {
            let mut found = None;
            cards::for_each(|_, card| {
                card.keep_stacks();
                found = found.take().or_else(|| card.history.stack_of(pointer as u64).cloned());
            });
            Ok(found)
        });
        out.write(stack.unwrap_or(SharedPtr::NULL));
    }
    out
}

/// `attachAllocatorTraceTracker(tracker)`.
pub(super) unsafe extern "C-unwind" fn track(_: This, tracker: *const Function) {
    // SAFETY: PyTorch's C++ called and handles exceptions; the argument is a live function object.
    history::add_tracker(Tracker(unsafe { Function::copy_of(tracker) }));
    cards::for_each(|_, card| card.listen());
}
