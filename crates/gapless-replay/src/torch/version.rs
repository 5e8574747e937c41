//! The release of PyTorch: releases differ in a few decisions, each a named switch here.

use gapless_trace::PoolId;
use std::fmt;
use std::str::FromStr;

/// A release, as far as the allocator is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TorchVersion(pub u32, pub u32);

/// The rule that decides between free blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ties {
    /// The lowest address.
    Address,
    /// The block object that was made first.
    Creation,
    /// The segment, or range of addresses, that was made first; in it the lowest address.
    Segment,
}

/// The error for a text that is no version with a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("torch {0:?} is not modelled: write a version from 2.4 to 2.15, as in torch@2.11")]
pub struct UnknownVersion(String);

impl TorchVersion {
    pub const OLDEST: TorchVersion = TorchVersion(2, 4);
    pub const NEWEST: TorchVersion = TorchVersion(2, 15);
    /// Taken if a trace leaves it open.
    pub const DEFAULT: TorchVersion = TorchVersion(2, 11);

    /// The order of free blocks of one size.
    #[must_use]
    pub fn ties(self) -> Ties {
        match self {
            v if v >= TorchVersion(2, 13) => Ties::Segment,
            v if v >= TorchVersion(2, 12) => Ties::Creation,
            _ => Ties::Address,
        }
    }

    /// Only a stream capture keeps a request from waiting for streams and from emptying the caches; before, any
    /// routing to a private pool does.
    #[must_use]
    pub fn only_captures_hold_back(self) -> bool {
        self >= TorchVersion(2, 13)
    }

    /// True if a request of `pool` leaves the caches alone, as far as its pool tells: a recording holds no captures. Up
    /// to 2.12 every private pool does, from 2.13 on the pools of graphs.
    #[must_use]
    pub fn holds_back_in(self, pool: PoolId) -> bool {
        let PoolId(graph, user) = pool;
        graph != 0 || (user != 0 && !self.only_captures_hold_back())
    }

    /// A memory fraction is rounded to whole bytes, half away from zero; before, it is cut off.
    #[must_use]
    pub fn rounds_the_cap(self) -> bool {
        self >= TorchVersion(2, 13)
    }

    /// `throw_on_cudamalloc_oom` and `pinned_free_catch_all` are known.
    #[must_use]
    pub fn has_early_oom_setting(self) -> bool {
        self >= TorchVersion(2, 12)
    }

    /// `pinned_max_round_threshold_mb` and `pinned_max_cached_size_mb` are known.
    #[must_use]
    pub fn has_pinned_limits(self) -> bool {
        self >= TorchVersion(2, 13)
    }

    /// `expandable_segments_reserve` and `expandable_segments_reserve_by_class` are known.
    #[must_use]
    pub fn has_expandable_reserve(self) -> bool {
        self >= TorchVersion(2, 15)
    }

    /// A fresh range of addresses that is shorter than the request goes back at once; before, it stays.
    #[must_use]
    pub fn returns_short_ranges(self) -> bool {
        self >= TorchVersion(2, 15)
    }

    /// Private pools use expandable segments too.
    #[must_use]
    pub fn has_expandable_pools(self) -> bool {
        self >= TorchVersion(2, 5)
    }

    /// Of nested routings the newest that accepts a stream wins; before, the oldest.
    #[must_use]
    pub fn newest_routing_wins(self) -> bool {
        self >= TorchVersion(2, 10)
    }

    /// `large_segment_size_mb` is known.
    #[must_use]
    pub fn has_large_segment_size(self) -> bool {
        self >= TorchVersion(2, 11)
    }

    /// `per_process_memory_fraction` is known.
    #[must_use]
    pub fn has_fraction_setting(self) -> bool {
        self >= TorchVersion(2, 10)
    }

    /// The version of a producer as a reader wrote it ("torch 2.11 or later", "torch 2.5 to 2.7"): the newest that it
    /// allows, up to the default; the default if it was not torch.
    #[must_use]
    pub fn of_producer(producer: &str) -> TorchVersion {
        if !producer.starts_with("torch") {
            // Another allocator's run, and another program's version.
            return Self::DEFAULT;
        }
        let found = mentioned(producer);
        let open = producer.contains("later") || producer.contains("newer");
        match found.last() {
            Some(&version) if !open => version.clamp(Self::OLDEST, Self::NEWEST),
            Some(&version) => version.max(Self::DEFAULT).min(Self::NEWEST),
            None => Self::DEFAULT,
        }
    }
}

/// A warning before a run of `producer` is replayed on the model of PyTorch's allocator: its release is newer than the
/// newest that is modelled. `None`: it is modelled, or was not torch.
#[must_use]
pub fn beyond_the_model(producer: &str) -> Option<String> {
    let oldest = mentioned(producer).first().copied().filter(|_| producer.starts_with("torch"))?;
    (oldest > TorchVersion::NEWEST).then(|| {
        format!(
            "the run was recorded with {producer}, and the newest release that is modelled is {}: newer releases may \
             choose other blocks, so replayed figures may differ from theirs",
            TorchVersion::NEWEST
        )
    })
}

impl FromStr for TorchVersion {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> Result<TorchVersion, UnknownVersion> {
        let wrong = || UnknownVersion(text.to_owned());
        let plain = text.split('+').next().unwrap_or_default();
        let mut parts = plain.split('.').map(str::parse::<u32>);
        let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else { return Err(wrong()) };
        let version = TorchVersion(major, minor);
        let whole = parts.all(|p| p.is_ok());
        if whole && (Self::OLDEST..=Self::NEWEST).contains(&version) { Ok(version) } else { Err(wrong()) }
    }
}

impl fmt::Display for TorchVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The versions in a text, the oldest first.
fn mentioned(text: &str) -> Vec<TorchVersion> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    let mut found: Vec<TorchVersion> = words
        .filter_map(|word| {
            let (major, minor) = word.trim_matches('.').split_once('.')?;
            Some(TorchVersion(major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
        })
        .collect();
    found.sort_unstable();
    found
}

/// The variable from which the release behind a producer reads its settings. Every release reads
/// `PYTORCH_CUDA_ALLOC_CONF`; from 2.9 on it is deprecated for `PYTORCH_ALLOC_CONF`, which no earlier one reads. So the
/// oldest release that the producer allows decides; if it was not torch, the default one.
#[must_use]
pub fn settings_variable(producer: &str) -> &'static str {
    let oldest = mentioned(producer).first().copied().filter(|_| producer.starts_with("torch"));
    match oldest.unwrap_or(TorchVersion::DEFAULT) >= TorchVersion(2, 9) {
        true => "PYTORCH_ALLOC_CONF",
        false => "PYTORCH_CUDA_ALLOC_CONF",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_people_write_them() {
        assert_eq!("2.11".parse(), Ok(TorchVersion(2, 11)));
        assert_eq!("2.4.1".parse(), Ok(TorchVersion(2, 4)));
        assert_eq!("2.11.0+cu130".parse(), Ok(TorchVersion(2, 11)));
        for text in ["", "2", "1.13", "2.99", "two", "2.x"] {
            assert!(text.parse::<TorchVersion>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_producer_gives_the_newest_version_that_it_allows() {
        for (producer, version) in [
            ("torch 2.11 or later", TorchVersion(2, 11)),
            ("torch 2.12", TorchVersion(2, 12)),
            ("torch 2.13", TorchVersion(2, 13)),
            ("torch 2.13 or 2.14", TorchVersion(2, 14)),
            ("torch 2.14 or later", TorchVersion(2, 14)),
            ("torch 2.15 or later", TorchVersion(2, 15)),
            ("torch 2.16 or later", TorchVersion(2, 15)),
            ("torch 2.8 or 2.9", TorchVersion(2, 9)),
            ("torch 2.2", TorchVersion(2, 4)),
            ("torch 2.3 or later", TorchVersion(2, 11)),
            ("", TorchVersion(2, 11)),
            ("RMM", TorchVersion(2, 11)),
            ("gapless 0.1.0", TorchVersion(2, 11)),
        ] {
            assert_eq!(TorchVersion::of_producer(producer), version, "{producer}");
        }
    }

    #[test]
    fn a_release_that_is_not_modelled_is_told() {
        for producer in ["torch 2.16", "torch 2.17 or later"] {
            let text = beyond_the_model(producer).expect("a warning");
            assert!(text.contains(producer) && text.contains("modelled is 2.15"), "{text}");
            assert_eq!(TorchVersion::of_producer(producer), TorchVersion::NEWEST);
        }
        for producer in [
            "torch 2.13",
            "torch 2.14 or later",
            "torch 2.15 or later",
            "torch",
            "",
            "gapless 9.99.0",
            "RMM 24.10",
        ] {
            assert_eq!(beyond_the_model(producer), None, "{producer}");
        }
    }

    #[test]
    fn each_rule_changed_in_one_release() {
        use Ties::{Address, Creation, Segment};
        let since = |rule: fn(TorchVersion) -> bool| (4..=15).find(|&minor| rule(TorchVersion(2, minor)));
        assert_eq!(
            [11, 12, 13, 15].map(|m| TorchVersion(2, m).ties()),
            [Address, Creation, Segment, Segment]
        );
        assert_eq!(since(TorchVersion::has_early_oom_setting), Some(12));
        assert_eq!(since(TorchVersion::only_captures_hold_back), Some(13));
        assert_eq!(since(TorchVersion::rounds_the_cap), Some(13));
        assert_eq!(since(TorchVersion::has_pinned_limits), Some(13));
        assert_eq!(since(TorchVersion::has_expandable_reserve), Some(15));
        assert_eq!(since(TorchVersion::returns_short_ranges), Some(15));
    }

    #[test]
    fn settings_go_where_every_release_that_the_producer_allows_reads_them() {
        for producer in ["torch 2.11 or later", "torch 2.9", "torch 2.9 or 2.10", "", "RMM", "gapless 0.1.0"]
        {
            assert_eq!(settings_variable(producer), "PYTORCH_ALLOC_CONF", "{producer}");
        }
        for producer in ["torch 2.8 or 2.9", "torch 2.3 or later", "torch 2.5 to 2.7", "torch 2.4"] {
            assert_eq!(settings_variable(producer), "PYTORCH_CUDA_ALLOC_CONF", "{producer}");
        }
    }
}
