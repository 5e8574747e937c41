//! Requests that are charged to a budget: whether there is room, and when the charge ends.

use super::{AllocationId, Pool};
use crate::budget::{Budget, Room};
use crate::device::{Device, DeviceError, Refusal};

impl<D: Device> Pool<D> {
    /// Whether `size` bytes may be charged to a budget. Where they pass its soft limit, what is free is given back to
    /// the device first.
    #[inline]
    pub(super) fn ask(&mut self, budget: Option<&'static Budget>, size: u64) -> Result<(), DeviceError> {
        budget.map_or(Ok(()), |budget| self.ask_for(budget, size))
    }

    #[cold]
    fn ask_for(&mut self, budget: &'static Budget, size: u64) -> Result<(), DeviceError> {
        match budget.room(size) {
            Room::Enough => Ok(()),
            Room::Pressed => {
                // Giving back waits for streams, which a capture forbids.
                if !self.is_quiet() {
                    self.trim();
                }
                Ok(())
            }
            Room::None => {
                self.stats.ooms += 1;
                Err(DeviceError::Refused(Refusal::Budget))
            }
        }
    }

    /// The caller gave an allocation back: it is charged to nobody any more, though other streams may still use it.
    pub(super) fn uncharge(&mut self, id: AllocationId) {
        let allocation = self.allocation_mut(id);
        let size = allocation.size;
        if let Some(budget) = allocation.budget.take() {
            budget.give(size);
        }
    }
}
