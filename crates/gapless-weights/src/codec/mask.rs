//! Zeros apart from other values: a bit for each value, and the values that are not zero.

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::path::Path;

/// The kept values have this many bytes behind them, so that a whole vector may be read or written at each of them.
pub(super) const SLACK: usize = 64;

/// Puts a bit for each value into `bits`, and the values that are not zero into `kept`; returns their number.
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

/// Undoes `take`. The bits have as many ones as there are kept values, and none past the end. The caller checks both.
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
            // Always read, kept only if the bit is set, without a branch. Reads past the last hit the slack.
            let bit = bits >> k & 1;
            *value = kept[next].map(|byte| byte & 0u8.wrapping_sub(bit));
            next += usize::from(bit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_takes_zeros_out_and_puts_them_back() {
        for (width, count) in [(2, 0), (2, 1), (2, 31), (2, 32), (2, 33), (2, 1000), (4, 77), (8, 100)] {
            for step in [1, 2, 3, 40] {
                let value =
                    |k: usize| if k.is_multiple_of(step) { 0u64 } else { k as u64 * 0x0101_0101_0101 };
                let values: Vec<u8> =
                    (0..count).flat_map(|k| value(k).to_le_bytes()[..width].to_vec()).collect();
                let taken = |path: Path| {
                    let (mut bits, mut kept) = (vec![0; count.div_ceil(8)], vec![0; values.len() + SLACK]);
                    let number = take(&values, width, &mut bits, &mut kept, path);
                    (bits, kept[..number * width].to_vec())
                };
                let (bits, kept) = taken(Path::Portable);
                for path in Path::all() {
                    assert!(
                        taken(path) == (bits.clone(), kept.clone()),
                        "{width}, {count}, {step}, {path:?}"
                    );
                    let mut out = vec![0xa5; values.len()];
                    let room = [&kept[..], &[0xff; SLACK]].concat();
                    put(&bits, &room, width, &mut out, path);
                    assert!(out == values, "{width}, {count}, {step}, {path:?}");
                }
            }
        }
    }
}
