//! Everything that is mapped, granted anew: when the device lets others use its memory.

use super::Pool;
use crate::device::{Device, DeviceError};

impl<D: Device> Pool<D> {
    /// Grants all memory again, at home and in windows.
    ///
    /// # Errors
    /// When the device refuses; what was granted until then stays so.
    pub fn grant_again(&mut self) -> Result<(), DeviceError> {
        let pages = self.heaps().flat_map(crate::heap::Heap::pages);
        let homes = pages.filter(|page| page.handle.is_some()).map(|page| (page.addr, page.size));
        let windows = self.windows.iter().flatten().map(|window| (window.base, window.mapped));
        for (addr, size) in homes.chain(windows).collect::<Vec<_>>() {
            self.device.grant(addr, size)?;
        }
        Ok(())
    }
}
