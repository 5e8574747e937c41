//! Writes tensors in memory, on the host or on a card, as a safetensors file, without a copy of all of them.

use crate::cuda::Card;
use crate::error::{LoadError, Result};
use crate::shared::Settings;
use gapless_formats::safetensors::{self, Header};
use gapless_weights::{Done, Error, Source};
use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};

/// The bytes of one tensor, in the order of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub address: u64,
    pub bytes: u64,
    /// 1 if the address is the card's.
    pub is_on_card: u64,
}

struct Memory<'a> {
    path: PathBuf,
    header: &'a Header,
    held: &'a [Held],
    card: Option<&'a Card>,
    stream: *mut c_void,
}

impl Source for Memory<'_> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn size(&self) -> u64 {
        self.header.data() + self.header.tensors.last().map_or(0, |last| last.end)
    }

    fn read(&self, at: u64, out: &mut [u8]) -> gapless_weights::Result<()> {
        let (mut at, mut out) = (at, out);
        while !out.is_empty() {
            let done = self.some(at, out)?;
            at += done as u64;
            out = &mut out[done..];
        }
        Ok(())
    }
}

impl Memory<'_> {
    /// Reads up to the end of the tensor, or of the header, that holds `at`.
    fn some(&self, at: u64, out: &mut [u8]) -> gapless_weights::Result<usize> {
        let mut head = (self.header.text.len() as u64).to_le_bytes().to_vec();
        let fail = |what: &str| Error::Read { path: self.path.clone(), source: std::io::Error::other(what) };
        if at < self.header.data() {
            head.extend_from_slice(&self.header.text);
            let from = &head[at as usize..];
            let length = from.len().min(out.len());
            out[..length].copy_from_slice(&from[..length]);
            return Ok(length);
        }
        let place = at - self.header.data();
        let index = self.header.tensors.partition_point(|tensor| tensor.end <= place);
        let (Some(tensor), Some(held)) = (self.header.tensors.get(index), self.held.get(index)) else {
            return Err(fail("a range past the last tensor"));
        };
        let length = ((tensor.end - place) as usize).min(out.len());
        let from = held.address + (place - tensor.begin);
        match self.card.filter(|_| held.is_on_card != 0) {
            // SAFETY: the tensor has its bytes on the host until `save` returns (its contract).
            None => out[..length]
                .copy_from_slice(unsafe { std::slice::from_raw_parts(from as *const u8, length) }),
            Some(card) => {
                // SAFETY: the tensor has its bytes on the card until `save` returns (its contract). The wait ends the
                // copy before `out` is used.
                let status = unsafe {
                    match (card.driver.to_host)(out.as_mut_ptr().cast(), from, length, self.stream) {
                        0 => (card.driver.stream_sync)(self.stream),
                        status => status,
                    }
                };
                card.driver.check("cuMemcpyDtoHAsync", status).map_err(|error| fail(&error.to_string()))?;
            }
        }
        Ok(length)
    }
}

/// Writes tensors to `to`, which appears complete or not at all. `text` is the file's header.
///
/// # Safety
/// Each entry of `held` must have its bytes, on the host or on the device of the settings, and they must not change
/// until the call returns. The stream of the settings must exist.
pub unsafe fn save(
    to: &Path,
    text: &[u8],
    held: &[Held],
    settings: Settings,
    is_packed: bool,
    library: Option<&CStr>,
) -> Result<Done> {
    let data = held.iter().try_fold(0u64, |sum, held| sum.checked_add(held.bytes));
    let data = data.ok_or(LoadError::Argument("the tensors have more bytes than can be counted".into()))?;
    let wrong =
        |what: String| LoadError::Argument(format!("the header that was to be written is wrong: {what}"));
    let header = safetensors::parse(text.to_vec(), data).map_err(|problem| wrong(problem.to_string()))?;
    let lengths = header.tensors.iter().map(|tensor| tensor.bytes());
    if header.tensors.len() != held.len() || !lengths.eq(held.iter().map(|held| held.bytes)) {
        return Err(wrong("it has other tensors than were given".into()));
    }
    let card = match u32::try_from(settings.device) {
        Ok(device) => Some(Card::open(device, settings, 1, library)?),
        Err(_) => None,
    };
    if card.is_none() && held.iter().any(|held| held.is_on_card != 0) {
        return Err(LoadError::Argument("a tensor is on a card, and no card was named".into()));
    }
    let current = card.as_ref().map(Card::current).transpose()?;
    let stream = card.as_ref().map_or(std::ptr::null_mut(), |card| card.stream());
    let memory = Memory { path: to.to_owned(), header: &header, held, card: card.as_ref(), stream };
    let done = gapless_weights::save(&memory, &header, to, settings.threads.max(1) as usize, is_packed);
    drop(current);
    Ok(done?)
}
