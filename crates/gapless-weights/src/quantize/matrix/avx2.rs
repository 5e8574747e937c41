//! Vectors of eight lanes, by AVX2 with FMA and F16C.
#![allow(unsafe_code)]

use super::lanes::lanes;
use std::arch::x86_64::*;

#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2;

lanes! {
    Avx2, __m256, __m256i, Avx2, 16;

    fn all(value: f32) -> __m256 { _mm256_set1_ps(value) }
    fn halves(lower: f32, upper: f32) -> __m256 { _mm256_set_m128(_mm_set1_ps(upper), _mm_set1_ps(lower)) }
    fn all_bits(bits: u32) -> __m256i { _mm256_set1_epi32(bits as i32) }

    fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
    fn sub(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
    fn mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
    fn div(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
    fn min(a: __m256, b: __m256) -> __m256 { _mm256_min_ps(a, b) }
    fn max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
    fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
    fn mul_from(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fnmadd_ps(a, b, c) }
    fn sum(a: __m256) -> f64 {
        let (low, high) = (_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let four = _mm256_add_pd(_mm256_cvtps_pd(low), _mm256_cvtps_pd(high));
        let two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd::<1>(four));
        _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
    }

    fn bits(a: __m256) -> __m256i { _mm256_castps_si256(a) }
    fn float(a: __m256i) -> __m256 { _mm256_castsi256_ps(a) }
    fn and(a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
    fn or(a: __m256i, b: __m256i) -> __m256i { _mm256_or_si256(a, b) }
    fn add_bits(a: __m256i, b: __m256i) -> __m256i { _mm256_add_epi32(a, b) }
    fn left<const BITS: u32>(a: __m256i) -> __m256i { _mm256_sll_epi32(a, _mm_cvtsi32_si128(BITS as i32)) }
    fn right<const BITS: u32>(a: __m256i) -> __m256i { _mm256_srl_epi32(a, _mm_cvtsi32_si128(BITS as i32)) }
    fn where_negative(a: __m256, b: __m256i) -> __m256i {
        let negative = _mm256_cmp_ps::<_CMP_LT_OQ>(a, _mm256_setzero_ps());
        _mm256_and_si256(_mm256_castps_si256(negative), b)
    }

    fn max16(a: __m256i, b: __m256i) -> __m256i { _mm256_max_epu16(a, b) }
    fn max32(a: __m256i, b: __m256i) -> __m256i { _mm256_max_epi32(a, b) }
    fn most16(a: __m256i) -> u32 {
        let eight = _mm_max_epu16(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
        // Only the minimum of eight has an instruction, so the maximum is the minimum of the complements.
        let least = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi32(-1)));
        0xffff - _mm_extract_epi16::<0>(least) as u32
    }
    fn most32(a: __m256i) -> u32 {
        let four = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
        let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
        _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two))) as u32
    }

    fn prefetch(bytes: &[u8], distance: usize) {
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(distance).cast());
    }
    fn load(bytes: &[u8]) -> __m256i { _mm256_loadu_si256(bytes[..32].as_ptr().cast()) }
    fn load32(bytes: &[u8]) -> (__m256, __m256) {
        parted(
            _mm256_loadu_ps(bytes[..32].as_ptr().cast()),
            _mm256_loadu_ps(bytes[32..64].as_ptr().cast()),
        )
    }
    fn load_half(bytes: &[u8]) -> (__m256, __m256) {
        parted(
            _mm256_cvtph_ps(_mm_loadu_si128(bytes[..16].as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(bytes[16..32].as_ptr().cast())),
        )
    }
    fn round_half(a: __m256) -> __m256 {
        _mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a))
    }
    fn store_bytes(even: __m256i, odd: __m256i, to: &mut [u8]) {
        let words = _mm256_blend_epi16::<0b1010_1010>(even, _mm256_slli_epi32::<16>(odd));
        let words = _mm256_and_si256(words, _mm256_set1_epi16(0xff));
        let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        _mm_storeu_si128(to[..16].as_mut_ptr().cast(), bytes);
    }
    fn store_nibbles(even: __m256i, odd: __m256i, to: &mut [u8]) {
        let both = _mm256_or_si256(even, _mm256_slli_epi32::<4>(odd));
        let both = _mm256_and_si256(both, _mm256_set1_epi32(0xff));
        let words = _mm_packus_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both));
        _mm_storel_epi64(to[..8].as_mut_ptr().cast(), _mm_packus_epi16(words, words));
    }
}

/// Two vectors of values in their order, as those at even places and those at odd places.
#[inline]
#[target_feature(enable = "avx2")]
fn parted(low: __m256, high: __m256) -> (__m256, __m256) {
    // A shuffle works within 128 bits, so the second and third quarter are swapped after it.
    let even = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(low, high));
    let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(low, high));
    (
        _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(even)),
        _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(odd)),
    )
}
