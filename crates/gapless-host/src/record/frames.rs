//! Where a thread stands: lines of Python, and native functions.

use super::pace::{COST, COST_OF_ASKING, COST_OF_FRAME, COST_OF_FUNCTION, COST_OF_PYTHON, COST_OF_WALK};
use super::python::{self, Place};
use super::recorder::RECORDER;
use super::stacks::{self, Range};
use crate::sys;

/// Where this thread stands.
pub(super) struct Frames {
    native: [u64; stacks::DEPTH],
    natives: usize,
    places: [Place; python::DEPTH],
    count: usize,
    /// Nanoseconds that a sample with them costs, about.
    pub(super) cost: u64,
}

impl Frames {
    pub(super) fn new() -> Frames {
        let none = Place::default();
        Frames { native: [0; stacks::DEPTH], natives: 0, places: [none; python::DEPTH], count: 0, cost: COST }
    }

    /// `is_object`: an object of Python, whose line says all.
    pub(super) fn look(&mut self, is_object: bool) {
        // Set before the program began, and never changed.
        // SAFETY: read without the lock; `begin` wrote these before any other thread was there.
        let (own, stop, around, python) = unsafe {
            let recorder = &*RECORDER.value();
            (recorder.own, recorder.interpreter, recorder.around, recorder.python)
        };
        sys::keep_errno(|| {
            if let Some(python) = python {
                let (count, has_asked) = python.frames(&mut self.places);
                self.count = count;
                self.cost += if has_asked { COST_OF_ASKING } else { COST_OF_PYTHON };
                self.cost += COST_OF_FRAME * count as u64;
            }
            if self.count == 0 {
                self.natives = self.walk(own, Range::default());
            } else if !is_object {
                // Functions of the interpreter say nothing beside its frames.
                let found = self.walk(own, stop);
                for at in 0..found {
                    let address = self.native[at];
                    self.native[self.natives] = address;
                    self.natives += usize::from(!around.has(address as usize));
                }
            }
        });
    }

    fn walk(&mut self, own: Range, stop: Range) -> usize {
        let (found, has_walked) = stacks::here(own, stop, &mut self.native);
        self.cost += if has_walked { COST_OF_WALK + COST_OF_FUNCTION * found as u64 } else { 0 };
        found
    }

    pub(super) fn native(&self) -> &[u64] {
        &self.native[..self.natives]
    }

    pub(super) fn places(&self) -> &[Place] {
        &self.places[..self.count]
    }
}
