//! Turns the wanted parts of tensors into jobs of at most [`JOB`] bytes of a file, in the order of the files.

use crate::catalogue::Catalogue;
use crate::error::{LoadError, Result};
use crate::file::PAGE;
use gapless_weights::packed::Stored;
use gapless_weights::stream::{Directory, StreamError};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes of a file that one job reads. The longest chunk that Gapless writes fits. Copies of half this length to a card
/// leave a tenth of the wire unused.
pub const JOB: usize = 4 << 20;

/// Bytes of a tensor, and the address for them, on the host or on a card.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The index of the tensor in the catalogue.
    pub tensor: u64,
    pub begin: u64,
    pub end: u64,
    pub target: u64,
}

/// The unit of work of a thread.
#[derive(Debug)]
pub struct Job {
    pub shard: usize,
    /// The index of the tensor in the shard's header.
    pub index: usize,
    /// The offset of the bytes in the file.
    pub at: u64,
    pub length: usize,
    pub work: Work,
}

#[derive(Debug)]
pub enum Work {
    /// Bytes that are copied to `target`. `sum`, if they can be checked: the tensor's checksum, and the number of this
    /// part.
    Plain { target: u64, sum: Option<(Arc<Sum>, usize)> },
    /// Chunks of a stream, of which the bytes `wanted` of the tensor go to `target`.
    Chunks { directory: Arc<Directory>, chunks: Range<usize>, wanted: Range<u64>, target: u64 },
}

/// A checksum over parts that several threads read. Each part waits for the one before it.
pub struct Sum {
    wanted: u64,
    parts: usize,
    bytes: u64,
    state: Mutex<(usize, Xxh3Default)>,
    turn: Condvar,
}

impl std::fmt::Debug for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sum")
            .field("wanted", &self.wanted)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl Sum {
    /// Adds bytes of a part in its turn; `is_last` if they are the part's last. An error if the checksum differs after
    /// the last part. False if `is_over` became true.
    pub fn add(
        &self,
        part: usize,
        bytes: &[u8],
        is_last: bool,
        is_over: impl Fn() -> bool,
    ) -> std::result::Result<bool, StreamError> {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Jobs are taken in order, so another thread has the part before this one.
        while state.0 != part {
            if is_over() {
                return Ok(false);
            }
            let tick = std::time::Duration::from_millis(5);
            state = self.turn.wait_timeout(state, tick).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        state.1.update(bytes);
        if !is_last {
            return Ok(true);
        }
        state.0 += 1;
        self.turn.notify_all();
        if state.0 == self.parts && state.1.digest() != self.wanted {
            return Err(StreamError::Checksum { chunk: 0, bytes: 0..self.bytes });
        }
        Ok(true)
    }
}

/// The jobs of all pieces, and the bytes of tensors that they write. Jobs that copy bytes as they are have at most
/// `piece_bytes` of them.
pub fn jobs(catalogue: &Catalogue, pieces: &[Piece], piece_bytes: usize) -> Result<(Vec<Job>, u64)> {
    let mut order: Vec<(&Piece, crate::catalogue::Place)> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let place = usize::try_from(piece.tensor).ok().and_then(|tensor| catalogue.tensors.get(tensor));
        let Some(place) = place else {
            return Err(LoadError::Argument(format!("there is no tensor {}", piece.tensor)));
        };
        let bytes = catalogue.tensor(*place).bytes();
        if piece.begin > piece.end || piece.end > bytes {
            return Err(LoadError::Argument(format!(
                "bytes {} to {} are not in tensor {:?}, which has {bytes}",
                piece.begin,
                piece.end,
                catalogue.tensor(*place).name
            )));
        }
        order.push((piece, *place));
    }
    let start =
        |place: &crate::catalogue::Place| catalogue.shards[place.shard].reader.place(place.index).0.start;
    order.sort_by_key(|(piece, place)| (place.shard, start(place), piece.begin));
    let (mut jobs, mut total) = (Vec::new(), 0);
    for (piece, place) in order {
        let reader = &catalogue.shards[place.shard].reader;
        let (range, stored) = reader.place(place.index);
        total += piece.end - piece.begin;
        if piece.begin == piece.end {
            continue;
        }
        if stored == Some(Stored::Stream) {
            let directory = Arc::new(reader.directory(place.index)?);
            streams(&mut jobs, place, range.start, &directory, piece);
            continue;
        }
        let length = piece.end - piece.begin;
        // Cuts are at the beginning of pages of the file, so only a piece's own ends lie within a page.
        let step = (piece_bytes / PAGE).max(1) as u64 * PAGE as u64;
        let at = range.start + piece.begin;
        let before = at % PAGE as u64;
        let parts = (before + length).div_ceil(step) as usize;
        let whole = length == catalogue.tensor(place).bytes();
        let sum = match stored {
            Some(Stored::Plain(wanted)) if whole => Some(Arc::new(Sum {
                wanted,
                parts,
                bytes: length,
                state: Mutex::new((0, Xxh3Default::new())),
                turn: Condvar::new(),
            })),
            _ => None,
        };
        for part in 0..parts {
            let from = (part as u64 * step).saturating_sub(before);
            let to = ((part as u64 + 1) * step - before).min(length);
            jobs.push(Job {
                shard: place.shard,
                index: place.index,
                at: at + from,
                length: (to - from) as usize,
                work: Work::Plain { target: piece.target + from, sum: sum.clone().map(|sum| (sum, part)) },
            });
        }
    }
    Ok((jobs, total))
}

/// The chunks of one piece, as many in a job as fit. A chunk longer than a job has a job of its own.
fn streams(
    jobs: &mut Vec<Job>,
    place: crate::catalogue::Place,
    start: u64,
    directory: &Arc<Directory>,
    piece: &Piece,
) {
    let wanted = piece.begin..piece.end;
    let all = directory.chunks(&wanted);
    let mut first = all.start;
    while first < all.end {
        let (mut last, mut length) = (first, 0);
        while last < all.end && (last == first || length + directory.entries[last].length <= JOB) {
            length += directory.entries[last].length;
            last += 1;
        }
        jobs.push(Job {
            shard: place.shard,
            index: place.index,
            at: start + directory.entries[first].start,
            length,
            work: Work::Chunks {
                directory: Arc::clone(directory),
                chunks: first..last,
                wanted: wanted.clone(),
                target: piece.target,
            },
        });
        first = last;
    }
}
