use super::*;

#[test]
fn every_vector_path_decodes_what_the_portable_one_does() {
    for (skew, count) in [(2u32, 1000usize), (7, 4096), (40, 65_536), (250, 65_537), (3, 64), (3, 63)] {
        let mut state = 1u32;
        let plane: Vec<u8> = (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 16) % skew).min((state >> 8) % skew) as u8
            })
            .collect();
        let mut counts = [0; 256];
        plane.iter().for_each(|symbol| counts[usize::from(*symbol)] += 1);
        let (frequencies, planned) = plan(&counts).expect("more than one symbol");
        let (mut section, ahead) = (vec![0; most(count)], &mut Ahead::new(&[]));
        let length = encode(&plane, &frequencies, &mut section, &mut Vec::new(), (Path::Portable, ahead));
        for path in Path::all() {
            let mut other = vec![0; most(count)];
            let same = encode(&plane, &frequencies, &mut other, &mut Vec::new(), (path, ahead));
            assert!(other[..same] == section[..length], "{path:?} writes other bytes");
        }
        assert!(length.abs_diff(planned) <= 2 * LANES + planned / 100, "{length} bytes, planned {planned}");
        assert_eq!(super::length(&section), Some(length));
        let section = &section[..length];
        for path in Path::all() {
            let (mut out, mut table) = (vec![0; count], [0; 4096]);
            assert!(decode(section, &mut out, &mut table, path, &mut Ahead::new(&[])), "{path:?}");
            assert!(out == plane, "{path:?}");
        }
        // The path that the choice above leaves out on this processor.
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code)]
        if Path::Avx2.is_there() {
            let (mut out, mut table) = (vec![0; count], [0; 4096]);
            let symbols: usize = section[4..36].iter().map(|byte| byte.count_ones() as usize).sum();
            assert!(fill(&section[4..36], &section[36..36 + packed(symbols)], &mut table));
            let (bytes, words) = section[36 + packed(symbols)..].split_at(4 * LANES);
            let mut states = [0u32; LANES];
            for (state, bytes) in states.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *state = u32::from_le_bytes(*bytes);
            }
            // SAFETY: `is_there` found the instructions.
            let (done, _) = unsafe {
                avx2::decode(&table, words.as_chunks::<2>().0, &mut states, &mut out, &mut Ahead::new(&[]))
            };
            assert!(out[..done] == plane[..done]);
        }
    }
}

/// States at both ends of a frequency's range, and around multiples of it, at which a quotient may be off by one.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[test]
fn quotients_of_every_frequency_are_exact() {
    if !is_wide() {
        return;
    }
    for f in 1..SUM {
        let (limit, start) = (f << (32 - BITS), (SUM - f) / 2);
        let mut symbols = [Symbol::default(); 256];
        symbols[7] = Symbol {
            inverse: (1u64 << 44).div_ceil(u64::from(f)),
            limit,
            complement: (SUM - f) as u16,
            start: start as u16,
        };
        let mut table = [0; 256];
        table[7] = f | start << 16;
        let near = |k: u32| (limit / 64).wrapping_mul(k) / f * f;
        let states: [u32; LANES] = std::array::from_fn(|k| match k {
            0 => START,
            1 => limit - 1,
            2 => limit,
            3 => u32::MAX,
            _ if k % 2 == 0 => near(k as u32).max(START),
            _ => near(k as u32).wrapping_sub(1).max(START),
        });
        let (mut theirs, mut their_words) = (states, [0u16; 2 * LANES]);
        let their_first = take(&[7; LANES], &symbols, &mut theirs, &mut their_words, 2 * LANES);
        for encode in [avx512::encode::<0>, avx512::encode::<1>, avx512::encode::<2>] {
            let (mut ours, mut words) = (states, [0u16; 2 * LANES]);
            let ahead = &mut Ahead::new(&[]);
            // SAFETY: `is_wide` found the instructions.
            let first = unsafe { encode(&[[7; LANES]], &table, &mut ours, &mut words, 2 * LANES, ahead) };
            assert_eq!(their_first, first);
            assert!(ours == theirs && words[first..] == their_words[first..], "frequency {f}");
        }
    }
}
