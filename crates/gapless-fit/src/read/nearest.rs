//! How near one name is to another, for messages that suggest a known name.

/// Edits from one word to the other: insertions, deletions, replacements.
pub(crate) fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, letter) in from.chars().enumerate() {
        let mut corner = row[0];
        row[0] = line + 1;
        for (at, other) in to.iter().enumerate() {
            let replaced = corner + usize::from(letter != *other);
            corner = row[at + 1];
            row[at + 1] = replaced.min(row[at] + 1).min(corner + 1);
        }
    }
    row[to.len()]
}
