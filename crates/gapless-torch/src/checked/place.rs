//! A place in the program: the Python line that a person would look at first, and the two that called it.

use crate::recorder::frames::{self, Place as Frame};
use gapless_trace::holders::{line_text, naming_line};
use std::fmt;
use std::sync::Arc;

/// Lines in a message.
const LINES: usize = 3;

/// `train.py:12 step, from train.py:40 main`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(Arc<str>);

impl Place {
    /// The present place of this thread. No lock of ours may be held, because this takes Python's.
    #[must_use]
    pub fn here() -> Place {
        Place::of(&frames::here())
    }

    /// The innermost line outside of torch, and its callers; `frames` are innermost first.
    fn of(frames: &[Frame]) -> Place {
        let mut lines: Vec<String> = Vec::new();
        let mut rest = frames;
        while let Some((at, frame)) = naming_line(rest.iter().enumerate(), |(_, frame)| frame.file.as_str())
            .filter(|_| lines.len() < LINES)
        {
            lines.push(line_text(&frame.name, &frame.file, frame.line));
            rest = &rest[at + 1..];
        }
        if lines.is_empty() {
            return Place("a thread that runs no Python, such as that of a backward pass".into());
        }
        Place(lines.join(", from ").into())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
impl From<&str> for Place {
    fn from(text: &str) -> Place {
        Place(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_program_are_named_before_those_of_torch() {
        let frame =
            |name: &str, file: &str, line| Frame { name: name.to_owned(), file: file.to_owned(), line };
        let inside = "/lib/site-packages/torch/nn/modules/linear.py";
        let frames =
            [frame("forward", inside, 9), frame("step", "/a/train.py", 12), frame("main", "/a/train.py", 40)];
        assert_eq!(Place::of(&frames).to_string(), "train.py:12 step, from train.py:40 main");
        assert!(Place::of(&[]).to_string().contains("no Python"));
        assert_eq!(Place::of(&frames[..1]).to_string(), "linear.py:9 forward");
    }
}
