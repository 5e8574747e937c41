//! Tensors of files that torch, NumPy and ONNX wrote, and no panic on damaged ones.

use gapless_weights::listing::{Place, list};
use gapless_weights::survey::survey;
use std::fs;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/weights").join(name)
}

/// Name, type and shape of each tensor, one a line, in order of names.
fn lines(name: &str) -> Vec<String> {
    let mut lines: Vec<String> = list(&data(name))
        .unwrap()
        .tensors
        .iter()
        .map(|tensor| format!("{} {} {:?} {}", tensor.name, tensor.dtype, tensor.shape, tensor.bytes))
        .collect();
    lines.sort();
    lines
}

#[test]
fn torch_archives_are_read_without_running_them() {
    assert_eq!(
        lines("tiny.pt"),
        [
            "embed BF16 [40, 50] 4000",
            "half F16 [9] 18",
            "head BF16 [40, 50] 4000",
            "ids I64 [12] 96",
            "linear.bias F32 [17] 68",
            "linear.weight F32 [17, 33] 2244",
            "nested.moments.0 F32 [3] 12",
            "nested.moments.1 F64 [2, 2] 32",
            "turned BF16 [50, 40] 4000",
            "view BF16 [10, 50] 1000",
        ]
    );
    let listing = list(&data("tiny.pt")).unwrap();
    let of = |name: &str| listing.tensors.iter().find(|tensor| tensor.name == name).unwrap();
    assert_eq!(of("embed").place, of("head").place);
    let (Place::Range(whole), Place::Range(view)) = (&of("embed").place, &of("view").place) else { panic!() };
    assert_eq!((view.start, view.end), (whole.start + 1000, whole.start + 2000));
    assert!(matches!(of("turned").place, Place::Elsewhere(_)));
    assert_eq!(survey(&listing, true).unwrap().unread.values().sum::<usize>(), 1);
    // The listed place holds the tensor's bytes, which are ones.
    let Place::Range(ones) = &of("nested.moments.1").place else { panic!() };
    let bytes = fs::read(data("tiny.pt")).unwrap();
    assert_eq!(bytes[ones.start as usize..ones.end as usize], 1f64.to_le_bytes().repeat(4));
}

#[test]
fn numpy_archives_are_read_stored_and_deflated() {
    let wanted = ["b I8 [5] 5", "s F64 [] 8", "w F32 [6, 7] 168"];
    assert_eq!(lines("tiny.npz"), wanted);
    assert_eq!(lines("tiny_deflated.npz"), wanted);
    let listing = list(&data("tiny.npz")).unwrap();
    let Place::Range(range) = &listing.tensors[1].place else { panic!() };
    let bytes = fs::read(data("tiny.npz")).unwrap();
    assert_eq!(bytes[range.start as usize..range.end as usize], [0, 1, 2, 3, 4]);
}

#[test]
fn onnx_graphs_are_read_constants_included() {
    assert_eq!(
        lines("tiny.onnx"),
        ["listed F32 [3] 12", "numbers I64 [2] 16", "one F16 [2, 2] 8", "weight F32 [8, 4] 128"]
    );
}

#[test]
fn tensors_that_are_described_in_other_ways_are_listed_too() {
    let wanted = [
        "[7] F32 [2] 8",
        "[8] F32 [1] 4",
        "buffer F32 [5] 20",
        "named I64 [12] 96",
        "pairs F4_X2 [2, 16] 32",
        "quantised I8 [4, 8] 32",
        "scales F8_E8M0 [7] 7",
        "tagged F32 [6] 24",
        "wide C128 [3] 48",
    ];
    assert_eq!(lines("unusual.pt"), wanted);
    assert_eq!(list(&data("unusual.pt")).unwrap().notes.len(), 1);
    assert_eq!(lines("alone.npy"), ["alone F32 [2, 3] 24"]);
    assert_eq!(lines("unusual.npz"), ["swapped I32 [5] 20", "wide C128 [2] 32"]);
    let arrays = list(&data("unusual.npz")).unwrap();
    assert_eq!(arrays.notes.len(), 3, "{:?}", arrays.notes);
    assert_eq!(arrays.tensors[0].place, Place::Elsewhere("big-endian numbers"));
    // Every type of onnx.proto except an unknown one, and the constant of a function.
    let graph = list(&data("unusual.onnx")).unwrap();
    assert_eq!((graph.tensors.len(), graph.notes.len()), (29, 2), "{:?}", graph.notes);
    assert!(lines("unusual.onnx").contains(&"of a function F32 [50] 200".to_owned()));
}

#[test]
fn a_folder_without_shards_lists_its_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    assert!(list(folder.path()).unwrap_err().to_string().contains("no .safetensors file"));
    fs::write(at("config.json"), "{}").unwrap();
    fs::copy(data("tiny.pt"), at("pytorch_model-00001-of-00002.bin")).unwrap();
    fs::copy(data("unusual.pt"), at("pytorch_model-00002-of-00002.bin")).unwrap();
    let found = list(folder.path()).unwrap();
    assert_eq!((found.format, found.files.len(), found.tensors.len()), ("PyTorch", 2, 19));
    assert!(found.tensors.iter().any(|tensor| tensor.file == 1 && tensor.name == "tagged"));
    assert!(survey(&found, true).is_ok());
    fs::copy(data("tiny.npz"), at("a.npz")).unwrap();
    assert_eq!(list(folder.path()).unwrap().format, "several formats");
    // Incomplete shards are an error, and other formats are not listed in their place.
    fs::write(at("m.safetensors"), "").unwrap();
    fs::write(at("m.safetensors.index.json"), r#"{"weight_map":{"a":"gone.safetensors"}}"#).unwrap();
    assert!(list(folder.path()).unwrap_err().to_string().contains("missing"));
    fs::remove_file(at("m.safetensors")).unwrap();
    fs::remove_file(at("m.safetensors.index.json")).unwrap();
    // A damaged file is an error, not a shorter list.
    fs::write(at("a.npz"), &fs::read(data("tiny.npz")).unwrap()[..500]).unwrap();
    assert!(list(folder.path()).unwrap_err().to_string().contains("a.npz"));
}

#[test]
fn a_part_of_a_split_file_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let number =
        |name: &str, value: u16| [text(name), vec![2, 0, 0, 0], value.to_le_bytes().to_vec()].concat();
    for (parts, notes) in [(3, 1), (1, 0)] {
        let entries = [number("split.no", 1), number("split.count", parts)].concat();
        let head = [b"GGUF\x03\0\0\0".to_vec(), vec![0; 8], 2u64.to_le_bytes().to_vec()].concat();
        fs::write(&path, [head, entries].concat()).unwrap();
        let found = list(&path).unwrap().notes;
        assert_eq!(found.len(), notes, "{found:?}");
        assert!(found.iter().all(|note| note.contains("part 2 of 3")), "{found:?}");
    }
}

#[test]
fn equal_tensors_are_found_and_compared_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let one: Vec<u8> = (0..400_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut other = one.clone();
    // A byte that no sample of four parts reads.
    other[150_001] ^= 1;
    let entry = |name: &str, at: usize| {
        format!("\"{name}\":{{\"dtype\":\"U8\",\"shape\":[400000],\"data_offsets\":[{at},{}]}}", at + 400_000)
    };
    let header = format!("{{{},{},{}}}", entry("a", 0), entry("b", 400_000), entry("c", 800_000));
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &one, &other, &one].concat();
    fs::write(&path, bytes).unwrap();
    let listing = list(&path).unwrap();
    for full in [false, true] {
        assert_eq!(survey(&listing, full).unwrap().duplicates, [[0, 2]]);
    }
}

/// A large tensor that hardly compresses beside small ones of zeros: the samples have similar sizes, but
/// the tensors do not.
#[test]
fn what_packing_leaves_counts_tensors_by_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("uneven.safetensors");
    let mut state = 7u64;
    let large: Vec<u8> = (0..4 << 20)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    let small = 256 << 10;
    let mut header = format!(
        "{{\"large\":{{\"dtype\":\"BF16\",\"shape\":[{}],\"data_offsets\":[0,{}]}}",
        large.len() / 2,
        large.len()
    );
    let mut at = large.len();
    for k in 0..3 {
        header += &format!(
            ",\"zeros{k}\":{{\"dtype\":\"BF16\",\"shape\":[{}],\"data_offsets\":[{at},{}]}}",
            small / 2,
            at + small
        );
        at += small;
    }
    header += "}";
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&large);
    file.resize(file.len() + 3 * small, 0);
    fs::write(&path, &file).unwrap();
    let listing = list(&path).unwrap();
    for full in [false, true] {
        let bf16 = survey(&listing, full).unwrap().types.remove(0);
        let expected = large.len() as f64 / (large.len() + 3 * small) as f64;
        let packed = bf16.packed.unwrap();
        assert!((packed - expected).abs() < 0.01, "{packed} of the bytes are left, not {expected}");
        // Eight random bits in the exponents of the large tensor, none in the others.
        assert!((bf16.parts[0].2 - 8.0 * expected).abs() < 0.05, "{:?}", bf16.parts);
    }
}

#[test]
fn mutated_files_are_errors_or_lists() {
    // A folder in memory, if the system has one, because a disk would take most of the time.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let path = folder.path().join("bad.onnx");
    let mut state = 12345u64;
    let mut random = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % limit
    };
    let names = [
        "tiny.pt",
        "tiny.npz",
        "tiny_deflated.npz",
        "tiny.onnx",
        "unusual.pt",
        "unusual.npz",
        "unusual.onnx",
        "alone.npy",
    ];
    let mut files: Vec<Vec<u8>> = names.iter().map(|name| fs::read(data(name)).unwrap()).collect();
    fs::write(&path, gguf()).unwrap();
    assert_eq!(list(&path).unwrap().tensors.len(), 2, "the GGUF file is a good one");
    files.push(gguf());
    for good in files {
        for _ in 0..10_000 {
            let mut bad = good.clone();
            for _ in 0..1 + random(4) {
                let at = random(bad.len());
                bad[at] = if random(2) == 0 { random(256) as u8 } else { bad[at] ^ (1 << random(8)) };
            }
            if random(5) == 0 {
                bad.truncate(random(bad.len()));
            }
            fs::write(&path, &bad).unwrap();
            if let Ok(listing) = list(&path)
                && random(5) == 0
            {
                let _ = survey(&listing, false);
            }
        }
    }
}

/// A GGUF file of two tensors.
fn gguf() -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let word = |word: u32| word.to_le_bytes().to_vec();
    let long = |long: u64| long.to_le_bytes().to_vec();
    let mut file = [b"GGUF".to_vec(), word(3), long(2), long(3)].concat();
    file.extend([text("general.architecture"), word(8), text("llama")].concat());
    file.extend([text("general.alignment"), word(4), word(32)].concat());
    file.extend([text("some.list"), word(9), word(5), long(3), word(1), word(2), word(3)].concat());
    file.extend([text("a.weight"), word(2), long(8), long(4), word(0), long(0)].concat());
    file.extend([text("b.weight"), word(1), long(64), word(2), long(128)].concat());
    file.resize(file.len().next_multiple_of(32), 0);
    file.resize(file.len() + 128 + 36, 0x3c);
    file
}

/// A pickle that is a tower of tuples, one that refers to itself, and one that asks for a memo without end.
#[test]
fn hostile_pickles_end_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    let tower = [&b"\x80\x02)"[..], &b"\x85".repeat(2_000_000), b"."].concat();
    let itself = b"\x80\x02]q\x00h\x00a.".to_vec();
    let doubled = [&b"\x80\x02)"[..], &b"2\x86".repeat(200), b"."].concat();
    let memo = b"\x80\x02Nr\xff\xff\xff\xff.".to_vec();
    for pickle in [tower, itself, doubled, memo] {
        fs::write(&path, archive("a/data.pkl", &pickle)).unwrap();
        if let Ok(listing) = list(&path) {
            assert!(listing.tensors.is_empty());
        }
    }
}

/// A zip archive of one stored member.
fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    let mut crc = !0u32;
    for byte in content {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    let (crc, size, length) =
        ((!crc).to_le_bytes(), (content.len() as u32).to_le_bytes(), (name.len() as u16).to_le_bytes());
    let shared = [&[0, 0, 0, 0, 0, 0][..], &[0, 0], &crc, &size, &size, &length, &[0, 0]].concat();
    let local = [&b"PK\x03\x04\x14\x00"[..], &shared[..], name.as_bytes(), content].concat();
    let entry = [&b"PK\x01\x02\x14\x00\x14\x00"[..], &shared[..], &[0; 14], name.as_bytes()].concat();
    let (at, directory) = ((local.len() as u32).to_le_bytes(), (entry.len() as u32).to_le_bytes());
    [&local[..], &entry, b"PK\x05\x06\0\0\0\0\x01\0\x01\0", &directory, &at, &[0, 0]].concat()
}
