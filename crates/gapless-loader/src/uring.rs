//! Direct reads of one thread by io_uring: a range is read in parts, all under way at the same time.

#![cfg(target_os = "linux")]

use crate::residency::PAGE;
use io_uring::{IoUring, Probe, opcode, types};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Bytes of a part: long enough for few requests, short enough that a job has several.
const PART: usize = 1 << 20;
const ENTRIES: u32 = 64;

/// The queue of one thread.
pub struct Uring(IoUring);

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Uring")
    }
}

/// A part of a range: its end, and how far it is read.
struct Part {
    done: usize,
    end: usize,
    is_over: bool,
}

impl Uring {
    /// `None` if the kernel does not have io_uring, or does not allow it.
    pub fn new() -> Option<Uring> {
        let ring = IoUring::new(ENTRIES).ok()?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).ok()?;
        (probe.is_supported(opcode::Read::CODE) && ring.params().is_feature_ext_arg()).then_some(Uring(ring))
    }

    /// Reads a range of the file from `at`. Returns the number of bytes from its beginning, which is less than the
    /// range if the file ends before. Returns only when the kernel uses no part of `out` any more. After `timeout`
    /// without any byte, the reads are cancelled and this fails. It waits for a read that the kernel cannot cancel.
    pub fn read(&mut self, file: &File, at: u64, out: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let mut parts: Vec<Part> = (0..out.len())
            .step_by(PART)
            .map(|start| Part { done: start, end: (start + PART).min(out.len()), is_over: false })
            .collect();
        let (mut next, mut under_way, mut failed, mut is_cancelled) = (0, 0usize, None, false);
        let mut again: Vec<usize> = Vec::new();
        let base = out.as_mut_ptr();
        loop {
            while failed.is_none() && under_way < ENTRIES as usize / 2 {
                let Some(number) = again.pop().or_else(|| {
                    next += 1;
                    (next <= parts.len()).then_some(next - 1)
                }) else {
                    break;
                };
                let part = &parts[number];
                // SAFETY: `part.done` is an offset in `out`.
                let to = unsafe { base.add(part.done) };
                let length = (part.end - part.done) as u32;
                let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), to, length)
                    .offset(at + part.done as u64)
                    .build()
                    .user_data(number as u64);
                // SAFETY: `out` stays borrowed until every read has ended, which the loop waits for.
                if unsafe { self.0.submission().push(&entry) }.is_err() {
                    again.push(number);
                    break;
                }
                under_way += 1;
            }
            if under_way == 0 {
                break;
            }
            let limit = types::Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
            let arguments = types::SubmitArgs::new().timespec(&limit);
            let waited = if is_cancelled {
                self.0.submit_and_wait(1).map(|_| ())
            } else {
                self.0.submitter().submit_with_args(1, &arguments).map(|_| ())
            };
            match waited {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                    let what = format!("no byte came within {} s", timeout.as_secs_f64());
                    failed.get_or_insert(io::Error::new(ErrorKind::TimedOut, what));
                    is_cancelled = true;
                    for (number, _) in parts.iter().enumerate().filter(|(_, part)| !part.is_over) {
                        let cancel = opcode::AsyncCancel::new(number as u64).build().user_data(u64::MAX);
                        // SAFETY: the entry has no pointer. If the queue is full, the read is waited for.
                        let _ = unsafe { self.0.submission().push(&cancel) };
                    }
                }
                // EINTR: try again. EBUSY and EAGAIN: take completions first.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
                // The kernel still uses the memory for reads under way, so the loop goes on until these have ended.
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
            for completion in self.0.completion() {
                let Some(part) = parts.get_mut(completion.user_data() as usize) else { continue };
                under_way -= 1;
                match completion.result() {
                    got if got > 0 => {
                        part.done += got as usize;
                        // A direct read that ends within a page ended at the end of the file.
                        part.is_over = part.done >= part.end || !part.done.is_multiple_of(PAGE);
                    }
                    0 => part.is_over = true,
                    code if matches!(-code, libc::EINTR | libc::EAGAIN) && failed.is_none() => {}
                    code => {
                        part.is_over = true;
                        failed.get_or_insert(io::Error::from_raw_os_error(-code));
                    }
                }
                if !part.is_over {
                    again.push(completion.user_data() as usize);
                }
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let mut there = 0;
        for part in &parts {
            there = part.done;
            if part.done < part.end {
                break;
            }
        }
        Ok(there)
    }
}

#[cfg(test)]
mod tests {
    use super::{PAGE, Uring};
    use std::io::Write;
    use std::time::Duration;

    #[test]
    fn ranges_are_read_whole_or_to_the_end_of_the_file() {
        // If the kernel does not allow io_uring, threads read, and there is nothing to test.
        let Some(mut ring) = Uring::new() else { return };
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..3_000_001u32).map(|k| (k.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        file.write_all(&bytes).unwrap();
        let mut buffer = vec![0; 4 << 20];
        let wait = Duration::from_secs(60);
        for (at, length) in [(0, 4096), (0, 3 << 20), (4096, 2 << 20), (1 << 20, 2 << 20), (4 << 20, 4096)] {
            let out = &mut buffer[..length];
            let got = ring.read(file.as_file(), at as u64, out, wait).unwrap();
            let wanted = &bytes[at.min(bytes.len())..(at + length).min(bytes.len())];
            assert_eq!(got, wanted.len());
            assert!(out[..got] == *wanted, "{length} from {at}");
        }
        let folder = std::fs::File::open(std::env::temp_dir()).unwrap();
        assert!(ring.read(&folder, 0, &mut buffer[..PAGE], wait).is_err(), "a folder has no bytes");
    }

    #[test]
    fn a_read_that_gives_nothing_is_cancelled_after_its_time() {
        let Some(mut ring) = Uring::new() else { return };
        let (from, _kept) = std::os::unix::net::UnixStream::pair().unwrap();
        let file = std::fs::File::from(std::os::fd::OwnedFd::from(from));
        let error = ring.read(&file, 0, &mut [0; 64], Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        // The queue still works.
        let error = ring.read(&file, 0, &mut [0; 64], Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    }
}
