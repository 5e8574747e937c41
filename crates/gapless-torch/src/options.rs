//! Options as one line of text: `key=value;key=value`.

use gapless_pool::Options;

/// The options of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub pool: Options,
    /// Bytes to take from each card on its first use.
    pub reserve: u64,
    /// Writes no statistics file for other processes.
    pub hidden: bool,
    /// Makes no plans for steps that repeat.
    pub unplanned: bool,
    /// The most of each card that this process may hold in all; 0: no limit but the card's.
    pub budget: u64,
    /// Fills freed memory, and looks for writes to it.
    pub check: bool,
    /// The most bytes of a block that are filled; 0: all.
    pub check_bytes: u64,
}

const KEYS: [&str; 13] = [
    "reserve",
    "limit",
    "process_limit",
    "slack",
    "largest_page",
    "windows",
    "graph_windows",
    "lending",
    "run_ahead",
    "visible",
    "plans",
    "check",
    "check_bytes",
];

/// Reads the line.
///
/// # Errors
/// If a key is unknown, or if a value is not a whole number. The text says which.
pub fn parse(text: &str) -> Result<Settings, String> {
    let mut settings = Settings::default();
    for pair in text.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| format!("option {pair:?} has no value: write key=value"))?;
        let (key, value) = (key.trim(), value.trim());
        let number: u64 = value
            .parse()
            .map_err(|_| format!("option {key}: invalid value {value:?}: use a whole number"))?;
        match key {
            "reserve" => settings.reserve = number,
            "limit" => settings.pool.limit = (number > 0).then_some(number),
            // Programs in C may have the old names.
            "process_limit" | "budget" => settings.budget = number,
            "slack" => settings.pool.slack = number,
            "largest_page" => {
                settings.pool.largest_page = number.next_power_of_two().clamp(2 << 20, 512 << 20)
            }
            "visible" | "pages" => settings.hidden = number == 0,
            "windows" => settings.pool.windows = number as usize,
            "graph_windows" => settings.pool.private_windows = number != 0,
            "lending" => settings.pool.lending = number != 0,
            "run_ahead" => settings.pool.run_ahead = Some(number),
            "plans" => settings.unplanned = number == 0,
            "check" => settings.check = number != 0,
            "check_bytes" => settings.check_bytes = number,
            _ => return Err(format!("unknown option {key:?}: use one of {}", KEYS.join(", "))),
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_what_is_wrong_is_said() {
        let settings = parse("reserve=1073741824; limit=2147483648").expect("good options");
        assert_eq!((settings.reserve, settings.pool.limit), (1 << 30, Some(2 << 30)));
        assert_eq!(parse(""), Ok(Settings::default()));
        assert_eq!(parse("visible=0").map(|settings| settings.hidden), Ok(true));
        assert_eq!(parse("visible=1"), Ok(Settings::default()));
        assert_eq!(parse("pages=0;budget=9"), parse("visible=0;process_limit=9"));
        assert_eq!(parse("check=1;check_bytes=64").map(|s| (s.check, s.check_bytes)), Ok((true, 64)));
        for (text, part) in
            [("reserve", "key=value"), ("limit=x", "use a whole number"), ("speed=9", "use one of reserve")]
        {
            assert!(parse(text).expect_err(text).contains(part), "{text}");
        }
    }

    /// The rows of the table of options that this library reads: name, default and example, as numbers.
    fn table() -> Vec<(&'static str, Option<u64>, u64)> {
        let number = |text: &str| text.parse().ok().map(|gapless_trace::Bytes(bytes)| bytes);
        include_str!("../../../python/gapless/options.csv")
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split('|').collect::<Vec<_>>())
            .filter(|row| row[5] == "library")
            .map(|row| (row[0], number(row[4]), number(row[7]).expect(row[0])))
            .collect()
    }

    #[test]
    fn the_table_of_options_has_our_names_and_defaults() {
        let table = table();
        let mut names: Vec<&str> = table.iter().map(|row| row.0).collect();
        names.sort_unstable();
        let mut keys = KEYS;
        keys.sort_unstable();
        assert_eq!(names, keys);
        for (name, default, example) in table {
            if let Some(default) = default {
                assert_eq!(
                    parse(&format!("{name}={default}")),
                    Ok(Settings::default()),
                    "{name}: its default"
                );
            }
            let changed = parse(&format!("{name}={example}")).expect(name);
            assert_ne!(changed, Settings::default(), "{name}: its example");
        }
    }
}
