//! Finds known words near a mistyped one.

/// At most three of `known` that are near `word`, the nearest first: few letters differ, or one contains the other.
pub(crate) fn near<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted = plain(word);
    let mut found: Vec<(usize, usize, &str)> = Vec::new();
    for (place, name) in known.into_iter().enumerate() {
        let own = plain(name);
        let most = (wanted.len().max(own.len()) / 3).max(1);
        let is_part =
            wanted.len() >= 3 && (own.contains(&wanted) || (own.len() >= 3 && wanted.contains(&own)));
        let distance = distance(&wanted, &own);
        if !wanted.is_empty() && (distance <= most || is_part) {
            found.push((distance, place, name));
        }
    }
    found.sort_unstable();
    found.into_iter().take(3).map(|(_, _, name)| name).collect()
}

/// "a", "a or b", "a, b or c".
pub(crate) fn alternatives(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn plain(word: &str) -> String {
    word.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect()
}

/// Letters to insert, delete, change or swap with their neighbour; the words are short.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_comes_first_and_a_stranger_has_none() {
        let verbs = ["report", "replay", "run", "check", "diff"];
        assert_eq!(near("reprot", verbs), ["report"]);
        assert_eq!(near("RePlay", verbs), ["replay"]);
        assert_eq!(near("chekc", verbs), ["check"]);
        assert_eq!(near("reports", verbs), ["report"]);
        assert!(near("nosuch", verbs).is_empty() && near("", verbs).is_empty());
        assert_eq!(alternatives(&near("rtx5090", ["5090", "4090"])), "5090");
        assert_eq!(alternatives(&["a", "b", "c"]), "a, b or c");
    }
}
