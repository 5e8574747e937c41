//! The language of `PYTORCH_ALLOC_CONF` (and `PYTORCH_CUDA_ALLOC_CONF`), as PyTorch reads it.
//!
//! Its quirks are kept, because a setting that PyTorch ignores must be ignored here: blanks vanish even inside words,
//! from 2.9 on any text in the place of a separator is taken for one, numbers end at the first character that is no
//! digit, booleans are `True` and `False` exactly. A text that PyTorch refuses is refused, with the place.

mod tokens;

use self::tokens::{Tokens, bad, lex};
use super::reserve::{Reserve, Reserves};
use super::version::TorchVersion;
use gapless_trace::{AllocatorSettings, Bytes};

const MIB: u64 = 1 << 20;

/// Default size of a segment for requests between 1 and 10 MiB.
pub const LARGE_SEGMENT: u64 = 20 * MIB;
/// From this size on a request gets a segment of its own size.
pub const MIN_LARGE: u64 = 10 * MIB;

/// The allocator's settings, complete.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchSettings {
    /// The settings that snapshots record too: splitting, rounding, collection, expandable segments.
    pub base: AllocatorSettings,
    pub large_segment: u64,
    /// The most bytes by which an unsplittable block may exceed its request.
    pub max_non_split_rounding: u64,
    /// `per_process_memory_fraction`.
    pub fraction: Option<f64>,
    /// `expandable_segments_reserve` and its list by class.
    pub reserves: Reserves,
    /// `backend:cudaMallocAsync`, which has no model.
    pub malloc_async: bool,
}

impl Default for TorchSettings {
    fn default() -> Self {
        TorchSettings {
            base: AllocatorSettings::default(),
            large_segment: LARGE_SEGMENT,
            max_non_split_rounding: LARGE_SEGMENT,
            fraction: None,
            reserves: Reserves::default(),
            malloc_async: false,
        }
    }
}

/// The reason why PyTorch would refuse a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfError {
    #[error("torch {version} has no allocator setting {key:?}{}", hint(key, *nearest))]
    UnknownKey { key: String, version: TorchVersion, nearest: Option<&'static str> },
    #[error("{key} has no value: write {key}:VALUE")]
    NoValue { key: String },
    #[error("{key}:{value}: {rule}")]
    BadValue { key: String, value: String, rule: String },
    #[error("expected {expected:?} after {after:?}: torch {version} insists on it")]
    Separator { expected: char, after: String, version: TorchVersion },
}

/// Every setting, with the first 2.x that has it, if that is checked.
const KEYS: [(&str, u32); 20] = [
    ("max_split_size_mb", 4),
    ("max_non_split_rounding_mb", 4),
    ("garbage_collection_threshold", 4),
    ("roundup_power2_divisions", 4),
    ("expandable_segments", 4),
    ("large_segment_size_mb", 11),
    ("per_process_memory_fraction", 10),
    ("backend", 4),
    ("release_lock_on_cudamalloc", 4),
    ("graph_capture_record_stream_reuse", 4),
    ("pinned_use_cuda_host_register", 4),
    ("pinned_num_register_threads", 4),
    ("pinned_use_background_threads", 4),
    ("pinned_reserve_segment_size_mb", 4),
    ("throw_on_cudamalloc_oom", 12),
    ("pinned_free_catch_all", 12),
    ("pinned_max_round_threshold_mb", 13),
    ("pinned_max_cached_size_mb", 13),
    ("expandable_segments_reserve", 15),
    ("expandable_segments_reserve_by_class", 15),
];

impl TorchSettings {
    /// The settings of a run with the recorded `settings`: the fields of the snapshot, and those that only its string
    /// holds.
    #[must_use]
    pub fn recorded(settings: &AllocatorSettings, version: TorchVersion) -> TorchSettings {
        // A string that PyTorch took once cannot be wrong. If another release is asked about, settings that it does not
        // have are left out.
        let all = TorchSettings::parse(&settings.conf, version);
        let mut all =
            all.or_else(|_| TorchSettings::parse(&settings.conf, TorchVersion::NEWEST)).unwrap_or_default();
        if !version.has_expandable_reserve() {
            all.reserves = Reserves::default();
        }
        if !version.has_large_segment_size() {
            all.large_segment = LARGE_SEGMENT;
            all.max_non_split_rounding = all.max_non_split_rounding.max(LARGE_SEGMENT);
        }
        if !version.has_fraction_setting() {
            all.fraction = None;
        }
        all.base = settings.clone();
        all
    }

    /// Reads a configuration string.
    ///
    /// # Errors
    /// When PyTorch of that version would refuse it.
    pub fn parse(text: &str, version: TorchVersion) -> Result<TorchSettings, ConfError> {
        let tokens = Tokens { list: lex(text), version };
        let mut settings = TorchSettings::default();
        settings.base.conf = text.to_owned();
        // The size of large segments bounds the others, so it is read first, wherever it stands in the text.
        if version.has_large_segment_size() {
            let mut i = 0;
            while i < tokens.list.len() {
                if tokens.list[i] == "large_segment_size_mb" {
                    settings.large_segment = tokens.at_least(&mut i, 11, "it must be more than 10")? * MIB;
                }
                i += 1;
            }
            settings.max_non_split_rounding = settings.large_segment;
        }
        let least = settings.large_segment / MIB;
        let least_rule = format!("it must be at least {least}, the size of a large segment");
        let mut i = 0;
        while i < tokens.list.len() {
            let key = tokens.list[i].as_str();
            match key {
                "max_split_size_mb" => {
                    let mib = tokens.at_least(&mut i, least, &least_rule)?;
                    settings.base.max_split_size = Some(Bytes(mib.saturating_mul(MIB)));
                }
                "max_non_split_rounding_mb" => {
                    settings.max_non_split_rounding =
                        tokens.at_least(&mut i, least, &least_rule)?.saturating_mul(MIB);
                }
                "garbage_collection_threshold" => {
                    settings.base.garbage_collection_threshold =
                        tokens.share(&mut i, |x| x > 0.0 && x < 1.0, "it must lie between 0 and 1")?;
                }
                "per_process_memory_fraction" if version.has_fraction_setting() => {
                    let share =
                        tokens.share(&mut i, |x| (0.0..=1.0).contains(&x), "it must lie in 0 to 1")?;
                    settings.fraction = Some(share);
                }
                "roundup_power2_divisions" => {
                    tokens.divisions(&mut i, &mut settings.base.roundup_power2_divisions)?;
                }
                "expandable_segments" => settings.base.expandable_segments = tokens.boolean(&mut i)?,
                "large_segment_size_mb" if version.has_large_segment_size() => {
                    tokens.value(&mut i)?;
                }
                "backend" => match tokens.value(&mut i)? {
                    "native" => settings.malloc_async = false,
                    "cudaMallocAsync" => settings.malloc_async = true,
                    other => return Err(bad(key, other, "it is native or cudaMallocAsync")),
                },
                "release_lock_on_cudamalloc"
                | "release_lock_on_hipmalloc"
                | "graph_capture_record_stream_reuse"
                | "pinned_use_cuda_host_register"
                | "pinned_use_hip_host_register"
                | "pinned_use_background_threads" => {
                    tokens.boolean(&mut i)?;
                }
                "pinned_num_register_threads" => {
                    let threads = tokens.at_least(&mut i, 1, "it must be a power of two up to 128")?;
                    if !threads.is_power_of_two() || threads > 128 {
                        return Err(bad(key, &threads.to_string(), "it must be a power of two up to 128"));
                    }
                }
                "pinned_reserve_segment_size_mb" => {
                    tokens.at_least(&mut i, 1, "it must be more than 0")?;
                }
                "throw_on_cudamalloc_oom" | "pinned_free_catch_all" if version.has_early_oom_setting() => {
                    tokens.boolean(&mut i)?;
                }
                "pinned_max_round_threshold_mb" | "pinned_max_cached_size_mb"
                    if version.has_pinned_limits() =>
                {
                    tokens.at_least(&mut i, 0, "")?;
                }
                "expandable_segments_reserve" if version.has_expandable_reserve() => {
                    // PyTorch warns about a value that it cannot use, and keeps the one before.
                    settings.reserves.all = Reserve::read(tokens.value(&mut i)?).or(settings.reserves.all);
                }
                "expandable_segments_reserve_by_class" if version.has_expandable_reserve() => {
                    settings.reserves.by_class = tokens.reserves_by_class(&mut i)?;
                }
                _ => {
                    return Err(ConfError::UnknownKey {
                        key: key.to_owned(),
                        version,
                        nearest: nearest(key),
                    });
                }
            }
            i += 1;
            if i < tokens.list.len() {
                tokens.separator(i, ',')?;
                i += 1;
            }
        }
        Ok(settings)
    }

    /// The memory that one segment for a rounded request takes.
    #[inline]
    #[must_use]
    pub fn segment_size(&self, rounded: u64) -> u64 {
        if rounded <= MIB {
            2 * MIB
        } else if rounded < MIN_LARGE {
            self.large_segment
        } else {
            rounded.div_ceil(2 * MIB) * (2 * MIB)
        }
    }

    #[inline]
    #[must_use]
    pub fn max_split(&self) -> u64 {
        self.base.max_split_size.map_or(u64::MAX, |b| b.0)
    }

    /// As a value for the environment: only settings that differ from the defaults; empty if none does.
    #[must_use]
    pub fn to_conf(&self) -> String {
        let plain = TorchSettings::default();
        let mut parts = Vec::new();
        if self.base.expandable_segments {
            parts.push("expandable_segments:True".to_owned());
        }
        if let Some(size) = self.base.max_split_size {
            parts.push(format!("max_split_size_mb:{}", size.0 / MIB));
        }
        if self.base.roundup_power2_divisions != plain.base.roundup_power2_divisions {
            parts.push(format!(
                "roundup_power2_divisions:{}",
                divisions_text(&self.base.roundup_power2_divisions)
            ));
        }
        if self.base.garbage_collection_threshold > 0.0 {
            parts.push(format!("garbage_collection_threshold:{}", self.base.garbage_collection_threshold));
        }
        if self.large_segment != plain.large_segment {
            parts.push(format!("large_segment_size_mb:{}", self.large_segment / MIB));
        }
        if self.max_non_split_rounding != self.large_segment {
            parts.push(format!("max_non_split_rounding_mb:{}", self.max_non_split_rounding / MIB));
        }
        if let Some(share) = self.fraction {
            parts.push(format!("per_process_memory_fraction:{share}"));
        }
        if let Some(reserve) = self.reserves.all {
            parts.push(format!("expandable_segments_reserve:{}", reserve.text()));
        }
        if !self.reserves.by_class.is_empty() {
            let pairs =
                self.reserves.by_class.iter().map(|(name, reserve)| format!("{name}:{}", reserve.text()));
            let list = pairs.collect::<Vec<_>>().join(",");
            parts.push(format!("expandable_segments_reserve_by_class:[{list}]"));
        }
        if self.malloc_async {
            parts.push("backend:cudaMallocAsync".to_owned());
        }
        parts.join(",")
    }
}

impl TorchSettings {
    /// The same, with the other settings of the original string, which move no block.
    #[must_use]
    pub fn to_conf_keeping_others(&self) -> String {
        let tokens = lex(&self.base.conf);
        let mut parts = vec![self.to_conf()];
        let mut i = 0;
        while i + 2 < tokens.len() {
            let key = tokens[i].as_str();
            let other = key.starts_with("pinned_")
                || key.starts_with("release_lock_on_")
                || matches!(key, "graph_capture_record_stream_reuse" | "throw_on_cudamalloc_oom");
            i += 2;
            if other {
                parts.push(format!("{key}:{}", tokens[i]));
            }
            if tokens[i] == "[" {
                i += tokens[i..].iter().position(|t| t == "]").unwrap_or(tokens.len());
            }
            // Over the value, and the comma behind it.
            i += 2;
        }
        parts.retain(|p| !p.is_empty());
        parts.join(",")
    }
}

/// The shortest way to write the sixteen slots that PyTorch reads back as the same.
fn divisions_text(slots: &[u32; 16]) -> String {
    if slots.iter().all(|&n| n == slots[0]) {
        return slots[0].to_string();
    }
    let pairs: Vec<String> = slots.iter().enumerate().map(|(i, n)| format!("{}:{n}", 1u64 << i)).collect();
    format!("[{}]", pairs.join(","))
}

/// The next step for a setting that a release does not have.
fn hint(key: &str, nearest: Option<&str>) -> String {
    if let Some((_, since)) = KEYS.iter().find(|(name, _)| *name == key) {
        return format!(": torch 2.{since} and later have it");
    }
    nearest.map(|name| format!(": did you mean {name}?")).unwrap_or_default()
}

/// The setting whose name is closest, if one is close and the name itself is of no release.
fn nearest(key: &str) -> Option<&'static str> {
    let names = || KEYS.iter().map(|(name, _)| *name);
    if names().any(|name| name == key) {
        return None;
    }
    if let Some(name) = names().find(|name| key.len() > 3 && name.starts_with(key)) {
        return Some(name);
    }
    let (distance, name) = names().map(|name| (distance(key, name), name)).min()?;
    (1..=name.len() / 2).contains(&distance).then_some(name)
}

fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let next = (corner + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            corner = row[j + 1];
            row[j + 1] = next;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
