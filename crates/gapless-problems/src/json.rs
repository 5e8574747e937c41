//! Buffer lists in JSON: an array of objects, or an object whose member `buffers` is one.
//!
//! ```text
//! [{"id": "b1", "lower": 0, "upper": 9, "size": 16, "alignment": 8, "gaps": [[2, 4], [5, 6]],
//!   "offset": 32, "hint": 0}]
//! ```
//!
//! `id` (a string or a number), `lower`, `upper` and `size` must be there; `alignment` (0 or 1: none), `gaps`
//! (half-open), `offset` (a fixed place) and `hint` (a place to start from) may be, and `null` is the same as absent.
//! Other members are ignored. Every error names the position in the list, counted from 0, and the id. The text is
//! read as a stream, one buffer at a time, because a tree of a million objects weighs more than the problem.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use gapless_trace::Bytes;
use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::error::{Error, Result};
use gapless_plan::{Buffer, Lifetime, Problem};

/// Reads a problem from the text of a file.
pub fn read(text: &str) -> Result<Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut list = List::default();
    let mut json = serde_json::Deserializer::from_str(text);
    let outcome = Top(&mut list).deserialize(&mut json).and_then(|()| json.end());
    if let Err(error) = outcome {
        // The text itself is broken, or an element is no object: its position is known, but no id.
        let place = match list.buffers.len() {
            0 => String::new(),
            read => format!(", at buffers[{read}]"),
        };
        return Err(list.failed.unwrap_or_else(|| Error::Json { what: format!("{error}{place}") }));
    }
    let positions = list.positions;
    Problem::with_names(list.buffers, list.names).map_err(|error| match error {
        gapless_plan::Error::SizeSum { id } => Error::JsonBuffer {
            position: positions.get(id.as_str()).copied().unwrap_or(0),
            id: format!("id {id:?}"),
            what: "up to here the sizes add up to more than 2^62 bytes; are they really in bytes?".to_owned(),
        },
        other => Error::Problem(other),
    })
}

/// The buffers read so far. Invariant: `buffers`, `names` and `positions` have the same length.
#[derive(Default)]
struct List {
    buffers: Vec<Buffer>,
    names: Vec<Box<str>>,
    positions: HashMap<Box<str>, usize>,
    /// serde's errors hold only text, so ours is kept here.
    failed: Option<Error>,
}

impl List {
    fn push(&mut self, row: &Row) -> Result<()> {
        let position = self.buffers.len();
        let id = row.get("id").filter(|id| id.is_string() || id.is_number());
        let wrong = |what: String| {
            let id = id.map_or_else(|| "no id".to_owned(), |id| format!("id {}", brief(id)));
            Error::JsonBuffer { position, id, what }
        };
        let name = id.map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
        if let Some(twice) = row.twice {
            return Err(wrong(format!("the member {twice:?} stands there twice")));
        }
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(wrong("each buffer needs an id, a string that is not empty or a number".to_owned()));
        };
        let buffer = row.buffer().map_err(wrong)?;
        // The problem checks all buffers again at the end; here the error can name the position.
        Problem::new(vec![buffer.clone()]).map_err(|error| match error {
            gapless_plan::Error::Buffer { what, .. } => wrong(what),
            other => wrong(other.to_string()),
        })?;
        match self.positions.entry(name.as_str().into()) {
            Entry::Occupied(first) => {
                return Err(wrong(format!("buffers[{}] has this id already", first.get())));
            }
            Entry::Vacant(free) => free.insert(position),
        };
        self.names.push(name.into());
        self.buffers.push(buffer);
        Ok(())
    }
}

/// The members that a buffer may have; the order is that of [`Row::values`].
const MEMBERS: [&str; 8] = ["id", "lower", "upper", "size", "alignment", "gaps", "offset", "hint"];

/// One object, its members unchecked, because the id may come last and errors name it.
#[derive(Default)]
struct Row {
    values: [Option<Value>; MEMBERS.len()],
    twice: Option<&'static str>,
}

impl Row {
    /// The member's value; `None` if it is absent or `null`.
    fn get(&self, member: &str) -> Option<&Value> {
        let at = MEMBERS.iter().position(|name| *name == member)?;
        self.values[at].as_ref().filter(|value| !value.is_null())
    }

    fn buffer(&self) -> std::result::Result<Buffer, String> {
        let needed = |member: &str| self.get(member).ok_or_else(|| format!("{member} is missing"));
        let optional = |member: &str| self.get(member).map(|value| bytes(member, value)).transpose();
        let start = time("lower", needed("lower")?)?;
        let end = time("upper", needed("upper")?)?;
        if start >= end {
            return Err(format!("lower {start} is not below upper {end}; lifetimes are half-open"));
        }
        Ok(Buffer {
            lifetime: Lifetime { start, end },
            size: bytes("size", needed("size")?)?,
            alignment: optional("alignment")?.filter(|alignment| alignment.0 > 0).unwrap_or(Bytes(1)),
            gaps: self.get("gaps").map_or(Ok(Vec::new()), gaps)?.into_boxed_slice(),
            fixed: optional("offset")?,
            hint: optional("hint")?,
        })
    }
}

fn time(member: &str, value: &Value) -> std::result::Result<i64, String> {
    value.as_i64().ok_or_else(|| format!("{member} is {}, not a whole number of 64 bits", brief(value)))
}

fn bytes(member: &str, value: &Value) -> std::result::Result<Bytes, String> {
    match value.as_u64() {
        Some(count) if count <= Bytes::LIMIT.0 => Ok(Bytes(count)),
        Some(count) => Err(format!("{member} is {count}; more than 2^60 bytes is not accepted")),
        None if value.as_f64().is_some_and(|number| number < 0.0) => {
            Err(format!("{member} is {}; it must not be negative", brief(value)))
        }
        None => Err(format!("{member} is {}, not a whole number of bytes", brief(value))),
    }
}

fn gaps(value: &Value) -> std::result::Result<Vec<Lifetime>, String> {
    let form = "gaps have the form [[start, end], ...]";
    let Value::Array(list) = value else { return Err(format!("gaps is {}; {form}", brief(value))) };
    let gap = |gap: &Value| match gap.as_array().map(Vec::as_slice) {
        Some([start, end]) => Ok(Lifetime { start: time("a gap", start)?, end: time("a gap", end)? }),
        _ => Err(format!("invalid gap {}: {form}", brief(gap))),
    };
    list.iter().map(gap).collect()
}

/// A value for a message: its text, cut if it is long.
fn brief(value: &Value) -> String {
    const LONGEST: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}

/// The whole text: the list, or the object around it.
struct Top<'l>(&'l mut List);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();
    fn deserialize<D: de::Deserializer<'de>>(self, json: D) -> std::result::Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();
    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("an array of buffers or an object with a member \"buffers\"")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> std::result::Result<(), A::Error> {
        Rows(self.0).visit_seq(list)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> std::result::Result<(), A::Error> {
        let mut found = false;
        while let Some(member) = members.next_key::<String>()? {
            if member != "buffers" {
                members.next_value::<IgnoredAny>()?;
            } else if std::mem::replace(&mut found, true) {
                return Err(de::Error::custom("the member \"buffers\" stands there twice"));
            } else {
                members.next_value_seed(Rows(self.0))?;
            }
        }
        if found { Ok(()) } else { Err(de::Error::custom("the object has no member \"buffers\"")) }
    }
}

/// The array of buffers.
struct Rows<'l>(&'l mut List);

impl<'de> DeserializeSeed<'de> for Rows<'_> {
    type Value = ();
    fn deserialize<D: de::Deserializer<'de>>(self, json: D) -> std::result::Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Rows<'_> {
    type Value = ();
    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("an array of buffers")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<(), A::Error> {
        while let Some(row) = list.next_element_seed(OneRow)? {
            if let Err(error) = self.0.push(&row) {
                self.0.failed = Some(error);
                return Err(de::Error::custom("a buffer is wrong"));
            }
        }
        Ok(())
    }
}

struct OneRow;

impl<'de> DeserializeSeed<'de> for OneRow {
    type Value = Row;
    fn deserialize<D: de::Deserializer<'de>>(self, json: D) -> std::result::Result<Row, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OneRow {
    type Value = Row;
    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("a buffer, an object with id, lower, upper and size")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> std::result::Result<Row, A::Error> {
        let mut row = Row::default();
        while let Some(member) = members.next_key::<String>()? {
            let Some(at) = MEMBERS.iter().position(|name| *name == member) else {
                members.next_value::<IgnoredAny>()?;
                continue;
            };
            if row.values[at].replace(members.next_value()?).is_some() {
                row.twice = Some(MEMBERS[at]);
            }
        }
        Ok(row)
    }
}
