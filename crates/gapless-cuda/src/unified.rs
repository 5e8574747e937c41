//! Machines whose GPU has no memory of its own and uses the host's: DGX Spark (GB10), Jetson, and others.
//!
//! NVML gives no figures there, and the driver counts the kernel's file cache as used, although the kernel frees it
//! when a program asks for memory. `MemAvailable` of /proc/meminfo is the memory that programs can still get.

use crate::memory::Memory;

/// The host's memory as the GPU's; `None` if the kernel does not say.
#[must_use]
pub fn host() -> Option<Memory> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse(text: &str) -> Option<Memory> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        number.checked_mul(1024)
    };
    let (total, available) = (bytes("MemTotal")?, bytes("MemAvailable")?);
    let free = available.min(total);
    (total > 0).then_some(Memory { total, used: total - free, free })
}

/// Bytes that programs can still get on such a machine, if the driver says that `free` of `total` bytes are free.
#[must_use]
pub(crate) fn free_of(free: u64, total: u64) -> u64 {
    host().map_or(free, |host| host.free.max(free)).min(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_cache_counts_as_free() {
        let text =
            "MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    700 kB\nCached: 600 kB\n";
        let memory = parse(text).expect("both figures");
        assert_eq!((memory.total, memory.used, memory.free), (1_024_000, 307_200, 716_800));
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_not_known() {
        for text in [
            "",
            "MemTotal: 1000 kB\n",
            "MemTotal: 1000 kB\nMemAvailable: many kB\n",
            "MemTotal: 1000\nMemAvailable: 10\n",
            "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
            "MemTotal: 18446744073709551615 kB\nMemAvailable: 1 kB\n",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        let odd = parse("MemTotal: 10 kB\nMemAvailable: 20 kB\n").expect("both figures");
        assert_eq!((odd.used, odd.free), (0, 10_240), "not more than there is");
    }
}
