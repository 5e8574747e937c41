//! XXH3 with 64 bits: the checksum of every chunk.

/// The checksum of `bytes`.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}
