//! The store of a sleeping region's bytes: pinned host memory, compressed ordinary memory, a file, or nothing.
//!
//! The ranges of a region lie behind each other in a store. Its host memory is cut into chunks, which come from the
//! process's pinned pool and stay pinned for the next sleep.

use super::Keep;
use super::files::Files;
use super::packed::Packed;
use crate::offload;
use gapless_cuda::Copies;
use gapless_pool::DeviceError;

/// Bytes of a chunk of host memory, and of a piece that passes through it to a file or to the codec.
const CHUNK: u64 = 1 << 30;
const PIECE: u64 = 64 << 20;

/// A range on the card, and its place in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    addr: u64,
    size: u64,
    at: u64,
}

/// One copy: card, store and size. `at` counts from the beginning of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    addr: u64,
    at: u64,
    size: u64,
}

#[derive(Debug)]
enum Place {
    Nowhere,
    /// Addresses of chunks, each of [`CHUNK`] bytes except the last.
    Host(Vec<u64>),
    Files(Files),
    Packed(Packed),
}

/// The sleeping memory of a region on one card.
#[derive(Debug)]
pub(crate) struct Store {
    ranges: Vec<Range>,
    total: u64,
    place: Place,
    /// The sum of all bytes, if they are to be verified.
    sum: Option<u64>,
    /// Ranges that were never copied out and whose pages the card still has.
    on_card: Vec<(u64, u64)>,
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Place::Host(chunks) = &self.place {
            for &chunk in chunks {
                offload::free(chunk);
            }
        }
    }
}

/// Chunks of host memory for `total` bytes.
fn chunks(device: i32, total: u64) -> Result<Vec<u64>, String> {
    let mut chunks = Vec::new();
    let mut left = total;
    while left > 0 {
        let size = left.min(CHUNK);
        match offload::alloc(device, size, 0) {
            Ok(at) => chunks.push(at),
            Err(error) => {
                for chunk in chunks {
                    offload::free(chunk);
                }
                return Err(error);
            }
        }
        left -= size;
    }
    Ok(chunks)
}

/// Pins host memory for `bytes` bytes of regions that will sleep.
///
/// # Errors
/// If the host has less.
pub(crate) fn prepare(device: i32, bytes: u64) -> Result<(), String> {
    for chunk in chunks(device, bytes)? {
        offload::free(chunk);
    }
    Ok(())
}

impl Store {
    /// An empty store for these ranges of a card.
    ///
    /// # Errors
    /// If the host has no room.
    pub(super) fn new(device: i32, kept: &[(u64, u64)], keep: Keep) -> Result<Store, String> {
        let mut total = 0;
        let mut ranges = Vec::with_capacity(kept.len());
        for &(addr, size) in kept {
            ranges.push(Range { addr, size, at: total });
            total += size;
        }
        let place = match keep {
            Keep::Discard => Place::Nowhere,
            Keep::Host => Place::Host(chunks(device, total)?),
            Keep::Disk => Place::Files(Files::new(ranges.iter().map(|range| range.at))?),
            Keep::Compressed => Place::Packed(Packed::new()?),
        };
        Ok(Store { ranges, total, place, sum: None, on_card: Vec::new() })
    }

    /// The same host memory for these ranges, each at its former place. `None` if one was not kept before.
    pub(super) fn again(mut self, kept: &[(u64, u64)]) -> Option<Store> {
        let place = |&(addr, size): &(u64, u64)| {
            let at = self.range_of(addr, size)?;
            Some(Range { addr, size, at })
        };
        let ranges = kept.iter().map(place).collect::<Option<Vec<Range>>>()?;
        self.ranges = ranges;
        self.sum = None;
        Some(self)
    }

    /// The place of a part of a range in the store.
    fn range_of(&self, addr: u64, size: u64) -> Option<u64> {
        let found = self.ranges.partition_point(|range| range.addr <= addr).checked_sub(1)?;
        let range = self.ranges[found];
        (addr + size <= range.addr + range.size).then(|| range.at + (addr - range.addr))
    }

    /// Number of kept bytes.
    pub(super) fn total(&self) -> u64 {
        self.ranges.iter().map(|range| range.size).sum()
    }

    /// True if its bytes can stay on the host after a waking.
    pub(super) fn is_on_host(&self) -> bool {
        matches!(self.place, Place::Host(_))
    }

    /// The place where the host has the kept bytes of `[addr, addr + size)` in one piece; `None` if there is none.
    pub(super) fn address_of(&self, addr: u64, size: u64) -> Option<u64> {
        let (Place::Host(chunks), at) = (&self.place, self.range_of(addr, size)?) else { return None };
        let is_one = at / CHUNK == (at + size.max(1) - 1) / CHUNK;
        is_one.then(|| chunks[(at / CHUNK) as usize] + at % CHUNK)
    }

    pub(super) fn host_bytes(&self) -> u64 {
        match &self.place {
            Place::Host(_) => self.total,
            Place::Packed(packed) => packed.host_bytes(),
            Place::Nowhere | Place::Files(_) => 0,
        }
    }

    /// True if copies need no host thread: all of them are queued at once.
    pub(super) fn is_queued(&self) -> bool {
        matches!(self.place, Place::Nowhere | Place::Host(_))
    }

    /// The copies for wanted ranges, cut at multiples of `most` bytes in the store.
    fn pieces(&self, wanted: &[(u64, u64)], most: u64) -> Result<Vec<Piece>, String> {
        let mut pieces = Vec::new();
        for &(addr, size) in wanted {
            let Some(mut at) = self.range_of(addr, size) else {
                return Err(format!("{size} bytes at {addr:#x} were never kept; please report it"));
            };
            let (mut addr, mut left) = (addr, size);
            while left > 0 {
                let bytes = left.min(most - at % most);
                pieces.push(Piece { addr, at, size: bytes });
                addr += bytes;
                at += bytes;
                left -= bytes;
            }
        }
        Ok(pieces)
    }

    /// All kept ranges, as address and size on the card.
    pub(super) fn all(&self) -> Vec<(u64, u64)> {
        self.ranges.iter().map(|range| (range.addr, range.size)).collect()
    }

    /// Begins to copy everything out. The bytes are there when [`Store::filled`] has returned.
    ///
    /// # Errors
    /// If a copy fails.
    pub(super) fn fill(&mut self, device: i32, copies: &Copies) -> Result<(), String> {
        match &self.place {
            Place::Nowhere => return Ok(()),
            Place::Host(_) => return self.fill_part(copies, &self.all()),
            Place::Files(_) | Place::Packed(_) => {}
        }
        let pieces = self.pieces(&self.all(), PIECE)?;
        // The next piece is copied while this one is written.
        let staging = [Staging::new(device)?, Staging::new(device)?];
        let begin = |turn: usize| {
            let Some(piece) = pieces.get(turn) else { return Ok(()) };
            // SAFETY: the staging memory has room for a piece, and nothing else uses it until the copy was waited for.
            unsafe { copies.out(staging[turn % 2].at, piece.addr, piece.size) }.map_err(failed)
        };
        let mut written = begin(0);
        for (turn, piece) in pieces.iter().enumerate() {
            written = written.and_then(|()| {
                copies.wait_out().map_err(failed)?;
                begin(turn + 1)?;
                self.write(staging[turn % 2].bytes(piece.size), piece.at)
            });
        }
        // Also after a failure: a queued copy still writes to the staging memory.
        let waited = copies.wait_out().map_err(failed);
        written.and(waited)
    }

    /// Writes bytes of the store from `at` on, which follow those that are there.
    fn write(&mut self, bytes: &[u8], at: u64) -> Result<(), String> {
        match &mut self.place {
            Place::Nowhere | Place::Host(_) => Ok(()),
            Place::Files(files) => files.write(bytes, at),
            Place::Packed(packed) => packed.write(bytes, at),
        }
    }

    /// Begins to copy parts out to the host's chunks. Does nothing if the bytes are kept elsewhere or nowhere.
    ///
    /// # Errors
    /// If a copy fails.
    pub(super) fn fill_part(&self, copies: &Copies, parts: &[(u64, u64)]) -> Result<(), String> {
        let Place::Host(chunks) = &self.place else { return Ok(()) };
        for Piece { addr, at, size } in self.pieces(parts, CHUNK)? {
            let to = chunks[(at / CHUNK) as usize] + at % CHUNK;
            // SAFETY: the chunk belongs to this store, is pinned and has room. The range stays mapped while the region
            // falls asleep. The copies are waited for before either ends.
            unsafe { copies.out(to, addr, size) }.map_err(failed)?;
        }
        Ok(())
    }

    /// Begins to copy parts back from the host's chunks. Does nothing if the bytes are kept elsewhere or nowhere.
    ///
    /// # Errors
    /// If a copy fails.
    pub(super) fn empty_part(&self, copies: &Copies, parts: &[(u64, u64)]) -> Result<(), String> {
        let Place::Host(chunks) = &self.place else { return Ok(()) };
        for Piece { addr, at, size } in self.pieces(parts, CHUNK)? {
            let from = chunks[(at / CHUNK) as usize] + at % CHUNK;
            // SAFETY: the chunk belongs to this store and has these bytes. The range is mapped while the region wakes.
            // The copies are waited for before either ends.
            unsafe { copies.back(addr, from, size) }.map_err(failed)?;
        }
        Ok(())
    }

    /// The kept parts of `[addr, addr + size)`.
    pub(super) fn within(&self, addr: u64, size: u64) -> Vec<(u64, u64)> {
        overlaps(&self.all(), &[(addr, size)])
    }

    /// Notes ranges that were not copied out, because the card still has them.
    pub(super) fn leave_on_card(&mut self, ranges: Vec<(u64, u64)>) {
        self.on_card = ranges;
    }

    /// Waits for the copies of [`Store::fill`], and sums the bytes if they will be verified.
    ///
    /// # Errors
    /// If a copy failed.
    pub(super) fn filled(&mut self, copies: &Copies, verify: bool) -> Result<(), String> {
        copies.wait_out().map_err(failed)?;
        self.sum = if verify { self.sum_of_kept()? } else { None };
        Ok(())
    }

    /// Compares the kept bytes with their sum, if there is one.
    ///
    /// # Errors
    /// If they have changed.
    pub(super) fn verify_kept(&self) -> Result<(), String> {
        match self.sum {
            Some(before) if self.sum_of_kept()? != Some(before) => {
                Err("the bytes that were kept on the host have changed since the region fell asleep"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Begins to copy these ranges back. They are there when [`Store::emptied`] has returned.
    ///
    /// # Errors
    /// If a copy fails, or if the bytes have changed.
    pub(super) fn empty(&self, device: i32, copies: &Copies, wanted: &[(u64, u64)]) -> Result<(), String> {
        self.verify_kept()?;
        let wanted = &self.copied(wanted)[..];
        match &self.place {
            Place::Nowhere => return Ok(()),
            Place::Host(_) => return self.empty_part(copies, wanted),
            Place::Files(_) | Place::Packed(_) => {}
        }
        // The next piece is read while this one is copied.
        let staging = [Staging::new(device)?, Staging::new(device)?];
        let mut copied = Ok(());
        for (turn, Piece { addr, at, size }) in self.pieces(wanted, PIECE)?.into_iter().enumerate() {
            let staging = &staging[turn % 2];
            copied = copied.and_then(|()| {
                self.read(staging.bytes_mut(size), at)?;
                copies.wait_back().map_err(failed)?;
                // SAFETY: the range is mapped while the region wakes. The staging memory has the piece, and nothing
                // else uses it until the copy was waited for.
                unsafe { copies.back(addr, staging.at, size) }.map_err(failed)
            });
        }
        // Also after a failure: a queued copy still reads the staging memory.
        let waited = copies.wait_back().map_err(failed);
        copied.and(waited)
    }

    /// Waits for the copies of [`Store::empty`]. If the bytes are to be verified, compares the card's with those kept.
    ///
    /// # Errors
    /// If a copy failed, or if a byte differs.
    pub(super) fn emptied(&self, device: i32, copies: &Copies, wanted: &[(u64, u64)]) -> Result<(), String> {
        copies.wait_back().map_err(failed)?;
        if self.sum.is_none() || matches!(self.place, Place::Nowhere) {
            return Ok(());
        }
        let (card, kept) = (Staging::new(device)?, Staging::new(device)?);
        for Piece { addr, at, size } in self.pieces(&self.copied(wanted), PIECE)? {
            // SAFETY: the staging memory has room and nothing else uses it. The call below waits for the copy.
            unsafe { copies.out(card.at, addr, size) }.map_err(failed)?;
            copies.wait_out().map_err(failed)?;
            self.read(kept.bytes_mut(size), at)?;
            if card.bytes(size) != kept.bytes(size) {
                return Err(format!(
                    "the bytes at {addr:#x} differ from those that were kept, after they were copied back"
                ));
            }
        }
        Ok(())
    }

    /// The parts of these ranges that were copied out.
    fn copied(&self, wanted: &[(u64, u64)]) -> Vec<(u64, u64)> {
        without(wanted, &self.on_card)
    }

    /// Copies the kept bytes of `[addr, addr + into.len())` to `into`. False if they are not kept here.
    pub(super) fn read_at(&self, addr: u64, into: &mut [u8]) -> Result<bool, String> {
        let size = into.len() as u64;
        match self.range_of(addr, size) {
            Some(at)
                if !matches!(self.place, Place::Nowhere)
                    && overlaps(&self.on_card, &[(addr, size)]).is_empty() =>
            {
                self.read(into, at)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Reads kept bytes from `at` on.
    fn read(&self, into: &mut [u8], at: u64) -> Result<(), String> {
        match &self.place {
            Place::Nowhere => {}
            Place::Host(chunks) => {
                let mut done = 0;
                while done < into.len() {
                    let at = at + done as u64;
                    let size = ((CHUNK - at % CHUNK) as usize).min(into.len() - done);
                    let from = (chunks[(at / CHUNK) as usize] + at % CHUNK) as *const u8;
                    // SAFETY: within a chunk of this store; no copy writes to it now.
                    into[done..done + size]
                        .copy_from_slice(unsafe { std::slice::from_raw_parts(from, size) });
                    done += size;
                }
            }
            Place::Files(files) => files.read(into, at)?,
            Place::Packed(packed) => packed.read(into, at)?,
        }
        Ok(())
    }

    /// A sum over all kept bytes; `None` if none are kept.
    fn sum_of_kept(&self) -> Result<Option<u64>, String> {
        if matches!(self.place, Place::Nowhere) {
            return Ok(None);
        }
        let mut buffer = vec![0; PIECE.min(self.total) as usize];
        let (mut at, mut sum) = (0, 0x9e37_79b9_7f4a_7c15_u64);
        while at < self.total {
            let size = (self.total - at).min(PIECE) as usize;
            self.read(&mut buffer[..size], at)?;
            for word in buffer[..size].chunks(8) {
                let mut bytes = [0; 8];
                bytes[..word.len()].copy_from_slice(word);
                sum = (sum ^ u64::from_le_bytes(bytes)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31);
            }
            at += size as u64;
        }
        Ok(Some(sum))
    }
}

/// Pinned memory through which pieces pass to a file or to the codec.
struct Staging {
    at: u64,
}

impl Staging {
    fn new(device: i32) -> Result<Staging, String> {
        offload::alloc(device, PIECE, 0).map(|at| Staging { at })
    }

    fn bytes(&self, size: u64) -> &[u8] {
        // SAFETY: PIECE bytes of pinned memory that this value owns. No copy runs when its bytes are read.
        unsafe { std::slice::from_raw_parts(self.at as *const u8, size.min(PIECE) as usize) }
    }

    #[allow(clippy::mut_from_ref, reason = "the memory is not part of the struct")]
    fn bytes_mut(&self, size: u64) -> &mut [u8] {
        // SAFETY: PIECE bytes of pinned memory that this value owns. Each caller drops its slice before it asks for
        // another, and no copy runs meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.at as *mut u8, size.min(PIECE) as usize) }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        offload::free(self.at);
    }
}

fn failed(error: DeviceError) -> String {
    match error {
        DeviceError::Driver(code) => format!("a copy between card and host failed (CUDA error {code})"),
        other => format!("a copy between card and host failed ({other:?})"),
    }
}

/// The parts of `ranges` that lie in one of `others`. Both are in order of address, and none overlaps its neighbour.
fn overlaps(ranges: &[(u64, u64)], others: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for &(addr, size) in ranges {
        for &(other, bytes) in others {
            let (start, end) = (addr.max(other), (addr + size).min(other + bytes));
            if start < end {
                found.push((start, end - start));
            }
        }
    }
    found
}

/// The parts of `ranges` that lie in none of `others`.
fn without(ranges: &[(u64, u64)], others: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut left = ranges.to_vec();
    for &(other, bytes) in others {
        left = left
            .into_iter()
            .flat_map(|(addr, size)| {
                let end = addr + size;
                let before = (addr, other.clamp(addr, end) - addr);
                let behind = ((other + bytes).clamp(addr, end), end - (other + bytes).clamp(addr, end));
                let is_apart = other >= end || other + bytes <= addr;
                if is_apart { vec![(addr, size)] } else { vec![before, behind] }
            })
            .filter(|(_, size)| *size > 0)
            .collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_ranges() {
        let ranges = [(10, 10), (30, 5)];
        assert_eq!(overlaps(&ranges, &[(0, 12), (15, 17)]), [(10, 2), (15, 5), (30, 2)]);
        assert_eq!(without(&ranges, &[(0, 12), (15, 17)]), [(12, 3), (32, 3)]);
        assert_eq!(without(&ranges, &[]), ranges);
        assert_eq!(without(&ranges, &[(0, 99)]), []);
    }
}
