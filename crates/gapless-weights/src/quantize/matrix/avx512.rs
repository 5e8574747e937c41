//! Vectors of sixteen lanes, by AVX-512 F and BW.
#![allow(unsafe_code)]

use super::avx2::Avx2;
use super::lanes::lanes;
use std::arch::x86_64::*;

#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512;

lanes! {
    Avx512, __m512, __m512i, Avx2, 32;

    fn all(value: f32) -> __m512 { _mm512_set1_ps(value) }
    fn halves(lower: f32, upper: f32) -> __m512 {
        _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(lower), _mm512_set1_ps(upper))
    }
    fn all_bits(bits: u32) -> __m512i { _mm512_set1_epi32(bits as i32) }

    fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
    fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
    fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
    fn div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
    fn min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
    fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
    fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
    fn mul_from(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fnmadd_ps(a, b, c) }
    fn sum(a: __m512) -> f64 {
        let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(a)));
        let low = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
        _mm512_reduce_add_pd(_mm512_add_pd(low, _mm512_cvtps_pd(upper)))
    }

    fn bits(a: __m512) -> __m512i { _mm512_castps_si512(a) }
    fn float(a: __m512i) -> __m512 { _mm512_castsi512_ps(a) }
    fn and(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
    fn or(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
    fn add_bits(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
    fn left<const BITS: u32>(a: __m512i) -> __m512i { _mm512_slli_epi32::<BITS>(a) }
    fn right<const BITS: u32>(a: __m512i) -> __m512i { _mm512_srli_epi32::<BITS>(a) }
    fn where_negative(a: __m512, b: __m512i) -> __m512i {
        _mm512_maskz_mov_epi32(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, _mm512_setzero_ps()), b)
    }

    fn max16(a: __m512i, b: __m512i) -> __m512i { _mm512_max_epu16(a, b) }
    fn max32(a: __m512i, b: __m512i) -> __m512i { _mm512_max_epi32(a, b) }
    fn most16(a: __m512i) -> u32 {
        let half = _mm256_max_epu16(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64::<1>(a));
        let eight = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
        // Only the minimum of eight has an instruction, so the maximum is the minimum of the complements.
        let least = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi32(-1)));
        0xffff - _mm_extract_epi16::<0>(least) as u32
    }
    fn most32(a: __m512i) -> u32 { _mm512_reduce_max_epi32(a) as u32 }

    fn prefetch(bytes: &[u8], distance: usize) {
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(distance).cast());
    }
    fn load(bytes: &[u8]) -> __m512i { _mm512_loadu_si512(bytes[..64].as_ptr().cast()) }
    fn load32(bytes: &[u8]) -> (__m512, __m512) {
        parted(
            _mm512_loadu_ps(bytes[..64].as_ptr().cast()),
            _mm512_loadu_ps(bytes[64..128].as_ptr().cast()),
        )
    }
    fn load_half(bytes: &[u8]) -> (__m512, __m512) {
        parted(
            _mm512_cvtph_ps(_mm256_loadu_si256(bytes[..32].as_ptr().cast())),
            _mm512_cvtph_ps(_mm256_loadu_si256(bytes[32..64].as_ptr().cast())),
        )
    }
    fn round_half(a: __m512) -> __m512 {
        _mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a))
    }
    fn store_bytes(even: __m512i, odd: __m512i, to: &mut [u8]) {
        // The lower words of `even`, with the lower words of `odd` above them.
        let words = _mm512_ternarylogic_epi32::<0xca>(
            _mm512_set1_epi32(0xffff),
            even,
            _mm512_slli_epi32::<16>(odd),
        );
        _mm256_storeu_si256(to[..32].as_mut_ptr().cast(), _mm512_cvtepi16_epi8(words));
    }
    fn store_nibbles(even: __m512i, odd: __m512i, to: &mut [u8]) {
        let both = _mm512_or_si512(even, _mm512_slli_epi32::<4>(odd));
        _mm_storeu_si128(to[..16].as_mut_ptr().cast(), _mm512_cvtepi32_epi8(both));
    }
}

/// Two vectors of values in their order, as those at even places and those at odd places.
#[inline]
#[target_feature(enable = "avx512f")]
fn parted(low: __m512, high: __m512) -> (__m512, __m512) {
    let even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    let odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    (_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high))
}
