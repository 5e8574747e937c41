//! The table of options that this command shares with the Python package: `python/gapless/options.csv`.

const TABLE: &str = include_str!("../../../python/gapless/options.csv");

/// A row of the table, as far as this command needs it.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) old: &'static str,
    scope: &'static str,
    help: &'static str,
}

pub(crate) fn rows() -> impl Iterator<Item = Row> {
    TABLE.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut cells = line.split('|');
        let mut skip = |count: usize| cells.nth(count).unwrap_or_default();
        Row { name: skip(0), old: skip(0), scope: skip(3), help: skip(3) }
    })
}

impl Row {
    /// True for a keyword of `gapless.enable()`.
    pub(crate) fn is_keyword(&self) -> bool {
        ["library", "package", "torch"].contains(&self.scope)
    }
}

/// The help of a flag: that of the option, as a sentence.
pub(crate) fn help(name: &str) -> String {
    let help = rows().find(|row| row.name == name).map_or("", |row| row.help);
    let first = help.chars().next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(help.chars().skip(1)).collect()
}
