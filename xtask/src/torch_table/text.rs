//! A row as Rust, and its differences from earlier ones.
//!
//! Parts that equal those of an earlier release refer to it, because most releases change a commit and little else.

use super::Found;
use super::headers::Shape;
use super::rows::{Row, Structure, parts};
use crate::shell::{self, command};
use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::Path;

pub(super) fn is_same(shape: &Shape, structure: &Structure) -> bool {
    let fields = shape.fields.iter().map(|(name, at)| (name.as_str(), *at));
    shape.size == structure.size && fields.eq(structure.fields.iter().copied())
}

fn has_functions(found: &Found, row: &Row) -> bool {
    let own = found.functions.iter().map(|(symbol, exported)| (symbol.as_str(), *exported));
    own.eq(row.functions.iter().map(|function| (function.symbol, function.is_exported)))
}

fn has_structures(found: &Found, row: &Row) -> bool {
    found.structures.len() == row.structures.len()
        && found
            .structures
            .iter()
            .zip(row.structures)
            .all(|((name, shape), s)| *name == s.name && is_same(shape, s))
}

/// `2.15.0` as a module: `v2_15_0`.
fn module(version: &str) -> String {
    format!("v{}", version.replace('.', "_"))
}

/// `2.15.0` as numbers, to be sorted by.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

/// The rows of other releases that are older than this one.
fn before<'a>(found: &Found, rows: &'a [Row]) -> Vec<&'a Row> {
    let own = numbers(&found.version);
    rows.iter().filter(|row| numbers(row.version) < own).collect()
}

/// The differences between the release and the newest one before it.
pub(super) fn difference(found: &Found, rows: &[Row]) -> String {
    let words = found.functions.len() + super::HEADER;
    let named = found.functions.iter().filter(|(_, exported)| *exported).count();
    let mut out = format!("torch {}: {words} words, {named} with exported names\n", found.version);
    let before = before(found, rows);
    let Some(last) = before.last() else { return out };
    let same = format!("the same as in {}", last.version);
    let old: Vec<&str> = last.functions.iter().map(|function| function.symbol).collect();
    let new: Vec<&str> = found.functions.iter().map(|(symbol, _)| symbol.as_str()).collect();
    if old == new {
        let _ = writeln!(out, "functions: {same}");
    }
    for symbol in new.iter().filter(|symbol| !old.contains(symbol)) {
        let (name, arguments) = parts(symbol);
        let is_changed = old.iter().any(|symbol| parts(symbol).0 == name);
        let what =
            if is_changed { "changed" } else { "new, and left as torch has it unless entries.rs names it" };
        let _ = writeln!(out, "function {name}({arguments}): {what}");
    }
    for symbol in old.iter().filter(|symbol| !new.contains(symbol)) {
        let _ = writeln!(out, "function {}({}): gone", parts(symbol).0, parts(symbol).1);
    }
    if has_structures(found, last) {
        let _ = writeln!(out, "structures: {same}");
    }
    for (name, shape) in &found.structures {
        let Some(old) = last.structures.iter().find(|structure| structure.name == *name) else {
            let _ = writeln!(out, "structure {name}: new, {} bytes", shape.size);
            continue;
        };
        if !is_same(shape, old) {
            let _ = writeln!(out, "structure {name}: {} bytes, {} before", shape.size, old.size);
            for (field, at) in &shape.fields {
                match old.fields.iter().find(|(known, _)| known == field) {
                    Some((_, before)) if before == at => {}
                    Some((_, before)) => drop(writeln!(out, "    {field} at {at}, {before} before")),
                    None => drop(writeln!(out, "    {field} at {at}, new")),
                }
            }
        }
    }
    out
}

/// Writes the row's file, and the list of rows.
pub(super) fn write(found: &Found, rows: &[Row], folder: &Path) -> Result<()> {
    let name = module(&found.version);
    let file = folder.join(format!("{name}.rs"));
    let old = std::fs::read_to_string(&file).unwrap_or_default();
    std::fs::write(&file, row(found, rows))?;
    let list = folder.join("mod.rs");
    let text = std::fs::read_to_string(&list)?;
    std::fs::write(&list, with_module(&text, &found.version)?)?;
    shell::run(command(".", "rustfmt", &["--edition=2024", &list.display().to_string()]))?;
    let is_new = std::fs::read_to_string(&file)? != old;
    println!("{} {}", file.display(), if is_new { "is written" } else { "is as it was" });
    Ok(())
}

fn row(found: &Found, rows: &[Row]) -> String {
    let before = before(found, rows);
    let functions = before.iter().find(|row| has_functions(found, row));
    let structures = before.iter().find(|row| has_structures(found, row));
    let (version, commit) = (&found.version, &found.commit);
    let mut out = format!(
        "#[rustfmt::skip]\npub(super) const ROW: Row = Row {{\n    version: {version:?},\n    commit: {commit:?},\n"
    );
    match functions {
        Some(row) => drop(writeln!(out, "    functions: super::{}::ROW.functions,", module(row.version))),
        None => {
            out.push_str("    functions: &[\n");
            for (symbol, is_exported) in &found.functions {
                let kind = if *is_exported { "exported" } else { "hidden" };
                let _ = writeln!(out, "        {kind}({symbol:?}),");
            }
            out.push_str("    ],\n");
        }
    }
    match structures {
        Some(row) => drop(writeln!(out, "    structures: super::{}::ROW.structures,", module(row.version))),
        None => {
            out.push_str("    structures: &[\n");
            for (name, shape) in &found.structures {
                match known(name, shape, &before) {
                    Some((row, at)) => {
                        let row = module(row.version);
                        let _ = writeln!(out, "        super::{row}::ROW.structures[{at}], // {name}");
                    }
                    None => write_structure(&mut out, name, shape),
                }
            }
            out.push_str("    ],\n");
        }
    }
    out.push_str("};\n");
    let used = ["Structure {", "exported(", "hidden("].into_iter().filter(|word| out.contains(word));
    let used: Vec<&str> = used.map(|word| word.trim_end_matches([' ', '{', '('])).collect();
    let uses = if used.is_empty() { "Row".to_owned() } else { format!("{{Row, {}}}", used.join(", ")) };
    format!("//! Written by `cargo xtask torch-table {version}`.\n\nuse super::{uses};\n\n{out}")
}

/// The oldest row that has this structure, and its place there.
fn known<'a>(name: &str, shape: &Shape, rows: &[&'a Row]) -> Option<(&'a Row, usize)> {
    let place = |row: &Row| row.structures.iter().position(|s| s.name == name && is_same(shape, s));
    rows.iter().find_map(|row| Some((*row, place(row)?)))
}

/// One structure, its fields in lines of at most this many columns.
fn write_structure(out: &mut String, name: &str, shape: &Shape) {
    const COLUMNS: usize = 110;
    let _ = write!(out, "        Structure {{ name: {name:?}, size: {}, fields: &[", shape.size);
    let mut line = String::new();
    for field in &shape.fields {
        let field = format!("{field:?}, ");
        if line.len() + field.len() > COLUMNS - 12 {
            let _ = write!(out, "\n            {}", line.trim_end());
            line.clear();
        }
        line.push_str(&field);
    }
    let _ = writeln!(out, "\n            {}\n        ] }},", line.trim_end());
}

/// The list with this release in it, oldest first.
fn with_module(text: &str, version: &str) -> Result<String> {
    let versions = |line: &str| -> Option<Vec<u32>> {
        let name = line.strip_prefix("mod v").and_then(|rest| rest.strip_suffix(';'))?;
        Some(numbers(&name.replace('_', ".")))
    };
    let mut known: Vec<Vec<u32>> = text.lines().filter_map(versions).collect();
    known.push(numbers(version));
    known.sort_unstable();
    known.dedup();
    let names = known.iter().map(|numbers| {
        let words: Vec<String> = numbers.iter().map(u32::to_string).collect();
        format!("v{}", words.join("_"))
    });
    let names: Vec<String> = names.collect();
    let first = text.find("\nmod v").context("rows/mod.rs has no modules")? + 1;
    let end = first + text[first..].find("\n\n").context("rows/mod.rs ends early")?;
    let open = text.find("ROWS: &[Row] = &[").context("rows/mod.rs has no ROWS")? + "ROWS: &[Row] = &[".len();
    let close = open + text[open..].find("];").context("rows/mod.rs has no end of its list")?;
    let modules: String = names.iter().map(|name| format!("mod {name};\n")).collect();
    let rows: String = names.iter().map(|name| format!("    {name}::ROW,\n")).collect();
    Ok(format!("{}{}{}\n{rows}{}", &text[..first], modules.trim_end(), &text[end..open], &text[close..]))
}

#[cfg(test)]
mod tests {
    use super::super::rows::ROWS;
    use super::{Found, Shape, module, row, with_module};

    #[test]
    fn each_row_of_the_table_is_what_would_be_written_again() {
        for known in ROWS {
            let functions = known.functions.iter().map(|f| (f.symbol.to_owned(), f.is_exported));
            let structures = known.structures.iter().map(|s| {
                let fields = s.fields.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect();
                (s.name, Shape { size: s.size, fields })
            });
            let found = Found {
                version: known.version.to_owned(),
                commit: known.commit.to_owned(),
                functions: functions.collect(),
                structures: structures.collect(),
            };
            let file = format!("crates/gapless-torch/src/overlay/rows/{}.rs", module(known.version));
            let text = std::fs::read_to_string(crate::shell::root().join(&file)).expect(&file);
            assert_eq!(row(&found, ROWS), text, "{file}");
        }
    }

    #[test]
    fn a_release_takes_its_place_in_the_list_once() {
        let text =
            "mod x;\n\nmod v2_9_1;\nmod v2_11_0;\n\npub const ROWS: &[Row] = &[v2_9_1::ROW, v2_11_0::ROW];\n";
        let with = with_module(text, "2.10.0").expect("a list");
        assert!(with.contains("mod v2_9_1;\nmod v2_10_0;\nmod v2_11_0;\n\npub"), "{with}");
        assert!(with.contains("    v2_9_1::ROW,\n    v2_10_0::ROW,\n    v2_11_0::ROW,\n];"), "{with}");
        assert_eq!(with_module(&with, "2.10.0").expect("a list"), with);
    }
}
