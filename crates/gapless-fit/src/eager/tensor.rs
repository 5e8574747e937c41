//! Tensors as memory sees them: a counted storage, a number of elements, a type, and the target of the gradient.
//!
//! A storage is freed when its last owner goes, as in PyTorch. So scopes of the Rust code stand for those of the Python
//! code.

use super::ledger::Kernel;
use super::log::{Kind, Log};
use crate::model::Dtype;
use std::cell::RefCell;
use std::rc::Rc;

pub(crate) type SharedLog = Rc<RefCell<Log>>;

/// Memory with owners.
#[derive(Debug)]
pub struct Storage {
    /// In the log; `NONE` if nothing was allocated.
    pub(crate) slot: u32,
    log: SharedLog,
}

const NONE: u32 = u32::MAX;

impl Storage {
    pub(crate) fn new(log: &SharedLog, bytes: u64, kind: Kind) -> Rc<Storage> {
        // PyTorch asks for no memory if there are no elements.
        let slot = if bytes == 0 { NONE } else { log.borrow_mut().alloc(bytes, kind) };
        Rc::new(Storage { slot, log: Rc::clone(log) })
    }

    pub(crate) fn set_kind(&self, kind: Kind) {
        if self.slot != NONE {
            self.log.borrow_mut().allocations[self.slot as usize].kind = kind;
        }
    }

    /// Marks a temporary as kept for the backward pass.
    pub(crate) fn set_saved(&self) {
        if self.slot != NONE {
            let mut log = self.log.borrow_mut();
            let kind = &mut log.allocations[self.slot as usize].kind;
            if *kind == Kind::Temporary {
                *kind = Kind::Activation;
            }
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if self.slot != NONE {
            self.log.borrow_mut().free(self.slot);
        }
    }
}

/// The target of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Output `1` of node `0` of the tape.
    Node(u32, u8),
    /// A parameter.
    Leaf(u32),
}

/// A tensor.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) storage: Rc<Storage>,
    /// Elements.
    pub n: u64,
    pub dtype: Dtype,
    pub(crate) edge: Option<Edge>,
}

impl Tensor {
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.n * self.dtype.bytes()
    }

    /// The same memory, cut from the graph.
    #[must_use]
    pub fn detach(&self) -> Tensor {
        Tensor { edge: None, ..self.clone() }
    }

    /// The same memory with `n` elements in view.
    #[must_use]
    pub fn view(&self, n: u64) -> Tensor {
        Tensor { n, ..self.clone() }
    }

    pub(crate) fn only_owner(&self) -> bool {
        Rc::strong_count(&self.storage) == 1
    }

    #[must_use]
    pub fn requires_grad(&self) -> bool {
        self.edge.is_some()
    }
}

/// A parameter: a tensor with a name's shape, and a place for its gradient.
#[derive(Clone, Debug)]
pub struct Param {
    pub tensor: Tensor,
    pub id: u32,
    /// How products read it.
    pub kernel: Kernel,
    /// True if it gets an adapter.
    pub adapted: bool,
}
