//! JSON in which every value has its byte offset. Refuses the means of hostile files: nesting deeper than 64, a key
//! twice in one object, more values than the caller allows. Accepts NaN and Infinity, which Python writes.

use crate::fault::{Fault, Problem, malformed};
use std::collections::HashSet;

const DEPTH: u32 = 64;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Json {
    /// Byte of its first character.
    pub at: u64,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    /// In the file's order; no key twice.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The whole of `text`, of at most `limit` values.
    pub fn parse(text: &[u8], limit: u64) -> Result<Json, Fault> {
        let mut parser = Parser { text, at: 0, left: limit, limit };
        let value = parser.value(DEPTH)?;
        parser.space();
        if parser.at < text.len() {
            return malformed(parser.at as u64, "more text after the end of the JSON value");
        }
        Ok(value)
    }

    pub fn get(&self, key: &str) -> Option<&Json> {
        self.object()?.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub fn object(&self) -> Option<&[(String, Json)]> {
        if let Value::Object(entries) = &self.value { Some(entries) } else { None }
    }

    pub fn list(&self) -> Option<&[Json]> {
        if let Value::List(items) = &self.value { Some(items) } else { None }
    }

    pub fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    pub fn int(&self) -> Option<i128> {
        match self.value {
            Value::Int(number) => Some(number),
            _ => None,
        }
    }

    pub fn unsigned(&self) -> Option<u64> {
        self.int().and_then(|number| u64::try_from(number).ok())
    }

    pub fn is_null(&self) -> bool {
        self.value == Value::Null
    }

    /// The kind of this value, in words.
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a fraction",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Object(_) => "an object",
        }
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    left: u64,
    limit: u64,
}

impl Parser<'_> {
    fn space(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn ended<T>(&self) -> Result<T, Fault> {
        Err(Box::new(Problem::Truncated { offset: self.text.len() as u64, reading: "JSON".into() }))
    }

    fn value(&mut self, depth: u32) -> Result<Json, Fault> {
        self.space();
        let at = self.at as u64;
        if self.left == 0 {
            return Err(Box::new(Problem::TooLarge {
                offset: at,
                what: "too many JSON values".into(),
                limit: self.limit,
            }));
        }
        self.left -= 1;
        let Some(&first) = self.text.get(self.at) else { return self.ended() };
        let value = match first {
            b'{' | b'[' if depth == 0 => {
                return malformed(at, format!("JSON is nested deeper than {DEPTH} levels"));
            }
            b'{' => self.entries(depth - 1)?,
            b'[' => self.items(depth - 1)?,
            b'"' => Value::Text(self.string()?),
            b'-' | b'0'..=b'9' if !self.text[self.at..].starts_with(b"-I") => self.number()?,
            _ => self.word()?,
        };
        Ok(Json { at, value })
    }

    fn word(&mut self) -> Result<Value, Fault> {
        let rest = &self.text[self.at..];
        let words = [
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("NaN", Value::Float(f64::NAN)),
            ("Infinity", Value::Float(f64::INFINITY)),
            ("-Infinity", Value::Float(f64::NEG_INFINITY)),
        ];
        for (word, value) in words {
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
            if word.as_bytes().starts_with(rest) {
                return self.ended();
            }
        }
        malformed(self.at as u64, format!("this is not JSON: unexpected {}", shown(rest[0])))
    }

    fn number(&mut self) -> Result<Value, Fault> {
        let start = self.at;
        while matches!(self.text.get(self.at), Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) {
            self.at += 1;
            if self.at - start > 400 {
                return malformed(start as u64, "a number of more than 400 characters");
            }
        }
        let digits = std::str::from_utf8(&self.text[start..self.at]).unwrap_or("");
        let whole = !digits.contains(['.', 'e', 'E']);
        let padded = digits.trim_start_matches('-');
        if padded.len() > 1 && padded.starts_with('0') && padded.as_bytes()[1].is_ascii_digit() {
            return malformed(start as u64, format!("\"{digits}\" is not a number: it begins with 0"));
        }
        if whole && let Ok(number) = digits.parse() {
            return Ok(Value::Int(number));
        }
        match digits.parse::<f64>() {
            Ok(number) if !digits.starts_with('+') && !digits.starts_with('.') => Ok(Value::Float(number)),
            _ => malformed(start as u64, format!("\"{digits}\" is not a number")),
        }
    }

    fn string(&mut self) -> Result<String, Fault> {
        let start = self.at;
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            let Some(&byte) = self.text.get(self.at) else { return self.ended() };
            self.at += 1;
            match byte {
                b'"' => break,
                b'\\' => self.escape(&mut bytes)?,
                0..0x20 => return malformed(self.at as u64 - 1, "a control character inside a string"),
                _ => bytes.push(byte),
            }
        }
        String::from_utf8(bytes).or_else(|_| malformed(start as u64, "a string that is not UTF-8"))
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<(), Fault> {
        let at = self.at as u64 - 1;
        let Some(&letter) = self.text.get(self.at) else { return self.ended() };
        self.at += 1;
        let plain = match letter {
            b'"' | b'\\' | b'/' => letter,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let mut code = self.hex()?;
                if (0xd800..0xdc00).contains(&code) && self.text[self.at..].starts_with(b"\\u") {
                    self.at += 2;
                    let low = self.hex()?;
                    code = if (0xdc00..0xe000).contains(&low) {
                        0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00)
                    } else {
                        0xfffd
                    };
                }
                let letter = char::from_u32(code).unwrap_or('\u{fffd}');
                bytes.extend(letter.encode_utf8(&mut [0; 4]).bytes());
                return Ok(());
            }
            _ => return malformed(at, format!("an unknown escape: \\ and then {}", shown(letter))),
        };
        bytes.push(plain);
        Ok(())
    }

    fn hex(&mut self) -> Result<u32, Fault> {
        let Some(digits) = self.text.get(self.at..self.at + 4) else { return self.ended() };
        let code = std::str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let Some(code) = code else {
            return malformed(self.at as u64, "\\u without four hexadecimal digits");
        };
        self.at += 4;
        Ok(code)
    }

    fn items(&mut self, depth: u32) -> Result<Value, Fault> {
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        if self.text.get(self.at) == Some(&b']') {
            self.at += 1;
            return Ok(Value::List(items));
        }
        loop {
            items.push(self.value(depth)?);
            self.space();
            match self.text.get(self.at) {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::List(items));
                }
                Some(&other) => {
                    return malformed(self.at as u64, format!("expected , or ] but found {}", shown(other)));
                }
                None => return self.ended(),
            }
        }
    }

    fn entries(&mut self, depth: u32) -> Result<Value, Fault> {
        /// Below this many keys, looking through them is faster than hashing.
        const FEW: usize = 16;
        self.at += 1;
        let mut entries: Vec<(String, Json)> = Vec::new();
        let mut seen: HashSet<String> = HashSet::new();
        self.space();
        if self.text.get(self.at) == Some(&b'}') {
            self.at += 1;
            return Ok(Value::Object(entries));
        }
        loop {
            self.space();
            let at = self.at as u64;
            match self.text.get(self.at) {
                Some(b'"') => {}
                Some(&other) => {
                    return malformed(at, format!("expected a key in quotes but found {}", shown(other)));
                }
                None => return self.ended(),
            }
            let key = self.string()?;
            let twice = if entries.len() < FEW {
                entries.iter().any(|(name, _)| *name == key)
            } else {
                if entries.len() == FEW {
                    seen.extend(entries.iter().map(|(name, _)| name.clone()));
                }
                !seen.insert(key.clone())
            };
            if twice {
                return malformed(at, format!("the key \"{}\" stands twice in one object", brief(&key)));
            }
            self.space();
            match self.text.get(self.at) {
                Some(b':') => self.at += 1,
                Some(&other) => {
                    return malformed(self.at as u64, format!("expected : but found {}", shown(other)));
                }
                None => return self.ended(),
            }
            let value = self.value(depth)?;
            entries.push((key, value));
            self.space();
            match self.text.get(self.at) {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(entries));
                }
                Some(&other) => {
                    return malformed(self.at as u64, format!("expected , or }} but found {}", shown(other)));
                }
                None => return self.ended(),
            }
        }
    }
}

fn shown(byte: u8) -> String {
    if byte.is_ascii_graphic() { format!("'{}'", byte as char) } else { format!("byte 0x{byte:02x}") }
}

/// At most 60 characters of a name that a file chose.
pub fn brief(text: &str) -> String {
    let mut short: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() {
        short.push('…');
    }
    short
}
