//! The language of `PYTORCH_ALLOC_CONF` (and `PYTORCH_CUDA_ALLOC_CONF`), as PyTorch reads it.
//!
//! Its quirks are kept, because a setting that PyTorch ignores must be ignored here: blanks vanish even inside words,
//! from 2.9 on any text in the place of a separator is taken for one, numbers end at the first character that is no
//! digit, booleans are `True` and `False` exactly. A text that PyTorch refuses is refused, with the place.

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

fn lex(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for c in text.chars() {
        if matches!(c, ',' | ':' | '[' | ']') {
            if !word.is_empty() {
                tokens.push(std::mem::take(&mut word));
            }
            tokens.push(c.to_string());
        } else if !c.is_whitespace() {
            word.push(c);
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

fn bad(key: &str, value: &str, rule: &str) -> ConfError {
    ConfError::BadValue { key: key.to_owned(), value: value.to_owned(), rule: rule.to_owned() }
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

struct Tokens {
    list: Vec<String>,
    version: TorchVersion,
}

impl Tokens {
    /// A list `[name:VALUE,...]`; of one name the last value that can be used counts.
    fn reserves_by_class(&self, i: &mut usize) -> Result<Vec<(String, Reserve)>, ConfError> {
        const KEY: &str = "expandable_segments_reserve_by_class";
        // Any text in this place is taken for the opening bracket.
        self.value(i)?;
        let unfinished = || bad(KEY, "[", "the list must end with ]");
        let mut list: Vec<(String, Reserve)> = Vec::new();
        loop {
            *i += 1;
            let name = self.list.get(*i).ok_or_else(unfinished)?;
            if name == "]" {
                return Ok(list);
            }
            *i += 2;
            if let Some(reserve) = Reserve::read(self.list.get(*i).ok_or_else(unfinished)?) {
                list.retain(|(known, _)| known != name);
                list.push((name.clone(), reserve));
            }
            if self.list.get(*i + 1).ok_or_else(unfinished)? == "," {
                *i += 1;
            }
        }
    }

    /// Steps over the separator at `i`. Releases since 2.9 accept any text there.
    fn separator(&self, i: usize, expected: char) -> Result<(), ConfError> {
        let strict = self.version < TorchVersion(2, 9);
        let right = self.list.get(i).is_some_and(|t| t.len() == 1 && t.starts_with(expected));
        if strict && !right {
            let after = self.list[..i].last().cloned().unwrap_or_default();
            return Err(ConfError::Separator { expected, after, version: self.version });
        }
        Ok(())
    }

    /// The value behind the key at `i`, which moves to it.
    fn value(&self, i: &mut usize) -> Result<&str, ConfError> {
        let key = &self.list[*i];
        if self.list.len() <= *i + 2 {
            return Err(ConfError::NoValue { key: key.clone() });
        }
        self.separator(*i + 1, ':')?;
        *i += 2;
        Ok(&self.list[*i])
    }

    /// A whole number, read as far as digits go.
    fn number(&self, key: &str, text: &str) -> Result<u64, ConfError> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let value: u64 = rest[..digits].parse().map_err(|_| bad(key, text, "it must be a whole number"))?;
        // The C++ function wraps negative numbers around; so -1 is the largest number there is.
        Ok(if negative { value.wrapping_neg() } else { value })
    }

    fn at_least(&self, i: &mut usize, least: u64, rule: &str) -> Result<u64, ConfError> {
        let key = self.list[*i].clone();
        let text = self.value(i)?;
        let number = self.number(&key, text)?.min(u64::MAX / MIB);
        if number < least { Err(bad(&key, text, rule)) } else { Ok(number) }
    }

    fn share(&self, i: &mut usize, allowed: impl Fn(f64) -> bool, rule: &str) -> Result<f64, ConfError> {
        let key = self.list[*i].clone();
        let text = self.value(i)?;
        match text.parse::<f64>() {
            Ok(x) if allowed(x) => Ok(x),
            _ => Err(bad(&key, text, rule)),
        }
    }

    fn boolean(&self, i: &mut usize) -> Result<bool, ConfError> {
        let key = self.list[*i].clone();
        match self.value(i)? {
            "True" => Ok(true),
            "False" => Ok(false),
            other => Err(bad(&key, other, "it is True or False, written exactly so")),
        }
    }

    fn divisions(&self, i: &mut usize, slots: &mut [u32; 16]) -> Result<(), ConfError> {
        const KEY: &str = "roundup_power2_divisions";
        let power = |text: &str, zero: bool| -> Result<u32, ConfError> {
            let n = self.number(KEY, text)?;
            let fine = (zero && n == 0) || n.is_power_of_two();
            u32::try_from(n)
                .ok()
                .filter(|_| fine)
                .ok_or_else(|| bad(KEY, text, "divisions must be a power of two, or 0 for none"))
        };
        let first = self.value(i)?;
        if first != "[" {
            slots.fill(power(first, false)?);
            return Ok(());
        }
        let unfinished = || bad(KEY, "[", "the list must end with ]");
        let (mut last, mut named) = (0, false);
        loop {
            *i += 1;
            let bound = self.list.get(*i).ok_or_else(unfinished)?;
            if bound == "]" {
                return Ok(());
            }
            self.separator(*i + 1, ':')?;
            *i += 2;
            let n = power(self.list.get(*i).ok_or_else(unfinished)?, true)?;
            if bound == ">" {
                // Releases before 2.9 overwrite the last named slot too.
                let from = if self.version < TorchVersion(2, 9) { last } else { last + 1 };
                slots[from..].fill(n);
            } else {
                let mib = self.number(KEY, bound)?;
                if !mib.is_power_of_two() {
                    return Err(bad(KEY, bound, "the bounds of the list must be powers of two, in MiB"));
                }
                let slot = (mib.ilog2() as usize).min(15);
                if !named {
                    slots[..slot].fill(n);
                    named = true;
                }
                slots[slot] = n;
                last = slot;
            }
            if self.list.get(*i + 1).ok_or_else(unfinished)? != "]" {
                *i += 1;
                self.separator(*i, ',')?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: TorchVersion = TorchVersion(2, 11);

    fn parsed(text: &str) -> TorchSettings {
        TorchSettings::parse(text, NOW).expect(text)
    }

    #[test]
    fn settings_are_read() {
        let s = parsed("expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8");
        assert!(s.base.expandable_segments);
        assert_eq!(s.base.max_split_size, Some(Bytes(128 << 20)));
        assert!((s.base.garbage_collection_threshold - 0.8).abs() < 1e-12);
        assert_eq!(parsed(""), TorchSettings::default());
        assert_eq!(parsed("per_process_memory_fraction:0.5").fraction, Some(0.5));
        assert!(parsed("backend:cudaMallocAsync").malloc_async);
    }

    #[test]
    fn large_segments_bound_the_other_sizes_wherever_they_stand() {
        let s = parsed("max_split_size_mb:64,large_segment_size_mb:48");
        assert_eq!(s.large_segment, 48 << 20);
        assert_eq!(s.max_non_split_rounding, 48 << 20);
        let error =
            TorchSettings::parse("max_split_size_mb:32,large_segment_size_mb:48", NOW).expect_err("32 < 48");
        assert!(error.to_string().contains("at least 48"), "{error}");
        assert!(TorchSettings::parse("large_segment_size_mb:48", TorchVersion(2, 9)).is_err());
    }

    #[test]
    fn quirks_are_kept() {
        assert_eq!(
            parsed("max_split_size_mb:128MB").base.max_split_size,
            Some(Bytes(128 << 20)),
            "digits only"
        );
        assert_eq!(
            parsed("max_split_ size_mb : 1 28").base.max_split_size,
            Some(Bytes(128 << 20)),
            "blanks vanish"
        );
        assert_eq!(
            parsed("max_split_size_mb,128").base.max_split_size,
            Some(Bytes(128 << 20)),
            "any separator"
        );
        assert!(TorchSettings::parse("max_split_size_mb,128", TorchVersion(2, 6)).is_err(), "not before 2.9");
        assert!(TorchSettings::parse("expandable_segments:true", NOW).is_err(), "True, not true");
    }

    #[test]
    fn divisions_fill_the_slots_as_pytorch_does() {
        let slots = |text: &str| parsed(text).base.roundup_power2_divisions;
        assert_eq!(slots("roundup_power2_divisions:4"), [4; 16]);
        let list = slots("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]");
        assert_eq!(list[..9], [1; 9]);
        assert_eq!(list[9..11], [2, 4]);
        assert_eq!(list[11..], [8; 5], "'>' fills above the last bound");
        let text = "roundup_power2_divisions:[512:2,1024:4,>:8]";
        let before = TorchSettings::parse(text, TorchVersion(2, 8)).expect(text);
        assert_eq!(before.base.roundup_power2_divisions[10], 8, "and on it, before 2.9");
        let holes = slots("roundup_power2_divisions:[4:2,64:8]");
        assert_eq!(holes[..8], [2, 2, 2, 0, 0, 0, 8, 0]);
    }

    #[test]
    fn what_pytorch_refuses_is_refused_with_the_place() {
        for (text, part) in [
            ("max_split_size:128", "did you mean max_split_size_mb"),
            ("max_split_size_mb:4", "at least 20"),
            ("max_split_size_mb", "write max_split_size_mb:VALUE"),
            ("garbage_collection_threshold:1.5", "between 0 and 1"),
            ("roundup_power2_divisions:[64:3]", "power of two"),
            ("roundup_power2_divisions:[64:4", "end with ]"),
            ("backend:best", "native or cudaMallocAsync"),
        ] {
            let error = TorchSettings::parse(text, NOW).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn settings_that_move_no_block_are_kept() {
        let mut s = parsed(
            "roundup_power2_divisions:[4:2,64:8],pinned_use_background_threads:True,max_split_size_mb:64",
        );
        s.base.roundup_power2_divisions = [0; 16];
        assert_eq!(s.to_conf_keeping_others(), "max_split_size_mb:64,pinned_use_background_threads:True");
        assert_eq!(TorchSettings::default().to_conf_keeping_others(), "");
    }

    #[test]
    fn reserves_are_read_as_2_15_reads_them() {
        let text = "expandable_segments:True,expandable_segments_reserve:0.5,expandable_segments_reserve:none,\
                    expandable_segments_reserve_by_class:[decode:0.1,prefill:4G,odd:-1,decode:0.2]";
        let s = TorchSettings::parse(text, TorchVersion(2, 15)).expect(text);
        assert_eq!(s.reserves.all, Some(Reserve::Share(0.5)), "a value of no use keeps the one before");
        let expected =
            [("prefill".to_owned(), Reserve::Gib(4.0)), ("decode".to_owned(), Reserve::Share(0.2))];
        assert_eq!(s.reserves.by_class, expected, "the last of a name; one of no use is none");
        let again = TorchSettings::parse(&s.to_conf(), TorchVersion(2, 15)).expect("its own text");
        assert_eq!(again.reserves, s.reserves);
        let open = TorchSettings::parse("expandable_segments_reserve_by_class:[a:1", TorchVersion(2, 15));
        assert!(open.expect_err("no end").to_string().contains("end with ]"));
    }

    #[test]
    fn a_setting_of_later_releases_is_refused_by_earlier_ones() {
        for (key, since) in KEYS {
            let value = match key {
                "backend" => "native",
                "garbage_collection_threshold" | "per_process_memory_fraction" => "0.5",
                "expandable_segments_reserve_by_class" => "[decode:0.5]",
                _ if key.ends_with("_mb") || key == "roundup_power2_divisions" => "64",
                "pinned_num_register_threads" | "expandable_segments_reserve" => "1",
                _ => "True",
            };
            for minor in 4..=15 {
                match TorchSettings::parse(&format!("{key}:{value}"), TorchVersion(2, minor)) {
                    Ok(_) => assert!(minor >= since, "{key} in 2.{minor}"),
                    Err(error) => {
                        assert!(minor < since, "{key} in 2.{minor}: {error}");
                        let told = format!(
                            "torch 2.{minor} has no allocator setting {key:?}: torch 2.{since} and later have it"
                        );
                        assert_eq!(error.to_string(), told);
                    }
                }
            }
        }
    }

    #[test]
    fn another_release_replays_what_it_has_of_the_recorded_settings() {
        let conf = "expandable_segments:True,large_segment_size_mb:48,expandable_segments_reserve:0.5,\
                    pinned_max_cached_size_mb:64";
        let base = TorchSettings::parse(conf, TorchVersion(2, 15)).expect(conf).base;
        let of = |minor| TorchSettings::recorded(&base, TorchVersion(2, minor));
        assert_eq!((of(15).large_segment, of(15).reserves.all), (48 << 20, Some(Reserve::Share(0.5))));
        assert_eq!((of(12).large_segment, of(12).reserves.all), (48 << 20, None));
        assert_eq!((of(10).large_segment, of(10).base.expandable_segments), (LARGE_SEGMENT, true));
        assert!(of(15).to_conf_keeping_others().contains("expandable_segments_reserve:0.5"));
        assert!(!of(14).to_conf().contains("reserve"), "nothing that 2.14 would refuse");
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        for text in [
            "expandable_segments:True",
            "max_split_size_mb:200,roundup_power2_divisions:8",
            "roundup_power2_divisions:[4:2,64:8]",
            "garbage_collection_threshold:0.6,large_segment_size_mb:64,max_non_split_rounding_mb:100",
        ] {
            let settings = parsed(text);
            let mut again = parsed(&settings.to_conf());
            again.base.conf.clone_from(&settings.base.conf);
            assert_eq!(again, settings, "{text} -> {}", settings.to_conf());
        }
    }
}
