//! Snapshots as JSON: the same dicts and lists, keys in any order, read as a stream into the same rows.

use crate::builder::Builder;
use crate::error::{Fault, Problem};
use crate::value::{Value, push_joined};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::io::{self, BufReader, Read};

/// The content of a JSON file.
pub(crate) struct Json {
    pub(crate) builder: Builder,
    pub(crate) top: Value,
    pub(crate) bytes: u64,
    pub(crate) trailing: bool,
}

pub(crate) fn read(input: &mut dyn Read, mut builder: Builder) -> Result<Json, Fault> {
    let limits = builder.limits;
    let mut guard = Guard {
        input: BufReader::with_capacity(64 << 10, input),
        read: 0,
        limit: limits.bytes,
        token: 0,
        token_limit: limits.string,
        state: Lexer::Outside,
    };
    let mut parser = serde_json::Deserializer::from_reader(BufReader::with_capacity(64 << 10, &mut guard));
    let read = Node { builder: &mut builder }.deserialize(&mut parser);
    let ended = read.as_ref().ok().map(|_| parser.end());
    drop(parser);
    match read {
        Ok(top) => {
            let trailing = matches!(ended, Some(Err(error)) if error.is_syntax());
            Ok(Json { builder, top, bytes: guard.read, trailing })
        }
        Err(error) => Err(problem(&error, guard.read)),
    }
}

fn problem(error: &serde_json::Error, read: u64) -> Fault {
    if error.is_eof() {
        return Box::new(Problem::Truncated { offset: read, reading: "a JSON value".into() });
    }
    if error.is_io() {
        return Box::new(Problem::Io { offset: read, source: io::Error::other(error.to_string()) });
    }
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let what = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text).to_owned();
    Box::new(Problem::Json { line, column, what })
}

/// One value; lists and dicts collapse as they end.
struct Node<'a> {
    builder: &'a mut Builder,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> Result<Value, D::Error> {
        parser.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::Big(value), Value::Int))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        // Integers of more than 64 bits come as floats.
        Ok(if value.fract() == 0.0 && value.abs() >= 9e18 { Value::Huge } else { Value::Float(value) })
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.builder.rows.intern(value.as_bytes()).map(Value::Str).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Node { builder: self.builder })? {
            push_joined(&mut list, 0, item);
            if list.len() > self.builder.limits.values {
                return Err(A::Error::custom("a list of too many values"));
            }
        }
        // Python's tuples come as lists: two integers are a pool's identity.
        let made = self.builder.new_tuple_or_list(list).and_then(|list| self.builder.settle(list));
        made.map_err(A::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut dict = Vec::new();
        while let Some(key) = entries.next_key_seed(Node { builder: self.builder })? {
            let value = entries.next_value_seed(Node { builder: self.builder })?;
            dict.extend([key, value]);
            if dict.len() > self.builder.limits.values {
                return Err(A::Error::custom("a dict of too many values"));
            }
        }
        let made = self.builder.new_dict(dict).and_then(|dict| self.builder.settle(dict));
        made.map_err(A::Error::custom)
    }
}

/// Passes bytes on and limits two things that the parser does not: the number of bytes, and the length of one string or
/// number, which the parser would hold in memory.
struct Guard<R> {
    input: R,
    read: u64,
    limit: u64,
    token: u64,
    token_limit: u64,
    state: Lexer,
}

#[derive(Clone, Copy)]
enum Lexer {
    Outside,
    InString,
    Escaped,
}

impl<R: Read> Read for Guard<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(out)?;
        for &byte in &out[..n] {
            self.token += 1;
            match (self.state, byte) {
                (Lexer::Outside, b'"') => {
                    self.state = Lexer::InString;
                    self.token = 0;
                }
                (Lexer::Outside, b',' | b':' | b'[' | b']' | b'{' | b'}' | b' ' | b'\n' | b'\r' | b'\t') => {
                    self.token = 0;
                }
                (Lexer::InString, b'\\') => self.state = Lexer::Escaped,
                (Lexer::InString, b'"') => {
                    self.state = Lexer::Outside;
                    self.token = 0;
                }
                (Lexer::Escaped, _) => self.state = Lexer::InString,
                _ => {}
            }
            if self.token > self.token_limit {
                return Err(io::Error::other(format!(
                    "a string or number of more than {} bytes",
                    self.token_limit
                )));
            }
        }
        self.read += n as u64;
        if self.read > self.limit {
            return Err(io::Error::other(format!("more than {} bytes", self.limit)));
        }
        Ok(n)
    }
}
