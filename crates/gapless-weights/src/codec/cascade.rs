//! A cascade of short codes for a plane of bytes with few frequent symbols: the exponents of trained weights.
//!
//! Level 1 gives the most frequent symbols of a chunk codes of 1 to 3 bits; its last code says that the symbol is
//! one of the next level. After the last level, symbols are stored as they are. The shape (levels and bits) is
//! chosen for each chunk. Codes are bit planes, so that an escape mask is an AND, a position a count of bits, and a
//! symbol two blends.

use super::ahead::Ahead;
use super::path::Path;
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

pub(super) const LEVELS: usize = 4;
/// Symbols in the palettes of all levels together: four levels of three bits.
pub(super) const SYMBOLS: usize = 28;
/// Tables hold this many bytes past their items, so that a whole vector may be read or written at every position.
pub(super) const SLACK: usize = 136;

/// Calls one of a path's functions with the number of bits as a constant.
macro_rules! with_bits {
    ($bits:expr, $path:ident :: $function:ident, ($($argument:expr),*)) => {
        match $bits {
            1 => $path::$function::<1>($($argument),*),
            2 => $path::$function::<2>($($argument),*),
            _ => $path::$function::<3>($($argument),*),
        }
    };
    ($bits:expr, $stream:expr, $path:ident :: $function:ident, ($($argument:expr),*)) => {
        match ($bits, $stream) {
            (1, false) => $path::$function::<1, false>($($argument),*),
            (2, false) => $path::$function::<2, false>($($argument),*),
            (_, false) => $path::$function::<3, false>($($argument),*),
            (1, true) => $path::$function::<1, true>($($argument),*),
            (2, true) => $path::$function::<2, true>($($argument),*),
            (_, true) => $path::$function::<3, true>($($argument),*),
        }
    };
}

/// The parameters by which a decoder reads one chunk's cascade.
///
/// Invariants: 1 <= levels <= 4; 1 <= bits <= 3 below `levels`; escapes fall from level to level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cascade {
    pub(super) levels: usize,
    pub(super) bits: [u8; LEVELS],
    /// Items that each level passes on.
    pub(super) escapes: [u32; LEVELS],
    /// Symbols by code; the entry of the escape is 0, so that expanded bytes can be OR-ed in.
    pub(super) palettes: [[u8; 8]; LEVELS],
}

/// Bytes of the planes of `items` codes of `bits`.
pub(super) fn plane_bytes(items: usize, bits: u8) -> usize {
    items.div_ceil(64) * 8 * usize::from(bits)
}

/// The most bytes of a section of `items`: every level passes all items on.
pub(super) fn most(items: usize) -> usize {
    LEVELS * plane_bytes(items, 3) + items
}

/// Symbols with their counts, the most frequent first; symbols that do not occur are left out.
pub(super) fn by_count(counts: &[u32; 256]) -> Vec<(u32, u8)> {
    let mut order = Vec::with_capacity(64);
    for (eight, first) in counts.as_chunks::<8>().0.iter().zip((0u8..=255).step_by(8)) {
        if *eight != [0; 8] {
            let there = eight.iter().zip(first..=first + 7).filter(|(count, _)| **count > 0);
            order.extend(there.map(|(count, symbol)| (*count, symbol)));
        }
    }
    order.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    order
}

/// The bits that Huffman's code takes for symbols in falling order of their counts: the sum of all inner nodes.
pub(super) fn huffman(order: &[(u32, u8)]) -> u64 {
    // Sums come in rising order too, so the two smallest are at the heads of two queues.
    let mut leaves = order.iter().rev().map(|(count, _)| u64::from(*count)).peekable();
    let mut sums = [0u64; 256];
    let (mut head, mut tail, mut total) = (0, 0, 0);
    for _ in 1..order.len() {
        let mut smallest = || match leaves.peek() {
            Some(leaf) if head == tail || *leaf <= sums[head] => leaves.next().unwrap_or(0),
            _ => {
                head += 1;
                sums[head - 1]
            }
        };
        let sum = smallest() + smallest();
        sums[tail] = sum;
        tail += 1;
        total += sum;
    }
    total
}

/// The bits of up to four levels with the fewest bits in all for symbols in falling order of their counts, and their
/// sum: zeros past the last level. At least `least` levels, at most `most`.
fn shape(order: &[(u32, u8)], least: usize, most: usize) -> ([u8; LEVELS], u64) {
    // Items that are none of the first k symbols.
    let mut left = [0u64; SYMBOLS + 1];
    left[order.len().min(SYMBOLS)] = order.iter().skip(SYMBOLS).map(|(count, _)| u64::from(*count)).sum();
    for (k, (count, _)) in order.iter().enumerate().take(SYMBOLS).rev() {
        left[k] = left[k + 1] + u64::from(*count);
    }
    // Entry k: the cost of items after the first k symbols from this level on, and the level's best number of bits.
    // With 0 bits all of them are stored as they are; else items without a code go to the next level.
    let raw = left.map(|items| 8 * items);
    let mut costs = raw;
    let mut choices = [[0u8; SYMBOLS + 1]; LEVELS];
    for level in (0..most).rev() {
        let next = std::mem::replace(&mut costs, raw);
        for k in 0..=7 * level {
            for bits in 1..=3u8 {
                let cost = left[k] * u64::from(bits) + next[k + (1 << bits) - 1];
                if cost < costs[k] || level < least && bits == 1 {
                    (costs[k], choices[level][k]) = (cost, bits);
                }
            }
        }
    }
    let (mut shape, mut used) = ([0; LEVELS], 0);
    for (bits, choices) in shape.iter_mut().zip(&choices).take(most) {
        *bits = choices[used];
        if *bits == 0 {
            break;
        }
        used += (1 << *bits) - 1;
    }
    (shape, costs[0])
}

impl Cascade {
    /// The cascade with the fewest bits for symbols in falling order of their counts, and those bits.
    pub(super) fn choose(order: &[(u32, u8)]) -> (Cascade, u64) {
        let (bits, least) = shape(order, 1, LEVELS);
        let mut cascade = Cascade::default();
        cascade.append(&bits, order);
        (cascade, least)
    }

    /// As `choose`, among the cascades with this one's first level.
    pub(super) fn choose_rest(&self, order: &[(u32, u8)]) -> (Cascade, u64) {
        let (mut first, symbols) = (Cascade::default(), (1usize << self.bits[0]) - 1);
        (first.levels, first.bits[0], first.palettes[0]) = (1, self.bits[0], self.palettes[0]);
        let is_left = |symbol: u8| !self.palettes[0][..symbols].contains(&symbol);
        let rest: Vec<(u32, u8)> = order.iter().copied().filter(|(_, symbol)| is_left(*symbol)).collect();
        let (bits, least) = shape(&rest, 0, LEVELS - 1);
        first.append(&bits, &rest);
        let items: u64 = order.iter().map(|(count, _)| u64::from(*count)).sum();
        (first, least + items * u64::from(self.bits[0]))
    }

    /// Adds levels of so many bits, up to the first zero, with palettes of the symbols in turn.
    fn append(&mut self, bits: &[u8; LEVELS], order: &[(u32, u8)]) {
        let mut last = order.first().map_or(0, |first| first.1);
        let mut next = order.iter();
        for bits in bits.iter().take_while(|bits| **bits > 0) {
            self.bits[self.levels] = *bits;
            for symbol in &mut self.palettes[self.levels][..(1 << bits) - 1] {
                // A palette with room left repeats its last symbol, whose second code is never used.
                last = next.next().map_or(last, |next| next.1);
                *symbol = last;
            }
            self.levels += 1;
        }
    }

    /// Bits of all levels, and of the symbols after the last one.
    pub(super) fn bits_of(&self, items: usize) -> u64 {
        let passed_on =
            std::iter::once(items as u64).chain(self.escapes.iter().map(|count| u64::from(*count)));
        let levels = passed_on.zip(&self.bits).take(self.levels);
        levels.map(|(items, bits)| items * u64::from(*bits)).sum::<u64>() + 8 * self.raw() as u64
    }

    /// The beginnings of each level's planes and of the raw symbols, counted from the first plane.
    pub(super) fn places(&self, items: usize) -> [usize; LEVELS + 1] {
        let (mut places, mut items) = ([0; LEVELS + 1], items);
        for level in 0..self.levels {
            places[level + 1] = places[level] + plane_bytes(items, self.bits[level]);
            items = self.escapes[level] as usize;
        }
        for level in self.levels + 1..=LEVELS {
            places[level] = places[self.levels];
        }
        places
    }

    /// Counts each symbol in a section of `items` from its planes. Only symbols after the last level
    /// are counted singly.
    #[allow(unsafe_code)]
    pub(super) fn counts(&self, items: usize, section: &[u8], path: Path) -> [u32; 256] {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "popcnt")]
        fn by_popcnt(planes: &[u8], bits: u8) -> [u32; 8] {
            sets_of(planes, bits)
        }
        let places = self.places(items);
        let raw = &section[places[self.levels]..places[self.levels] + self.raw()];
        let mut counts = [0; 256];
        raw.iter().for_each(|symbol| counts[usize::from(*symbol)] += 1);
        let mut items = items as u32;
        for level in 0..self.levels {
            let (planes, bits) = (&section[places[level]..places[level + 1]], self.bits[level]);
            let mut with = match path {
                Path::Portable => sets_of(planes, bits),
                #[cfg(target_arch = "x86_64")]
                Path::Avx512 if is_x86_feature_detected!("avx512vpopcntdq") => {
                    let (whole, rest) =
                        planes.split_at(planes.len() / (64 * usize::from(bits)) * 64 * usize::from(bits));
                    // SAFETY: `Path::checked` saw that the processor has these instructions, and the
                    // match arm the last one.
                    let mut with = unsafe { with_bits!(bits, avx512::sets, (whole)) };
                    // SAFETY: `Path::checked` saw that the processor has the instruction.
                    let last = unsafe { by_popcnt(rest, bits) };
                    with.iter_mut().zip(last).for_each(|(count, more)| *count += more);
                    with
                }
                // SAFETY: `Path::checked` saw that the processor has the instruction.
                #[cfg(target_arch = "x86_64")]
                _ => unsafe { by_popcnt(planes, bits) },
                #[cfg(not(target_arch = "x86_64"))]
                _ => sets_of(planes, bits),
            };
            with[0] = items;
            let escape = (1usize << bits) - 1;
            for code in 0..escape {
                // Inclusion and exclusion: sets with an odd number of further bits are subtracted.
                let signed = |set: usize| match (set ^ code).count_ones() % 2 {
                    0 => i64::from(with[set]),
                    _ => -i64::from(with[set]),
                };
                let exact: i64 = (0..=escape).filter(|set| set & code == code).map(signed).sum();
                counts[usize::from(self.palettes[level][code])] += exact as u32;
            }
            items = self.escapes[level];
        }
        counts
    }

    /// Symbols that follow the last level's planes as they are.
    pub(super) fn raw(&self) -> usize {
        self.escapes[self.levels - 1] as usize
    }
}

/// Encodes `values` of 16 bits: sign and mantissa go to `low`, levels to `out`. Fills in the cascade's escapes and
/// returns the bytes written. `out` has room for [`most`] bytes, `tables` for the items and the slack.
pub(super) fn encode(
    values: &[u8],
    cascade: &mut Cascade,
    low: &mut [[u8; 64]],
    out: &mut [u8],
    tables: &mut [Vec<u8>; 3],
    (path, ahead): (Path, &mut Ahead),
) -> usize {
    let length = encode_first(values, cascade, low, out, tables, (path, ahead));
    length + encode_rest(cascade, &mut out[length..], tables, (path, ahead))
}

/// The first level alone; the items that it passes on are in the first table afterwards.
#[allow(unsafe_code)]
pub(super) fn encode_first(
    values: &[u8],
    cascade: &mut Cascade,
    low: &mut [[u8; 64]],
    out: &mut [u8],
    tables: &mut [Vec<u8>; 3],
    (path, ahead): (Path, &mut Ahead),
) -> usize {
    let [to, ..] = tables;
    let (bits, palette) = (cascade.bits[0], &cascade.palettes[0]);
    let length = plane_bytes(values.len() / 2, bits);
    let planes = &mut out[..length];
    let count = match path {
        // SAFETY: `Path::checked` saw that the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 => unsafe {
            with_bits!(bits, avx512::encode_first, (values, palette, low, planes, to, ahead))
        },
        // SAFETY: as for AVX-512.
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => unsafe {
            with_bits!(bits, avx2::encode_first, (values, palette, low, planes, to, ahead))
        },
        _ => with_bits!(bits, portable::encode_first, (values, palette, low, planes, to, ahead)),
    };
    cascade.escapes[0] = count as u32;
    length
}

/// The levels after the first, of the items in the first table, which stay there, and the symbols after the last one.
#[allow(unsafe_code)]
pub(super) fn encode_rest(
    cascade: &mut Cascade,
    out: &mut [u8],
    tables: &mut [Vec<u8>; 3],
    (path, ahead): (Path, &mut Ahead),
) -> usize {
    let [mut from, mut to, mut other] = tables.each_mut();
    let (mut count, mut at) = (cascade.escapes[0] as usize, 0);
    for level in 1..cascade.levels {
        let (bits, palette) = (cascade.bits[level], &cascade.palettes[level]);
        let length = plane_bytes(count, bits);
        let planes = &mut out[at..at + length];
        count = match path {
            // SAFETY: `Path::checked` saw that the processor has these instructions.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => unsafe {
                with_bits!(bits, avx512::encode_level, (from, count, palette, planes, to, ahead))
            },
            // SAFETY: as for AVX-512.
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => unsafe {
                with_bits!(bits, avx2::encode_level, (from, count, palette, planes, to, ahead))
            },
            _ => with_bits!(bits, portable::encode_level, (from, count, palette, planes, to, ahead)),
        };
        cascade.escapes[level] = count as u32;
        at += length;
        // The first table keeps its items, so the other two take turns.
        (from, to, other) = if level == 1 { (to, other, from) } else { (to, from, other) };
    }
    out[at..at + count].copy_from_slice(&from[..count]);
    at + count
}

/// Entry s: the items whose codes have all bits of s. Entry 0 is not filled.
#[inline(always)]
fn sets_of(planes: &[u8], bits: u8) -> [u32; 8] {
    #[inline(always)]
    fn sets<const B: usize>(planes: &[u8]) -> [u32; 8] {
        let mut with = [0u32; 8];
        for block in planes.chunks_exact(8 * B) {
            let mut words = [!0u64; 3];
            for (word, bytes) in words.iter_mut().zip(block.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            let [a, b, c] = words;
            let sets = [0, a, b, a & b, c, a & c, b & c, a & b & c];
            for (count, set) in with.iter_mut().zip(sets).take(1 << B).skip(1) {
                *count += set.count_ones();
            }
        }
        with
    }
    match bits {
        1 => sets::<1>(planes),
        2 => sets::<2>(planes),
        _ => sets::<3>(planes),
    }
}

/// Decodes values of 16 bits from their low bytes and a section that `places` describes. False if the section's
/// escapes differ from the header's counts, because the chunk is then damaged.
#[allow(unsafe_code)]
pub(super) fn decode(
    cascade: &Cascade,
    low: &[[u8; 64]],
    section: &[u8],
    out: &mut [u8],
    tables: &mut [Vec<u8>; 2],
    (path, stream): (Path, bool),
    ahead: &mut Ahead,
) -> bool {
    let items = out.len() / 2;
    let places = cascade.places(items);
    let [from, to] = tables;
    let raw = cascade.raw();
    from[..raw].copy_from_slice(&section[places[cascade.levels]..places[cascade.levels] + raw]);
    for level in (1..cascade.levels).rev() {
        let planes = &section[places[level]..places[level + 1]];
        let (bits, palette) = (cascade.bits[level], &cascade.palettes[level]);
        let used = match path {
            // SAFETY: `Path::checked` saw that the processor has these instructions.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => unsafe {
                with_bits!(bits, avx512::decode_level, (planes, palette, from, to, ahead))
            },
            // SAFETY: as for AVX-512.
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => unsafe { with_bits!(bits, avx2::decode_level, (planes, palette, from, to, ahead)) },
            _ => with_bits!(bits, portable::decode_level, (planes, palette, from, to, ahead)),
        };
        if used != cascade.escapes[level] as usize {
            return false;
        }
        std::mem::swap(from, to);
    }
    let (bits, palette) = (cascade.bits[0], &cascade.palettes[0]);
    let planes = &section[..places[1]];
    let run =
        |low: &[[u8; 64]], planes: &[u8], source: &[u8], out: &mut [[u8; 128]], ahead: &mut Ahead| match path
        {
            // SAFETY: `Path::checked` saw that the processor has these instructions.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => unsafe {
                with_bits!(bits, stream, avx512::decode_first, (low, planes, palette, source, out, ahead))
            },
            // SAFETY: as for AVX-512.
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => unsafe {
                with_bits!(bits, stream, avx2::decode_first, (low, planes, palette, source, out, ahead))
            },
            _ => with_bits!(bits, portable::decode_first, (low, planes, palette, source, out, ahead)),
        };
    let (whole, tail) = out.as_chunks_mut::<128>();
    let blocks = whole.len();
    let mut used = run(low, planes, from, whole, ahead);
    if !tail.is_empty() {
        let mut last = [[0u8; 128]];
        used +=
            run(&low[blocks..], &planes[blocks * 8 * usize::from(bits)..], &from[used..], &mut last, ahead);
        tail.copy_from_slice(&last[0][..tail.len()]);
    }
    used == cascade.escapes[0] as usize
}

/// Values of 16 bits from their low bytes, in whole blocks, and as many high bytes as there are values.
#[allow(unsafe_code)]
pub(super) fn join(
    low: &[[u8; 64]],
    high: &[u8],
    out: &mut [u8],
    (path, stream): (Path, bool),
    ahead: &mut Ahead,
) {
    let (blocks, whole) = (high.as_chunks::<64>().0, out.as_chunks_mut::<128>().0);
    let done = match (path, stream) {
        // SAFETY: `Path::checked` saw that the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        (Path::Avx512, true) => unsafe { avx512::join::<true>(low, blocks, whole, ahead) },
        // SAFETY: as above, for all arms.
        #[cfg(target_arch = "x86_64")]
        (Path::Avx512, false) => unsafe { avx512::join::<false>(low, blocks, whole, ahead) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Path::Avx2, true) => unsafe { avx2::join::<true>(low, blocks, whole, ahead) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Path::Avx2, false) => unsafe { avx2::join::<false>(low, blocks, whole, ahead) },
        _ => 0,
    };
    portable::join(&low.as_flattened()[64 * done..], &high[64 * done..], &mut out[128 * done..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symbols around a middle, and strays.
    fn values(count: usize, seed: u32) -> Vec<u8> {
        let mut state = seed | 1;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        let value = |_| {
            let exponent = if next() % 50 == 0 { next() % 256 } else { 110 + (next() | 1).trailing_zeros() };
            (exponent << 7 | next() & 0x807f) as u16
        };
        (0..count).map(value).flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn huffmans_code_is_as_long_as_when_the_two_smallest_are_put_together() {
        for seed in 0..200u32 {
            let mut counts = [0u32; 256];
            for pair in values(1 + 37 * seed as usize, seed).as_chunks::<2>().0 {
                counts[usize::from(u16::from_le_bytes(*pair) >> 7 & 255)] += 1 + seed % 5;
            }
            let order = by_count(&counts);
            let mut left: Vec<u64> = order.iter().map(|(count, _)| u64::from(*count)).collect();
            let mut bits = 0;
            while left.len() > 1 {
                left.sort_unstable_by(|a, b| b.cmp(a));
                let sum = left.pop().expect("two") + left.pop().expect("two");
                left.push(sum);
                bits += sum;
            }
            assert_eq!(huffman(&order), bits, "{order:?}");
        }
        assert_eq!((huffman(&[]), huffman(&[(7, 1)])), (0, 0));
    }

    #[test]
    fn the_planes_tell_how_often_each_symbol_occurs() {
        for (count, seed) in [(1, 1), (63, 2), (64, 3), (65, 4), (1000, 5), (20_000, 6)] {
            let values = values(count, seed);
            let (high, _) = super::super::counts::of_pairs(&values);
            // The cascade that suits them, and one for other symbols, which passes all items on.
            let other = [(3, 1), (2, 2), (1, 3), (1, 4), (1, 5), (1, 6), (1, 7), (1, 8), (1, 9)];
            for order in [by_count(&high), other.to_vec()] {
                for path in Path::all() {
                    let mut cascade = Cascade::choose(&order).0;
                    let mut low = vec![[0; 64]; count.div_ceil(64)];
                    let mut section = vec![0; most(count)];
                    let mut tables = [const { Vec::new() }; 3];
                    tables.iter_mut().for_each(|table| table.resize(count.next_multiple_of(64) + SLACK, 0));
                    let ahead = &mut Ahead::new(&[]);
                    let length =
                        encode(&values, &mut cascade, &mut low, &mut section, &mut tables, (path, ahead));
                    assert!(cascade.counts(count, &section[..length], path) == high, "{count}, {path:?}");
                    let bytes = (cascade.bits_of(count) / 8) as usize;
                    assert!(
                        (bytes..bytes + 8 * 3 * LEVELS).contains(&length),
                        "{count}: {length} for {bytes}"
                    );
                }
            }
        }
    }

    /// The cost of a cascade of these bits, by definition.
    fn cost(order: &[(u32, u8)], shape: &[u8]) -> u64 {
        let left = |k: usize| order.iter().skip(k).map(|(count, _)| u64::from(*count)).sum::<u64>();
        let (mut bits, mut used) = (0, 0);
        for level in shape.iter().take_while(|bits| **bits > 0) {
            bits += left(used) * u64::from(*level);
            used += (1 << level) - 1;
        }
        bits + 8 * left(used)
    }

    #[test]
    fn no_other_shape_costs_fewer_bits() {
        let mut state = 7u32;
        let mut next = |limit: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % limit
        };
        for symbols in [0, 1, 2, 3, 4, 7, 8, 15, 21, 28, 29, 40, 256] {
            for round in 0..20 {
                let mut counts = [0; 256];
                for count in &mut counts[..symbols] {
                    *count = 1 + next(1 << (1 + round / 2)) * next(1 << (1 + round / 4));
                }
                let order = by_count(&counts);
                let (best, least) = Cascade::choose(&order);
                let shapes =
                    (0..256u32).map(|k| [k & 3, k >> 2 & 3, k >> 4 & 3, k >> 6].map(|bits| bits as u8));
                let all = shapes.clone().filter(|shape| shape[0] > 0).map(|shape| cost(&order, &shape));
                assert_eq!(Some(least), all.min(), "{order:?}");
                assert_eq!(cost(&order, &best.bits), least);
                // A first level of other symbols than the best: the levels after it are the best ones for the rest.
                let mut other = Cascade { levels: 1, bits: [2, 0, 0, 0], ..Cascade::default() };
                other.palettes[0] = [3, 5, 200, 0, 0, 0, 0, 0];
                let (whole, bits) = other.choose_rest(&order);
                let is_left = |symbol: u8| ![3, 5, 200].contains(&symbol);
                let rest: Vec<(u32, u8)> = order.iter().copied().filter(|entry| is_left(entry.1)).collect();
                let all = shapes.filter(|shape| shape[3] == 0).map(|shape| cost(&rest, &shape));
                let first: u64 = order.iter().map(|(count, _)| 2 * u64::from(*count)).sum();
                assert_eq!(Some(bits - first), all.min(), "{order:?}");
                assert_eq!((whole.bits[0], whole.palettes[0]), (2, other.palettes[0]));
            }
        }
    }
}
