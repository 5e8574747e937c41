//! The allocator's settings as the run recorded them, with those that a trace needs spelled out.

use crate::words::Bytes;

/// PyTorch's CUDA allocator settings. Defaults are PyTorch's.
#[derive(Clone, Debug, PartialEq)]
pub struct AllocatorSettings {
    /// The configuration string as it was given; empty if none was.
    pub conf: String,
    /// Blocks of this size and more are never split; `None`: no limit.
    pub max_split_size: Option<Bytes>,
    /// 0 is off.
    pub garbage_collection_threshold: f64,
    pub expandable_segments: bool,
    /// One slot a power of two from 1 MiB on; 0 and 1: round to 512 bytes.
    pub roundup_power2_divisions: [u32; 16],
    /// Everything else that the snapshot lists, by name, as text.
    pub other: Vec<(String, String)>,
}

impl Default for AllocatorSettings {
    fn default() -> Self {
        AllocatorSettings {
            conf: String::new(),
            max_split_size: None,
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
            roundup_power2_divisions: [0; 16],
            other: Vec::new(),
        }
    }
}
