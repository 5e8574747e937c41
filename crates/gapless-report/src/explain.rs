//! What each finding code means: the texts that `gapless explain CODE` prints. One Markdown file for each code, in
//! `explanations/`.

/// The explanation of one code. The first line of its text is its title.
#[derive(Clone, Copy, Debug)]
pub struct Explanation {
    pub code: &'static str,
    pub text: &'static str,
}

impl Explanation {
    /// Its title: its first line, after the code.
    #[must_use]
    pub fn title(&self) -> &'static str {
        let line = self.text.lines().next().unwrap_or_default();
        line.split_once(": ").map_or(line, |(_, title)| title)
    }
}

macro_rules! explanations {
    ($($code:literal),* $(,)?) => {
        /// All explanations, by code.
        pub const EXPLANATIONS: &[Explanation] = &[$(Explanation {
            code: $code,
            text: include_str!(concat!("../explanations/", $code, ".md")),
        }),*];
    };
}

explanations![
    "GAP101", "GAP102", "GAP103", "GAP104", "GAP105", "GAP106", "GAP107", "GAP108", "GAP201", "GAP202",
    "GAP301", "GAP302", "GAP303", "GAP401", "GAP402", "GAP403", "GAP501", "GAP502", "GAP503", "GAP504",
    "GAP505", "GAP506", "GAP601", "GAP701",
];

/// The explanation of `code`, in any letter case.
#[must_use]
pub fn find(code: &str) -> Option<&'static Explanation> {
    EXPLANATIONS.iter().find(|one| one.code.eq_ignore_ascii_case(code))
}

/// The code that `code` may have been meant to be: the one with the fewest differing characters. `None` where more than
/// one digit differs: every code begins with the same letters, so the number says what was meant.
#[must_use]
pub fn nearest(code: &str) -> Option<&'static Explanation> {
    let wanted = code.to_ascii_uppercase();
    let digits = |code: &str| code.bytes().filter(u8::is_ascii_digit).collect::<Vec<u8>>();
    let near = EXPLANATIONS.iter().min_by_key(|one| distance(one.code.as_bytes(), wanted.as_bytes()))?;
    (distance(&digits(near.code), &digits(&wanted)) <= 1).then_some(near)
}

/// Edit distance; the strings are short.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let cost = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_explanation_is_headed_by_its_code_and_ends_in_what_to_do() {
        for one in EXPLANATIONS {
            assert!(one.text.starts_with(&format!("# {}: ", one.code)), "{}", one.code);
            assert!(one.text.contains("## What to do"), "{}", one.code);
            assert!(one.text.contains("## When Gapless reports it"), "{}", one.code);
        }
    }

    #[test]
    fn every_code_in_the_source_has_an_explanation_and_every_explanation_is_listed() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        for folder in ["src/findings", "explanations"] {
            for entry in std::fs::read_dir(root.join(folder)).expect(folder) {
                let path = entry.expect("an entry").path();
                let text = std::fs::read_to_string(&path).expect("text");
                for code in text.split("GAP").skip(1).filter_map(|rest| rest.get(..3)) {
                    let is_code = code.bytes().all(|digit| digit.is_ascii_digit());
                    let code = format!("GAP{code}");
                    assert!(!is_code || find(&code).is_some(), "{}: {code} is not listed", path.display());
                }
            }
        }
    }

    #[test]
    fn a_mistyped_code_leads_to_the_nearest() {
        assert_eq!(find("gap101").unwrap().code, "GAP101");
        assert!(find("GAP999").is_none());
        assert_eq!(nearest("GPA201").unwrap().code, "GAP201");
        assert_eq!(nearest("GAP20").unwrap().code, "GAP201");
        assert_eq!(nearest("101").unwrap().code, "GAP101");
        for far in ["GAP999", "GAP", "", "hello", "GAP99999"] {
            assert!(nearest(far).is_none(), "{far}");
        }
    }
}
