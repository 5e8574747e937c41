//! Models by name, from the table in `presets.txt`: a name, and the keys of the configuration that it stands for.

use super::config;
use super::nearest::distance;
use crate::model::Model;
use crate::stored::Origin;

const TABLE: &str = include_str!("presets.txt");

/// Words that checkpoints add to the name of their architecture.
const SUFFIXES: [&str; 8] = ["hf", "instruct", "chat", "it", "base", "pt", "uncased", "2507"];

/// Rows that are only the text part of the checkpoint under their name, which sees pictures too.
const TEXT_ALONE: [&str; 5] =
    ["gemma-3-4b", "gemma-3-12b", "gemma-3-27b", "llama-4-scout", "llama-4-maverick"];

/// The first name of every row, in the table's order.
#[must_use]
pub fn names() -> Vec<&'static str> {
    rows().map(|(names, _)| names.split(' ').next().unwrap_or(names)).collect()
}

fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(": "))
}

/// A name without case, dashes, underscores and spaces.
fn bare(name: &str) -> String {
    name.chars().filter(|letter| !['-', '_', ' '].contains(letter)).flat_map(char::to_lowercase).collect()
}

fn find(name: &str) -> Option<(&'static str, &'static str)> {
    rows().find(|(names, _)| names.split(' ').any(|known| bare(known) == name))
}

/// The row of the table that a text names, whatever its case, organisation and suffixes.
fn row(text: &str) -> Option<(&'static str, &'static str)> {
    let name = text.rsplit('/').next().unwrap_or(text);
    if name.len() > 100 {
        return None;
    }
    let mut name = bare(name);
    loop {
        if let Some(row) = find(&name) {
            return Some(row);
        }
        if let Some(row) = name.strip_prefix("meta").or_else(|| name.strip_prefix("google")).and_then(find) {
            return Some(row);
        }
        let shorter = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix))?.to_owned();
        name = shorter;
    }
}

/// The keys of the configuration that a name stands for, as JSON; missing keys have the defaults of transformers.
#[must_use]
pub fn preset_config(text: &str) -> Option<&'static str> {
    row(text).map(|(_, keys)| keys)
}

/// The model of that name, if there is one.
pub(crate) fn preset(text: &str) -> Option<Model> {
    let (names, keys) = row(text)?;
    let mut notes = Vec::new();
    let architecture = config::read(keys.as_bytes(), false, &mut notes).ok().flatten()?;
    let name = names.split(' ').next().unwrap_or(names).to_owned();
    if TEXT_ALONE.contains(&name.as_str()) {
        notes.push(format!("the text part of {name} alone: the part that it sees with is left out"));
    }
    let mut stored = config::stored(keys.as_bytes()).ok().flatten();
    if let Some(stored) = &mut stored {
        stored.origin = Origin::Released;
    }
    Some(Model { name, architecture: Some(architecture), weights: None, stored, notes })
}

/// The known names that are nearest to an unknown one: those that begin with it, then those with the fewest edits. A
/// name in which the last number goes on is another model: llama-30b does not begin with "llama3".
pub(crate) fn nearest(text: &str) -> Vec<&'static str> {
    let name: String = bare(text.rsplit('/').next().unwrap_or(text)).chars().take(60).collect();
    let score = |known: &str| (!begins(known, &name), distance(&name, &bare(known)));
    let mut scored: Vec<_> =
        rows().flat_map(|(names, _)| names.split(' ')).map(|known| (score(known), known)).collect();
    scored.sort_by_key(|(score, _)| *score);
    scored.truncate(4);
    scored.into_iter().map(|(_, known)| known).collect()
}

fn begins(known: &str, name: &str) -> bool {
    // The part of `known` whose letters and digits are those of `name`, and the character behind it.
    let ends = |at: &usize| bare(&known[..*at]) == name;
    let Some(at) = (0..=known.len()).filter(|at| known.is_char_boundary(*at)).find(ends) else {
        return false;
    };
    let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    !(is_digit(name.chars().last()) && is_digit(known[at..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::{TEXT_ALONE, bare, names, nearest, preset, row, rows};

    #[test]
    fn names_of_models_that_see_say_that_they_are_text_alone() {
        for name in TEXT_ALONE {
            assert!(names().contains(&name), "{name} is missing in presets.txt");
        }
        let notes = preset("google/gemma-3-4b-it").expect("it is there").notes;
        assert!(notes.iter().any(|note| note.contains("the text part of gemma-3-4b alone")), "{notes:?}");
        assert!(preset("gemma-3-1b").expect("it is there").notes.is_empty());
    }

    #[test]
    fn a_part_of_a_name_leads_to_names_that_begin_with_it() {
        assert!(nearest("llama3").iter().all(|name| name.starts_with("llama-3")), "{:?}", nearest("llama3"));
        // Every beginning of every name that ends with a whole number.
        let mut tried = 0;
        for known in rows().flat_map(|(names, _)| names.split(' ')) {
            let is_end = |at: &usize| {
                let digit = |at: usize| known.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
                digit(at - 1) && !digit(*at)
            };
            for beginning in (1..known.len()).filter(is_end).map(|at| &known[..at]) {
                let first = nearest(beginning)[0];
                // Names of one model differ in their dashes: olmo2 and olmo-2.
                let end = (1..=first.len()).find(|at| bare(&first[..*at]) == bare(beginning));
                let rest = end.map_or_else(|| panic!("{beginning}: {first}"), |at| &first[at..]);
                assert!(!rest.starts_with(|c: char| c.is_ascii_digit()), "{beginning}: {first}");
                tried += 1;
            }
        }
        assert!(tried > 50, "{tried}");
        assert_eq!(row("Llama 3 8B").map(|(names, _)| names), Some("llama-3-8b"));
        assert_eq!(nearest("lama-3-8b")[0], "llama-3-8b");
        assert_eq!(nearest("gtp2")[0], "gpt2");
    }
}
