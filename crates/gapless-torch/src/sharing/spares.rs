//! Spare descriptors, with which a process that has used up all others can still answer its readers: one for a reader's
//! connection, one for a page or a look at the reader.
//!
//! A program may close files that it did not open, and open its own under their numbers. So each spare is a file of its
//! own, and its identity is checked before it is closed.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

const WANTED: usize = 2;

unsafe extern "C" {
    fn memfd_create(name: *const std::ffi::c_char, flags: u32) -> i32;
}

#[derive(Debug)]
struct Spare {
    file: File,
    /// Device and inode.
    about: (u64, u64),
}

fn about(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

impl Spare {
    fn open() -> io::Result<Spare> {
        const CLOSE_ON_EXEC: u32 = 1;
        // SAFETY: the name ends with NUL.
        let made = unsafe { memfd_create(c"gapless spare".as_ptr(), CLOSE_ON_EXEC) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `memfd_create` opened this descriptor, which nothing else owns.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(made) });
        let about = about(&file.metadata()?);
        Ok(Spare { file, about })
    }

    fn is_own(&self) -> bool {
        self.file.metadata().is_ok_and(|found| about(&found) == self.about)
    }
}

/// The spares of the thread that answers.
#[derive(Debug, Default)]
pub(super) struct Spares(Vec<Spare>);

impl Spares {
    /// Opens missing spares, as far as there are free descriptors.
    pub(super) fn fill(&mut self) {
        while self.0.len() < WANTED
            && let Ok(spare) = Spare::open()
        {
            self.0.push(spare);
        }
    }

    /// Closes a spare to make room for one descriptor. False if there was none.
    pub(super) fn give_one(&mut self) -> bool {
        let Some(spare) = self.0.pop() else { return false };
        if !spare.is_own() {
            // The program has closed the spare and uses its number, so it must not be closed here.
            let _ = spare.file.into_raw_fd();
            return self.give_one();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn numbers(spares: &Spares) -> Vec<i32> {
        spares.0.iter().map(|spare| spare.file.as_raw_fd()).collect()
    }

    #[test]
    fn a_number_that_the_program_has_taken_is_not_closed() {
        let mut spares = Spares::default();
        spares.fill();
        assert_eq!(numbers(&spares).len(), WANTED);
        let own = File::open("/dev/null").expect("it opens");
        unsafe extern "C" {
            fn dup2(from: i32, to: i32) -> i32;
        }
        let taken = *numbers(&spares).last().expect("one");
        // SAFETY: numbers of open files. A program that closes files it did not open does the same.
        assert_eq!(unsafe { dup2(own.as_raw_fd(), taken) }, taken);
        assert!(spares.give_one() && numbers(&spares).is_empty(), "the other one made room");
        // SAFETY: the number is open, and this test owns it now.
        let still = File::from(unsafe { OwnedFd::from_raw_fd(taken) });
        assert_eq!(still.metadata().expect("it is open").rdev(), own.metadata().expect("open").rdev());
        let _ = still.into_raw_fd();
        assert!(!spares.give_one());
        spares.fill();
        assert!(spares.give_one());
    }
}
