//! Text on standard error without an allocation.

use std::fmt::{self, Write};

/// A text of at most `N` bytes; the rest is cut off.
#[derive(Debug)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Text { bytes: [0; N], length: 0 }
    }
}

impl<const N: usize> Text<N> {
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = N - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

/// Writes to standard error in one call.
pub fn say(words: fmt::Arguments<'_>) {
    write_to(2, words);
}

/// Writes to a descriptor.
pub fn write_to(descriptor: i32, words: fmt::Arguments<'_>) {
    let mut text = Text::<4096>::default();
    let _ = text.write_fmt(words);
    let bytes = text.bytes();
    // SAFETY: `bytes` is valid for reading.
    let written = unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
    if written < 0 && descriptor == 2 && crate::local::has_own_files() {
        // The helper's table has no standard error, so this opens the program's.
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NOCTTY;
        // SAFETY: the path ends in a zero, `bytes` is valid for reading, and the descriptor is the helper's own.
        unsafe {
            let file = libc::open(c"/proc/self/fd/2".as_ptr(), flags);
            libc::write(file, bytes.as_ptr().cast(), bytes.len());
            libc::close(file);
        }
    }
}

/// A size for people: `1.50 GiB`.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = "B";
        for next in units {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        if unit == "B" { write!(f, "{} B", self.0) } else { write!(f, "{value:.2} {unit}") }
    }
}
