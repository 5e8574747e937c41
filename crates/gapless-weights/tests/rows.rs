//! One rank's rows, and equal tensors that are stored once.

use gapless_weights::rows::{Rank, unpack_rows};
use gapless_weights::{Reader, pack, unpack, verify};
use std::fs;
use std::path::Path;

type Entry<'a> = (&'a str, &'a str, Vec<u64>, Vec<u8>);

fn write(path: &Path, tensors: &[Entry<'_>]) {
    let (mut text, mut data) = (String::from("{\"__metadata__\":{\"format\":\"pt\"}"), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let (begin, end) = (data.len(), data.len() + bytes.len());
        let entry = format!("\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{begin},{end}]");
        text.push_str(&format!(",\"{name}\":{{{entry}}}"));
        data.extend_from_slice(bytes);
    }
    text.push('}');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(text.as_bytes());
    file.extend_from_slice(&data);
    fs::write(path, file).unwrap();
}

/// bf16 values that look like weights.
fn weights(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let values = (0..count).map(|_| ((0..6).map(|_| uniform()).sum::<f32>() - 3.0) * 0.02);
    values.flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

fn tensor(path: &Path, name: &str) -> (Vec<u64>, Vec<u8>) {
    let reader = Reader::open(path).unwrap();
    let index = reader.find(name).unwrap();
    let tensor = &reader.header.tensors[index];
    let mut bytes = vec![0; tensor.bytes() as usize];
    reader.read(index, 0..tensor.bytes(), &mut bytes).unwrap();
    (tensor.shape.clone(), bytes)
}

#[test]
fn ranks_get_their_rows_and_together_read_each_byte_about_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let wide = weights(8192 * 1024, 3);
    let noise: Vec<u8> = (0..4_000_000u32).map(|k| (k.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let tensors = [
        ("wide", "BF16", vec![8192, 1024], wide),
        ("noise", "U8", vec![4_000_000], noise),
        ("odd", "F32", vec![5, 3], (0..60).collect()),
        ("scalar", "F32", vec![], vec![1, 2, 3, 4]),
        ("empty", "F32", vec![0, 4], vec![]),
    ];
    write(&at("plain"), &tensors);
    pack(&at("plain"), &at("packed"), 2).unwrap();
    for from in [at("plain"), at("packed")] {
        let mut read = 0;
        for rank in 0..8 {
            let cut = unpack_rows(&from, &at("mine"), Rank::new(rank, 8).unwrap(), 2).unwrap();
            read += cut.read;
            assert_eq!(cut.written, fs::metadata(at("mine")).unwrap().len());
            for (name, _, shape, bytes) in &tensors {
                let (found, mine) = tensor(&at("mine"), name);
                let Some(length) = shape.first().copied() else {
                    assert_eq!((found, &mine), (vec![], bytes));
                    continue;
                };
                let rows = Rank::new(rank, 8).unwrap().rows(length);
                let row = (bytes.len() as u64).checked_div(length).unwrap_or(0);
                assert_eq!(found[0], rows.end - rows.start, "{name}");
                assert_eq!(found[1..], shape[1..]);
                assert!(
                    mine == bytes[(rows.start * row) as usize..(rows.end * row) as usize],
                    "{name} of {rank}"
                );
            }
        }
        let size = fs::metadata(&from).unwrap().len();
        assert!(read as f64 <= 1.02 * size as f64, "{read} of {size} bytes: {}", from.display());
    }
    assert_eq!(Rank::new(8, 8), None);
    assert_eq!(Rank::new(u64::MAX - 1, u64::MAX).unwrap().rows(u64::MAX), u64::MAX - 1..u64::MAX);
}

#[test]
fn equal_tensors_are_stored_once_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (a, mut b) = (weights(200_000, 1), weights(200_000, 1));
    let noise: Vec<u8> = (0..50_000u32).map(|k| (k.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    b[399_999] ^= 0x80;
    let tensors = [
        ("first", "BF16", vec![200_000], a.clone()),
        ("almost", "BF16", vec![200_000], b),
        ("second", "BF16", vec![200_000], a.clone()),
        ("other shape", "BF16", vec![400, 500], a.clone()),
        ("third \\\"quoted\\\"", "BF16", vec![200_000], a),
        ("noise", "U8", vec![50_000], noise.clone()),
        ("noise again", "U8", vec![50_000], noise),
    ];
    write(&at("plain"), &tensors);
    let done = pack(&at("plain"), &at("packed"), 2).unwrap();
    assert_eq!((done.same, done.tensors), (3, 7));
    assert!(done.after < 270_000 * 3 + 60_000, "{done:?}");
    unpack(&at("packed"), &at("again"), 2, false).unwrap();
    assert!(fs::read(at("plain")).unwrap() == fs::read(at("again")).unwrap());
    assert!(verify(&at("packed"), 2).unwrap().damage.is_empty());
    assert_eq!(tensor(&at("packed"), "second"), tensor(&at("packed"), "first"));
    // False references of `same`: another shape, no such tensor, itself.
    let good = fs::read(at("packed")).unwrap();
    let text = String::from_utf8_lossy(&good).into_owned();
    let same = "\\\"same\\\":\\\"first\\\"";
    assert_eq!(text.matches(same).count(), 2);
    for lie in ["other shape", "nosuch", "second"] {
        let length = u64::from_le_bytes(*good.first_chunk().unwrap()) as usize;
        let header = String::from_utf8(good[8..8 + length].to_vec()).unwrap();
        let mut changed =
            header.replace(same, &format!("\\\"same\\\":\\\"{lie}\\\"")).trim_end().as_bytes().to_vec();
        changed.resize(length.max(changed.len()), b' ');
        let mut bad = (changed.len() as u64).to_le_bytes().to_vec();
        bad.extend_from_slice(&changed);
        bad.extend_from_slice(&good[8 + length..]);
        fs::write(at("bad"), bad).unwrap();
        assert!(Reader::open(&at("bad")).is_err(), "{lie}");
    }
}

#[test]
fn rows_that_end_within_a_byte_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Rows of 4, 12, 16, 12 and 24 bits.
    for (dtype, shape, bytes) in [
        ("F4", vec![4096, 1], 2048),
        ("F4", vec![2, 3], 3),
        ("F4", vec![2, 4], 4),
        ("F6_E2M3", vec![4, 2], 6),
        ("F6_E3M2", vec![4, 4], 12),
    ] {
        let is_whole = bytes % shape[0] == 0;
        write(&at("a"), &[("w", dtype, shape.clone(), vec![7; bytes as usize])]);
        let cut = unpack_rows(&at("a"), &at("b"), Rank::new(1, 2).unwrap(), 1);
        assert_eq!(cut.is_ok(), is_whole, "{dtype} {shape:?}: {cut:?}");
        // If a file is written, it can be read.
        assert_eq!(at("b").exists(), is_whole);
        if is_whole {
            assert_eq!(tensor(&at("b"), "w"), (vec![shape[0] / 2, shape[1]], vec![7; bytes as usize / 2]));
            fs::remove_file(at("b")).unwrap();
        }
    }
}
