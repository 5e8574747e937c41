//! Places at which a test kills the process.

#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU64, Ordering};

/// A place between two changes of the disk. If debug assertions are on, `GAPLESS_TEST_KILL=7` aborts the process at
/// the eighth one, as a kill would. Tests try all of them.
pub(crate) fn boundary() {
    #[cfg(debug_assertions)]
    {
        static LAST: std::sync::OnceLock<Option<u64>> = std::sync::OnceLock::new();
        static PASSED: AtomicU64 = AtomicU64::new(0);
        let last = LAST.get_or_init(|| std::env::var("GAPLESS_TEST_KILL").ok()?.parse().ok());
        if *last == Some(PASSED.fetch_add(1, Ordering::Relaxed)) {
            std::process::abort();
        }
    }
}
