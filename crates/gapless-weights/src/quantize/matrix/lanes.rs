//! The operations on vectors of 32-bit lanes that quantising needs.
//!
//! A step handles twice as many values as there are lanes: those at even places in one vector, those at odd places in
//! another. So two values of 16 bits are separated without a shuffle, and two codes are joined by a shift.

/// Vectors of one width. Only code below `Path::rows` and `Path::largest` may use an implementation, because these
/// two check that the processor has its instructions.
pub(super) trait Lanes: Copy {
    /// Floating-point lanes.
    type F: Copy;
    /// Lanes of 32 bits, or twice as many of 16.
    type I: Copy;
    /// Vectors of eight lanes, for groups that are shorter than a vector.
    type Narrow: Lanes;
    /// Values in a step.
    const STEP: usize;

    fn all(value: f32) -> Self::F;
    /// The first value in the lower half of the lanes, the second in the upper half.
    fn halves(lower: f32, upper: f32) -> Self::F;
    fn all_bits(bits: u32) -> Self::I;

    fn add(a: Self::F, b: Self::F) -> Self::F;
    fn sub(a: Self::F, b: Self::F) -> Self::F;
    fn mul(a: Self::F, b: Self::F) -> Self::F;
    fn div(a: Self::F, b: Self::F) -> Self::F;
    fn min(a: Self::F, b: Self::F) -> Self::F;
    fn max(a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c, rounded once.
    fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// c - a * b, rounded once.
    fn mul_from(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The sum of all lanes.
    fn sum(a: Self::F) -> f64;

    fn bits(a: Self::F) -> Self::I;
    fn float(a: Self::I) -> Self::F;
    fn and(a: Self::I, b: Self::I) -> Self::I;
    fn or(a: Self::I, b: Self::I) -> Self::I;
    /// Sums of 32 bits, which wrap.
    fn add_bits(a: Self::I, b: Self::I) -> Self::I;
    fn left<const BITS: u32>(a: Self::I) -> Self::I;
    fn right<const BITS: u32>(a: Self::I) -> Self::I;
    /// The bits of `b` in lanes where `a` is less than zero, none elsewhere.
    fn where_negative(a: Self::F, b: Self::I) -> Self::I;

    /// The maxima of unsigned lanes of 16 bits.
    fn max16(a: Self::I, b: Self::I) -> Self::I;
    /// The maxima of signed lanes of 32 bits.
    fn max32(a: Self::I, b: Self::I) -> Self::I;
    /// The largest lane of 16 bits, without a sign.
    fn most16(a: Self::I) -> u32;
    /// The largest lane of 32 bits, none of which is negative.
    fn most32(a: Self::I) -> u32;

    /// Prefetches the cache line `distance` bytes after the first of `bytes`. It need not exist.
    fn prefetch(bytes: &[u8], distance: usize);
    /// As many bytes as a vector has.
    fn load(bytes: &[u8]) -> Self::I;
    /// A step of fp32 values: those at even places, those at odd places.
    fn load32(bytes: &[u8]) -> (Self::F, Self::F);
    /// A step of fp16 values, likewise.
    fn load_half(bytes: &[u8]) -> (Self::F, Self::F);
    /// The nearest numbers of fp16, ties to even.
    fn round_half(a: Self::F) -> Self::F;
    /// Stores the lowest byte of each lane, those of even places and those of odd places in turn.
    fn store_bytes(even: Self::I, odd: Self::I, to: &mut [u8]);
    /// Stores a byte for each two lanes: the lowest four bits of the even place below those of the odd place. The
    /// other bits of the lowest bytes must be clear.
    fn store_nibbles(even: Self::I, odd: Self::I, to: &mut [u8]);
}

/// Implements [`Lanes`] by one expression a function.
macro_rules! lanes {
    (
        $name:ident, $float:ty, $int:ty, $narrow:ty, $step:expr;
        $($(#[$note:meta])* fn $function:ident $(<const $bits:ident: u32>)? (
            $($argument:ident: $type:ty),*
        ) $(-> $result:ty)? $body:block)*
    ) => {
        impl $crate::quantize::matrix::lanes::Lanes for $name {
            type F = $float;
            type I = $int;
            type Narrow = $narrow;
            const STEP: usize = $step;
            $(
                $(#[$note])*
                #[inline(always)]
                fn $function $(<const $bits: u32>)? ($($argument: $type),*) $(-> $result)? {
                    // SAFETY: the processor has the instructions, which `Path` checks, as the trait requires. Loads
                    // and stores need no alignment, and indexing checks the lengths of their slices.
                    unsafe { $body }
                }
            )*
        }
    };
}
pub(super) use lanes;
