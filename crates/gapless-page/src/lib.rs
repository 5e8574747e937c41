//! The report as one HTML file: the page's code and style, the report's JSON and the allocations as a binary payload.
//!
//! The file works from `file://` and asks the network for nothing; its content security policy forbids it to. Nothing
//! that comes from a trace is written as markup: text reaches the page only inside JSON whose `<` is escaped, inside
//! base64, or escaped in the title. The code under `dist/` is bundled from `web/` and committed, because a build with
//! cargo must not need Node; a test of `web/` rebuilds and compares it.

pub mod payload;
pub mod ranks;

mod base64;
mod huffman;
mod pack;

use gapless_trace::{DeviceTrace, History, Tick, Trace};
use pack::pack;
use std::io::{self, Write};

const SKELETON: &str = include_str!("dist/page.html");
const STYLE: &str = include_str!("dist/page.css");
const CODE: &str = include_str!("dist/page.js");

/// The content of a page.
#[derive(Debug)]
pub struct Page<'a> {
    /// The name of the run.
    pub title: &'a str,
    /// The report, schema `gapless.report/1`.
    pub report_json: &'a str,
    pub trace: &'a Trace,
    pub devices: Vec<PageDevice<'a>>,
    /// The names of the numbers in [`PageDevice::kinds`].
    pub kind_names: &'a [&'a str],
}

/// One device of a page.
#[derive(Debug)]
pub struct PageDevice<'a> {
    pub device: &'a DeviceTrace,
    pub history: &'a History,
    /// For each allocation an index into [`Page::kind_names`]; empty if kinds are not known.
    pub kinds: &'a [u8],
    /// Half-open.
    pub steps: &'a [(Tick, Tick)],
    /// The offset of each allocation in bytes, from a plan; 0 if one is missing. `None`: the page stacks them.
    pub places: Option<&'a [u64]>,
}

/// Writes the page.
///
/// # Errors
/// When `out` does.
pub fn write(out: &mut dyn Write, page: &Page<'_>) -> io::Result<()> {
    for (text, part) in parts(SKELETON) {
        out.write_all(text.as_bytes())?;
        match part {
            "title" => out.write_all(escape_text(page.title).as_bytes())?,
            "style" => out.write_all(STYLE.as_bytes())?,
            "code" => out.write_all(CODE.as_bytes())?,
            "report" => out.write_all(escape_json(page.report_json).as_bytes())?,
            "data" => write_data(out, page, "")?,
            _ => {}
        }
    }
    Ok(())
}

/// The sections, each in a tag of its own so that the page can first decode those that the first picture needs. Their
/// names begin with `prefix`.
fn write_data(out: &mut dyn Write, page: &Page<'_>, prefix: &str) -> io::Result<()> {
    let stacks = payload::StackNumbers::of(page);
    let detail = |device| text(&payload::detail(page.trace, device, &stacks));
    let rect = |device| text(&payload::rects(page.trace, device, &stacks));
    let (rects, details) = gapless_threads::both(
        "page",
        || page.devices.iter().map(rect).collect::<Vec<_>>(),
        || page.devices.iter().map(detail).collect::<Vec<_>>(),
    );
    section(out, &format!("{prefix}tables"), &text(&payload::tables(page, &stacks)))?;
    for (i, (rects, detail)) in rects.iter().zip(&details).enumerate() {
        section(out, &format!("{prefix}rects.{i}"), rects)?;
        section(out, &format!("{prefix}detail.{i}"), detail)?;
    }
    Ok(())
}

/// The bytes of a section, packed, as text.
fn text(bytes: &[u8]) -> Vec<u8> {
    base64::encode(&pack(bytes))
}

fn section(out: &mut dyn Write, name: &str, text: &[u8]) -> io::Result<()> {
    write!(out, "<script type=\"application/octet-stream+base64\" id=\"{name}\">")?;
    out.write_all(text)?;
    out.write_all(b"</script>\n")
}

/// The skeleton cut at its `<!--gapless:NAME-->` marks: (text, name of the mark after it).
fn parts(skeleton: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    const OPEN: &str = "<!--gapless:";
    const CLOSE: &str = "-->";
    let mut rest = Some(skeleton);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some((before, tail)) = text.split_once(OPEN) else {
            rest = None;
            return Some((text, ""));
        };
        let (name, tail) = tail.split_once(CLOSE).unwrap_or((tail, ""));
        rest = Some(tail);
        Some((before, name))
    })
}

/// Text for the inside of an element.
#[must_use]
pub fn escape_text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // HTML has no place for control characters, and parsers turn NUL into U+FFFD.
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// JSON for the inside of a script element: `<` occurs in strings only, where `\u003c` means the same, so no
/// `</script>` or `<!--` can.
#[must_use]
pub fn escape_json(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}
