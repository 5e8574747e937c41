//! Every byte of a packed file: a change of it is an error, or does not change the unpacked file.

#[path = "made/mod.rs"]
mod made;

use gapless_weights::{Reader, pack, unpack, verify};
use std::fs;
use std::path::Path;

/// A folder in memory, if the system has one, because a disk would take most of the time.
fn memory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// A packed file with a part of each sort: streams of each split, equal tensors, plain ones, empty ones, and metadata.
fn packed(folder: &Path) -> (Vec<u8>, Vec<u8>) {
    let at = |name: &str| folder.join(name);
    let bf16 = made::made("BF16", 0, 1, 700);
    let noise: Vec<u8> = (0..300u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let tensors: Vec<made::Tensor<'_>> = vec![
        ("w", "BF16", vec![700], bf16.clone()),
        ("same", "BF16", vec![700], bf16),
        ("h", "F16", vec![2, 350], made::made("F16", 0, 2, 700)),
        ("f", "F32", vec![400], made::made("F32", 5, 3, 400)),
        ("g", "F32", vec![400], made::made("F32", 5, 4, 400)),
        ("zeros", "I64", vec![200], vec![0; 1600]),
        ("noise", "U8", vec![300], noise.clone()),
        ("noise2", "I8", vec![300], noise),
        ("empty", "F32", vec![0, 4], vec![]),
        ("one", "F32", vec![], vec![0, 0, 128, 63]),
    ];
    made::file(&at("a"), &tensors);
    let done = pack(&at("a"), &at("b"), 1).unwrap();
    assert!(done.streams >= 4 && done.same >= 1, "{done:?}");
    (fs::read(at("a")).unwrap(), fs::read(at("b")).unwrap())
}

/// True if the file unpacks to `want`, or is an error.
fn is_sound(folder: &Path, bytes: &[u8], want: &[u8]) -> bool {
    let path = folder.join("bad");
    fs::write(&path, bytes).unwrap();
    if verify(&path, 1).is_ok_and(|checked| checked.damage.is_empty() && checked.is_packed) {
        unpack(&path, &folder.join("out"), 1, false).unwrap();
        return fs::read(folder.join("out")).unwrap() == want;
    }
    // The file no longer counts as packed, and a reader would take it for a model with other types.
    if let Ok(reader) = Reader::open(&path)
        && !reader.is_packed()
    {
        return false;
    }
    unpack(&path, &folder.join("out"), 1, false).is_err()
}

/// As `is_sound`, without writing files: the header and every tensor are compared in memory.
fn is_quickly_sound(folder: &Path, bytes: &[u8], want: &[u8]) -> bool {
    let path = folder.join("bad");
    fs::write(&path, bytes).unwrap();
    let Ok(reader) = Reader::open(&path) else { return true };
    if !reader.is_packed() {
        return false;
    }
    let checked = verify(&path, 1).unwrap();
    if !checked.damage.is_empty() {
        return true;
    }
    let mut found = (reader.header.text.len() as u64).to_le_bytes().to_vec();
    found.extend_from_slice(&reader.header.text);
    for (index, tensor) in reader.header.tensors.iter().enumerate() {
        let mut data = vec![0; tensor.bytes() as usize];
        reader.read(index, 0..tensor.bytes(), &mut data).unwrap();
        found.extend_from_slice(&data);
    }
    found == want
}

#[test]
fn a_change_of_any_byte_is_found_or_changes_nothing() {
    let folder = memory();
    let (original, good) = packed(folder.path());
    assert!(is_sound(folder.path(), &good, &original));
    let data = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let mut bad = good.clone();
    for at in 0..good.len() {
        // Behind the header every byte is in a checksum, which finds one change as it finds another.
        let masks: &[u8] = if at < data { &[0x01, 0x20, 0x80] } else { &[0x01] };
        for mask in masks {
            bad[at] ^= mask;
            assert!(
                is_quickly_sound(folder.path(), &bad, &original),
                "byte {at} changed by {mask:#x} goes unseen"
            );
            bad[at] = good[at];
        }
    }
}

/// Every character of the header is replaced by characters with a meaning in JSON, and by its neighbours.
#[test]
fn a_change_of_any_character_of_the_header_is_found_or_changes_nothing() {
    let folder = memory();
    let (original, good) = packed(folder.path());
    let end = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let mut bad = good.clone();
    for at in 8..end {
        for character in [b'A', b'0', b'"', good[at].wrapping_add(1)] {
            bad[at] = character;
            assert!(is_quickly_sound(folder.path(), &bad, &original), "{}: {:?}", at, character as char);
        }
        bad[at] = good[at];
    }
}

#[test]
fn a_file_that_is_cut_longer_or_has_parts_in_each_others_place_is_refused() {
    let folder = memory();
    let (original, good) = packed(folder.path());
    for length in (0..good.len()).step_by(7).chain(good.len() - 70..good.len()) {
        assert!(!is_whole(folder.path(), &good[..length], &original), "{length} bytes");
    }
    for more in [1, 7, 64, 4096] {
        assert!(
            !is_whole(folder.path(), &[&good[..], &vec![0; more]].concat(), &original),
            "{more} bytes more"
        );
    }
    // Blocks of every length that a stream has, at every place.
    let data = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    for length in [64, 128, 512, 832, 1024, 2048] {
        for a in (data..good.len() - length).step_by(64) {
            let b = a + length;
            if b + length > good.len() || good[a..b] == good[b..b + length] {
                continue;
            }
            let mut bad = good.clone();
            let (left, right) = bad.split_at_mut(b);
            left[a..].swap_with_slice(&mut right[..length]);
            assert!(is_quickly_sound(folder.path(), &bad, &original), "{length} bytes at {a} and {b}");
        }
    }
}

fn is_whole(folder: &Path, bytes: &[u8], want: &[u8]) -> bool {
    let path = folder.join("bad");
    fs::write(&path, bytes).unwrap();
    unpack(&path, &folder.join("out"), 1, false).is_ok() && fs::read(folder.join("out")).unwrap() == want
}

/// Two streams of equal length under each other's names: each stream is intact, but the names are wrong.
#[test]
fn streams_under_each_others_names_are_refused() {
    let folder = memory();
    let at = |name: &str| folder.path().join(name);
    let tensor = |name, seed| (name, "F32", vec![64], made::made("F32", 5, seed, 64).repeat(8));
    let (mut a, mut b) = (tensor("a", 1), tensor("b", 2));
    (a.2, b.2) = (vec![512], vec![512]);
    made::file(&at("a"), &[a, b]);
    assert_eq!(pack(&at("a"), &at("b"), 1).unwrap().streams, 2);
    let good = fs::read(at("b")).unwrap();
    let header = Reader::open(&at("b")).unwrap();
    let (first, second) = (header.place(0).0, header.place(1).0);
    assert_eq!(first.end - first.start, second.end - second.start, "the test needs equal lengths");
    let mut bad = good.clone();
    bad[first.start as usize..first.end as usize]
        .copy_from_slice(&good[second.start as usize..second.end as usize]);
    bad[second.start as usize..second.end as usize]
        .copy_from_slice(&good[first.start as usize..first.end as usize]);
    fs::write(at("bad"), &bad).unwrap();
    let error = unpack(&at("bad"), &at("out"), 1, false).unwrap_err().to_string();
    assert!(error.contains("not the stream that was packed under this name"), "{error}");
}

/// A file of the first version, which has no sums: it is read, and its redundant parts must agree.
#[test]
fn older_files_are_read_and_checked_by_what_they_say_twice() {
    let folder = memory();
    let (original, _) = packed(folder.path());
    let old = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/weights/packed_1.safetensors"))
        .unwrap();
    assert!(!String::from_utf8_lossy(&old).contains("gapless.sum"));
    assert!(is_sound(folder.path(), &old, &original), "the file of the first version is not read");
    let end = 8 + u64::from_le_bytes(old[..8].try_into().unwrap()) as usize;
    let text = String::from_utf8(old[8..end].to_vec()).unwrap();
    for (from, to) in [
        (r#"\"codec\":\"GWS1\",\"dtype\":\"F32\""#, r#"\"codec\":\"GWS1\",\"dtype\":\"I32\""#),
        (r#"\"dtype\":\"I64\",\"shape\":[200]"#, r#"\"dtype\":\"I64\",\"shape\":[100]"#),
        (r#"\"same\":\"w\",\"shape\":[700]"#, r#"\"same\":\"w\",\"shape\":[770]"#),
        (r#""format":"pt""#, r#""format":"tp""#),
    ] {
        assert!(text.contains(from), "{text}");
        let text = text.replacen(from, to, 1);
        let bad = [&old[..8], text.as_bytes(), &old[end..]].concat();
        fs::write(folder.path().join("bad"), bad).unwrap();
        let error = verify(&folder.path().join("bad"), 1).unwrap_err().to_string();
        assert!(error.contains("original header"), "{error}");
    }
}
