//! One copy of weights for many processes: the owner offers storages under a handle, and readers map them read-only.
//!
//! An offer names the pages behind all storages ([`super::manifest`]), each page once. A reader gets the pages over the
//! owner's socket ([`super::passing`]), maps them side by side and grants them in one call. The caller of [`share`]
//! keeps the storages until it calls [`unshare`]. A reader's mapping lives as long as one of its tensors, even if the
//! owner ends.
//!
//! A name is a file in the user's own folder that contains the handle. A killed process leaves its file behind, so a
//! name whose owner does not answer is free.

use super::manifest::{Manifest, Storage};
use super::offers;
use super::passing::{self, Taken};
use crate::card;
use crate::cards;
use crate::opening;
use crate::process;
use crate::quota::admission;
use crate::tensors::{self, ManagedTensor};
use gapless_cuda::locks::Lock;
use gapless_cuda::sharing::{Attached, Imported};
use gapless_pool::{Behind, PageHandle};
use gapless_stats::folder::{self, Folder};
use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PREFIX: &str = "gapless-share-";
/// The most files that stay open for readers, if the process may open many more. Others are opened for each question.
const MOST_KEPT: usize = 4096;

/// Bytes that this process has mapped of others now, and bytes that it offers.
static ATTACHED: AtomicU64 = AtomicU64::new(0);
static OFFERED: AtomicU64 = AtomicU64::new(0);

/// Bytes of other processes' pages that this process has mapped, and bytes that it offers.
#[must_use]
pub(crate) fn figures() -> (u64, u64) {
    (ATTACHED.load(Ordering::Relaxed), OFFERED.load(Ordering::Relaxed))
}

// ---- the owner ----

/// The reason why nothing was shared, and the storage that it is about, if any.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) at: Option<usize>,
    pub(crate) why: String,
}

impl From<String> for Refused {
    fn from(why: String) -> Refused {
        Refused { at: None, why }
    }
}

/// Offers the storages at these addresses, with their sizes. The caller keeps them until [`unshare`].
///
/// # Errors
/// If a storage cannot be shared or the name is taken. Nothing is offered then.
pub(crate) fn share(
    device: i32,
    storages: &[(u64, u64)],
    text: &[u8],
    name: Option<&str>,
) -> Result<String, Refused> {
    if process::is_forked() {
        return Err(process::CardError::Forked.to_string().into());
    }
    let named = name.map(name_file).transpose()?;
    if let (Some(name), Some(file)) = (name, &named) {
        is_free(name, file)?;
    }
    let token = passing::listen()?;
    let card = admission::of(device).and_then(|card| card.uuid).map(|uuid| uuid.0).unwrap_or_default();
    let mut card_lock =
        cards::existing(device).ok_or_else(|| format!("nothing was allocated on cuda:{device} yet"))?;
    let Layout { pages, places } = laid_out(&card_lock, storages)?;
    let device = card_lock.pool.device_mut();
    passing::add_exporter(device.exporter());
    let mut kept = 0;
    let most = most_kept();
    let mut numbered = Vec::with_capacity(pages.len());
    for (page, size) in pages {
        let number = device.number_of(page);
        if kept < most && device.kept_file(page).map_err(super::not_exported)?.is_some() {
            kept += 1;
        }
        numbered.push((number, size));
    }
    drop(card_lock);
    let manifest = Manifest { card, pages: numbered, places, text: text.to_vec() };
    let number = offers::add(manifest.write());
    let handle = format!("{PREFIX}{}-{number}", digits(token));
    if let Some(file) = named
        && let Err(error) = write_whole(&file, &handle)
    {
        offers::remove(number);
        return Err(format!("{} cannot be written: {error}", file.display()).into());
    }
    OFFERED.fetch_add(manifest.total(), Ordering::Relaxed);
    Ok(handle)
}

/// Ends an offer of this process. Readers keep their mappings; the name is free.
///
/// # Errors
/// If this process has no such offer.
pub(crate) fn unshare(handle: &str) -> Result<(), String> {
    let (_, number) = parse(handle).ok_or_else(|| no_handle(handle))?;
    let total = offers::get(number).and_then(|bytes| Manifest::read(&bytes).ok()).map(|found| found.total());
    if !offers::remove(number) {
        return Err(format!("{handle} is not shared by this process"));
    }
    OFFERED.fetch_sub(total.unwrap_or(0), Ordering::Relaxed);
    if let Ok(folder) = Folder::make(&folder::candidates())
        && let Ok(entries) = std::fs::read_dir(folder.path())
    {
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_named = path.extension().is_some_and(|ending| ending == "share");
            if is_named && std::fs::read_to_string(&path).is_ok_and(|text| text.trim() == handle) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
    Ok(())
}

struct Layout {
    pages: Vec<(PageHandle, u64)>,
    places: Vec<Storage>,
}

/// The pages behind storages, each once and in the order of their addresses, and the place of each storage in them.
fn laid_out(card: &card::Card, storages: &[(u64, u64)]) -> Result<Layout, Refused> {
    let mut pieces = Vec::with_capacity(storages.len());
    for (at, &(addr, size)) in storages.iter().enumerate() {
        if size == 0 {
            // A tensor without elements has no memory.
            continue;
        }
        let refused = |why: &str| Refused { at: Some(at), why: why.to_owned() };
        if card.pool.is_asleep(addr) {
            return Err(refused("it sleeps; wake its region before it is shared"));
        }
        match card.pool.behind(addr) {
            Some(Behind::Pages { offset, pages }) => {
                let mapped: u64 = pages.iter().map(|page| page.1).sum();
                if offset + size > mapped {
                    return Err(refused("its storage is larger than what was allocated for it"));
                }
                pieces.push((addr - offset, offset, at, pages));
            }
            Some(Behind::Segment { .. }) => {
                return Err(refused(
                    "its memory came from a MemPool with an allocator of its own; allocate it outside of that pool",
                ));
            }
            None => {
                return Err(refused(
                    "its memory is not of the Gapless allocator, or does not begin an allocation; clone the tensor after gapless.enable()",
                ));
            }
        }
    }
    pieces.sort_by_key(|piece| (piece.0, std::cmp::Reverse(piece.3.len())));
    let mut layout =
        Layout { pages: Vec::new(), places: vec![Storage { offset: 0, size: 0 }; storages.len()] };
    // The addresses [run, end) are contiguous here, and begin at `base` in the reader's mapping.
    let (mut run, mut end, mut base, mut total) = (0, 0, 0, 0);
    for (start, offset, at, pages) in pieces {
        if start > end || layout.pages.is_empty() {
            (run, end, base) = (start, start, total);
        }
        layout.places[at] = Storage { offset: base + (start - run) + offset, size: storages[at].1 };
        let mut addr = start;
        for (page, size) in pages {
            if addr >= end {
                layout.pages.push((page, size));
                total += size;
                end = addr + size;
            }
            addr += size;
        }
    }
    Ok(layout)
}

/// Two thirds of the descriptors that this process may still open, at most [`MOST_KEPT`].
fn most_kept() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let limit = std::fs::read_to_string("/proc/self/limits").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("Max open files"))?.to_owned();
        line.split_whitespace().nth(3)?.parse::<usize>().ok()
    });
    limit.map_or(0, |limit| limit.saturating_sub(open) * 2 / 3).min(MOST_KEPT)
}

// ---- handles and names ----

fn digits(token: [u8; 16]) -> String {
    token.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(handle: &str) -> Option<([u8; 16], u32)> {
    let (token, number) = handle.strip_prefix(PREFIX)?.split_once('-')?;
    if token.len() != 32 || !token.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&token[2 * at..2 * at + 2], 16).ok()?;
    }
    Some((bytes, number.parse().ok()?))
}

fn no_handle(text: &str) -> String {
    format!("{text:?} is not a handle: gapless.share() returns them, and they begin with {PREFIX}")
}

/// True if `text` is a valid name: a part of a file's name, and not a handle.
fn is_name(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    (1..=64).contains(&text.len())
        && text.chars().all(fine)
        && !text.starts_with('.')
        && !text.starts_with(PREFIX)
}

fn name_file(name: &str) -> Result<PathBuf, String> {
    if !is_name(name) {
        return Err(format!("the name {name:?} is not 1 to 64 letters, digits, _ - or ."));
    }
    let folder = Folder::make(&folder::candidates())
        .map_err(|error| format!("{error}: chmod 700 it, or name another folder by {}", folder::VARIABLE))?;
    Ok(folder.path().join(format!("{name}.share")))
}

/// The token and number of a handle, or of a name's handle.
fn resolved(text: &str) -> Result<([u8; 16], u32), String> {
    if let Some(found) = parse(text) {
        return Ok(found);
    }
    if !is_name(text) {
        return Err(no_handle(text));
    }
    let file = name_file(text)?;
    let handle = std::fs::read_to_string(&file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("nobody shares {text:?}: start `gapless keep FILE --name {text}`, or check the name")
        }
        _ => format!("{} cannot be read: {error}", file.display()),
    })?;
    parse(handle.trim()).ok_or_else(|| format!("{} has no handle in it: remove it", file.display()))
}

fn is_free(name: &str, file: &PathBuf) -> Result<(), String> {
    let Ok(handle) = std::fs::read_to_string(file) else { return Ok(()) };
    let is_taken = parse(handle.trim()).is_some_and(|(token, number)| passing::ask(token, number).is_ok());
    if is_taken {
        return Err(format!(
            "another process shares {name:?} already: choose another name, or end that process"
        ));
    }
    Ok(())
}

fn write_whole(file: &PathBuf, text: &str) -> std::io::Result<()> {
    let part = file.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&part, text)?;
    std::fs::rename(&part, file).inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })
}

// ---- the reader ----

/// An offer of another process that was read but not yet mapped.
#[derive(Debug)]
pub(crate) struct Asked {
    device: i32,
    token: [u8; 16],
    manifest: Manifest,
}

impl Asked {
    /// The text that the owner's Python package wrote about the tensors.
    pub(crate) fn text(&self) -> &[u8] {
        &self.manifest.text
    }

    pub(crate) fn count(&self) -> usize {
        self.manifest.places.len()
    }

    pub(crate) fn device(&self) -> i32 {
        self.device
    }

    /// Address and size of each storage in a mapping at `base`.
    pub(crate) fn places(&self, base: u64) -> Vec<(u64, u64)> {
        self.manifest.places.iter().map(|place| (base + place.offset, place.size)).collect()
    }
}

/// Reads the offer of a handle or a name.
///
/// # Errors
/// If there is none, or if its process does not answer. The text says why.
pub(crate) fn ask(device: i32, handle: &str) -> Result<Asked, String> {
    if process::is_forked() {
        return Err(process::CardError::Forked.to_string());
    }
    let (token, number) = resolved(handle)?;
    let bytes = passing::ask(token, number)?;
    let manifest = Manifest::read(&bytes)
        .map_err(|error| format!("what the other process says of the memory is not understood: {error}"))?;
    Ok(Asked { device, token, manifest })
}

/// Pages of another process, mapped read-only.
#[derive(Debug)]
pub(crate) struct Mapping {
    device: i32,
    size: u64,
    addr: u64,
    /// The memory, then the value that reports its end: fields drop in this order.
    pages: Lock<Option<(Attached, Taken)>>,
}

impl Mapping {
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }
}

/// Maps an offer.
///
/// # Errors
/// If the card is another one, or if a page cannot be had. Nothing stays mapped then.
pub(crate) fn attach(asked: &Asked) -> Result<Mapping, String> {
    let Asked { device, token, ref manifest } = *asked;
    let importer = opening::with_card(device, |card| card.pool.device().importer())
        .map_err(|error| error.to_string())?;
    let own = admission::of(device).and_then(|card| card.uuid);
    if let Some(own) = own
        && own.0 != manifest.card
        && manifest.card != [0; 16]
    {
        return Err(format!(
            "the memory is on the card {}, and cuda:{device} here is {own}: name the device that is that card",
            gapless_cuda::Uuid(manifest.card)
        ));
    }
    let size = manifest.total();
    let mut pages = None;
    if size > 0 {
        let mut all = importer.begin(size).map_err(|error| error.to_string())?;
        let taken = passing::receive(token, &manifest.pages, |file, size| {
            all.add(Imported::File(file.as_raw_fd()), size).map_err(|error| error.to_string())
        })?;
        all.grant_to_read().map_err(|error| error.to_string())?;
        pages = Some((all, taken));
    }
    ATTACHED.fetch_add(size, Ordering::Relaxed);
    let addr = pages.as_ref().map_or(0, |(pages, _)| pages.addr());
    Ok(Mapping { device, size, addr, pages: Lock::with(pages, || None) })
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let pages = self.pages.get_mut().take();
        if process::is_forked() {
            // A forked child has no mappings of the card.
            std::mem::forget(pages);
            return;
        }
        ATTACHED.fetch_sub(self.size, Ordering::Relaxed);
        // Work that reads the memory may be queued, so this waits. If PyTorch has a capture open, the captured graph
        // may use the memory later, so it stays mapped for the rest of the process.
        if let Some(card) = cards::existing(self.device) {
            if card.routings.has_capture() {
                std::mem::forget(pages);
                return;
            }
            let meter = card.pool.device().meter();
            drop(card);
            if meter.wait_for_all().is_err() {
                std::mem::forget(pages);
                return;
            }
        }
        drop(pages);
    }
}

/// Offers that were read, until they are mapped or given up.
static ASKED: Lock<BTreeMap<i64, Asked>> = Lock::new(BTreeMap::new);

pub(crate) fn keep_asked(asked: Asked) -> i64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed) as i64 + 1;
    ASKED.lock().insert(number, asked);
    number
}

/// Looks at one of these offers.
pub(crate) fn with_asked<T>(number: i64, look: impl FnOnce(&Asked) -> T) -> Option<T> {
    ASKED.lock().get(&number).map(look)
}

pub(crate) fn take_asked(number: i64) -> Option<Asked> {
    ASKED.lock().remove(&number)
}

/// Maps an offer and forgets it here. A tensor of bytes for each storage; together they keep the mapping.
///
/// # Errors
/// If it was attached already, or cannot be mapped. Nothing is mapped then.
pub(crate) fn attach_asked(number: i64) -> Result<Vec<*mut ManagedTensor>, String> {
    let asked = take_asked(number).ok_or("it was attached already")?;
    let mapping = Arc::new(attach(&asked)?);
    let tensor = |(addr, size): (u64, u64)| {
        let owner: Arc<dyn Any + Send + Sync> = mapping.clone();
        tensors::bytes_at(addr, size, asked.device(), owner)
    };
    Ok(asked.places(mapping.addr()).into_iter().map(tensor).collect())
}

/// Copies bytes from the host to a card's address, and returns when they are there.
///
/// # Errors
/// If the card or the driver refuses.
pub(crate) fn upload(device: i32, addr: u64, bytes: &[u8]) -> Result<(), String> {
    let importer = opening::with_card(device, |card| card.pool.device().importer())
        .map_err(|error| error.to_string())?;
    importer.upload(addr, bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_read_as_they_are_written() {
        let token = *b"\x00\x01\xfe\xff0123456789ab";
        let handle = format!("{PREFIX}{}-17", digits(token));
        assert_eq!(parse(&handle), Some((token, 17)));
        for bad in
            ["", "x", PREFIX, &handle[..handle.len() - 3], &format!("{handle}0000000000"), "gapless-share-é"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert!(is_name("llama-8b_v1.2") && is_name("N"));
        for bad in ["", ".", "..", "a/b", "a b", &handle, &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
