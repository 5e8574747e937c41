//! The meaning of each finding code: the texts that `gapless explain CODE` prints. One Markdown file for each code,
//! in `explanations/`.

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

/// The code that `code` may have been meant to be: the one with the fewest differing characters. `None` if more than
/// one digit differs: every code begins with the same letters, so only the number tells them apart.
#[must_use]
pub fn nearest(code: &str) -> Option<&'static Explanation> {
    let wanted = code.to_ascii_uppercase();
    let digits = |code: &str| code.bytes().filter(u8::is_ascii_digit).collect::<Vec<u8>>();
    let near = EXPLANATIONS.iter().min_by_key(|one| distance(one.code.as_bytes(), wanted.as_bytes()))?;
    (distance(&digits(near.code), &digits(&wanted)) <= 1).then_some(near)
}

/// Words that people use for a finding, if its title has others.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("oom", "GAP301"),
    ("leak", "GAP201"),
    ("checkpointing", "GAP401"),
    ("adam", "GAP402"),
    ("record_stream", "GAP104"),
    ("empty_cache", "GAP101"),
    ("expandable", "GAP101"),
    ("truncated", "GAP504"),
    ("straggler", "GAP601"),
];

/// The findings that `words` may mean, the nearest first: first by titles that have all of them, then by
/// `OTHER_WORDS`, then by whole texts.
#[must_use]
pub fn search(words: &str) -> Vec<&'static Explanation> {
    let words: Vec<String> = words.to_lowercase().split_whitespace().map(stem).collect();
    if words.is_empty() {
        return Vec::new();
    }
    let with = |text: fn(&Explanation) -> &str| {
        let has = |one: &&Explanation| {
            let text = text(one).to_lowercase();
            words.iter().all(|word| text.contains(word.as_str()))
        };
        EXPLANATIONS.iter().filter(has).collect::<Vec<_>>()
    };
    let titled = with(Explanation::title);
    if !titled.is_empty() {
        return titled;
    }
    let called = |one: &&Explanation| {
        OTHER_WORDS.iter().any(|(word, code)| *code == one.code && words.iter().any(|w| *w == stem(word)))
    };
    let called: Vec<_> = EXPLANATIONS.iter().filter(called).collect();
    if called.is_empty() { with(|one| one.text) } else { called }
}

/// A word without the ending of its plural.
fn stem(word: &str) -> String {
    word.strip_suffix('s').filter(|stem| stem.len() > 3 && !stem.ends_with('s')).unwrap_or(word).to_owned()
}

/// The text of an explanation for a terminal: paragraphs and items within `width` columns.
#[must_use]
pub fn shown(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut held = String::new();
    let flush = |held: &mut String, out: &mut String| {
        let Some(first) = held.split_whitespace().next() else { return };
        let is_item = first == "*" || first == "-" || first.trim_end_matches('.').parse::<u32>().is_ok();
        let below = if is_item { " ".repeat(first.len() + 1) } else { String::new() };
        for (i, line) in crate::text::wrap(held, width.saturating_sub(below.len())).iter().enumerate() {
            if i > 0 {
                out.push_str(&below);
            }
            out.push_str(line);
            out.push('\n');
        }
        held.clear();
    };
    for line in text.lines() {
        let starts = line.trim_start().split(' ').next().unwrap_or_default();
        let is_item =
            matches!(starts, "*" | "-") || starts.strip_suffix('.').is_some_and(|n| n.parse::<u32>().is_ok());
        if line.is_empty() || line.starts_with('#') || is_item {
            flush(&mut held, &mut out);
        }
        if line.is_empty() {
            out.push('\n');
        } else {
            held.push_str(line);
            held.push(' ');
        }
        if line.starts_with('#') {
            flush(&mut held, &mut out);
        }
    }
    flush(&mut held, &mut out);
    out
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
    fn words_find_what_they_name() {
        let found = |words: &str| search(words).iter().map(|one| one.code).collect::<Vec<_>>();
        assert_eq!(found("fragmentation"), ["GAP101"]);
        assert_eq!(found("Fragmentation"), ["GAP101"]);
        assert_eq!(found("STRANDED"), ["GAP102"]);
        assert_eq!(found("out of memory"), ["GAP301"]);
        assert_eq!(found("oom"), ["GAP301"]);
        assert_eq!(found("leaks"), ["GAP201"]);
        assert_eq!(found("activations"), ["GAP401"]);
        assert_eq!(found("optimizer"), ["GAP402"]);
        assert_eq!(found("private pool"), ["GAP107"]);
        assert!(found("step").len() > 2);
        assert!(found("zzz").is_empty() && found("").is_empty());
        // A search for a title finds its explanation, though perhaps not alone.
        for one in EXPLANATIONS {
            assert!(search(one.title()).iter().any(|found| found.code == one.code), "{}", one.code);
        }
    }

    #[test]
    fn explanations_fit_every_width_and_lose_no_word() {
        for one in EXPLANATIONS {
            for width in [40, 60, 80, 100, 120] {
                let shown = shown(one.text, width);
                let wide = shown.lines().find(|line| crate::text::visible(line) > width);
                assert_eq!(wide, None, "{} at {width}", one.code);
                let letters = |text: &str| text.split_whitespace().collect::<String>();
                assert_eq!(letters(&shown), letters(one.text), "{} at {width}", one.code);
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
