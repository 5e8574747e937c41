//! Loading to host memory and to a card: bit for bit, in slices, with bounded memory, and with errors that say where.
//! The card is tests/card/driver.cpp, which runs the kernel's own source on the CPU.

mod common;

use common::{Model, card, host, read_all, whole};
use gapless_loader::{Catalogue, LoadError, Piece};
use gapless_weights::Error;
use gapless_weights::stream::StreamError;
use std::fs;
use std::sync::Arc;

#[test]
fn every_tensor_comes_back_bit_for_bit_plain_and_packed_on_the_host_and_on_the_card() {
    let model = Model::new();
    for path in [model.plain(), model.packed()] {
        let catalogue = Arc::new(Catalogue::open(&path).unwrap());
        for (name, result) in [("host", host(&catalogue, 3)), ("card", card(&catalogue, 3, true))] {
            let (found, progress) = result.unwrap();
            for (place, found) in catalogue.tensors.iter().zip(&found) {
                let tensor = catalogue.tensor(*place);
                assert!(*found == model.bytes(&tensor.name), "{name}: {} of {}", tensor.name, path.display());
            }
            assert_eq!(progress.done, progress.total, "{name}");
        }
    }
}

#[test]
fn the_kernel_decodes_bf16_and_the_host_decodes_the_rest() {
    let model = Model::new();
    let catalogue = Arc::new(Catalogue::open(&model.packed()).unwrap());
    let (_, progress) = card(&catalogue, 2, true).unwrap();
    assert!(progress.on_card >= 10 && progress.on_host >= 2, "{progress:?}");
    let (found, progress) = card(&catalogue, 2, false).unwrap();
    assert_eq!(progress.on_card, 0);
    for (place, found) in catalogue.tensors.iter().zip(&found) {
        assert!(*found == model.bytes(&catalogue.tensor(*place).name));
    }
}

#[test]
fn any_range_of_a_tensor_can_be_loaded_and_only_its_chunks_are_read() {
    let model = Model::new();
    let catalogue = Arc::new(Catalogue::open(&model.packed()).unwrap());
    let at = catalogue.tensors.iter().position(|place| catalogue.tensor(*place).name == "wide").unwrap();
    let all = model.bytes("wide");
    let cuts = [0, 2, 6, 131_072, 131_074, 200_000, 262_144, all.len() - 2, all.len()];
    for begin in cuts {
        for end in cuts.into_iter().filter(|end| *end >= begin) {
            let piece = |target| Piece { tensor: at as u64, begin: begin as u64, end: end as u64, target };
            for is_card in [false, true] {
                let (found, _) = read_all(&catalogue, &[piece(0)], is_card, 2, true).unwrap();
                assert!(found[0] == all[begin..end], "{begin} to {end}, card: {is_card}");
            }
        }
    }
    // One chunk of many. A new catalogue counts from zero.
    let catalogue = Arc::new(Catalogue::open(&model.packed()).unwrap());
    let piece = Piece { tensor: at as u64, begin: 10, end: 1000, target: 0 };
    let (_, progress) = read_all(&catalogue, &[piece], false, 1, true).unwrap();
    assert!(progress.read < 131_072, "{progress:?}");
}

#[test]
fn a_wrong_byte_is_an_error_with_the_tensor_and_its_bytes() {
    let model = Model::new();
    let good = fs::read(model.packed()).unwrap();
    let catalogue = Catalogue::open(&model.packed()).unwrap();
    for name in ["wide", "random", "norm"] {
        let place = *catalogue.tensors.iter().find(|place| catalogue.tensor(**place).name == name).unwrap();
        let (range, _) = catalogue.shards[0].reader.place(place.index);
        let mut bad = good.clone();
        bad[range.end as usize - 70.min((range.end - range.start) as usize)] ^= 0x10;
        let path = model.folder().join("bad.safetensors");
        fs::write(&path, bad).unwrap();
        let catalogue = Arc::new(Catalogue::open(&path).unwrap());
        for result in [host(&catalogue, 2), card(&catalogue, 2, true)] {
            match result {
                Err(LoadError::Weights(Error::Damaged {
                    tensor,
                    damage: StreamError::Checksum { bytes, .. },
                    ..
                })) => {
                    assert_eq!(tensor, name);
                    assert!(bytes.end <= model.bytes(name).len() as u64 && !bytes.is_empty(), "{bytes:?}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_cascade_that_lies_behind_a_right_checksum_is_an_error_of_the_kernel_too() {
    let model = Model::new();
    let path = model.folder().join("lie.safetensors");
    common::write_lie(&model.packed(), &path, "wide");
    let catalogue = Arc::new(Catalogue::open(&path).unwrap());
    for result in [host(&catalogue, 2), card(&catalogue, 2, true)] {
        match result {
            Err(LoadError::Weights(Error::Damaged {
                tensor,
                damage: StreamError::Chunk { damage, .. },
                ..
            })) => {
                assert_eq!((tensor.as_str(), damage.0.contains("escapes")), ("wide", true));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_file_that_gets_shorter_is_an_error_and_not_a_signal() {
    let model = Model::new();
    let path = model.folder().join("cut.safetensors");
    for from in [model.plain(), model.packed()] {
        fs::copy(&from, &path).unwrap();
        let catalogue = Arc::new(Catalogue::open(&path).unwrap());
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(fs::metadata(&path).unwrap().len() / 2).unwrap();
        for result in [host(&catalogue, 2), card(&catalogue, 2, true)] {
            assert!(matches!(result, Err(LoadError::Weights(_))), "{result:?}");
        }
        assert!(Catalogue::open(&path).is_err(), "a truncated file is refused");
    }
}

#[test]
fn pieces_outside_of_a_tensor_are_refused() {
    let model = Model::new();
    let catalogue = Arc::new(Catalogue::open(&model.packed()).unwrap());
    let bad = [(999, 0, 1), (0, 5, 4), (0, 0, u64::MAX)];
    for (tensor, begin, end) in bad {
        let piece = Piece { tensor, begin, end, target: 0 };
        // SAFETY: the pieces are refused before anything is written.
        let result = unsafe { gapless_loader::Load::start(&catalogue, &[piece], whole(1), None) };
        assert!(matches!(result, Err(LoadError::Argument(_))));
    }
}

#[test]
fn a_folder_gives_the_tensors_of_all_its_shards_and_a_name_only_once() {
    let model = Model::new();
    let folder = tempfile::tempdir().unwrap();
    common::write(&folder.path().join("a.safetensors"), &[("x", "F32", vec![2], vec![1; 8])]);
    common::write(&folder.path().join("b.safetensors"), &[("y", "F32", vec![1], vec![2; 4])]);
    let catalogue = Arc::new(Catalogue::open(folder.path()).unwrap());
    assert_eq!(host(&catalogue, 2).unwrap().0, [vec![1; 8], vec![2; 4]]);
    fs::copy(model.plain(), folder.path().join("c.safetensors")).unwrap();
    fs::copy(model.plain(), folder.path().join("d.safetensors")).unwrap();
    let error = Catalogue::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("two models"), "{error}");
    let index = r#"{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#;
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    assert_eq!(Catalogue::open(folder.path()).unwrap().tensors.len(), 2, "the index says which shards count");
}

#[test]
fn the_committed_ptx_was_compiled_from_the_committed_kernel() {
    let source = include_str!("../src/kernel/decode.cu");
    let ptx = include_str!("../src/kernel/decode.ptx");
    let sum = common::sha256(source.as_bytes());
    assert_eq!(
        ptx.lines().next(),
        Some(format!("// decode.cu, sha256 {sum}").as_str()),
        "run src/kernel/compile.py"
    );
}
