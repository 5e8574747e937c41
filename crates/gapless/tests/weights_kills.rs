//! A command of `gapless weights` that is killed at any place: its output loads as the old model, as the new one, or
//! fails with a clear error; and the same command, run again, completes. `GAPLESS_TEST_KILL` names the place.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use support::run_in;

/// A model of three shards with an index and a configuration. `step` makes other values under the same header.
fn model(folder: &Path, step: u16, save: Option<&str>) -> BTreeMap<String, Vec<u8>> {
    fs::create_dir_all(folder).expect("made");
    let (mut map, mut files) = (Vec::new(), BTreeMap::new());
    let saved =
        save.map_or(String::new(), |save| format!("\"__metadata__\":{{\"gapless_save\":\"{save}\"}},"));
    for shard in 1..=3 {
        let values: Vec<u8> = (0..2000u16)
            .flat_map(|at| ((0x3c00 + (at.wrapping_mul(37 + step) % 101)) ^ (at << 15)).to_le_bytes())
            .collect();
        let header = format!(
            "{{{saved}\"w{shard}\":{{\"dtype\":\"BF16\",\"shape\":[40,50],\"data_offsets\":[0,4000]}}}}"
        );
        let name = format!("model-0000{shard}-of-00003.safetensors");
        map.push(format!("\"w{shard}\": \"{name}\""));
        files.insert(name, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &values].concat());
    }
    let index = format!("{{\"metadata\": {{}}, \"weight_map\": {{{}}}}}", map.join(", "));
    files.insert("model.safetensors.index.json".to_owned(), index.into_bytes());
    files.insert("config.json".to_owned(), format!("{{\"step\": {step}}}").into_bytes());
    files.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).expect("written"));
    files
}

fn shards(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let all = fs::read_dir(folder).expect("a folder").flatten();
    let shards = all.filter(|entry| entry.file_name().to_string_lossy().ends_with(".safetensors"));
    shards
        .map(|entry| {
            (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).expect("read"))
        })
        .collect()
}

/// The result of loading a folder: its shards unpacked, or the error.
fn loads(folder: &Path, of: &str) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let again = folder.join("again");
    let _ = fs::remove_dir_all(&again);
    let done = run_in(folder, &["weights", "unpack", of, "-o", "again"], None);
    if done.code == 0 { Ok(shards(&again)) } else { Err(done.err) }
}

/// Kills the command at every place in turn. `begin` makes the files before it; `want` has the valid results of a load.
fn killed_everywhere(
    folder: &Path,
    args: &[&str],
    begin: &dyn Fn(),
    want: &[&BTreeMap<String, Vec<u8>>],
) -> usize {
    let mut refused = 0;
    for place in 0.. {
        begin();
        let killed = Command::new(env!("CARGO_BIN_EXE_gapless"))
            .args(args)
            .current_dir(folder)
            .env("GAPLESS_TEST_KILL", place.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("it starts");
        if folder.join("out").exists() {
            match loads(folder, "out") {
                Ok(found) => assert!(want.contains(&&found), "{args:?}, killed at {place}: a mixture loads"),
                Err(error) => {
                    refused += 1;
                    assert!(!killed.success() && error.contains("help: "), "{args:?}, {place}: {error}");
                }
            }
        }
        if killed.success() {
            assert!(place > 10, "{args:?}: only {place} places");
            return refused;
        }
        let again = run_in(folder, args, None);
        assert_eq!(again.code, 0, "{args:?}, after a kill at {place}: {}", again.err);
        let found = loads(folder, "out").unwrap_or_else(|error| panic!("{args:?}, {place}: {error}"));
        assert!(found == *want[want.len() - 1], "{args:?}, {place}: the second run gives something else");
        let left: Vec<_> =
            fs::read_dir(folder.join("out")).expect("a folder").flatten().map(|e| e.file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
    }
    refused
}

fn of_shards(files: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    files
        .iter()
        .filter(|(name, _)| name.ends_with(".safetensors"))
        .map(|(a, b)| (a.clone(), b.clone()))
        .collect()
}

#[test]
fn a_killed_pack_or_unpack_never_mixes_two_models() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let old = of_shards(&model(&at("old"), 1, None));
    let new = of_shards(&model(&at("new"), 2, None));
    for name in ["old", "new"] {
        let done = run_in(folder.path(), &["weights", "pack", name, "-o", &format!("{name}-packed")], None);
        assert_eq!(done.code, 0, "{}", done.err);
    }
    let copy = |from: &str| {
        let _ = fs::remove_dir_all(at("out"));
        fs::create_dir(at("out")).expect("made");
        for entry in fs::read_dir(at(from)).expect("a folder").flatten() {
            fs::copy(entry.path(), at("out").join(entry.file_name())).expect("copied");
        }
    };
    let nothing = || drop(fs::remove_dir_all(at("out")));
    let pack = ["weights", "pack", "new", "-o", "out", "--threads", "1"];
    let unpack = ["weights", "unpack", "new-packed", "-o", "out", "--threads", "1"];
    // Over an older model, and to a new folder.
    assert!(killed_everywhere(folder.path(), &pack, &|| copy("old-packed"), &[&old, &new]) > 5);
    assert!(killed_everywhere(folder.path(), &pack, &nothing, &[&new]) > 5);
    assert!(killed_everywhere(folder.path(), &unpack, &|| copy("old"), &[&old, &new]) > 5);
}

#[test]
fn shards_of_two_saves_are_refused_and_name_both() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    model(&at("old"), 1, Some("aa/3"));
    model(&at("new"), 2, Some("bb/3"));
    let name = "model-00002-of-00003.safetensors";
    let refused = |args: &[&str], wanted: &str| {
        let done = run_in(folder.path(), args, None);
        assert!(done.code == 2 && done.err.contains(wanted), "{args:?}: {}", done.err);
        assert!(!at("out").exists());
    };
    let all: [&[&str]; 4] = [
        &["weights", "pack", "new", "-o", "out"],
        &["weights", "unpack", "new", "-o", "out"],
        &["weights", "verify", "new"],
        &["weights", "quantize", "new", "-o", "out", "--scheme", "fp8"],
    ];
    let good = fs::read(at("new").join(name)).expect("read");
    fs::copy(at("old").join(name), at("new").join(name)).expect("copied");
    all.iter().for_each(|args| refused(args, "are of different saves"));
    // Without an index too; and a save that ended too early.
    fs::remove_file(at("new/model.safetensors.index.json")).expect("removed");
    all.iter().for_each(|args| refused(args, "are of different saves"));
    fs::remove_file(at("new").join(name)).expect("removed");
    all.iter().for_each(|args| refused(args, "one of 3 of a save, and there are 2"));
    // Whole again, packed or not.
    fs::write(at("new").join(name), good).expect("written");
    let done = run_in(folder.path(), &["weights", "pack", "new", "-o", "packed"], None);
    assert_eq!(done.code, 0, "{}", done.err);
    fs::remove_file(at("packed").join(name)).expect("removed");
    refused(&["weights", "unpack", "packed", "-o", "out"], "one of 3 of a save, and there are 2");
}

#[test]
fn an_output_within_the_input_is_refused_by_every_verb() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    model(&at("model"), 1, None);
    fs::create_dir(at("model/sub")).expect("made");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(at("model"), at("link")).expect("linked");
        std::os::unix::fs::symlink(at("model/sub"), at("inside")).expect("linked");
    }
    let before = tree(&at("model"));
    for verb in [
        &["pack"][..],
        &["unpack"],
        &["unpack", "--rank", "0", "--world", "2"],
        &["quantize", "--scheme", "fp8"],
    ] {
        for (input, output) in [
            ("model", "model/out"),
            ("model", "model/a/b/c"),
            ("model", "model"),
            ("model", "model/sub/../out"),
            ("link", "model/out"),
            ("model", "link/out"),
            ("model", "inside/out"),
            ("model/", "./model/out"),
        ] {
            let args = [&["weights", verb[0], input, "-o", output], &verb[1..]].concat();
            let done = run_in(folder.path(), &args, None);
            assert_eq!(done.code, 2, "{args:?}: {}{}", done.out, done.err);
            let said = ["this is within the input", "this is the input", "the folder is not empty"];
            assert!(said.iter().any(|said| done.err.contains(said)), "{args:?}: {}", done.err);
            assert_eq!(tree(&at("model")), before, "{args:?}");
        }
    }
    // The other way round it is refused only if it would write over the input.
    fs::create_dir(at("model/model")).expect("made");
    let index = "model.safetensors.index.json".to_owned();
    for name in shards(&at("model")).keys().chain([&index]) {
        fs::copy(at("model").join(name), at("model/model").join(name)).expect("copied");
    }
    let done = run_in(folder.path(), &["weights", "pack", "model", "-o", "."], None);
    assert!(done.code == 2 && done.err.contains("is a file of the input"), "{}", done.err);
}

/// All files below a folder, with their lengths.
fn tree(folder: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            found.insert(name.clone(), 0);
            found.extend(tree(&path).into_iter().map(|(below, length)| (format!("{name}/{below}"), length)));
        } else {
            found.insert(name, fs::metadata(&path).expect("there").len());
        }
    }
    found
}
