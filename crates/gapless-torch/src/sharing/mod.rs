//! Memory that several processes share: CUDA's IPC as PyTorch speaks it (`torch.multiprocessing`,
//! `UntypedStorage._share_cuda_`).
//!
//! A block is described by its pages ([`handle`]). A reader gets them as file descriptors, over a socket of the sender
//! ([`passing`]), and maps them side by side ([`opened`]). The pages stay under a block as long as it is held, and
//! PyTorch holds a block until its readers have given it up. The card's memory lives as long as one process has it
//! mapped, so a reader may outlive the sender.
//!
//! [`readers`] knows which processes have pages of this one: a region does not sleep under them.
//!
//! [`weights`] is one copy of a model's weights for many processes: an offer ([`offers`], [`manifest`]) that readers
//! map read-only, by the same sockets.

mod handle;
pub(crate) mod listening;
mod manifest;
mod offers;
mod opened;
pub(crate) mod passing;
pub(crate) mod readers;
mod rest;
mod socket;
mod spares;
pub(crate) mod weights;

use crate::card;
use crate::cards;
use gapless_cuda::sharing::SharingError;
use gapless_pool::{Behind, PageHandle};
use handle::Passed;
use std::fmt::Write;

pub(crate) use opened::{close_all, open};

/// Readers without Gapless copy files out of this process themselves. This is the most that stay open for one block.
const MOST_FILES: usize = 64;

/// Statistics of the process: bytes that it has of others, and bytes that it offers. Nothing if both are 0.
pub(crate) fn write_json(out: &mut String) {
    let (attached, shared) = weights::figures();
    if attached + shared > 0 {
        let _ = write!(out, "\"gapless.attached\":{attached},\"gapless.shared\":{shared},");
    }
}

/// The bytes by which another process gets the allocation at `addr`, and the offset at which the allocation begins in
/// that memory. `newer`: for PyTorch 2.13 and later.
///
/// # Errors
/// If the allocation sleeps, is unknown or cannot be exported. The text says why.
pub(crate) fn share(addr: u64, newer: bool) -> Result<(u64, Vec<u8>), String> {
    let mut found = None;
    cards::for_each_at(addr, |_, card| {
        if card.pool.is_asleep(addr) {
            found = Some(Err(format!(
                "gapless: the memory at {addr:#x} sleeps: wake its region before it is shared"
            )));
        }
        if found.is_none()
            && let Some(behind) = card.pool.behind(addr)
        {
            found = Some(handle_of(card, behind, newer));
        }
    });
    found
        .unwrap_or_else(|| Err(format!("gapless: nothing is allocated at {addr:#x}, so it cannot be shared")))
}

fn handle_of(card: &mut card::Card, behind: Behind, newer: bool) -> Result<(u64, Vec<u8>), String> {
    let device = card.pool.device_mut();
    let (offset, pages) = match behind {
        Behind::Pages { offset, pages } => (offset, pages),
        Behind::Segment { addr, offset } => {
            let plain = device.plain_handle(addr).map_err(|error| {
                format!(
                    "gapless: memory of a MemPool with an allocator of its own can be shared only where that allocator \
                     calls cudaMalloc ({error})"
                )
            })?;
            return Ok((offset, handle::of_whole(plain, newer)));
        }
    };
    passing::add_exporter(device.exporter());
    let token = passing::listen().map_err(|error| format!("gapless: {error}"))?;
    let numbered = |&(page, size): &(PageHandle, u64)| (device.number_of(page), size);
    let passed = Passed { token, pages: pages.iter().map(numbered).collect() };
    let has_one_size = pages.iter().all(|page| page.1 == pages[0].1);
    let files = if has_one_size && pages.len() <= MOST_FILES {
        let files: Result<Option<Vec<i32>>, _> = pages.iter().map(|page| device.kept_file(page.0)).collect();
        files.map_err(not_exported)?
    } else {
        // No file is kept open here. A driver that refuses to export is still reported to the sender.
        device.exporter().can_export(passed.pages[0].0).map_err(not_exported)?;
        None
    };
    Ok((offset, handle::of_pages(&passed, std::process::id(), files.as_deref(), newer)))
}

/// The message if a process cannot open another file.
fn full(what: &str) -> String {
    format!(
        "{what} has no free file descriptors: close files, or raise its limit (ulimit -n, \
         resource.setrlimit(resource.RLIMIT_NOFILE, ...))"
    )
}

fn not_exported(error: SharingError) -> String {
    format!(
        "gapless: the driver does not let memory of this card leave the process ({error}). Send tensors through host \
         memory (tensor.cpu()), or run this program without gapless"
    )
}
