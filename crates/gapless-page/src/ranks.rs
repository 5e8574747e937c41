//! The page of many ranks: the figures and curves of all of them, and the allocations of the few that are shown whole.
//!
//! Traces come one after the other, so that only one is in memory: [`Writer::new`] writes the common parts,
//! [`Writer::rank`] one rank that is shown whole, [`Writer::finish`] the rest of the page.

use super::{CODE, Page, SKELETON, STYLE, escape_json, escape_text, parts, section, text, write_data};
use std::io::{self, Write};

/// Writes a page of many ranks, part by part.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Begins the page. `ranks_json` is `gapless.ranks/1`.
    ///
    /// # Errors
    /// When `out` does.
    pub fn new(mut out: W, title: &str, ranks_json: &str) -> io::Result<Writer<W>> {
        for (text, part) in parts(SKELETON) {
            out.write_all(text.as_bytes())?;
            match part {
                "title" => out.write_all(escape_text(title).as_bytes())?,
                "style" => out.write_all(STYLE.as_bytes())?,
                "report" => out.write_all(b"{}")?,
                "data" => break,
                _ => {}
            }
        }
        section(&mut out, "ranks", &text(ranks_json.as_bytes()))?;
        Ok(Writer { out })
    }

    /// One rank that is shown whole.
    ///
    /// # Errors
    /// When the output does.
    pub fn rank(&mut self, rank: u32, page: &Page<'_>) -> io::Result<()> {
        write!(self.out, "<script type=\"application/json\" id=\"report.{rank}\">")?;
        self.out.write_all(escape_json(page.report_json).as_bytes())?;
        self.out.write_all(b"</script>\n")?;
        write_data(&mut self.out, page, &format!("{rank}."))
    }

    /// Ends the page.
    ///
    /// # Errors
    /// When the output does.
    pub fn finish(mut self) -> io::Result<()> {
        let mut behind = false;
        for (text, part) in parts(SKELETON) {
            if behind {
                self.out.write_all(text.as_bytes())?;
                if part == "code" {
                    self.out.write_all(CODE.as_bytes())?;
                }
            }
            behind |= part == "data";
        }
        Ok(())
    }
}
