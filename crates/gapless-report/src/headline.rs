//! The head of a page that shows an answer of the planner or of `fit` in place of a recorded run. Tiles take the
//! place of an allocator's figures; a bar, tables and notes stand below them.

use serde::{Deserialize, Serialize};

/// The tone of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tone {
    Good,
    Care,
    Bad,
    Plain,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Headline {
    /// The answer, in one sentence.
    pub title: String,
    pub tone: Tone,
    pub tiles: Vec<Tile>,
    /// Memory and its parts; absent if there is nothing to compare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
    pub lists: Vec<List>,
    pub notes: Vec<String>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tile {
    pub name: String,
    pub value: String,
    pub note: String,
    /// One of the figures that answer the question.
    pub strong: bool,
}

impl Tile {
    pub fn new(name: &str, value: impl Into<String>, note: impl Into<String>) -> Tile {
        Tile { name: name.to_owned(), value: value.into(), note: note.into(), strong: false }
    }

    #[must_use]
    pub fn strong(self) -> Tile {
        Tile { strong: true, ..self }
    }
}

/// Parts of a memory. The rest of `limit` is free; parts beyond it are too much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar {
    pub parts: Vec<Part>,
    /// The memory in bytes.
    pub limit: u64,
    /// The name of the memory: "the card".
    pub of: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub name: String,
    pub bytes: u64,
}

/// A table: a row has a cell for each column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}
