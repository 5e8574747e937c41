//! The modules that a configuration names: names, names with stars, and the regular expressions that begin with `re:`.
//!
//! The expressions come from files, so a match has a limited number of steps. Grammar that is not known is an error: a
//! layer that is taken for another one would be counted in the wrong format.

use std::cell::Cell;

/// Steps of one match: the longest names of modules take a few hundred.
const STEPS: u32 = 100_000;

/// Modules that are meant together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A part of the dotted name, from dot to dot.
    Name(String),
    /// From the beginning of the name on.
    Expression(Vec<Vec<Node>>),
}

/// A part of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Char(u8),
    Any,
    Class {
        not: bool,
        ranges: Vec<(u8, u8)>,
    },
    Start,
    End,
    /// Alternatives.
    Group(Vec<Vec<Node>>),
    /// The same as a look-ahead, which takes no characters; `not` for the negative one.
    Ahead {
        not: bool,
        options: Vec<Vec<Node>>,
    },
    Repeat {
        node: Box<Node>,
        least: u32,
        most: u32,
    },
}

impl Pattern {
    /// As a list of modules has it: `re:` begins an expression, a star stands for anything.
    ///
    /// # Errors
    /// An expression whose grammar is not known.
    pub fn read(text: &str) -> Result<Pattern, String> {
        // Text models keep one name, whichever wrapper they were taken from.
        let text = text.replace("language_model.", "");
        if let Some(expression) = text.strip_prefix("re:") {
            return Pattern::expression(expression);
        }
        if !text.contains('*') {
            return Ok(Pattern::Name(text));
        }
        let plain: String = text.replace(".*", "*").replace('\\', "");
        let whole: String = plain
            .chars()
            .map(|letter| match letter {
                '*' => ".*".to_owned(),
                letter if letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-') => letter.to_string(),
                letter => format!("\\{letter}"),
            })
            .collect();
        // A star after a name also stands for the modules inside.
        Pattern::expression(&format!("(?:{whole})(?:\\..*)?$"))
    }

    /// An expression of its own.
    ///
    /// # Errors
    /// As [`Pattern::read`].
    pub fn expression(text: &str) -> Result<Pattern, String> {
        let mut reader = Reader { text: text.as_bytes(), at: 0, depth: 0 };
        let options = reader.options()?;
        if reader.at < text.len() {
            return Err(format!("the expression \"{text}\" has a bracket too many"));
        }
        Ok(Pattern::Expression(options))
    }

    /// True if it matches the module's name.
    #[must_use]
    pub fn matches(&self, module: &str) -> bool {
        match self {
            Pattern::Name(name) => {
                let name = name.trim_matches('.');
                let whole = format!(".{module}.");
                !name.is_empty() && whole.contains(&format!(".{name}."))
            }
            Pattern::Expression(options) => {
                let left = Cell::new(STEPS);
                any(options, module.as_bytes(), 0, &left, &mut |_| true)
            }
        }
    }
}

type Then<'a> = &'a mut dyn FnMut(usize) -> bool;

fn any(options: &[Vec<Node>], text: &[u8], at: usize, left: &Cell<u32>, then: Then<'_>) -> bool {
    options.iter().any(|nodes| run(nodes, text, at, left, then))
}

fn run(nodes: &[Node], text: &[u8], at: usize, left: &Cell<u32>, then: Then<'_>) -> bool {
    let Some(steps) = left.get().checked_sub(1) else { return false };
    left.set(steps);
    let Some((node, rest)) = nodes.split_first() else { return then(at) };
    match node {
        Node::Start => at == 0 && run(rest, text, at, left, then),
        Node::End => at == text.len() && run(rest, text, at, left, then),
        Node::Ahead { not, options } => {
            any(options, text, at, left, &mut |_| true) != *not && run(rest, text, at, left, then)
        }
        Node::Group(options) => any(options, text, at, left, &mut |at| run(rest, text, at, left, then)),
        Node::Repeat { node, least, most } => repeat(node, *least, *most, rest, text, at, left, then),
        one => text.get(at).is_some_and(|letter| takes(one, *letter)) && run(rest, text, at + 1, left, then),
    }
}

/// As often as can be, then less.
#[allow(clippy::too_many_arguments)]
fn repeat(
    node: &Node,
    least: u32,
    most: u32,
    rest: &[Node],
    text: &[u8],
    at: usize,
    left: &Cell<u32>,
    then: Then<'_>,
) -> bool {
    if most > 0 {
        let more = run(std::slice::from_ref(node), text, at, left, &mut |next| {
            // A node that takes no characters would be repeated without end.
            next > at
                && repeat(node, least.saturating_sub(1), most.saturating_sub(1), rest, text, next, left, then)
        });
        if more {
            return true;
        }
    }
    least == 0 && run(rest, text, at, left, then)
}

fn takes(node: &Node, letter: u8) -> bool {
    match node {
        Node::Char(own) => *own == letter,
        Node::Any => true,
        Node::Class { not, ranges } => {
            ranges.iter().any(|(from, to)| (*from..=*to).contains(&letter)) != *not
        }
        _ => false,
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    depth: u32,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, what: &[u8]) -> bool {
        let there = self.text[self.at..].starts_with(what);
        if there {
            self.at += what.len();
        }
        there
    }

    fn fault<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("the expression \"{}\" has {what}", String::from_utf8_lossy(self.text)))
    }

    fn options(&mut self) -> Result<Vec<Vec<Node>>, String> {
        self.depth += 1;
        if self.depth > 16 {
            return self.fault("too many brackets in each other");
        }
        let mut all = vec![Vec::new()];
        while let Some(letter) = self.peek() {
            match letter {
                b')' => break,
                b'|' => {
                    self.at += 1;
                    all.push(Vec::new());
                }
                _ => {
                    let node = self.repeated()?;
                    if let Some(last) = all.last_mut() {
                        last.push(node);
                    }
                }
            }
        }
        self.depth -= 1;
        Ok(all)
    }

    fn repeated(&mut self) -> Result<Node, String> {
        let node = self.node()?;
        let (least, most) = match self.peek() {
            Some(b'*') => (0, u32::MAX),
            Some(b'+') => (1, u32::MAX),
            Some(b'?') => (0, 1),
            Some(b'{') => return self.fault("a counted repetition, which is not known here"),
            _ => return Ok(node),
        };
        self.at += 1;
        // A lazy repetition tries few first, which does not change whether there is a match.
        self.take(b"?");
        Ok(Node::Repeat { node: Box::new(node), least, most })
    }

    fn node(&mut self) -> Result<Node, String> {
        let Some(letter) = self.peek() else { return self.fault("an end where more must follow") };
        self.at += 1;
        Ok(match letter {
            b'.' => Node::Any,
            b'^' => Node::Start,
            b'$' => Node::End,
            b'(' => {
                let ahead = if self.take(b"?:") {
                    None
                } else if self.take(b"?!") {
                    Some(true)
                } else if self.take(b"?=") {
                    Some(false)
                } else if self.peek() == Some(b'?') {
                    return self.fault("a kind of bracket that is not known here");
                } else {
                    None
                };
                let options = self.options()?;
                if !self.take(b")") {
                    return self.fault("a bracket that is not closed");
                }
                match ahead {
                    Some(not) => Node::Ahead { not, options },
                    None => Node::Group(options),
                }
            }
            b'[' => self.class()?,
            b'\\' => {
                let Some(letter) = self.peek() else { return self.fault("a backslash at its end") };
                self.at += 1;
                match letter {
                    b'd' => Node::Class { not: false, ranges: vec![(b'0', b'9')] },
                    b'w' => Node::Class {
                        not: false,
                        ranges: vec![(b'0', b'9'), (b'a', b'z'), (b'A', b'Z'), (b'_', b'_')],
                    },
                    letter if letter.is_ascii_alphanumeric() => {
                        return self.fault("an escape that is not known here");
                    }
                    letter => Node::Char(letter),
                }
            }
            b'*' | b'+' | b'?' => return self.fault("a repetition of nothing"),
            letter => Node::Char(letter),
        })
    }

    fn class(&mut self) -> Result<Node, String> {
        let not = self.take(b"^");
        let mut ranges = Vec::new();
        loop {
            let Some(from) = self.peek() else { return self.fault("a class that is not closed") };
            self.at += 1;
            match from {
                b']' => return Ok(Node::Class { not, ranges }),
                b'\\' => return self.fault("a backslash in a class, which is not known here"),
                _ => {}
            }
            let is_range =
                self.peek() == Some(b'-') && self.text.get(self.at + 1).is_some_and(|b| *b != b']');
            if is_range {
                let to = self.text[self.at + 1];
                self.at += 2;
                ranges.push((from, to));
            } else {
                ranges.push((from, from));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    fn is(pattern: &str, module: &str) -> bool {
        Pattern::read(pattern).expect(pattern).matches(module)
    }

    #[test]
    fn a_name_is_a_part_from_dot_to_dot() {
        assert!(is("lm_head", "lm_head"));
        assert!(is("gate", "model.layers.0.mlp.gate"));
        assert!(!is("gate", "model.layers.0.mlp.gate_proj"));
        assert!(is("model.layers.0", "model.layers.0.mlp.gate_proj"));
        assert!(!is("model.layers.1", "model.layers.11.mlp.gate_proj"));
        assert!(is("model.language_model.layers.0.self_attn", "model.layers.0.self_attn.q_proj"));
    }

    #[test]
    fn a_star_stands_for_anything() {
        assert!(is("model.layers.*.self_attn", "model.layers.7.self_attn.q_proj"));
        assert!(!is("model.layers.*.self_attn", "model.layers.7.mlp.router"));
        assert!(is("model.layers.*.self_attn*", "model.layers.7.self_attn.q_proj"));
        assert!(is("*.mlp.router", "model.layers.7.mlp.router"));
    }

    #[test]
    fn expressions_begin_where_the_name_begins_and_end_anywhere() {
        assert!(is("re:.*lm_head", "lm_head"));
        assert!(is("re:.*mlp.gate$", "model.layers.3.mlp.gate"));
        assert!(!is("re:.*mlp.gate$", "model.layers.3.mlp.gate_proj"));
        assert!(is("re:model.layers.[0-9]+.self_attn.(q|k|v)_proj", "model.layers.12.self_attn.k_proj"));
        assert!(!is("re:mlp", "model.layers.0.mlp"));
        assert!(is(r"re:.*\.layers\.\d+\.mlp\.(?!down).*", "model.layers.0.mlp.up_proj"));
        assert!(!is(r"re:.*\.layers\.\d+\.mlp\.(?!down).*", "model.layers.0.mlp.down_proj"));
    }

    #[test]
    fn what_is_not_known_of_an_expression_is_an_error_and_none_runs_without_end() {
        for wrong in [
            "re:(a",
            "re:a)",
            "re:a{3}",
            "re:(?<!a)b",
            "re:[a",
            r"re:\bx",
            "re:*",
            &format!("re:{}", "(".repeat(40)),
        ] {
            assert!(Pattern::read(wrong).is_err(), "{wrong}");
        }
        let slow = Pattern::read("re:(a*)*(a*)*(a*)*b$").expect("read");
        assert!(!slow.matches(&"a".repeat(60)));
    }
}
