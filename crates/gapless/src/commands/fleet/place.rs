//! `gapless fleet place`: the placement for other programs, one JSON object a line in and out.

use super::opened;
use crate::Answer;
use crate::cli::fleet::PlaceArgs;
use crate::failure::Failure;
use anyhow::Result;
use gapless_fleet::lines::{MOST_LINE, answer};
use gapless_fleet::queue::Queue;
use gapless_fleet::read;
use std::io::{BufRead, ErrorKind, Read, Write};

pub(super) fn run(args: &PlaceArgs) -> Result<Answer> {
    let nodes = match &args.nodes {
        Some(path) => opened(path, |input| read::nodes(input))?,
        None => Vec::new(),
    };
    let mut queue = Queue::new(nodes);
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line that is too long is read to its end in pieces, so that the next one begins where it should.
        let mut is_long = false;
        loop {
            let part = (&mut input).take(MOST_LINE as u64 + 2).read_until(b'\n', &mut line);
            let length = part.map_err(|error| {
                Failure::new(
                    format!("standard input cannot be read: {error}"),
                    "write one JSON object a line",
                )
            })?;
            if length == 0 && line.is_empty() && !is_long {
                return Ok(Answer::Yes);
            }
            // The last line may lack its newline.
            if length == 0 || line.ends_with(b"\n") {
                break;
            }
            if line.len() > MOST_LINE {
                is_long = true;
                line.clear();
            }
        }
        let said = if is_long {
            format!("{{\"error\":\"a line of more than {MOST_LINE} bytes\"}}")
        } else {
            // Two names that differ only in invalid bytes would otherwise be one.
            match std::str::from_utf8(&line) {
                Ok(text) if text.trim().is_empty() => continue,
                Ok(text) => answer(&mut queue, text.trim()),
                Err(error) => format!("{{\"error\":\"invalid UTF-8 at byte {}\"}}", error.valid_up_to()),
            }
        };
        // If the program that reads the answers has ended, it asks no more questions either.
        match writeln!(output, "{said}").and_then(|()| output.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Answer::Yes),
            other => other?,
        }
    }
}
