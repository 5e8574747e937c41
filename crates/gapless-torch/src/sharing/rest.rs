//! The unread rest of bytes that another process sent. It is read from the front, never past the end.

pub(super) struct Rest<'a>(pub(super) &'a [u8]);

impl Rest<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or("it is cut off")?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn number(&mut self) -> Result<u64, String> {
        self.take().map(u64::from_ne_bytes)
    }
}
