//! A card gives free memory back to the device.

use super::Card;
use crate::quota::QuotaDevice;
use crate::watcher::Caller;
use gapless_cuda::CudaDevice;
use gapless_pool::{Patience, Pool, PoolKey, Wait};
use std::convert::Infallible;

impl Card {
    /// Gives free memory back to the device and returns the bytes, or what to wait for; 0 during a capture.
    ///
    /// # Errors
    /// If the caller must wait and ask again.
    pub fn trim(&mut self, patience: &mut Patience) -> Result<u64, Wait> {
        self.give_back(|pool| pool.trim_asking(patience))
    }

    /// [`Card::trim`] without a wait for streams, for trims that the program did not ask for.
    pub fn trim_behind_work(&mut self) -> u64 {
        let Ok(given) = self.give_back(|pool| Ok::<_, Infallible>(pool.trim_behind_work()));
        given
    }

    /// [`Card::trim`] for one private pool. A pool with users keeps its memory, because graphs hold its addresses.
    ///
    /// # Errors
    /// If the caller must wait and ask again.
    pub fn trim_pool(&mut self, pool: PoolKey, patience: &mut Patience) -> Result<u64, Wait> {
        if self.uses_of(pool).is_some_and(|uses| uses > 0) {
            return Ok(0);
        }
        self.give_back(|all| all.trim_pool_asking(pool, patience))
    }

    /// Free memory of released private pools goes back without a wait.
    pub(super) fn give_back_released(&mut self) {
        let _ = self.give_back(|pool| Ok::<_, Infallible>(pool.trim_released()));
    }

    fn give_back<E>(
        &mut self,
        give: impl FnOnce(&mut Pool<QuotaDevice<CudaDevice>>) -> Result<u64, E>,
    ) -> Result<u64, E> {
        if self.routings.has_capture() {
            return Ok(0);
        }
        let given = give(&mut self.pool);
        self.tell_changes(&Caller::NOBODY);
        given
    }
}
