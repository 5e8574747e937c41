//! A small pickle writer for tests: snapshots in the ways in which picklers write them.

#![allow(dead_code)]

use std::collections::HashMap;

/// Numbers that look random, the same every time.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        (self.roll() >> 11) % n
    }

    pub(crate) fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

/// A value to pickle. Equal values may be written once and referred to, as picklers do with one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Py {
    None,
    Bool(bool),
    Int(i128),
    Str(String),
    List(Vec<Py>),
    Tuple(Vec<Py>),
    Dict(Vec<(&'static str, Py)>),
}

/// The way of writing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) protocol: u8,
    /// Write equal strings, frames and lists of frames once.
    pub(crate) share: bool,
    /// Memoise everything, referred to or not, as Python does; the C++ pickler memoises whole values.
    pub(crate) memoize: bool,
    /// Memoise lists and dicts when they are whole, as the C++ pickler does.
    pub(crate) late: bool,
    /// Set one key at a time.
    pub(crate) single: bool,
    /// Cut into frames of this many values (protocols 4 and 5).
    pub(crate) frame: usize,
}

pub(crate) fn pickle(value: &Py, style: Style) -> Vec<u8> {
    let mut writer =
        Writer { out: vec![0x80, style.protocol], style, memo: HashMap::new(), next: 0, values: 0 };
    writer.write(value);
    writer.out.push(b'.');
    writer.out
}

struct Writer {
    out: Vec<u8>,
    style: Style,
    memo: HashMap<Py, u32>,
    next: u32,
    values: usize,
}

impl Writer {
    fn memoize(&mut self, value: Option<&Py>) {
        if !self.style.memoize {
            return;
        }
        let index = self.next;
        self.next += 1;
        match (self.style.protocol, u8::try_from(index)) {
            (4.., _) => self.out.push(0x94),
            (_, Ok(short)) => self.out.extend([b'q', short]),
            _ => {
                self.out.push(b'r');
                self.out.extend(index.to_le_bytes());
            }
        }
        if let Some(value) = value
            && self.style.share
        {
            self.memo.insert(value.clone(), index);
        }
    }

    fn write(&mut self, value: &Py) {
        self.values += 1;
        if self.style.protocol >= 4 && self.style.frame > 0 && self.values.is_multiple_of(self.style.frame) {
            self.out.push(0x95);
            self.out.extend(64_u64.to_le_bytes());
        }
        if let Some(&index) = self.memo.get(value) {
            match u8::try_from(index) {
                Ok(short) => self.out.extend([b'h', short]),
                Err(_) => {
                    self.out.push(b'j');
                    self.out.extend(index.to_le_bytes());
                }
            }
            return;
        }
        match value {
            Py::None => self.out.push(b'N'),
            Py::Bool(b) => self.out.push(if *b { 0x88 } else { 0x89 }),
            Py::Int(n) => self.int(*n),
            Py::Str(text) => {
                match (self.style.protocol, u8::try_from(text.len())) {
                    (4.., Ok(length)) => self.out.extend([0x8c, length]),
                    _ => {
                        self.out.push(b'X');
                        self.out.extend((text.len() as u32).to_le_bytes());
                    }
                }
                self.out.extend(text.as_bytes());
                self.memoize(Some(value));
            }
            Py::List(items) => {
                self.out.push(b']');
                if !self.style.late {
                    self.memoize(Some(value));
                }
                for batch in items.chunks(1000) {
                    if let [one] = batch {
                        self.write(one);
                        self.out.push(b'a');
                        continue;
                    }
                    self.out.push(b'(');
                    batch.iter().for_each(|item| self.write(item));
                    self.out.push(b'e');
                }
                if self.style.late {
                    self.memoize(Some(value));
                }
            }
            Py::Tuple(items) => {
                if items.len() > 3 {
                    self.out.push(b'(');
                }
                items.iter().for_each(|item| self.write(item));
                self.out.push(match items.len() {
                    0 => b')',
                    1 => 0x85,
                    2 => 0x86,
                    3 => 0x87,
                    _ => b't',
                });
                self.memoize(Some(value));
            }
            Py::Dict(entries) => {
                self.out.push(b'}');
                // Frames are shared objects; events and segments are not.
                let shared = entries.iter().any(|(key, _)| *key == "filename");
                if !self.style.late {
                    self.memoize(shared.then_some(value));
                }
                if !self.style.single {
                    self.out.push(b'(');
                }
                for (key, item) in entries {
                    self.write(&Py::Str((*key).to_owned()));
                    self.write(item);
                    if self.style.single {
                        self.out.push(b's');
                    }
                }
                if !self.style.single {
                    self.out.push(b'u');
                }
                if self.style.late {
                    self.memoize(shared.then_some(value));
                }
            }
        }
    }

    fn int(&mut self, n: i128) {
        if let Ok(byte) = u8::try_from(n) {
            self.out.extend([b'K', byte]);
        } else if let Ok(short) = u16::try_from(n) {
            self.out.push(b'M');
            self.out.extend(short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(n) {
            self.out.push(b'J');
            self.out.extend(int.to_le_bytes());
        } else {
            let bytes = n.to_le_bytes();
            let fits = |length: usize| n << (128 - 8 * length) >> (128 - 8 * length) == n;
            let length = (1..16).find(|&length| fits(length)).unwrap_or(16);
            self.out.extend([0x8a, length as u8]);
            self.out.extend(&bytes[..length]);
        }
    }
}

pub(crate) fn json(value: &Py) -> String {
    match value {
        Py::None => "null".into(),
        Py::Bool(b) => b.to_string(),
        Py::Int(n) => n.to_string(),
        Py::Str(text) => serde_json::to_string(text).expect("a string"),
        Py::List(items) | Py::Tuple(items) => {
            format!("[{}]", items.iter().map(json).collect::<Vec<_>>().join(", "))
        }
        Py::Dict(entries) => {
            let pairs: Vec<String> =
                entries.iter().map(|(key, value)| format!("{key:?}: {}", json(value))).collect();
            format!("{{{}}}", pairs.join(",\n"))
        }
    }
}
