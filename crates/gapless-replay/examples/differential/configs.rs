//! The settings under which the two are compared, each with a card of a size that brings its rules into play.

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) name: &'static str,
    /// As PYTORCH_CUDA_ALLOC_CONF has it.
    pub(crate) settings: &'static str,
    /// The first 2.x that knows all of it.
    pub(crate) since: u32,
    /// The card's size lies in this range; programs hold up to about all of it.
    pub(crate) capacity: (u64, u64),
    /// Cap set before the first operation, and changed now and then.
    pub(crate) fraction: Option<f64>,
}

const fn row(
    name: &'static str,
    settings: &'static str,
    since: u32,
    capacity: (u64, u64),
    fraction: Option<f64>,
) -> Config {
    Config { name, settings, since, capacity, fraction }
}

/// Hardly ever full, often full, always full.
const AMPLE: (u64, u64) = (16 * GIB, 80 * GIB);
const SNUG: (u64, u64) = (GIB, 4 * GIB);
const TIGHT: (u64, u64) = (96 * MIB, 512 * MIB);

pub(crate) const ALL: &[Config] = &[
    row("default", "", 4, AMPLE, None),
    row("default-snug", "", 4, SNUG, None),
    row("default-tight", "", 4, TIGHT, None),
    row("expandable", "expandable_segments:True", 4, AMPLE, None),
    row("expandable-snug", "expandable_segments:True", 4, SNUG, None),
    row("expandable-tight", "expandable_segments:True", 4, TIGHT, None),
    row("split-21", "max_split_size_mb:21", 4, SNUG, None),
    row("split-32", "max_split_size_mb:32", 4, SNUG, None),
    row("split-128", "max_split_size_mb:128", 4, SNUG, None),
    row("split-48-rounding-64", "max_split_size_mb:48,max_non_split_rounding_mb:64", 6, SNUG, None),
    row("gc", "garbage_collection_threshold:0.6", 4, SNUG, Some(0.8)),
    row("gc-split", "garbage_collection_threshold:0.4,max_split_size_mb:64", 4, SNUG, Some(0.7)),
    row("roundup-4", "roundup_power2_divisions:4", 4, SNUG, None),
    row("roundup-list", "roundup_power2_divisions:[1:8,4:4,64:2,256:1,>:16]", 4, SNUG, None),
    row("roundup-holes", "roundup_power2_divisions:[2:2,32:8,>:4]", 4, SNUG, None),
    row("fraction", "", 4, SNUG, Some(0.5)),
    row("fraction-setting", "per_process_memory_fraction:0.6", 10, SNUG, None),
    row("lock", "release_lock_on_cudamalloc:True", 4, SNUG, None),
    row("large-64", "large_segment_size_mb:64", 11, SNUG, None),
    row("large-32-split", "large_segment_size_mb:32,max_split_size_mb:40", 11, SNUG, None),
    row("expandable-large-34", "expandable_segments:True,large_segment_size_mb:34", 11, SNUG, None),
    // 2.4 ends in an internal error here: it tries to give an expandable segment back as a whole.
    row("expandable-split", "expandable_segments:True,max_split_size_mb:32", 5, SNUG, None),
    row("expandable-gc", "expandable_segments:True,garbage_collection_threshold:0.5", 4, SNUG, Some(0.8)),
    row(
        "expandable-roundup",
        "expandable_segments:True,roundup_power2_divisions:[1:4,16:8,>:2]",
        4,
        SNUG,
        None,
    ),
    row("expandable-fraction", "expandable_segments:True", 4, SNUG, Some(0.5)),
    // Ranges that many requests exceed, and ranges of which a stream needs several.
    row("reserve", "expandable_segments:True,expandable_segments_reserve:0.2", 15, SNUG, None),
    row("reserve-tight", "expandable_segments:True,expandable_segments_reserve:0.11", 15, TIGHT, None),
    row("reserve-size", "expandable_segments:True,expandable_segments_reserve:0.75g", 15, SNUG, Some(0.9)),
    row(
        "reserve-by-class",
        "expandable_segments:True,expandable_segments_reserve_by_class:[decode:0.07,prefill:0.3G]",
        15,
        SNUG,
        None,
    ),
    row(
        "reserve-by-class-or-all",
        "expandable_segments_reserve:0.25,expandable_segments:True,\
         expandable_segments_reserve_by_class:[decode:1.5,prefill:0.1]",
        15,
        TIGHT,
        None,
    ),
];
