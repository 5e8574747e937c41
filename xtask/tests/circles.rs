//! Files of a crate use each other in one direction: no file uses one that uses it, directly or through others.
//!
//! The graph comes from the paths that files write: `crate::`, `super::`, `self::` and the names of child modules. A
//! folder is one module: its head and the files inside it may use each other, because Rust lets children extend what
//! their parent defines. A re-export points to the file that it comes from. Tests inside a file do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn crates() -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut all: Vec<(String, PathBuf)> = std::fs::read_dir(folder)
        .expect("the crates are there")
        .map(|entry| entry.expect("an entry"))
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path().join("src")))
        .filter(|(_, source)| source.is_dir())
        .collect();
    all.sort();
    assert!(all.len() > 10, "the walk finds the crates");
    all
}

/// A module by its path from the root of the crate: `["text", "table"]`.
type Module = Vec<String>;
type Graph = BTreeMap<Module, BTreeSet<Module>>;

/// The text of every module of a crate, without comments, texts and inline tests.
fn modules(source: &Path) -> BTreeMap<Module, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![source.to_path_buf()];
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let inner = path.strip_prefix(source).expect("inside").with_extension("");
                let mut module: Module =
                    inner.iter().map(|part| part.to_string_lossy().into_owned()).collect();
                let last = module.last().cloned().unwrap_or_default();
                if last == "tests" {
                    continue;
                }
                if last == "mod" || (module.len() == 1 && (last == "lib" || last == "main")) {
                    module.pop();
                }
                found.insert(module, code(&std::fs::read_to_string(&path).expect("a file")));
            }
        }
    }
    found
}

/// `text` without comments, without quoted texts, and without the tests at its end.
fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::new();
    let mut at = 0;
    let starts = |at: usize, what: &str| what.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c));
    while at < chars.len() {
        if starts(at, "//") {
            while at < chars.len() && chars[at] != '\n' {
                at += 1;
            }
        } else if starts(at, "/*") {
            while at < chars.len() && !starts(at, "*/") {
                at += 1;
            }
            at += 2;
        } else if chars[at] == 'r' && (starts(at, "r\"") || starts(at, "r#")) && !is_word(&out) {
            let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
            if chars.get(at + 1 + hashes) != Some(&'"') {
                out.push(chars[at]);
                at += 1;
                continue;
            }
            let end = format!("\"{}", "#".repeat(hashes));
            at += 2 + hashes;
            while at < chars.len() && !starts(at, &end) {
                at += 1;
            }
            at += end.len();
        } else if chars[at] == '"' {
            at += 1;
            while at < chars.len() && chars[at] != '"' {
                at += if chars[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
        } else if chars[at] == '\'' && (starts(at + 2, "'") || starts(at + 1, "\\")) {
            at += 1;
            while at < chars.len() && chars[at] != '\'' {
                at += if chars[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    let tests = out.match_indices("#[cfg(test)]").find(|(i, mark)| {
        let after = out[i + mark.len()..].trim_start();
        after.starts_with("mod ") && after.find('{') < after.find(';').or(Some(usize::MAX))
    });
    match tests {
        Some((i, _)) => out[..i].to_owned(),
        None => out,
    }
}

fn is_word(before: &str) -> bool {
    before.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_')
}

/// The paths that begin at the start of `text`, a `use` tree taken apart; and the length of the text read.
fn paths(text: &str, before: &[String]) -> (Vec<Vec<String>>, usize) {
    let mut path = before.to_vec();
    let mut at = 0;
    loop {
        at += text[at..].len() - text[at..].trim_start().len();
        let rest = &text[at..];
        if rest.starts_with('{') {
            at += 1;
            let mut all = Vec::new();
            loop {
                at += text[at..].len() - text[at..].trim_start_matches([' ', '\n', '\t', ',']).len();
                if text[at..].is_empty() || text[at..].starts_with('}') {
                    return (all, (at + 1).min(text.len()));
                }
                let (inner, read) = paths(&text[at..], &path);
                all.extend(inner);
                if read == 0 {
                    return (all, at);
                }
                at += read;
            }
        }
        let word: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if word.is_empty() {
            // A glob takes no part of the path.
            return (vec![path], at + usize::from(rest.starts_with('*')));
        }
        at += word.len();
        path.push(word);
        let rest = text[at..].trim_start();
        if let Some(more) = rest.strip_prefix("::") {
            at = text.len() - more.len();
        } else if let Some(more) = rest.strip_prefix("as ") {
            let name = more.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').count();
            return (vec![path], text.len() - more.trim_start().len() + name);
        } else {
            return (vec![path], at);
        }
    }
}

/// The graph of uses between files of a crate.
fn graph(modules: &BTreeMap<Module, String>) -> Graph {
    let child = |module: &Module, name: &str| [&module[..], &[name.to_owned()]].concat();
    let mut exported: BTreeMap<(Module, String), Module> = BTreeMap::new();
    let mut used: Vec<(&Module, Vec<String>)> = Vec::new();
    for (module, text) in modules {
        let mut at = 0;
        while let Some(colons) = text[at..].find("::").map(|i| at + i) {
            let start = text[..colons].trim_end().rfind(|c: char| !c.is_alphanumeric() && c != '_');
            let start = start.map_or(0, |i| i + text[i..].chars().next().map_or(1, char::len_utf8));
            let first = text[start..colons].trim();
            let begins = !text[..start].ends_with("::");
            let ours =
                ["crate", "super", "self"].contains(&first) || modules.contains_key(&child(module, first));
            if !begins || first.is_empty() || !ours {
                at = colons + 2;
                continue;
            }
            let (all, read) = paths(&text[start..], &[]);
            at = (start + read).max(colons + 2);
            let line = text[..start].rfind([';', '}', '{']).map_or(0, |i| i + 1);
            let lead = text[line..start].trim();
            let is_export = lead.contains("pub") && lead.ends_with("use");
            for path in all {
                let relative = path.first().is_some_and(|first| first == "self");
                let own = if relative { &path[1..] } else { &path[..] };
                let is_child = own.first().is_some_and(|first| modules.contains_key(&child(module, first)));
                if is_export && is_child && own.len() > 1 {
                    let (name, inner) = own.split_last().expect("two or more");
                    exported.insert((module.clone(), name.clone()), [&module[..], inner].concat());
                } else {
                    used.push((module, path));
                }
            }
        }
    }
    let mut graph: Graph = modules.keys().map(|module| (module.clone(), BTreeSet::new())).collect();
    for (module, path) in used {
        let to = resolve(modules, &exported, module, &path);
        // A folder is one module.
        let family = to.starts_with(module) || module.starts_with(&to);
        if !family && let Some(edges) = graph.get_mut(module) {
            edges.insert(to);
        }
    }
    graph
}

/// The file that a path leads to.
fn resolve(
    modules: &BTreeMap<Module, String>,
    exported: &BTreeMap<(Module, String), Module>,
    from: &Module,
    path: &[String],
) -> Module {
    let mut at = from.clone();
    let mut rest = path;
    if rest.first().is_some_and(|first| first == "crate") {
        at.clear();
    }
    while let Some((first, more)) = rest.split_first() {
        match first.as_str() {
            "crate" | "self" => {}
            "super" => {
                at.pop();
            }
            name => {
                let inner = [&at[..], &[name.to_owned()]].concat();
                if modules.contains_key(&inner) {
                    at = inner;
                } else if let Some(origin) = exported.get(&(at.clone(), name.to_owned())) {
                    let mut origin = origin.clone();
                    while !modules.contains_key(&origin) {
                        origin.pop();
                    }
                    if origin == at {
                        return at;
                    }
                    // The name may be a re-export there too.
                    at = origin;
                    continue;
                } else {
                    return at;
                }
            }
        }
        rest = more;
    }
    at
}

/// The sets of files that reach each other.
fn circles(graph: &Graph) -> Vec<BTreeSet<Module>> {
    let reach = |from: &Module| {
        let mut seen: BTreeSet<&Module> = BTreeSet::new();
        let mut left: Vec<&Module> = graph[from].iter().collect();
        while let Some(next) = left.pop() {
            if seen.insert(next) {
                left.extend(graph.get(next).into_iter().flatten());
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = graph.keys().map(|m| (m, reach(m))).collect();
    let mut found: BTreeSet<BTreeSet<Module>> = BTreeSet::new();
    for (module, to) in &reached {
        if to.contains(*module) {
            let circle = to.iter().filter(|other| reached[**other].contains(*module));
            found.insert(circle.map(|other| (*other).clone()).collect());
        }
    }
    found.into_iter().collect()
}

fn name(module: &Module) -> String {
    if module.is_empty() { "the root".to_owned() } else { module.join("/") }
}

#[test]
fn files_of_a_crate_use_each_other_in_one_direction() {
    let mut found = Vec::new();
    for (crate_name, source) in crates() {
        let graph = graph(&modules(&source));
        for circle in circles(&graph) {
            let arrows = circle.iter().flat_map(|from| {
                graph[from].intersection(&circle).map(move |to| format!("{} -> {}", name(from), name(to)))
            });
            found.push(format!("{crate_name}: {}", arrows.collect::<Vec<_>>().join(", ")));
        }
    }
    assert!(
        found.is_empty(),
        "files that use each other in a circle; move what both need into a third:\n{}",
        found.join("\n")
    );
}

#[test]
fn the_walk_sees_through_trees_exports_and_quotes() {
    let of = |files: &[(&str, &str)]| {
        let modules: BTreeMap<Module, String> = files
            .iter()
            .map(|(path, text)| {
                let module = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
                (module, code(text))
            })
            .collect();
        let found = circles(&graph(&modules));
        found.iter().map(|circle| circle.iter().map(name).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(of(&[("a", "use crate::b::X;"), ("b", "use super::{a::{self, Y}, c};"), ("c", "")]), ["a b"]);
    assert_eq!(of(&[("a", "fn f() { crate::b::g() }"), ("b", "fn g() { super::a::f() }")]), ["a b"]);
    assert!(
        of(&[("a", "use crate::b::X;"), ("b", "// use crate::a;\nconst S: &str = \"crate::a::f\";")])
            .is_empty()
    );
    assert!(
        of(&[("a", "use crate::b::X;"), ("b", "#[cfg(test)]\nmod tests { use crate::a::f; }")]).is_empty()
    );
    // A folder is one module, and a re-export is the file behind it.
    assert!(of(&[("a", "mod b;\nfn f() { b::g() }"), ("a/b", "use super::f;")]).is_empty());
    let folder = [("a", "mod b;\npub use b::g;\nuse crate::c::h;"), ("a/b", ""), ("c", "use crate::a::g;")];
    assert!(of(&folder).is_empty());
}
