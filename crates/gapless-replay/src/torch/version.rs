//! Which PyTorch: releases differ in a few decisions, each a named switch here.

use std::fmt;
use std::str::FromStr;

/// A release, as far as the allocator is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TorchVersion(pub u32, pub u32);

/// Why a text is no version that is modelled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("torch {0:?} is not modelled: write a version from 2.4 to 2.12, as in torch@2.11")]
pub struct UnknownVersion(String);

impl TorchVersion {
    pub const OLDEST: TorchVersion = TorchVersion(2, 4);
    pub const NEWEST: TorchVersion = TorchVersion(2, 12);
    /// Taken where a trace leaves it open.
    pub const DEFAULT: TorchVersion = TorchVersion(2, 11);

    /// Free blocks of one size are ordered by the order in which they were made, not by address.
    #[must_use]
    pub fn ties_by_creation(self) -> bool {
        self >= TorchVersion(2, 12)
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

    /// What a reader wrote of the producer ("torch 2.11 or later", "torch 2.5 to 2.7"): the newest that it allows, up
    /// to the default; the default where it was not torch.
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

/// What to know before a run of `producer` is replayed on the model of PyTorch's allocator: its release is newer than
/// the newest that is modelled. `None`: it is modelled, or was not torch.
#[must_use]
pub fn beyond_the_model(producer: &str) -> Option<String> {
    let oldest = mentioned(producer).first().copied().filter(|_| producer.starts_with("torch"))?;
    (oldest > TorchVersion::NEWEST).then(|| {
        format!(
            "the run was recorded with {producer}, and the newest release that is modelled is {}: newer releases choose \
             between free blocks of one size in another order, so replayed figures may differ from theirs",
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
/// oldest release that the producer allows decides; where it was not torch, the one that is modelled by default.
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
            ("torch 2.12 or later", TorchVersion(2, 12)),
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
        for producer in ["torch 2.13", "torch 2.14 or later", "torch 2.15 or later"] {
            let text = beyond_the_model(producer).expect("a warning");
            assert!(text.contains(producer) && text.contains("modelled is 2.12"), "{text}");
            assert_eq!(TorchVersion::of_producer(producer), TorchVersion::NEWEST);
        }
        for producer in ["torch 2.12", "torch 2.11 or later", "torch", "", "gapless 9.99.0", "RMM 24.10"] {
            assert_eq!(beyond_the_model(producer), None, "{producer}");
        }
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
