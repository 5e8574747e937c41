//! The frames of a zstd stream, one after the other, with their checksums compared.
//!
//! The decoder is ruzstd, which is Rust: zstd's own library takes a C compiler and half a minute to build. It refuses
//! windows above 100 MiB, which only `zstd --long=27` and `--ultra -22` make of streams of that length.

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, BufReader, Read};

/// A stream of zstd frames as the bytes inside.
pub struct Frames<R: Read> {
    input: BufReader<R>,
    decoder: FrameDecoder,
    /// The decoder is inside a frame.
    is_open: bool,
}

impl<R: Read> std::fmt::Debug for Frames<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames").field("is_open", &self.is_open).finish_non_exhaustive()
    }
}

impl<R: Read> Frames<R> {
    pub fn new(input: R) -> Frames<R> {
        Frames {
            input: BufReader::with_capacity(1 << 16, input),
            decoder: FrameDecoder::new(),
            is_open: false,
        }
    }

    /// Begins the next frame, behind those that hold no data. False: the stream ends.
    fn open(&mut self) -> io::Result<bool> {
        loop {
            if self.input.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.input) {
                Ok(()) => {
                    self.is_open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped = io::copy(&mut (&mut self.input).take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(damaged("a frame without data is cut off"));
                    }
                }
                Err(FrameDecoderError::WindowSizeTooBig { requested }) => {
                    return Err(damaged(&format!(
                        "the window of {} MiB is larger than 100 MiB: decompress it first (zstd -d --long=31)",
                        requested >> 20
                    )));
                }
                Err(error) => return Err(damaged(&error.to_string())),
            }
        }
    }

    /// The end of a frame: its checksum, where it has one.
    fn close(&mut self) -> io::Result<()> {
        self.is_open = false;
        let (stored, found) = (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
        if stored.is_some() && stored != found {
            return Err(damaged("the checksum of a frame differs from its data"));
        }
        Ok(())
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the zstd data is damaged or cut off: {what}"))
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_open && !self.open()? {
                return Ok(0);
            }
            while self.decoder.can_collect() < out.len() && !self.decoder.is_finished() {
                let missing = out.len() - self.decoder.can_collect();
                self.decoder
                    .decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBytes(missing))
                    .map_err(|error| damaged(&error.to_string()))?;
            }
            let read = self.decoder.read(out)?;
            if self.decoder.is_finished() && self.decoder.can_collect() == 0 {
                self.close()?;
            }
            if read > 0 {
                return Ok(read);
            }
        }
    }
}

/// One frame with `bytes` in it.
#[must_use]
pub fn compress(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}
