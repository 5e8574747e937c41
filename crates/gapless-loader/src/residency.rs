//! The cached part of a file's range: by `cachestat` (Linux 6.5), or by `mincore` if the kernel lacks or refuses that.
//!
//! For `mincore` the file is mapped, but the mapping is never read, so a file that gets shorter causes an error of
//! `read`, not a signal. `mincore` reports files of other users as cached. They are then read through the cache, which
//! is only slower.

use gapless_weights::input::Input;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Alignment of direct reads, in the file and in memory.
pub const PAGE: usize = 4096;

#[derive(Debug)]
struct Map {
    at: usize,
    length: usize,
}

/// The residency of one file.
#[derive(Debug, Default)]
pub struct Residency {
    map: OnceLock<Option<Map>>,
    no_cachestat: AtomicBool,
}

impl Residency {
    /// True if at least half of a range is cached, or if that is unknown.
    pub fn is_cached(&self, input: &Input, at: u64, length: usize) -> bool {
        let first = at / PAGE as u64 * PAGE as u64;
        let end = (at + length as u64).min(input.size);
        if first >= end {
            return true;
        }
        let pages = (end - first).div_ceil(PAGE as u64);
        let cached = self.by_cachestat(input, first, end).or_else(|| self.by_mincore(input, first, end));
        cached.is_none_or(|cached| 2 * cached >= pages)
    }

    #[cfg(target_os = "linux")]
    fn by_cachestat(&self, input: &Input, first: u64, end: u64) -> Option<u64> {
        use std::os::fd::AsRawFd;
        /// The number of the call is the same on every architecture.
        const CACHESTAT: libc::c_long = 451;
        if self.no_cachestat.load(Ordering::Relaxed) {
            return None;
        }
        let (range, mut stat) = ([first, end - first], [0u64; 5]);
        // SAFETY: the call reads two words and writes five; the file is open.
        let status = unsafe {
            libc::syscall(CACHESTAT, input.file().as_raw_fd(), range.as_ptr(), stat.as_mut_ptr(), 0u32)
        };
        if status != 0 {
            self.no_cachestat.store(true, Ordering::Relaxed);
            return None;
        }
        Some(stat[0])
    }

    #[cfg(not(target_os = "linux"))]
    fn by_cachestat(&self, _: &Input, _: u64, _: u64) -> Option<u64> {
        None
    }

    #[cfg(target_os = "linux")]
    fn by_mincore(&self, input: &Input, first: u64, end: u64) -> Option<u64> {
        use std::os::fd::AsRawFd;
        let map = self.map.get_or_init(|| {
            let (length, file) = (input.size as usize, input.file().as_raw_fd());
            let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
            // SAFETY: a new mapping of an open file, which nothing reads.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), length, read, shared, file, 0) };
            (at != libc::MAP_FAILED).then(|| Map { at: at as usize, length })
        });
        let map = map.as_ref()?;
        let length = (end.min(map.length as u64) - first) as usize;
        let mut pages = vec![0u8; length.div_ceil(PAGE)];
        let at = (map.at + first as usize) as *mut libc::c_void;
        // SAFETY: the range lies in a live mapping, and `pages` has a byte for each of its pages.
        let status = unsafe { libc::mincore(at, length, pages.as_mut_ptr()) };
        (status == 0).then(|| pages.iter().filter(|page| **page & 1 == 1).count() as u64)
    }

    #[cfg(not(target_os = "linux"))]
    fn by_mincore(&self, _: &Input, _: u64, _: u64) -> Option<u64> {
        None
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        // SAFETY: this value owns the mapping.
        unsafe {
            libc::munmap(self.at as *mut libc::c_void, self.length);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::Residency;
    use gapless_weights::input::Input;
    use std::io::Write;
    use std::sync::atomic::Ordering;

    #[test]
    fn both_ways_say_the_same_of_a_file_that_was_just_written() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        let input = Input::open(file.path()).unwrap();
        for no_cachestat in [false, true] {
            let residency = Residency::default();
            residency.no_cachestat.store(no_cachestat, Ordering::Relaxed);
            assert!(residency.is_cached(&input, 5000, 300_000));
            assert_eq!(residency.by_mincore(&input, 0, 1 << 20), Some(256));
            assert!(matches!(residency.by_cachestat(&input, 4096, 8192), Some(1) | None));
            assert!(residency.is_cached(&input, 2 << 20, 10), "nothing is there");
        }
    }
}
