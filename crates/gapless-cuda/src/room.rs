//! Addresses that this process may still reserve. The driver reserves them from the process's own, which a limit
//! (`RLIMIT_AS`, `ulimit -v`) may bound.

/// `struct rlimit`.
#[repr(C)]
struct Limit {
    soft: u64,
    hard: u64,
}

const ADDRESSES: i32 = 9;
const PAGE: i32 = 30;

unsafe extern "C" {
    fn getrlimit(what: i32, limit: *mut Limit) -> i32;
    fn sysconf(name: i32) -> i64;
}

/// The limit and the used part of it, in bytes; `None` without a limit.
#[must_use]
pub fn limit() -> Option<(u64, u64)> {
    let mut limit = Limit { soft: u64::MAX, hard: u64::MAX };
    // SAFETY: an out-pointer of our own, which keeps its values if the kernel refuses.
    let _ = unsafe { getrlimit(ADDRESSES, &raw mut limit) };
    if limit.soft == u64::MAX {
        return None;
    }
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').next()?.parse::<u64>().ok()?;
    // SAFETY: the argument is a number.
    let page = unsafe { sysconf(PAGE) };
    Some((limit.soft, pages * u64::try_from(page).unwrap_or(4096)))
}

/// Addresses that are left, in bytes.
#[must_use]
pub fn left() -> u64 {
    limit().map_or(u64::MAX, |(limit, used)| limit.saturating_sub(used))
}

/// The reason why there are no `size` bytes of addresses, as far as the process's limit explains it.
#[must_use]
pub fn why_not(size: u64) -> String {
    let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30));
    match limit() {
        Some((limit, used)) => format!(
            "no {} of addresses are left: this process has a limit of {} (RLIMIT_AS, ulimit -v), of which {} are in use; \
             raise it",
            gib(size),
            gib(limit),
            gib(used)
        ),
        None => format!("the driver has no {} of addresses", gib(size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn setrlimit(what: i32, limit: *const Limit) -> i32;
        fn fork() -> i32;
        fn waitpid(child: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(code: i32) -> !;
    }

    #[test]
    fn a_limit_says_what_is_left_and_why_nothing_is() {
        // SAFETY: the calls take numbers and pointers to variables of this test; the child ends at once.
        unsafe {
            let child = fork();
            if child == 0 {
                let before = limit().is_none();
                setrlimit(ADDRESSES, &Limit { soft: 64 << 30, hard: u64::MAX });
                let is_fine = left() < 64 << 30 && left() > 32 << 30;
                let text = why_not(100 << 30);
                let is_said = text.contains("100.00 GiB of addresses are left") && text.contains("64.00 GiB");
                _exit(i32::from(!(is_fine && is_said && (before || left() > 0))));
            }
            let mut status = -1;
            waitpid(child, &raw mut status, 0);
            assert_eq!(status, 0);
        }
    }
}
