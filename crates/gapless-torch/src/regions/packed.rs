//! The bytes of a sleeping region, compressed, in ordinary host memory.
//!
//! The codec is not part of this library, which lives in other people's processes. Python passes two functions of the
//! library of weights ([`set_codec`]), which is loaded only if a program asks for it. A block that does not become
//! smaller costs a thousandth more. Each stream has checksums of its own.

use crate::background;
use gapless_cuda::locks::SetOnce;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of one call of the codec: a piece has enough blocks for all threads.
const BLOCK: usize = 2 << 20;
/// The most bytes that a stream may have beyond its values.
const OVERHEAD: usize = BLOCK / 64 + (64 << 10);
const MOST_THREADS: usize = 16;

/// Compresses `length` bytes to `out`, which has `room`. Returns the stream's bytes; 0 on error. Any thread may call.
pub(crate) type Encode = unsafe extern "C" fn(*const u8, usize, *mut u8, usize) -> usize;
/// Restores `length` bytes at `out` from a stream. 0 if all of them are restored. Any thread may call.
pub(crate) type Decode = unsafe extern "C" fn(*const u8, usize, *mut u8, usize) -> c_int;

#[derive(Clone, Copy, Debug)]
struct Codec {
    encode: Encode,
    decode: Decode,
}

static CODEC: SetOnce<Codec> = SetOnce::new();

/// Sets the codec of regions. Only the first call counts.
///
/// # Safety
/// Both functions keep to their types' descriptions as long as the process lives, and do not unwind.
pub(crate) unsafe fn set_codec(encode: Encode, decode: Decode) {
    let _ = CODEC.set(Codec { encode, decode });
}

#[derive(Debug)]
struct Block {
    at: u64,
    size: usize,
    stream: Box<[u8]>,
}

/// Invariant: blocks are in order of `at`, and none overlaps its neighbour.
#[derive(Debug)]
pub(super) struct Packed {
    codec: Codec,
    blocks: Vec<Block>,
}

/// A part of a block, and the place for its bytes.
struct Job<'a> {
    block: &'a Block,
    skip: usize,
    out: &'a mut [u8],
}

impl Packed {
    /// # Errors
    /// If no codec was set.
    pub(super) fn new() -> Result<Packed, String> {
        let codec = CODEC.get().ok_or("no codec was handed over: open the region with gapless.region")?;
        Ok(Packed { codec: *codec, blocks: Vec::new() })
    }

    /// The bytes of host memory that its streams take.
    pub(super) fn host_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.stream.len() as u64).sum()
    }

    /// Keeps bytes of the store from `at` on, which follow those that are there.
    ///
    /// # Errors
    /// If they cannot be compressed.
    pub(super) fn write(&mut self, bytes: &[u8], at: u64) -> Result<(), String> {
        let parts: Vec<&[u8]> = bytes.chunks(BLOCK).collect();
        let codec = self.codec;
        let encode = |part: &&[u8]| {
            let mut room = vec![0; part.len() + OVERHEAD];
            // SAFETY: pointers and lengths are those of two slices, and the codec keeps to its types (`set_codec`).
            let size = unsafe { (codec.encode)(part.as_ptr(), part.len(), room.as_mut_ptr(), room.len()) };
            (0 < size && size <= room.len()).then(|| room[..size].into())
        };
        let streams: Option<Vec<Box<[u8]>>> = each(&parts, encode).into_iter().collect();
        let streams =
            streams.ok_or("the bytes cannot be compressed; keep=\"host\" keeps them as they are")?;
        let mut at = at;
        for (part, stream) in parts.iter().zip(streams) {
            self.blocks.push(Block { at, size: part.len(), stream });
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Reads kept bytes from `at` on.
    ///
    /// # Errors
    /// If a stream is damaged, or if bytes were never written.
    pub(super) fn read(&self, into: &mut [u8], at: u64) -> Result<(), String> {
        let mut jobs = Vec::new();
        let (mut at, mut left) = (at, into);
        while !left.is_empty() {
            let found = self.blocks.partition_point(|block| block.at <= at).checked_sub(1);
            let block = found.map(|found| &self.blocks[found]);
            let inside = block.filter(|block| at < block.at + block.size as u64);
            let block = inside.ok_or_else(|| format!("byte {at} was never kept; please report it"))?;
            let skip = (at - block.at) as usize;
            let (out, rest) = left.split_at_mut((block.size - skip).min(left.len()));
            at += out.len() as u64;
            left = rest;
            jobs.push(std::sync::Mutex::new(Job { block, skip, out }));
        }
        let codec = self.codec;
        let decode = |job: &std::sync::Mutex<Job<'_>>| {
            let mut job = job.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let Job { block, skip, out } = &mut *job;
            decode_part(codec, block, *skip, out)
        };
        if each(&jobs, decode).into_iter().all(|whole| whole) {
            Ok(())
        } else {
            Err("the bytes that were kept on the host have changed since the region fell asleep".to_owned())
        }
    }
}

fn decode_part(codec: Codec, block: &Block, skip: usize, out: &mut [u8]) -> bool {
    let decode = |out: &mut [u8]| {
        // SAFETY: pointers and lengths are those of two slices; `set_codec` demands functions that keep to their types.
        let code =
            unsafe { (codec.decode)(block.stream.as_ptr(), block.stream.len(), out.as_mut_ptr(), out.len()) };
        code == 0
    };
    if out.len() == block.size {
        return decode(out);
    }
    let mut whole = vec![0; block.size];
    let is_whole = decode(&mut whole);
    out.copy_from_slice(&whole[skip..skip + out.len()]);
    is_whole
}

/// Does `work` for each item, on several threads if there are several items. Returns the results in order.
fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads =
        std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(items.len());
    if threads < 2 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let some = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            match items.get(at) {
                Some(item) => done.push((at, work(item))),
                None => return done,
            }
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        // If a thread cannot be started, the others do its part.
        let start = || std::thread::Builder::new().spawn_scoped(scope, some).ok();
        let others: Vec<_> = background::without_signals(|| (1..threads).filter_map(|_| start()).collect());
        let mut done = some();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A codec that writes each byte's complement behind a byte of its own.
    unsafe extern "C" fn encode(values: *const u8, length: usize, out: *mut u8, room: usize) -> usize {
        // SAFETY: `write` passes the pointers and lengths of two slices.
        let (values, out) = unsafe {
            (std::slice::from_raw_parts(values, length), std::slice::from_raw_parts_mut(out, room))
        };
        out[0] = 7;
        out[1..=length].copy_from_slice(values);
        out[1..=length].iter_mut().for_each(|byte| *byte = !*byte);
        length + 1
    }

    unsafe extern "C" fn decode(stream: *const u8, bytes: usize, out: *mut u8, length: usize) -> c_int {
        // SAFETY: `read` passes the pointers and lengths of two slices.
        let (stream, out) = unsafe {
            (std::slice::from_raw_parts(stream, bytes), std::slice::from_raw_parts_mut(out, length))
        };
        if bytes != length + 1 || stream[0] != 7 {
            return 1;
        }
        out.iter_mut().zip(&stream[1..]).for_each(|(out, byte)| *out = !byte);
        0
    }

    #[test]
    fn any_part_of_what_was_written_is_read() {
        // SAFETY: `encode` and `decode` above keep to their types and do not unwind.
        unsafe { set_codec(encode, decode) };
        let size = 3 * BLOCK + 777;
        let bytes: Vec<u8> = (0..size).map(|at| (at * 31 + at / 1000) as u8).collect();
        let mut packed = Packed::new().expect("a codec");
        // In two parts, and not from 0 on.
        packed.write(&bytes[..BLOCK + 5], 100).expect("written");
        packed.write(&bytes[BLOCK + 5..], 100 + BLOCK as u64 + 5).expect("written");
        assert_eq!(packed.host_bytes(), (size + packed.blocks.len()) as u64);
        for (from, length) in
            [(0, size), (0, 1), (BLOCK - 3, 20), (BLOCK + 4, 2 * BLOCK), (size - 1, 1), (5, 0)]
        {
            let mut read = vec![0; length];
            packed.read(&mut read, 100 + from as u64).expect("read");
            assert_eq!(read, bytes[from..from + length], "{length} from {from} on");
        }
        assert!(packed.read(&mut [0; 2], 99).is_err() && packed.read(&mut [0; 2], 99 + size as u64).is_err());
        packed.blocks[1].stream[0] = 8;
        assert!(packed.read(&mut vec![0; size], 100).is_err(), "a damaged stream");
    }
}
