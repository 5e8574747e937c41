//! Checkpointing without re-entry (`use_reentrant=False`): tensors that a block saves are dropped in its forward pass.
//! The first saved tensor that the backward pass asks for runs the block again, up to the last tensor that was saved,
//! and leaves them all.

use super::{Saved, Sim};
use crate::eager::log::Phase;
use crate::eager::tensor::{Edge, Tensor};
use crate::model::Dtype;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

type Block = Rc<dyn Fn(&Sim, &Tensor) -> Tensor>;

/// One checkpointed call.
pub(crate) struct Frame {
    /// `None` once the call has been run again.
    call: RefCell<Option<(Block, Tensor)>>,
    amp: Option<Dtype>,
    /// Tensors saved in the forward pass.
    count: Cell<u32>,
    recomputed: RefCell<Vec<Option<Tensor>>>,
}

impl Sim {
    /// Runs `block` on `input`, to be run again in the backward pass.
    pub fn checkpoint(&self, input: &Tensor, block: Block) -> Tensor {
        if !self.grad_enabled.get() {
            return block(self, input);
        }
        let frame = Rc::new(Frame {
            call: RefCell::new(Some((Rc::clone(&block), input.clone()))),
            amp: self.amp.get(),
            count: Cell::new(0),
            recomputed: RefCell::default(),
        });
        let outer = self.packing.replace(Some(frame));
        let output = block(self, input);
        self.packing.replace(outer);
        output
    }

    pub(crate) fn pack(&self, t: &Tensor) -> Saved {
        if let Some(frame) = &*self.recomputing.borrow() {
            if !self.stopped.get() {
                let mut recomputed = frame.recomputed.borrow_mut();
                t.storage.set_saved();
                recomputed.push(Some(t.detach()));
                if recomputed.len() == frame.count.get() as usize {
                    self.stopped.set(true);
                }
            }
            return Saved::Plain(t.detach());
        }
        if let Some(frame) = &*self.packing.borrow() {
            let index = frame.count.get();
            frame.count.set(index + 1);
            return Saved::Packed { frame: Rc::clone(frame), index };
        }
        t.storage.set_saved();
        Saved::Plain(t.detach())
    }

    pub(crate) fn unpack(&self, saved: Saved) -> Tensor {
        match saved {
            Saved::Plain(t) => t,
            Saved::Packed { frame, index } => {
                if frame.recomputed.borrow().is_empty() {
                    self.recompute(&frame);
                }
                let saved = frame.recomputed.borrow_mut().get_mut(index as usize).and_then(Option::take);
                debug_assert!(saved.is_some(), "the second run of a block saves what the first did");
                saved.unwrap_or_else(|| self.alloc(0, Dtype::F32))
            }
        }
    }

    fn recompute(&self, frame: &Rc<Frame>) {
        // The arguments stay with the frame until its last saved tensor is gone.
        let Some((block, input)) = frame.call.borrow().clone() else { return };
        let (phase, amp) = (self.current_phase(), self.amp.replace(frame.amp));
        self.phase(Phase::Recompute);
        self.recomputing.replace(Some(Rc::clone(frame)));
        let casts = self.casts.take();
        let edge = input.edge.map(|_| Edge::Node(u32::MAX, 0));
        let input = Tensor { edge, ..input };
        let output = block(self, &input);
        self.casts.replace(casts);
        drop(output);
        self.recomputing.replace(None);
        self.stopped.set(false);
        self.amp.set(amp);
        self.phase(phase);
    }
}
