//! The limits of this process's control groups, and a check if one of them, or the machine, is short of memory.

use crate::sys;
use crate::text::Text;
use std::ffi::CStr;
use std::fmt::Write as _;

/// The file names of one version of control groups.
#[derive(Clone, Copy, Debug)]
struct Names {
    root: &'static str,
    limit: &'static str,
    used: &'static str,
}

const SECOND: Names = Names { root: "/sys/fs/cgroup", limit: "memory.max", used: "memory.current" };
const FIRST: Names =
    Names { root: "/sys/fs/cgroup/memory", limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes" };

/// The lowest limit of this process's group and of those above it.
#[must_use]
pub fn limit() -> Option<u64> {
    let mut least = None;
    each(|names, group| {
        least = [least, limit_of(names, group)].into_iter().flatten().min();
    });
    least
}

/// True if the machine, or a group of this process, is short of memory: less than a twentieth is available.
#[must_use]
pub fn is_short() -> bool {
    let mut buffer = [0; 4096];
    if is_machine_short(sys::read_file(c"/proc/meminfo", &mut buffer)) {
        return true;
    }
    let mut is_short = false;
    each(|names, group| {
        let Some(limit) = limit_of(names, group) else { return };
        let mut answer = [0; 64];
        let used = file(names.root, group, names.used, &mut answer, sys::number);
        let mut answer = [0; 4096];
        let files = file(names.root, group, "memory.stat", &mut answer, files_in).unwrap_or(0);
        is_short |= used.is_some_and(|used| is_group_short(limit, used, files));
    });
    is_short
}

fn is_machine_short(meminfo: &[u8]) -> bool {
    let total = sys::kib_line(meminfo, b"MemTotal:");
    let available = sys::kib_line(meminfo, b"MemAvailable:");
    matches!((total, available), (Some(total), Some(available)) if available < total / 20)
}

/// Pages of files count as used, but the kernel reclaims them first, so they are subtracted.
fn is_group_short(limit: u64, used: u64, files: u64) -> bool {
    limit.saturating_sub(used.saturating_sub(files)) < limit / 20
}

/// Bytes of files' pages from `memory.stat`. With version 1, the lines that include all groups below begin with
/// `total_`.
fn files_in(text: &[u8]) -> Option<u64> {
    let line = |name: &[u8]| {
        let mut lines = text.split(|&b| b == b'\n');
        lines.find_map(|line| line.strip_prefix(name)).and_then(sys::number)
    };
    let all = |a: &[u8], b: &[u8]| Some(line(a)? + line(b)?);
    all(b"total_inactive_file ", b"total_active_file ").or_else(|| all(b"inactive_file ", b"active_file "))
}

/// Calls `visit` for each group of the process that counts memory, and for those above it.
fn each(mut visit: impl FnMut(Names, &[u8])) {
    let mut buffer = [0; 4096];
    let text = sys::read_file(c"/proc/self/cgroup", &mut buffer);
    for line in text.split(|&b| b == b'\n') {
        let mut fields = line.splitn(3, |&b| b == b':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let names = if controllers.is_empty() {
            SECOND
        } else if controllers.split(|&b| b == b',').any(|name| name == b"memory") {
            FIRST
        } else {
            continue;
        };
        // From the group itself up to the root.
        let mut end = path.len();
        loop {
            visit(names, &path[..end]);
            let Some(above) = path[..end].iter().rposition(|&b| b == b'/') else { break };
            end = above;
        }
    }
}

fn limit_of(names: Names, group: &[u8]) -> Option<u64> {
    let mut answer = [0; 64];
    let limit = file(names.root, group, names.limit, &mut answer, sys::number)?;
    // Without a limit, version 1 answers with a number near 2^63.
    (limit < 1 << 60).then_some(limit)
}

fn file<T>(
    root: &str,
    group: &[u8],
    file: &str,
    answer: &mut [u8],
    read: impl Fn(&[u8]) -> Option<T>,
) -> Option<T> {
    let group = std::str::from_utf8(group).ok()?.trim_end_matches('/');
    let mut name = Text::<1024>::default();
    let _ = write!(name, "{root}{group}/{file}\0");
    read(sys::read_file(CStr::from_bytes_until_nul(name.bytes()).ok()?, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_near_its_limit_is_short_unless_files_fill_it() {
        const GIB: u64 = 1 << 30;
        assert!(!is_group_short(2 * GIB, GIB, 0));
        assert!(is_group_short(2 * GIB, 2 * GIB - GIB / 32, 0));
        assert!(!is_group_short(2 * GIB, 2 * GIB, GIB), "the kernel takes back what files have");
        assert!(is_group_short(2 * GIB, 3 * GIB, 0), "above its limit, for an instant");
    }

    #[test]
    fn pages_of_files_are_read_from_both_versions() {
        assert_eq!(files_in(b"anon 7\nfile 9\ninactive_file 100\nactive_file 20\n"), Some(120));
        let first = b"inactive_file 1\nactive_file 2\ntotal_inactive_file 30\ntotal_active_file 4\n";
        assert_eq!(files_in(first), Some(34));
        assert_eq!(files_in(b"anon 7\n"), None);
    }

    #[test]
    fn a_machine_with_less_than_a_twentieth_is_short() {
        assert!(is_machine_short(b"MemTotal: 1000 kB\nMemAvailable: 49 kB\n"));
        assert!(!is_machine_short(b"MemTotal: 1000 kB\nMemAvailable: 51 kB\n"));
        assert!(!is_machine_short(b""), "a kernel that does not say");
    }
}
