//! The texts in which a budget is given.

use crate::{cgroup, sys};

/// A limit in bytes from `8589934592`, `8GiB`, `1.5g` (binary), `8GB` (decimal), or `auto`: 90 % of what the cgroup or
/// the machine has.
///
/// # Errors
/// The error in the text.
pub fn parse_limit(text: &[u8]) -> Result<u64, &'static str> {
    let text = text.trim_ascii();
    if text.eq_ignore_ascii_case(b"auto") {
        return automatic().ok_or("auto: neither the cgroup nor /proc/meminfo says how much memory there is");
    }
    match gapless_size::parse(text) {
        Ok(size) if size.bytes == 0 => Err("zero bytes are no budget"),
        Ok(size) => Ok(size.bytes),
        Err(wrong) => Err(wrong.words()),
    }
}

/// 90 % of the cgroup's limit, or of the machine's memory if that is less.
#[must_use]
pub fn automatic() -> Option<u64> {
    let mut buffer = [0; 4096];
    let machine = sys::kib_line(sys::read_file(c"/proc/meminfo", &mut buffer), b"MemTotal:");
    let least = [machine, cgroup::limit()].into_iter().flatten().min()?;
    Some(least / 10 * 9)
}
