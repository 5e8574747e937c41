//! Builds of PyTorch that are known exactly, a row each: the functions of the allocator's table in their order, and the
//! structures that are passed through it.
//!
//! `cargo xtask torch-table VERSION` writes a row from the release's own wheel: a compiler's reading of its headers,
//! compared with the table in its library. Everything is found by name, so a function that a release adds only moves
//! the others. `xtask` compiles this module too, so it uses nothing but the language.

mod v2_10_0;
mod v2_11_0;
mod v2_12_0;
mod v2_12_1;
mod v2_13_0;
mod v2_14_0;
mod v2_14_1;
mod v2_15_0;
mod v2_8_0;
mod v2_9_0;
mod v2_9_1;

/// A release.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Without the local part (`+cu130`): variants for other versions of CUDA come from the same sources.
    pub version: &'static str,
    pub commit: &'static str,
    /// From the table's third word on: the first two words describe the object.
    pub functions: &'static [Function],
    pub structures: &'static [Structure],
}

/// Words before the first function.
pub const HEADER: usize = 2;

/// A function of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name in the C++ ABI, which includes its arguments.
    pub symbol: &'static str,
    /// True if the library exports it, so that the word can be compared with it.
    pub is_exported: bool,
}

/// A function that the library exports.
#[must_use]
pub const fn exported(symbol: &'static str) -> Function {
    Function { symbol, is_exported: true }
}

/// A function that only the headers declare.
#[must_use]
pub const fn hidden(symbol: &'static str) -> Function {
    Function { symbol, is_exported: false }
}

impl Function {
    /// Its own name, and its arguments as the C++ ABI writes them.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &'static str) {
        parts(self.symbol)
    }
}

/// The last name in a symbol such as `_ZN3c109Allocator5cloneEPKvm`, and what follows.
#[must_use]
pub fn parts(symbol: &str) -> (&str, &str) {
    let mut rest = symbol.strip_prefix("_ZN").unwrap_or(symbol);
    rest = rest.strip_prefix('K').unwrap_or(rest);
    let mut name = "";
    loop {
        // `B5cxx11` marks a name, and is not a name itself.
        let (is_mark, at) = rest.strip_prefix('B').map_or((false, rest), |marked| (true, marked));
        let digits = at.bytes().take_while(u8::is_ascii_digit).count();
        let Ok(length) = at[..digits].parse::<usize>() else { break };
        let Some(next) = at.get(digits..digits + length) else { break };
        if !is_mark {
            name = next;
        }
        rest = &at[digits + length..];
    }
    // A destructor is D and a number.
    if rest.starts_with('D') {
        return ("~", "");
    }
    (name, rest.strip_prefix('E').unwrap_or(rest))
}

/// A structure: its size, and the offsets of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Structure {
    pub name: &'static str,
    pub size: usize,
    pub fields: &'static [(&'static str, usize)],
}

impl Row {
    /// The place of the function with this name, and its arguments. `None` if this release has none, or several.
    #[must_use]
    pub fn word_of(&self, name: &str) -> Option<(usize, &'static str)> {
        let mut found = self.functions.iter().enumerate().filter(|(_, function)| function.parts().0 == name);
        let (at, function) = found.next()?;
        found.next().is_none().then_some((at + HEADER, function.parts().1))
    }

    /// Number of words in the table.
    #[must_use]
    pub fn words(&self) -> usize {
        self.functions.len() + HEADER
    }

    #[must_use]
    pub fn size_of(&self, name: &str) -> Option<usize> {
        self.structures.iter().find(|structure| structure.name == name).map(|structure| structure.size)
    }
}

/// Every known build, oldest first.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    v2_8_0::ROW,
    v2_9_0::ROW,
    v2_9_1::ROW,
    v2_10_0::ROW,
    v2_11_0::ROW,
    v2_12_0::ROW,
    v2_12_1::ROW,
    v2_13_0::ROW,
    v2_14_0::ROW,
    v2_14_1::ROW,
    v2_15_0::ROW,
];
