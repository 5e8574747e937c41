//! Packed files give back the same bytes; damaged ones are errors with a place; nothing half-written is left.

use gapless_weights::{Reader, error::Error, folder, pack, unpack, verify};
use std::fs;
use std::path::{Path, PathBuf};

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit
    }

    fn bf16(&mut self, count: usize) -> Vec<u8> {
        let mut one = || {
            let sum: f32 = (0..6).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum();
            ((sum - 3.0) * 0.02).to_bits() >> 16
        };
        (0..count).flat_map(|_| (one() as u16).to_le_bytes()).collect()
    }
}

/// Name, type, shape and data.
type Tensor = (&'static str, &'static str, Vec<u64>, Vec<u8>);

/// A safetensors file from its tensors.
fn file(path: &Path, metadata: &str, tensors: &[Tensor]) -> Vec<u8> {
    let mut entries = vec![];
    if !metadata.is_empty() {
        entries.push(format!("\"__metadata__\":{metadata}"));
    }
    let (mut at, mut data) = (0, vec![]);
    for (name, dtype, shape, bytes) in tensors {
        entries.push(format!(
            "{}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{at},{}]}}",
            serde_json::Value::from(*name),
            at + bytes.len()
        ));
        at += bytes.len();
        data.extend_from_slice(bytes);
    }
    let header = format!("{{{}}}  ", entries.join(", "));
    let mut whole = (header.len() as u64).to_le_bytes().to_vec();
    whole.extend_from_slice(header.as_bytes());
    whole.extend_from_slice(&data);
    fs::write(path, &whole).unwrap();
    whole
}

/// A model with a tensor of every sort.
fn model(path: &Path, rng: &mut Rng) -> Vec<u8> {
    let random: Vec<u8> = (0..300_000).map(|_| rng.next() as u8).collect();
    file(
        path,
        r#"{"format":"pt"}"#,
        &[
            ("model.layers.0.weight", "BF16", vec![500, 300], rng.bf16(150_000)),
            ("a scalar", "F32", vec![], 1.5f32.to_le_bytes().to_vec()),
            ("nothing", "F16", vec![0, 7], vec![]),
            ("packed \"ints\" ü", "U8", vec![300_000], random),
            ("zeros", "F64", vec![9, 1000], vec![0; 72_000]),
            (
                "bias",
                "F32",
                vec![3000],
                rng.bf16(3000).as_chunks::<2>().0.iter().flat_map(|b| [0, 0, b[0], b[1]]).collect(),
            ),
            ("ids", "I64", vec![40_000], (0..40_000u64).flat_map(u64::to_le_bytes).collect()),
        ],
    )
}

fn parts(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.to_string_lossy().ends_with(".part"))
        .collect()
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut rng = Rng(5);
    // Exponents that fall off slowly: the choice of a cascade then depends on the chunks before.
    let values: Vec<u8> = (0..2_600_000)
        .flat_map(|_| {
            let uniform = ((rng.next() >> 40) + 1) as f32 / (1u64 << 24) as f32;
            ((uniform - 0.5) * 0.05).to_bits().to_le_bytes()[2..].to_vec()
        })
        .collect();
    file(&at("a.safetensors"), "", &[("w", "BF16", vec![2_600_000], values)]);
    let packed = |threads: usize| {
        pack(&at("a.safetensors"), &at("b.safetensors"), threads).unwrap();
        fs::read(at("b.safetensors")).unwrap()
    };
    let one = packed(1);
    assert!((2..=5).all(|threads| packed(threads) == one));
}

#[test]
fn a_file_comes_back_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let original = model(&at("a.safetensors"), &mut Rng(1));
    for threads in [1, 2, 4] {
        let done = pack(&at("a.safetensors"), &at("b.safetensors"), threads).unwrap();
        assert_eq!((done.tensors, done.before), (7, original.len() as u64));
        assert!(done.after < done.before && done.streams >= 4, "{done:?}");
        let checked = verify(&at("b.safetensors"), threads).unwrap();
        assert!(checked.damage.is_empty() && checked.original == original.len() as u64);
        unpack(&at("b.safetensors"), &at("c.safetensors"), threads, false).unwrap();
        assert!(fs::read(at("c.safetensors")).unwrap() == original);
    }
    // The packed file is one that any reader opens, and keeps the metadata.
    let header = gapless_formats::safetensors::read(fs::File::open(at("b.safetensors")).unwrap()).unwrap();
    assert_eq!(header.value("format"), Some("pt"));
    assert_eq!(header.data() % 64, 0);
    assert!(header.tensors.iter().any(|t| t.name == "model.layers.0.weight" && t.dtype == "U8"));
    assert!(parts(folder.path()).is_empty());
    let again = pack(&at("b.safetensors"), &at("d.safetensors"), 1).unwrap_err();
    assert!(again.to_string().contains("packed already"), "{again}");
    assert!(!at("d.safetensors").exists());
}

#[test]
fn the_same_input_gives_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    model(&at("a"), &mut Rng(4));
    pack(&at("a"), &at("one"), 1).unwrap();
    pack(&at("a"), &at("three"), 3).unwrap();
    assert!(fs::read(at("one")).unwrap() == fs::read(at("three")).unwrap());
}

#[test]
fn what_does_not_compress_is_never_larger() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut rng = Rng(9);
    let cases: Vec<Vec<Tensor>> = vec![
        vec![],
        vec![("x", "U8", vec![3], vec![1, 2, 3])],
        vec![("x", "BF16", vec![70_000], (0..140_000).map(|_| rng.next() as u8).collect())],
        (0..50).map(|_| ("x", "F32", vec![2], vec![7; 8])).take(1).collect(),
    ];
    for tensors in cases {
        let original = file(&at("a"), "", &tensors);
        pack(&at("a"), &at("b"), 2).unwrap();
        let packed = fs::read(at("b")).unwrap();
        assert!(packed.len() <= original.len());
        unpack(&at("b"), &at("c"), 2, false).unwrap();
        assert!(fs::read(at("c")).unwrap() == original);
    }
}

#[test]
fn any_range_of_a_tensor_can_be_read_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut rng = Rng(5);
    let values = rng.bf16(300_000);
    file(
        &at("a"),
        "",
        &[("w", "BF16", vec![3000, 100], values.clone()), ("v", "U8", vec![2000], vec![3; 2000])],
    );
    pack(&at("a"), &at("b"), 2).unwrap();
    for name in ["a", "b"] {
        let reader = Reader::open(&at(name)).unwrap();
        assert_eq!(reader.is_packed(), name == "b");
        let index = reader.find("w").unwrap();
        for _ in 0..40 {
            let start = rng.below(values.len());
            let end = start + rng.below(values.len() - start + 1);
            let mut out = vec![0; end - start];
            reader.read(index, start as u64..end as u64, &mut out).unwrap();
            assert!(out == values[start..end]);
        }
        assert!(reader.read(index, 0..values.len() as u64 + 1, &mut vec![0; values.len() + 1]).is_err());
    }
}

#[test]
fn damage_names_its_tensor_and_the_rest_can_be_had() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut rng = Rng(6);
    let (first, second) = (rng.bf16(200_000), rng.bf16(100_000));
    let original = file(
        &at("a"),
        "",
        &[("first", "BF16", vec![200_000], first), ("second", "BF16", vec![100_000], second)],
    );
    pack(&at("a"), &at("b"), 1).unwrap();
    let mut bytes = fs::read(at("b")).unwrap();
    let header = gapless_formats::safetensors::read(std::io::Cursor::new(&bytes)).unwrap();
    // The second of the first tensor's four chunks.
    let place = header.data() as usize + header.tensors[0].bytes() as usize * 2 / 5;
    bytes[place] ^= 4;
    fs::write(at("b"), &bytes).unwrap();
    let error = unpack(&at("b"), &at("c"), 2, false).unwrap_err();
    assert!(matches!(&error, Error::Damaged { tensor, .. } if tensor == "first"), "{error}");
    assert!(error.to_string().contains("bytes 131072 to 262144"), "{error}");
    assert!(!at("c").exists() && parts(folder.path()).is_empty());
    let checked = verify(&at("b"), 2).unwrap();
    assert_eq!(checked.damage.len(), 1);
    let checked = unpack(&at("b"), &at("c"), 2, true).unwrap();
    assert_eq!(checked.damage.len(), 1);
    let got = fs::read(at("c")).unwrap();
    let data = original.len() - 600_000;
    assert!(got[..data + 131_072] == original[..data + 131_072]);
    assert!(got[data + 131_072..data + 262_144].iter().all(|byte| *byte == 0));
    assert!(got[data + 262_144..] == original[data + 262_144..]);
}

#[test]
fn mutated_files_are_errors_or_the_same_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut rng = Rng(8);
    let weights = rng.bf16(3000);
    file(
        &at("a"),
        r#"{"k":"v"}"#,
        &[("w", "BF16", vec![3000], weights), ("z", "F32", vec![600], vec![0; 2400])],
    );
    pack(&at("a"), &at("b"), 1).unwrap();
    for (name, rounds) in [("a", 1500), ("b", 3500)] {
        let good = fs::read(at(name)).unwrap();
        for _ in 0..rounds {
            let mut bad = good.clone();
            for _ in 0..1 + rng.below(3) {
                // Most of the damage goes to the header, where lengths stand.
                let limit = if rng.below(3) == 0 { bad.len() } else { bad.len().min(700) };
                let place = rng.below(limit);
                match rng.below(3) {
                    0 => bad[place] = rng.next() as u8,
                    1 => bad[place] ^= 1 << rng.below(8),
                    _ => bad[place] = b"0123456789[]{},:\"-"[rng.below(18)],
                }
            }
            if rng.below(6) == 0 {
                bad.truncate(rng.below(bad.len()));
            }
            let path = at("bad");
            fs::write(&path, &bad).unwrap();
            let _ = verify(&path, 1);
            // Only a few results are written, because waiting for the disk takes long.
            if rng.below(40) == 0 {
                let _ = unpack(&path, &at("out"), 1, rng.below(2) == 0);
                let _ = pack(&path, &at("out"), 1);
            }
        }
    }
    assert!(parts(folder.path()).is_empty());
}

#[test]
fn headers_that_lie_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let entry = |name: &str, begin: u64, end: u64| {
        format!(
            "\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{begin},{end}]}}",
            end - begin
        )
    };
    let cases = [
        (format!("{{{},{}}}", entry("a", 0, 8), entry("b", 4, 12)), 12, "overlaps"),
        (format!("{{{},{}}}", entry("a", 0, 4), entry("b", 8, 12)), 12, "hole"),
        (format!("{{{}}}", entry("a", 0, 100)), 12, "promises 100 bytes"),
        (format!("{{{}}}", entry("a", 0, 4)), 12, "belong to none"),
        (
            r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]}}"#.into(),
            8,
            "counted",
        ),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}"#.into(), 8, "before it begins"),
        (r#"{"a":{"dtype":"X9","shape":[1],"data_offsets":[0,4]}}"#.into(), 4, "not known"),
        ("[]".into(), 0, "not a safetensors file"),
        ("{\"a\":".into(), 0, "JSON"),
    ];
    for (header, data, wanted) in cases {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend(vec![0; data]);
        fs::write(&path, &bytes).unwrap();
        let error = pack(&path, &folder.path().join("b"), 1).unwrap_err().to_string();
        assert!(error.contains(wanted), "{header}: {error}");
    }
    fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
    assert!(verify(&path, 1).unwrap_err().to_string().contains("limit"));
    fs::write(&path, [1, 2, 3, 4, 5]).unwrap();
    assert!(verify(&path, 1).unwrap_err().to_string().contains("ends at byte 5"));
    fs::write(&path, b"short").unwrap();
    assert!(verify(&path, 1).unwrap_err().to_string().contains("this is text"));
}

#[test]
fn folders_are_checked_by_their_index() {
    let folder_at = tempfile::tempdir().unwrap();
    let at = |name: &str| folder_at.path().join(name);
    file(&at("model-1.safetensors"), "", &[("a", "U8", vec![4], vec![0; 4])]);
    file(&at("model-2.safetensors"), "", &[("b", "U8", vec![4], vec![0; 4])]);
    fs::write(at("config.json"), "{}").unwrap();
    let index = |map: &str| {
        fs::write(at("model.safetensors.index.json"), format!("{{\"weight_map\":{map}}}")).unwrap()
    };
    index(r#"{"a":"model-1.safetensors","b":"model-2.safetensors"}"#);
    let found = folder::read(folder_at.path()).unwrap();
    assert_eq!((found.shards.len(), found.others.len()), (2, 2));
    for (map, wanted) in [
        (r#"{"a":"model-1.safetensors","b":"model-3.safetensors"}"#, "missing"),
        (r#"{"a":"model-2.safetensors"}"#, "another model"),
        (r#"{"a":"../model-2.safetensors"}"#, "not a file of this folder"),
        (r#"{"a":7}"#, "not a name"),
        (r#"[]"#, "weight_map"),
    ] {
        index(map);
        let error = folder::read(folder_at.path()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{map}: {error}");
    }
}

#[test]
fn a_packed_shard_is_known_by_its_original() {
    let folder_at = tempfile::tempdir().unwrap();
    let at = |name: &str| folder_at.path().join(name);
    let mut rng = Rng(11);
    let values = rng.bf16(10_000);
    file(&at("a"), "", &[("a", "BF16", vec![10_000], values.clone())]);
    assert!(!folder::is_done(&at("a"), &at("b"), 1));
    pack(&at("a"), &at("b"), 1).unwrap();
    assert!(folder::is_done(&at("a"), &at("b"), 2));
    file(&at("a"), "", &[("other", "BF16", vec![10_000], values.clone())]);
    assert!(!folder::is_done(&at("a"), &at("b"), 1));
    // Another model of the same architecture, older than the packed file: one differing byte is enough.
    for place in [0, 9_999, 19_999] {
        let mut others = values.clone();
        others[place] ^= 1;
        file(&at("a"), "", &[("a", "BF16", vec![10_000], others)]);
        fs::File::open(at("a")).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert!(!folder::is_done(&at("a"), &at("b"), 2), "byte {place}");
    }
}

#[test]
fn what_a_killed_writer_left_is_removed() {
    let folder_at = tempfile::tempdir().unwrap();
    let at = |name: &str| folder_at.path().join(name);
    file(&at("a"), "", &[("a", "U8", vec![4], vec![0; 4])]);
    // Linux has no process number this large.
    fs::write(at(".b.4194399999.part"), "half").unwrap();
    fs::write(at(".b.mine.part"), "not ours").unwrap();
    // A process in a container may have the same number after every restart.
    fs::write(at(&format!(".b.{}.part", std::process::id())), "half").unwrap();
    pack(&at("a"), &at("b"), 1).unwrap();
    assert_eq!(parts(folder_at.path()), [at(".b.mine.part")]);
    // A part that a writer of another container still locks is kept, under any number.
    let alive = fs::File::create(at(".b.4194399999.part")).unwrap();
    alive.lock().unwrap();
    pack(&at("a"), &at("b"), 1).unwrap();
    assert!(at(".b.4194399999.part").exists());
}

#[test]
fn names_may_be_as_long_as_a_file_system_allows() {
    let folder_at = tempfile::tempdir().unwrap();
    for name in ["x".repeat(255), "ü".repeat(127)] {
        let path = folder_at.path().join(name);
        file(&folder_at.path().join("a"), "", &[("a", "U8", vec![4], vec![0; 4])]);
        pack(&folder_at.path().join("a"), &path, 1).unwrap();
        assert!(path.exists() && parts(folder_at.path()).is_empty());
    }
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_neither_read_nor_replaced() {
    use std::os::unix::fs::FileTypeExt;
    let folder_at = tempfile::tempdir().unwrap();
    let at = |name: &str| folder_at.path().join(name);
    file(&at("a"), "", &[("a", "U8", vec![4], vec![0; 4])]);
    let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
    assert!(made.success());
    std::os::unix::fs::symlink(at("pipe"), at("link")).unwrap();
    for name in ["pipe", "link"] {
        // Opening a pipe without a writer would block for ever.
        assert!(verify(&at(name), 1).unwrap_err().to_string().contains("not a regular file"));
        assert!(pack(&at("a"), &at(name), 1).unwrap_err().to_string().contains("a pipe"), "{name}");
    }
    assert!(fs::symlink_metadata(at("pipe")).unwrap().file_type().is_fifo());
    assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
    assert!(pack(&at("a"), Path::new("/dev/null"), 1).is_err());
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
}

#[cfg(unix)]
#[test]
fn folders_within_folders_are_read_and_links_do_not_go_round() {
    let folder_at = tempfile::tempdir().unwrap();
    let at = |name: &str| folder_at.path().join(name);
    for name in ["unet", "vae", ".git", "deep/er"] {
        fs::create_dir_all(at(name)).unwrap();
        file(&at(name).join("m.safetensors"), "", &[("a", "U8", vec![4], vec![0; 4])]);
    }
    fs::write(at("vae/config.json"), "{}").unwrap();
    std::os::unix::fs::symlink(folder_at.path(), at("vae/round")).unwrap();
    std::os::unix::fs::symlink(at("unet"), at("twin")).unwrap();
    let found = folder::read_tree(folder_at.path()).unwrap();
    let names = ["deep/er", "twin", "unet", "vae"].map(|name| at(name).join("m.safetensors"));
    let mut shards = found.shards;
    shards.sort();
    assert_eq!(shards, names);
    assert_eq!(found.others, [at("vae/config.json")]);
    assert_eq!(found.left_out.len(), 2, "{:?}", found.left_out);
    // A folder of several models is an error for a command on one model.
    let error = folder::read(folder_at.path()).unwrap_err();
    assert!(error.help().contains("name one of them"), "{}", error.help());
    // Indexes of subfolders are checked too.
    fs::write(at("vae/m.safetensors.index.json"), r#"{"weight_map":{"a":"gone.safetensors"}}"#).unwrap();
    assert!(folder::read_tree(folder_at.path()).unwrap_err().to_string().contains("missing"));
    fs::remove_file(at("vae/m.safetensors.index.json")).unwrap();
    std::os::unix::fs::symlink(at("gone"), at("vae/tokenizer.json")).unwrap();
    let error = folder::read_tree(folder_at.path()).unwrap_err().to_string();
    assert!(error.contains("not there") && error.contains("tokenizer.json"), "{error}");
    // A hub's cache has its models in folders of commits.
    fs::create_dir_all(at("cache/blobs")).unwrap();
    fs::create_dir_all(at("cache/snapshots/c0")).unwrap();
    file(&at("cache/snapshots/c0/m.safetensors"), "", &[("a", "U8", vec![4], vec![0; 4])]);
    for error in [folder::read_tree(&at("cache")).unwrap_err(), folder::read(&at("cache")).unwrap_err()] {
        assert!(error.help().contains("snapshots/COMMIT"), "{}", error.help());
    }
}

#[test]
fn other_files_are_called_by_their_names() {
    let folder_at = tempfile::tempdir().unwrap();
    let path = folder_at.path().join("a.safetensors");
    let cases: [(&[u8], &str); 8] = [
        (b"{\n  \"metadata\": {}}", "JSON text"),
        (b"GGUF\x03\0\0\0", "GGUF"),
        (b"PK\x03\x04\0\0\0\0", "zip archive"),
        (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46", "pickle"),
        (b"\x93NUMPY\x01\0", "NumPy"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
        (b"<!DOCTYPE html>", "web page"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
    ];
    for (bytes, wanted) in cases {
        fs::write(&path, [bytes, &[0; 64][..]].concat()).unwrap();
        let error = verify(&path, 1).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    // The format's own reader takes spaces before the header.
    let values = Rng(3).bf16(5000);
    let good = file(&path, "", &[("a", "BF16", vec![5000], values)]);
    let length = u64::from_le_bytes(*good.first_chunk().unwrap()) + 3;
    let spaced = [&length.to_le_bytes()[..], b" \n ", &good[8..]].concat();
    fs::write(&path, &spaced).unwrap();
    let [packed, again] = ["b", "c"].map(|name| folder_at.path().join(name));
    pack(&path, &packed, 1).unwrap();
    unpack(&packed, &again, 1, false).unwrap();
    assert!(fs::read(again).unwrap() == spaced);
}
