//! XXH3 with 64 bits: the checksum of every chunk.
//!
//! Long inputs take the widest vectors that the processor has, at the speed of its cache. Short ones, and the reference
//! in the test, are the `xxhash-rust` crate's.

/// The algorithm's own constants.
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde,
    0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79,
    0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46,
    0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb,
    0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2,
    0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c,
    0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59,
    0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3,
    0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3,
    0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8,
    0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb,
    0xca, 0xbb, 0x4b, 0x40, 0x7e,
];
const STRIPE: usize = 64;
const BLOCK: usize = 16 * STRIPE;
const PRIME32: u64 = 0x9e37_79b1;
const PRIMES64: [u64; 5] = [
    0x9e37_79b1_85eb_ca87,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0x85eb_ca77_c2b2_ae63,
    0x27d4_eb2f_1656_67c5,
];
/// XXH3 treats shorter inputs in other ways, which the crate implements.
const LONG: usize = 1024;

/// The checksum of `bytes`.
pub fn checksum(bytes: &[u8]) -> u64 {
    Sum::new(bytes).finish()
}

/// A checksum that is taken a block at a time, between other work.
#[derive(Debug)]
pub struct Sum<'a> {
    bytes: &'a [u8],
    /// Bytes of whole blocks that are in the sums.
    done: usize,
    sums: [u64; 8],
}

impl<'a> Sum<'a> {
    /// Nothing of `bytes` is summed up yet.
    pub fn new(bytes: &'a [u8]) -> Sum<'a> {
        Sum { bytes, done: 0, sums: FIRST }
    }

    /// Sums up the next block, unless it is the last one.
    pub fn step(&mut self) {
        // `finish` treats the last block in another way, even if it is whole.
        if self.bytes.len() - self.done > BLOCK {
            let block = &self.bytes[self.done..self.done + BLOCK];
            whole_blocks(&mut self.sums, block.as_chunks::<BLOCK>().0);
            self.done += BLOCK;
        }
    }

    /// The checksum of all bytes.
    pub fn finish(self) -> u64 {
        if self.bytes.len() <= LONG {
            return xxhash_rust::xxh3::xxh3_64(self.bytes);
        }
        finish(self.bytes, self.done, self.sums, whole_blocks)
    }
}

/// Adds whole blocks to the sums by the widest vectors that the processor has.
#[allow(unsafe_code)]
fn whole_blocks(sums: &mut [u64; 8], bytes: &[[u8; BLOCK]]) {
    let (secrets, scramble) = (&SECRETS, &SCRAMBLE);
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: `is_x86_feature_detected` found AVX-512F.
            return unsafe { vectors::avx512(sums, bytes, secrets, scramble) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: `is_x86_feature_detected` found AVX2.
            return unsafe { vectors::avx2(sums, bytes, secrets, scramble) };
        }
    }
    blocks(sums, bytes);
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod vectors {
    use super::{BLOCK, STRIPE};
    use std::arch::x86_64::*;

    /// Adds whole blocks to the sums, as `super::blocks` does.
    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512(
        sums: &mut [u64; 8],
        bytes: &[[u8; BLOCK]],
        secrets: &[[u64; 8]; 16],
        scramble: &[u64; 8],
    ) {
        // SAFETY: both arrays have the 64 bytes that are read.
        let (mut sum, key) = unsafe {
            (_mm512_loadu_si512(sums.as_ptr().cast()), _mm512_loadu_si512(scramble.as_ptr().cast()))
        };
        let prime = _mm512_set1_epi64(super::PRIME32 as i64);
        for block in bytes {
            for (stripe, secret) in block.as_chunks::<STRIPE>().0.iter().zip(secrets) {
                // SAFETY: both arrays have the 64 bytes that are read.
                let (data, secret) = unsafe {
                    (_mm512_loadu_si512(stripe.as_ptr().cast()), _mm512_loadu_si512(secret.as_ptr().cast()))
                };
                let keyed = _mm512_xor_si512(data, secret);
                let product = _mm512_mul_epu32(keyed, _mm512_srli_epi64::<32>(keyed));
                sum = _mm512_add_epi64(_mm512_add_epi64(sum, _mm512_shuffle_epi32::<0x4e>(data)), product);
            }
            let turned = _mm512_xor_si512(_mm512_xor_si512(sum, _mm512_srli_epi64::<47>(sum)), key);
            let high = _mm512_mul_epu32(_mm512_srli_epi64::<32>(turned), prime);
            sum = _mm512_add_epi64(_mm512_mul_epu32(turned, prime), _mm512_slli_epi64::<32>(high));
        }
        // SAFETY: the array has the 64 bytes that are written.
        unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), sum) };
    }

    /// Adds whole blocks to the sums, as `super::blocks` does.
    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(
        sums: &mut [u64; 8],
        bytes: &[[u8; BLOCK]],
        secrets: &[[u64; 8]; 16],
        scramble: &[u64; 8],
    ) {
        for half in 0..2 {
            let words = 4 * half..4 * half + 4;
            // SAFETY: both slices have the 32 bytes that are read.
            let (mut sum, key) = unsafe {
                (
                    _mm256_loadu_si256(sums[words.clone()].as_ptr().cast()),
                    _mm256_loadu_si256(scramble[words.clone()].as_ptr().cast()),
                )
            };
            let prime = _mm256_set1_epi64x(super::PRIME32 as i64);
            for block in bytes {
                for (stripe, secret) in block.as_chunks::<STRIPE>().0.iter().zip(secrets) {
                    // SAFETY: both slices have the 32 bytes that are read.
                    let (data, secret) = unsafe {
                        (
                            _mm256_loadu_si256(stripe[32 * half..32 * half + 32].as_ptr().cast()),
                            _mm256_loadu_si256(secret[words.clone()].as_ptr().cast()),
                        )
                    };
                    let keyed = _mm256_xor_si256(data, secret);
                    let product = _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed));
                    sum =
                        _mm256_add_epi64(_mm256_add_epi64(sum, _mm256_shuffle_epi32::<0x4e>(data)), product);
                }
                let turned = _mm256_xor_si256(_mm256_xor_si256(sum, _mm256_srli_epi64::<47>(sum)), key);
                let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(turned), prime);
                sum = _mm256_add_epi64(_mm256_mul_epu32(turned, prime), _mm256_slli_epi64::<32>(high));
            }
            // SAFETY: the slice has the 32 bytes that are written.
            unsafe { _mm256_storeu_si256(sums[words].as_mut_ptr().cast(), sum) };
        }
    }
}

fn words(bytes: &[u8; STRIPE]) -> [u64; 8] {
    let mut words = [0; 8];
    for (word, eight) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*eight);
    }
    words
}

const fn secret(at: usize) -> [u64; 8] {
    let (mut words, mut byte) = ([0; 8], 0);
    while byte < STRIPE {
        words[byte / 8] |= (SECRET[at + byte] as u64) << (8 * (byte % 8));
        byte += 1;
    }
    words
}

/// The secret that is mixed into each stripe of a block.
static SECRETS: [[u64; 8]; 16] = {
    let (mut all, mut k) = ([[0; 8]; 16], 0);
    while k < 16 {
        all[k] = secret(8 * k);
        k += 1;
    }
    all
};
/// The secret that is mixed in after each block.
static SCRAMBLE: [u64; 8] = secret(SECRET.len() - STRIPE);
/// The initial sums.
const FIRST: [u64; 8] =
    [0xc2b2_ae3d, PRIMES64[0], PRIMES64[1], PRIMES64[2], PRIMES64[3], 0x85eb_ca77, PRIMES64[4], PRIME32];

fn add(sums: &mut [u64; 8], stripe: &[u8; STRIPE], secret: &[u64; 8]) {
    let data = words(stripe);
    let mut products = [0u64; 8];
    for k in 0..8 {
        let key = data[k] ^ secret[k];
        products[k] = (key & 0xffff_ffff).wrapping_mul(key >> 32);
    }
    for k in 0..8 {
        sums[k] = sums[k].wrapping_add(products[k]).wrapping_add(data[k ^ 1]);
    }
}

type Blocks = fn(&mut [u64; 8], &[[u8; BLOCK]]);

/// The portable definition of the vector functions.
fn blocks(sums: &mut [u64; 8], bytes: &[[u8; BLOCK]]) {
    for block in bytes {
        for (stripe, secret) in block.as_chunks::<STRIPE>().0.iter().zip(&SECRETS) {
            add(sums, stripe, secret);
        }
        for (sum, key) in sums.iter_mut().zip(&SCRAMBLE) {
            *sum = (*sum ^ (*sum >> 47) ^ key).wrapping_mul(PRIME32);
        }
    }
}

/// The checksum of more than `LONG` bytes, of which `done` are in the sums.
fn finish(bytes: &[u8], done: usize, mut sums: [u64; 8], add_blocks: Blocks) -> u64 {
    // The last block is never scrambled, even if it is whole; the last stripe may overlap the one before it.
    let blocks = (bytes.len() - 1) / BLOCK;
    add_blocks(&mut sums, bytes[done..blocks * BLOCK].as_chunks::<BLOCK>().0);
    let rest = &bytes[blocks * BLOCK..bytes.len() - 1];
    for (stripe, secret) in rest.as_chunks::<STRIPE>().0.iter().zip(&SECRETS) {
        add(&mut sums, stripe, secret);
    }
    if let Some(last) = bytes.last_chunk::<STRIPE>() {
        add(&mut sums, last, &secret(SECRET.len() - STRIPE - 7));
    }
    let keys = secret(11);
    let mut result = (bytes.len() as u64).wrapping_mul(PRIMES64[0]);
    for k in 0..4 {
        let product = u128::from(sums[2 * k] ^ keys[2 * k]) * u128::from(sums[2 * k + 1] ^ keys[2 * k + 1]);
        result = result.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    result ^= result >> 37;
    result = result.wrapping_mul(0x1656_6791_9e37_79f9);
    result ^ (result >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    #[test]
    fn it_is_xxh3() {
        let bytes: Vec<u8> = (0..70_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let lengths = (0..3000).chain([4095, 4096, 4097, 16384, 65536, 65600, 70_000]);
        for length in lengths {
            assert_eq!(checksum(&bytes[..length]), xxh3_64(&bytes[..length]), "{length} bytes");
            for steps in [1, 3, 1000] {
                let mut sum = Sum::new(&bytes[..length]);
                (0..steps).for_each(|_| sum.step());
                assert_eq!(sum.finish(), xxh3_64(&bytes[..length]), "{length} bytes, {steps} steps");
            }
            if length > super::LONG {
                assert_eq!(
                    finish(&bytes[..length], 0, FIRST, blocks),
                    xxh3_64(&bytes[..length]),
                    "{length} bytes, portable"
                );
                #[cfg(target_arch = "x86_64")]
                #[allow(unsafe_code)]
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: `is_x86_feature_detected` found AVX2.
                    let avx2: Blocks = |a, b| unsafe { vectors::avx2(a, b, &SECRETS, &SCRAMBLE) };
                    assert_eq!(
                        finish(&bytes[..length], 0, FIRST, avx2),
                        xxh3_64(&bytes[..length]),
                        "{length} bytes, AVX2"
                    );
                }
            }
        }
    }
}
