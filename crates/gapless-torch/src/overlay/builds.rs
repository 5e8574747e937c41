//! Builds of PyTorch that are known exactly: where each function of the allocator's table is.
//!
//! A build is known by its version without the local part (`+cu130`) and its commit: the variants for other CUDA
//! versions come from the same sources and have the same table. Positions count words from the table's beginning, its
//! two header words included. They were printed by a compiler over each build's headers; at run time those of them that
//! PyTorch exports under their own names are compared with these.

/// Where the functions are.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    /// Words in the table.
    pub words: usize,
    pub allocate: usize,
    pub raw_deleter: usize,
    pub empty_cache: usize,
    pub device_stats: usize,
    pub reset_accumulated: usize,
    pub reset_peak: usize,
    pub raw_alloc: usize,
    pub raw_alloc_with_stream: usize,
    pub raw_delete: usize,
    pub memory_fraction: usize,
    pub set_memory_fraction: usize,
    pub expandable_sizes: usize,
    pub cache_info: usize,
    pub snapshot: usize,
    pub pool_use_count: usize,
    pub create_pool: usize,
    pub use_on_oom: usize,
    pub no_split: usize,
    pub pool_live: usize,
    pub share_handle: usize,
    pub open_handle: usize,
    pub is_history_enabled: usize,
    pub record_history: usize,
    pub record_annotation: usize,
    pub push_compile_context: usize,
    pub pop_compile_context: usize,
    pub set_user_metadata: usize,
    pub user_metadata: usize,
    pub observe_failures: usize,
    pub track: usize,
    pub enable_peer: usize,
    pub memcpy: usize,
    pub checkpoint: usize,
    pub set_checkpoint: usize,
    pub name: usize,
    /// Since 2.12: the stack of a block, and who is told of requests that are refused beforehand.
    pub stack_of: Option<usize>,
    pub observe_refusals: Option<usize>,
}

/// A known build.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    pub version: &'static str,
    pub commit: &'static str,
    pub slots: &'static Slots,
    /// Whether statistics count requests that are refused beforehand.
    pub counts_refusals: bool,
}

const SLOTS_2_11: Slots = Slots {
    words: 52,
    allocate: 4,
    raw_deleter: 6,
    empty_cache: 9,
    device_stats: 11,
    reset_accumulated: 12,
    reset_peak: 13,
    raw_alloc: 15,
    raw_alloc_with_stream: 16,
    raw_delete: 17,
    memory_fraction: 19,
    set_memory_fraction: 20,
    expandable_sizes: 21,
    cache_info: 24,
    snapshot: 27,
    pool_use_count: 31,
    create_pool: 32,
    use_on_oom: 33,
    no_split: 34,
    pool_live: 35,
    share_handle: 36,
    open_handle: 37,
    is_history_enabled: 38,
    record_history: 39,
    record_annotation: 40,
    push_compile_context: 41,
    pop_compile_context: 42,
    set_user_metadata: 43,
    user_metadata: 44,
    observe_failures: 45,
    track: 46,
    enable_peer: 47,
    memcpy: 48,
    checkpoint: 49,
    set_checkpoint: 50,
    name: 51,
    stack_of: None,
    observe_refusals: None,
};

const SLOTS_2_12: Slots = Slots {
    words: 54,
    stack_of: Some(39),
    record_history: 40,
    record_annotation: 41,
    push_compile_context: 42,
    pop_compile_context: 43,
    set_user_metadata: 44,
    user_metadata: 45,
    observe_failures: 46,
    observe_refusals: Some(47),
    track: 48,
    enable_peer: 49,
    memcpy: 50,
    checkpoint: 51,
    set_checkpoint: 52,
    name: 53,
    ..SLOTS_2_11
};

const BUILDS: &[Build] = &[
    Build {
        version: "2.11.0",
        commit: "70d99e998b4955e0049d13a98d77ae1b14db1f45",
        slots: &SLOTS_2_11,
        counts_refusals: false,
    },
    Build {
        version: "2.12.1",
        commit: "7269437d655783a26cba32aa88195b741ff496aa",
        slots: &SLOTS_2_12,
        counts_refusals: true,
    },
];

/// The build that this is, if it is known.
#[must_use]
pub fn known(version: &str, commit: &str) -> Option<&'static Build> {
    let release = version.split('+').next().unwrap_or(version);
    BUILDS.iter().find(|build| build.version == release && build.commit == commit)
}

#[cfg(test)]
mod tests {
    use super::known;

    #[test]
    fn a_build_is_known_by_version_and_commit() {
        let commit = "70d99e998b4955e0049d13a98d77ae1b14db1f45";
        assert!(known("2.11.0+cu130", commit).is_some() && known("2.11.0+cu128", commit).is_some());
        assert!(known("2.11.0", commit).is_some() && known("2.12.1", commit).is_none());
        for (version, commit) in [("2.11.1", commit), ("2.11.0", "70d99e9"), ("2.11.0", ""), ("", "")] {
            assert!(known(version, commit).is_none(), "{version} {commit}");
        }
    }
}
