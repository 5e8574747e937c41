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
        let mut decoder = FrameDecoder::new();
        // ruzstd limits the window from the second frame on: a window without a limit would hold all that it decodes.
        // An empty frame comes first.
        let empty = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0];
        let first = decoder.reset(&empty[..]);
        debug_assert!(first.is_ok(), "{first:?}");
        Frames { input: BufReader::with_capacity(1 << 16, input), decoder, is_open: false }
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

    /// The end of a frame: its checksum, if it has one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn folder() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/zstd")
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        Frames::new(bytes).read_to_end(&mut out).map(|_| out)
    }

    /// Files that zstd 1.5 wrote, by level, with checksums, in several frames and with frames that hold no data.
    fn written() -> Vec<(String, Vec<u8>)> {
        let files =
            std::fs::read_dir(folder()).expect("the folder").map(|entry| entry.expect("an entry").path());
        let files = files.filter(|path| path.extension().is_some_and(|end| end == "zst"));
        files
            .map(|path| {
                (path.file_stem().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap())
            })
            .collect()
    }

    #[test]
    fn what_zstd_wrote_reads_back() {
        let plain = std::fs::read(folder().join("plain.csv")).unwrap();
        let all = written();
        assert!(all.len() >= 7, "{} files", all.len());
        for (name, bytes) in all {
            assert_eq!(read(&bytes).unwrap_or_else(|error| panic!("{name}: {error}")), plain, "{name}");
            // Any reader's pieces: one byte at a time gives the same.
            let (mut frames, mut out, mut one) = (Frames::new(&bytes[..]), Vec::new(), [0]);
            while frames.read(&mut one).unwrap() == 1 {
                out.push(one[0]);
            }
            assert_eq!(out, plain, "{name}");
        }
        assert_eq!(read(&compress(&plain)).unwrap(), plain);
    }

    #[test]
    fn a_stream_that_is_cut_off_is_an_error_at_every_length() {
        for (name, bytes) in written() {
            for length in 1..bytes.len() {
                if let Ok(read) = read(&bytes[..length]) {
                    // The cut is between two frames, which is a shorter stream and no damage.
                    assert!(name.contains("frame"), "{name} cut to {length} gives {} bytes", read.len());
                }
            }
        }
    }

    #[test]
    fn a_flipped_bit_under_a_checksum_is_found() {
        let (_, bytes) = written().into_iter().find(|(name, _)| name == "level-3-checksum").unwrap();
        let plain = read(&bytes).unwrap();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1 << (at % 8);
            assert!(read(&other).map_or(true, |out| out == plain), "byte {at} changes the data unseen");
        }
    }

    #[test]
    fn a_window_above_the_limit_says_what_to_do() {
        // A frame with a window of 2^27 bytes and one empty block.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3, 1, 0, 0];
        let error = read(&frame).expect_err("it is refused");
        assert!(error.to_string().contains("128 MiB"), "{error}");
        assert!(error.to_string().contains("zstd -d"), "{error}");
    }
}
