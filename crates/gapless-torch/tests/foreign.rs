//! Only one folder calls foreign code that may throw.

use std::path::Path;

/// Every file of the crate's sources, with its name.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            sources(&entry, found);
        } else {
            let text = std::fs::read_to_string(&entry).expect("a text");
            found.push((entry.display().to_string(), text));
        }
    }
}

#[test]
fn functions_that_may_throw_are_called_in_one_folder() {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.len() > 40);
    // The type of a pointer to such a function. A file without this type cannot call one.
    let pointer = concat!("extern \"C-", "unwind\" fn(");
    let files: Vec<&str> =
        found.iter().filter(|(_, text)| text.contains(pointer)).map(|(file, _)| file.as_str()).collect();
    let is_allowed = |file: &str| file.contains("/src/foreign/");
    assert!(!files.is_empty() && files.iter().all(|file| is_allowed(file)), "{files:?}");
    // Calls of functions that `foreign` lets others hold: only its files may make them.
    for (file, text) in found.iter().filter(|(file, _)| !is_allowed(file)) {
        for call in ["(library.new)(", "(thrower.throw)(", "manager(", "invoke("] {
            let called = text.lines().any(|line| line.contains(call) && !line.trim_start().starts_with("//"));
            assert!(!called, "{file} calls {call}");
        }
    }
}
