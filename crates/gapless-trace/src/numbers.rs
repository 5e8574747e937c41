//! Numbers as people read them, for every text of every crate.

/// An integer with a comma after every third digit: 190,112.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// "1 event", "2 events", "1 batch", "2 batches", "1 copy", "2 copies".
#[must_use]
pub fn plural(number: u64, noun: &str) -> String {
    if number == 1 {
        return format!("1 {noun}");
    }
    let number = count(number);
    let ends = |all: &[&str]| all.iter().any(|end| noun.ends_with(end));
    match noun.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u'])) {
        Some(stem) => format!("{number} {stem}ies"),
        None if ends(&["s", "x", "ch", "sh"]) => format!("{number} {noun}es"),
        None => format!("{number} {noun}s"),
    }
}

/// The word that goes with so many: `is` for one, `are` for all else.
#[must_use]
pub fn verb(number: u64, one: &'static str, many: &'static str) -> &'static str {
    if number == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!(
            [count(7), count(1_000), count(26_389), count(1_234_567)],
            ["7", "1,000", "26,389", "1,234,567"]
        );
    }

    #[test]
    fn one_is_singular_and_all_else_plural() {
        let all = |noun| [0, 1, 2, 1000].map(|n| plural(n, noun));
        assert_eq!(all("event"), ["0 events", "1 event", "2 events", "1,000 events"]);
        assert_eq!(all("batch")[1..3], ["1 batch", "2 batches"]);
        assert_eq!(all("process")[1..3], ["1 process", "2 processes"]);
        assert_eq!(all("copy")[1..3], ["1 copy", "2 copies"]);
        assert_eq!(all("retry")[1..3], ["1 retry", "2 retries"]);
        assert_eq!(all("day")[1..3], ["1 day", "2 days"]);
        assert_eq!(all("cache flush")[1..3], ["1 cache flush", "2 cache flushes"]);
        assert_eq!([1, 2].map(|n| verb(n, "waits", "wait")), ["waits", "wait"]);
    }
}
