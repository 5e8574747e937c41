//! Zeros apart from other values: a bit for each value, and the values that are not zero.

/// Puts a bit for each value into `bits`, and the values that are not zero into `kept`; gives their number.
pub(super) fn take(values: &[u8], width: usize, bits: &mut [u8], kept: &mut [u8]) -> usize {
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
pub(super) fn put(bits: &[u8], kept: &[u8], width: usize, out: &mut [u8]) {
    match width {
        2 => put_of::<2>(bits, kept, out),
        4 => put_of::<4>(bits, kept, out),
        _ => put_of::<8>(bits, kept, out),
    }
}

fn put_of<const W: usize>(bits: &[u8], kept: &[u8], out: &mut [u8]) {
    let mut kept = kept.as_chunks::<W>().0.iter();
    for (group, bits) in out.chunks_mut(8 * W).zip(bits) {
        for (k, value) in group.as_chunks_mut::<W>().0.iter_mut().enumerate() {
            let is_kept = bits >> k & 1 == 1;
            *value = if is_kept { kept.next().copied().unwrap_or([0; W]) } else { [0; W] };
        }
    }
}
