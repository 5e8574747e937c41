//! Zeros apart from other values: a bit for each value, and the values that are not zero.

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::path::Path;

/// The kept values have this many bytes behind them, so that a whole vector may be read or written at each of them.
pub(super) const SLACK: usize = 64;

/// Puts a bit for each value into `bits`, and the values that are not zero into `kept`; gives their number.
#[allow(unsafe_code)]
pub(super) fn take(values: &[u8], width: usize, bits: &mut [u8], kept: &mut [u8], path: Path) -> usize {
    #[cfg(target_arch = "x86_64")]
    if path == Path::Avx512 && width == 2 {
        let (blocks, rest) = values.as_chunks::<64>();
        // SAFETY: `Path::checked` saw that the processor has these instructions.
        let count = unsafe { avx512::take_kept(blocks, bits.as_chunks_mut::<4>().0, kept) };
        return count + take_of::<2>(rest, &mut bits[4 * blocks.len()..], &mut kept[2 * count..]);
    }
    let _ = path;
    match width {
        2 => take_of::<2>(values, bits, kept),
        4 => take_of::<4>(values, bits, kept),
        _ => take_of::<8>(values, bits, kept),
    }
}

fn take_of<const W: usize>(values: &[u8], bits: &mut [u8], kept: &mut [u8]) -> usize {
    let kept = kept.as_chunks_mut::<W>().0;
    let mut count = 0;
    for (group, bits) in values.chunks(8 * W).zip(bits) {
        *bits = 0;
        for (k, value) in group.as_chunks::<W>().0.iter().enumerate() {
            let is_kept = *value != [0; W];
            *bits |= u8::from(is_kept) << k;
            kept[count] = *value;
            count += usize::from(is_kept);
        }
    }
    count
}

/// Undoes `take`. The bits have as many ones as there are kept values, and none past the end: the caller checked.
#[allow(unsafe_code)]
pub(super) fn put(bits: &[u8], kept: &[u8], width: usize, out: &mut [u8], path: Path) {
    #[cfg(target_arch = "x86_64")]
    if path == Path::Avx512 && width == 2 {
        let (blocks, rest) = out.as_chunks_mut::<64>();
        // SAFETY: `Path::checked` saw that the processor has these instructions.
        let count = unsafe { avx512::put_kept(bits.as_chunks::<4>().0, kept, blocks) };
        return put_of::<2>(&bits[4 * blocks.len()..], &kept[2 * count..], rest);
    }
    let _ = path;
    match width {
        2 => put_of::<2>(bits, kept, out),
        4 => put_of::<4>(bits, kept, out),
        _ => put_of::<8>(bits, kept, out),
    }
}

fn put_of<const W: usize>(bits: &[u8], kept: &[u8], out: &mut [u8]) {
    let kept = kept.as_chunks::<W>().0;
    let mut next = 0;
    for (group, bits) in out.chunks_mut(8 * W).zip(bits) {
        for (k, value) in group.as_chunks_mut::<W>().0.iter_mut().enumerate() {
            // Read always, kept only where the bit is set: no branch to mispredict. The slack is read past the last.
            let bit = bits >> k & 1;
            *value = kept[next].map(|byte| byte & 0u8.wrapping_sub(bit));
            next += usize::from(bit);
        }
    }
}
