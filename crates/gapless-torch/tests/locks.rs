//! This library, and the crates below it, use only locks for which a forked child never waits.

use std::fs;
use std::path::{Path, PathBuf};

/// Uses of the standard library's locks that are allowed: a forked child never reaches them, or they live as long as
/// one call of the thread that could fork.
const FINE: [(&str, &str); 2] = [
    ("regions/packed.rs", "sync::"), // of one call, for the threads that it waits for
    ("locks/", ""),                  // the locks themselves
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_lock_of_the_standard_library_is_waited_for() {
    let mut files = Vec::new();
    for name in ["gapless-torch", "gapless-cuda", "gapless-hip"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"), &mut files);
    }
    assert!(files.len() > 100, "{} files", files.len());
    let names = ["Mutex", "RwLock", "Condvar", "OnceLock", "LazyLock", " Once::", "Barrier"];
    let mut wrong = Vec::new();
    for file in files {
        let shown = file.display().to_string();
        let text = fs::read_to_string(&file).expect("a source");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (at, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            let is_fine = FINE.iter().any(|(end, what)| shown.contains(end) && line.contains(what));
            if !is_fine && names.iter().any(|name| line.contains(name)) {
                wrong.push(format!("{shown}:{}: {}", at + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "use gapless_cuda::locks instead:\n{}", wrong.join("\n"));
}
