//! The present stack of a thread: lines of Python, and native functions.

use super::python::{self, Place};
use super::recorder::RECORDER;
use super::stacks::{self, Range};
use crate::sys;

/// The present stack of this thread.
pub(super) struct Frames {
    native: [u64; stacks::DEPTH],
    natives: usize,
    places: [Place; python::DEPTH],
    count: usize,
}

impl Frames {
    pub(super) fn new() -> Frames {
        let none = Place::default();
        Frames { native: [0; stacks::DEPTH], natives: 0, places: [none; python::DEPTH], count: 0 }
    }

    /// Reads the stack. `is_object` is true for an object of Python, for which the Python lines are enough.
    pub(super) fn look(&mut self, is_object: bool) {
        // SAFETY: `begin` wrote these fields before any other thread existed, and they never change.
        let (own, stop, around, python) = unsafe {
            let recorder = &*RECORDER.value();
            (recorder.own, recorder.interpreter, recorder.around, recorder.python)
        };
        sys::keep_errno(|| {
            if let Some(python) = python {
                self.count = python.frames(&mut self.places);
            }
            if self.count == 0 {
                (self.natives, _) = stacks::here(own, Range::default(), &mut self.native);
            } else if !is_object {
                // Functions of the interpreter add nothing to its frames.
                let (found, _) = stacks::here(own, stop, &mut self.native);
                for at in 0..found {
                    let address = self.native[at];
                    self.native[self.natives] = address;
                    self.natives += usize::from(!around.has(address as usize));
                }
            }
        });
    }

    pub(super) fn native(&self) -> &[u64] {
        &self.native[..self.natives]
    }

    pub(super) fn places(&self) -> &[Place] {
        &self.places[..self.count]
    }
}
