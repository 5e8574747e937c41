//! PyTorch's CUDA caching allocator: the constants and the three pure decisions that any reader of its traces needs.
//! Checked against torch 2.11 (the recorded traces rebuild to the byte only with exactly these).

use crate::settings::AllocatorSettings;
use crate::words::Bytes;

/// Smallest block, and the unit to which requests are rounded.
pub const MIN_BLOCK: Bytes = Bytes(512);
/// Rounded requests up to this size come from the small pool.
pub const SMALL_LIMIT: Bytes = Bytes(1 << 20);
/// Segments of the small pool.
pub const SMALL_SEGMENT: Bytes = Bytes(2 << 20);

/// The block size for a request of `size` bytes.
#[inline]
#[must_use]
pub fn round_size(size: Bytes, settings: &AllocatorSettings) -> Bytes {
    let size = size.0;
    if size < MIN_BLOCK.0 {
        return MIN_BLOCK;
    }
    // Slot i covers [2^(20+i), 2^(21+i)); smaller sizes use slot 0, larger ones slot 15.
    let slot = (size.ilog2().saturating_sub(20) as usize).min(15);
    let divisions = u64::from(settings.roundup_power2_divisions[slot]);
    if divisions > 1 && size > MIN_BLOCK.0.saturating_mul(divisions) {
        if size.is_power_of_two() {
            return Bytes(size);
        }
        let step = ((1 << size.ilog2()) >> divisions.ilog2()).max(1);
        return Bytes(size.div_ceil(step) * step);
    }
    Bytes(size.div_ceil(MIN_BLOCK.0) * MIN_BLOCK.0)
}

/// True if a rounded request belongs to the small pool.
#[inline]
#[must_use]
pub fn is_small(rounded: Bytes) -> bool {
    rounded <= SMALL_LIMIT
}

/// True if a free block of `block` bytes is split to serve `rounded` bytes. `expandable` is the setting at the time of
/// the request.
#[inline]
#[must_use]
pub fn splits(block: Bytes, rounded: Bytes, expandable: bool, settings: &AllocatorSettings) -> bool {
    let rest = block.saturating_sub(rounded);
    if is_small(rounded) || expandable {
        rest >= MIN_BLOCK
    } else {
        settings.max_split_size.is_none_or(|limit| rounded < limit) && rest > SMALL_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_to_512_bytes_without_divisions() {
        let settings = AllocatorSettings::default();
        for (size, block) in [(1, 512), (512, 512), (513, 1024), (1 << 30, 1 << 30)] {
            assert_eq!(round_size(Bytes(size), &settings), Bytes(block));
        }
    }

    #[test]
    fn requests_round_to_a_fraction_of_their_power_of_two_with_divisions() {
        let settings = AllocatorSettings { roundup_power2_divisions: [4; 16], ..Default::default() };
        for (size, block) in [
            (1200, 1536),       // 512 x 4 is the guard: below it, multiples of 512
            (2049, 2560),       // steps of 512 between 2048 and 4096
            (5 << 20, 5 << 20), // 4 MiB / 4 = 1 MiB steps
            ((5 << 20) + 1, 6 << 20),
            (8 << 20, 8 << 20),
        ] {
            assert_eq!(round_size(Bytes(size), &settings), Bytes(block), "{size}");
        }
    }
}
