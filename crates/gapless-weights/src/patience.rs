//! Repeats reads that fail for a moment, as those of network file systems do.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// The time for which a read is repeated after its first failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    pub timeout: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { timeout: Duration::from_secs(30) }
    }
}

/// Tries for errors that a disk also gives for bad sectors, which more tries would not cure.
const BROKEN: u32 = 3;
const FIRST_NAP: Duration = Duration::from_millis(10);
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// The number of tries that an error is worth; 0 if it cannot pass.
fn tries(error: &io::Error) -> u32 {
    // EIO 5, EREMOTEIO 121: these may pass on a network file system, but not on a disk. ESTALE 116, ENOBUFS 105,
    // ECONNRESET 104, ENETUNREACH 101, ENETDOWN 100, EHOSTUNREACH 113, ENOMEM 12.
    match (error.kind(), error.raw_os_error()) {
        (ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut, _) => u32::MAX,
        (_, Some(5 | 121)) => BROKEN,
        (_, Some(12 | 100 | 101 | 104 | 105 | 113 | 116)) => u32::MAX,
        _ => 0,
    }
}

impl Patience {
    /// Fills `out` from `at`. `read` may return fewer bytes. If it returns none, `size` decides: a file that is
    /// shorter now is an error at once; any other is read again.
    pub fn fill(
        &self,
        at: u64,
        out: &mut [u8],
        read: &mut dyn FnMut(&mut [u8], u64) -> io::Result<usize>,
        size: &dyn Fn() -> io::Result<u64>,
    ) -> io::Result<()> {
        let (mut done, mut failures, mut began, mut nap) = (0, 0, None::<Instant>, FIRST_NAP);
        while done < out.len() {
            let error = match read(&mut out[done..], at + done as u64) {
                Ok(0) if size()? < at + out.len() as u64 => {
                    let what = "it became shorter while it was read";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, what));
                }
                Ok(0) => io::Error::new(ErrorKind::TimedOut, "reads end before the file does"),
                Ok(got) => {
                    done += got;
                    (failures, began, nap) = (0, None, FIRST_NAP);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            failures += 1;
            let first = *began.get_or_insert_with(Instant::now);
            if failures > tries(&error) || first.elapsed() + nap > self.timeout {
                return Err(error);
            }
            std::thread::sleep(nap);
            nap = (2 * nap).min(LONGEST_NAP);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Patience;
    use std::io::{self, ErrorKind};
    use std::time::Duration;

    /// Fills 100 bytes from a source that gives `answers` in turn, then whole reads; returns the number of calls.
    fn fill(answers: Vec<io::Result<usize>>, size: u64) -> (io::Result<()>, usize, Vec<u8>) {
        let (mut answers, mut calls, mut out) = (answers.into_iter(), 0, vec![0; 100]);
        let patience = Patience { timeout: Duration::from_secs(5) };
        let mut read = |part: &mut [u8], at: u64| {
            calls += 1;
            let length = answers.next().unwrap_or(Ok(part.len()))?.min(part.len());
            for (k, byte) in part[..length].iter_mut().enumerate() {
                *byte = at as u8 + k as u8;
            }
            Ok(length)
        };
        let result = patience.fill(10, &mut out, &mut read, &|| Ok(size));
        (result, calls, out)
    }

    #[test]
    fn short_reads_and_failures_that_pass_give_the_same_bytes() {
        let os = |code| Err(io::Error::from_raw_os_error(code));
        for answers in [
            vec![],
            vec![Ok(1), Ok(30), Ok(0), Ok(5)],
            vec![os(5), Ok(7), os(5), os(5), Ok(1)],
            vec![os(116), os(4), os(11), os(110), Ok(99)],
        ] {
            let wanted = answers.len() + 1;
            let (result, calls, out) = fill(answers, 110);
            result.unwrap();
            assert!(calls == wanted && out == (10..110).collect::<Vec<u8>>(), "{calls}");
        }
    }

    #[test]
    fn what_does_not_pass_is_an_error() {
        let os = |code| Err(io::Error::from_raw_os_error(code));
        let (result, calls, _) = fill(vec![os(5), os(5), os(5), os(5)], 110);
        assert_eq!((result.unwrap_err().raw_os_error(), calls), (Some(5), 4));
        let (result, calls, _) = fill(vec![Ok(3), os(13)], 110);
        assert_eq!((result.unwrap_err().raw_os_error(), calls), (Some(13), 2), "no right to read");
        let (result, calls, _) = fill(vec![Ok(3), Ok(0)], 50);
        assert_eq!((result.unwrap_err().kind(), calls), (ErrorKind::UnexpectedEof, 2));
    }

    #[test]
    fn patience_ends() {
        let patience = Patience { timeout: Duration::ZERO };
        let mut read = |_: &mut [u8], _: u64| Err(io::Error::from(ErrorKind::TimedOut));
        let error = patience.fill(0, &mut [0; 4], &mut read, &|| Ok(4)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
