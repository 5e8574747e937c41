//! The code blocks of the README and of the pages in `docs/`, and the commands in them.

use crate::support::repo;
use std::collections::BTreeMap;
use std::path::Path;

/// A fenced code block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) page: String,
    /// The line of the opening fence, from 1.
    pub(crate) line: usize,
    /// The language, after the opening fence.
    pub(crate) language: String,
    pub(crate) lines: Vec<String>,
}

impl Block {
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }

    pub(crate) fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// A command, and the lines shown below it.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) page: String,
    pub(crate) line: usize,
    /// Without its comment; a command that a backslash continues is one line.
    pub(crate) text: String,
    pub(crate) shown: Vec<String>,
    /// True if the page shows it as a session, with `$ ` in front.
    pub(crate) is_session: bool,
}

impl Command {
    pub(crate) fn place(&self) -> String {
        format!("{}:{}: {}", self.page, self.line, self.text)
    }
}

/// The README and every page below `docs/`, by name.
pub(crate) fn pages() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    found.insert("README.md".to_owned(), read("README.md"));
    gather(&repo("docs"), "docs", &mut found);
    found
}

fn gather(folder: &Path, name: &str, found: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).expect("docs") {
        let path = entry.expect("an entry").path();
        let own = path.file_name().expect("a name").to_string_lossy().into_owned();
        let name = format!("{name}/{own}");
        if path.is_dir() {
            gather(&path, &name, found);
        } else if name.ends_with(".md") {
            let text = read(&name);
            found.insert(name, text);
        }
    }
}

fn read(name: &str) -> String {
    std::fs::read_to_string(repo(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(crate) fn blocks() -> Vec<Block> {
    pages().iter().flat_map(|(page, text)| blocks_of(page, text)).collect()
}

/// The blocks of a page. Blocks within lists lose the indentation of their fence.
pub(crate) fn blocks_of(page: &str, text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut open: Option<usize> = None;
    for (number, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        match (line.trim_start().strip_prefix("```"), open) {
            (Some(language), None) => {
                let (page, language) = (page.to_owned(), language.trim().to_owned());
                found.push(Block { page, line: number + 1, language, lines: Vec::new() });
                open = Some(indent);
            }
            (Some(_), Some(_)) => open = None,
            (None, Some(cut)) => {
                let last = found.last_mut().expect("a block is open");
                last.lines.push(line.get(cut.min(indent)..).unwrap_or_default().to_owned());
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{page}: the last code block has no end");
    found
}

/// The commands of a block. In a session they begin with `$ ` and the other lines are output; in a block without `$ `
/// every line is a command.
pub(crate) fn commands(block: &Block) -> Vec<Command> {
    let is_session = block.lines.iter().any(|line| line.starts_with("$ "));
    let mut found: Vec<Command> = Vec::new();
    let mut is_continued = false;
    for (number, line) in block.lines.iter().enumerate() {
        let begun = if is_session { line.strip_prefix("$ ") } else { Some(line.as_str()) };
        let is_text = !line.trim().is_empty() && !line.starts_with('#');
        if let Some(last) = found.last_mut().filter(|_| is_continued) {
            last.text = format!("{} {}", last.text.trim_end_matches('\\').trim_end(), line.trim());
        } else if let Some(text) = begun.filter(|_| is_text) {
            let (page, text, shown) = (block.page.clone(), text.to_owned(), Vec::new());
            found.push(Command { page, line: block.line + 1 + number, text, shown, is_session });
        } else {
            if let Some(last) = found.last_mut() {
                last.shown.push(line.clone());
            }
            continue;
        }
        is_continued = line.ends_with('\\');
    }
    for command in &mut found {
        command.text = without_comment(&command.text);
    }
    found
}

fn without_comment(text: &str) -> String {
    text.split("  #").next().unwrap_or_default().trim().to_owned()
}

#[test]
fn blocks_and_commands_are_found_with_their_lines() {
    let page = "text\n```console\n$ a \\\n    b   # why\nshown\n$ c\n```\n* list\n  ```sh\n  d\n  ```\n";
    let blocks = blocks_of("p.md", page);
    assert_eq!([blocks[0].line, blocks[1].line], [2, 9]);
    let session = commands(&blocks[0]);
    assert_eq!(["a b", "c"], [&session[0].text, &session[1].text].map(String::as_str));
    assert_eq!((session[0].line, session[0].shown.as_slice()), (3, ["shown".to_owned()].as_slice()));
    assert_eq!(commands(&blocks[1])[0].text, "d");
}
