//! Pickles as data: a machine that builds values and runs no code. A call becomes a value with its
//! function and arguments.
//!
//! Values live in one list and refer to each other by number: no file can cause deep recursion, not even in a drop.

use gapless_formats::fault::{Fault, Problem, malformed};

/// The number of a value.
pub(super) type Id = usize;

/// The most values, and entries of lists, in one pickle.
const MOST: usize = 20_000_000;

#[derive(Debug)]
pub(super) enum Value {
    None,
    Bool,
    Int(i64),
    Text(String),
    /// Tuples, lists and sets.
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A module and a name in it: a function or a class.
    Global(String, String),
    /// The result of a call: the callable, its arguments, and the state that is set afterwards.
    Call {
        callable: Id,
        args: Id,
        state: Option<Id>,
    },
    /// A reference to something outside the pickle.
    Persistent(Id),
    /// Numbers with fractions, bytes, large integers: a tensor's description needs none of them.
    Other,
}

/// A pickle's values; `root` is its result.
#[derive(Debug)]
pub(super) struct Pickle {
    pub(super) values: Vec<Value>,
    pub(super) root: Id,
}

impl Pickle {
    pub(super) fn text(&self, id: Id) -> Option<&str> {
        if let Value::Text(text) = &self.values[id] { Some(text) } else { None }
    }

    pub(super) fn list(&self, id: Id) -> Option<&[Id]> {
        if let Value::List(items) = &self.values[id] { Some(items) } else { None }
    }

    pub(super) fn int(&self, id: Id) -> Option<i64> {
        if let Value::Int(number) = self.values[id] { Some(number) } else { None }
    }

    /// Reads a whole pickle.
    pub(super) fn parse(bytes: &[u8]) -> Result<Pickle, Fault> {
        Machine {
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            entries: 0,
        }
        .run()
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: Vec<Option<Id>>,
    /// Entries of all lists and dicts.
    entries: usize,
}

impl Machine<'_> {
    fn take(&mut self, length: usize) -> Result<&[u8], Fault> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            let offset = self.bytes.len() as u64;
            return Err(Box::new(Problem::Truncated { offset, reading: "a pickle".into() }));
        };
        let start = std::mem::replace(&mut self.at, end);
        Ok(&self.bytes[start..end])
    }

    fn number(&mut self, length: usize) -> Result<u64, Fault> {
        let bytes = self.take(length)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn line(&mut self) -> Result<String, Fault> {
        let length = self.bytes[self.at..].iter().position(|byte| *byte == b'\n');
        let line = match length {
            Some(length) => String::from_utf8_lossy(self.take(length)?).into_owned(),
            None => return self.take(usize::MAX).map(|_| String::new()),
        };
        self.at += 1;
        Ok(line)
    }

    fn text(&mut self, length: u64) -> Result<Value, Fault> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        Ok(Value::Text(String::from_utf8_lossy(self.take(length)?).into_owned()))
    }

    fn skip(&mut self, length: u64) -> Result<Value, Fault> {
        self.take(usize::try_from(length).unwrap_or(usize::MAX))?;
        Ok(Value::Other)
    }

    fn bad<T>(&self, what: &str) -> Result<T, Fault> {
        malformed(self.at as u64, format!("of the pickle: {what}"))
    }

    fn push(&mut self, value: Value) -> Result<(), Fault> {
        if self.values.len() >= MOST {
            return Err(Box::new(Problem::TooLarge {
                offset: self.at as u64,
                what: "values of a pickle".into(),
                limit: MOST as u64,
            }));
        }
        self.values.push(value);
        self.stack.push(self.values.len() - 1);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, Fault> {
        match self.stack.pop() {
            Some(id) if self.marks.last().is_none_or(|mark| *mark <= self.stack.len()) => Ok(id),
            _ => self.bad("it takes more values than it has"),
        }
    }

    /// The values above the last mark.
    fn marked(&mut self) -> Result<Vec<Id>, Fault> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => {
                let items = self.stack.split_off(mark);
                self.entries += items.len();
                Ok(items)
            }
            _ => self.bad("a mark is missing"),
        }
    }

    fn put(&mut self, at: u64) -> Result<(), Fault> {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if at > self.bytes.len() {
            return self.bad("a memo entry has an impossible number");
        }
        if self.memo.len() <= at {
            self.memo.resize(at + 1, None);
        }
        self.memo[at] = self.stack.last().copied();
        Ok(())
    }

    fn get(&mut self, at: u64) -> Result<(), Fault> {
        match usize::try_from(at).ok().and_then(|at| self.memo.get(at).copied().flatten()) {
            Some(id) => {
                self.stack.push(id);
                Ok(())
            }
            None => self.bad("it refers to a memo entry that is not there"),
        }
    }

    fn tuple(&mut self, count: usize) -> Result<(), Fault> {
        let mut items = vec![0; count];
        for item in items.iter_mut().rev() {
            *item = self.pop()?;
        }
        self.entries += count;
        self.push(Value::List(items))
    }

    fn call(&mut self, args: Id) -> Result<(), Fault> {
        let callable = self.pop()?;
        let is_dict = matches!(&self.values[callable], Value::Global(_, name) if name == "OrderedDict" || name == "dict" || name == "defaultdict");
        let value =
            if is_dict { Value::Dict(Vec::new()) } else { Value::Call { callable, args, state: None } };
        self.push(value)
    }

    /// Adds entries to the dict on the stack; other values ignore them.
    fn set(&mut self, items: &[Id]) -> Result<(), Fault> {
        let Some(&target) = self.stack.last() else { return self.bad("entries without a dict") };
        if let Value::Dict(entries) = &mut self.values[target] {
            entries.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        }
        Ok(())
    }

    fn append(&mut self, items: &[Id]) -> Result<(), Fault> {
        let Some(&target) = self.stack.last() else { return self.bad("items without a list") };
        if let Value::List(list) = &mut self.values[target] {
            list.extend_from_slice(items);
        }
        Ok(())
    }

    fn run(mut self) -> Result<Pickle, Fault> {
        loop {
            if self.entries > MOST || self.stack.len() > MOST {
                return self.bad("it has too many entries");
            }
            let code = self.take(1)?[0];
            match code {
                b'.' => {
                    let root = self.pop()?;
                    return Ok(Pickle { values: self.values, root });
                }
                0x80 => {
                    if self.number(1)? > 5 {
                        return self.bad("its protocol is newer than 5");
                    }
                }
                0x95 => {
                    self.number(8)?;
                }
                b'(' => self.marks.push(self.stack.len()),
                b')' | b']' | 0x8f => self.push(Value::List(Vec::new()))?,
                b'}' => self.push(Value::Dict(Vec::new()))?,
                b't' | b'l' | 0x91 => {
                    let items = self.marked()?;
                    self.push(Value::List(items))?;
                }
                b'd' => {
                    let items = self.marked()?;
                    self.push(Value::Dict(Vec::new()))?;
                    self.set(&items)?;
                }
                0x85..=0x87 => self.tuple(usize::from(code - 0x84))?,
                b'N' => self.push(Value::None)?,
                0x88 | 0x89 => self.push(Value::Bool)?,
                b'K' => {
                    let number = self.number(1)?;
                    self.push(Value::Int(number as i64))?;
                }
                b'M' => {
                    let number = self.number(2)?;
                    self.push(Value::Int(number as i64))?;
                }
                b'J' => {
                    let number = self.number(4)?;
                    self.push(Value::Int(i64::from(number as u32 as i32)))?;
                }
                0x8a => {
                    let length = self.number(1)? as usize;
                    let bytes = self.take(length)?;
                    let value = if length <= 8 {
                        let raw =
                            bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
                        let shift = 64 - 8 * length as u32;
                        Value::Int(if length == 0 { 0 } else { (raw << shift) as i64 >> shift })
                    } else {
                        Value::Other
                    };
                    self.push(value)?;
                }
                0x8b => {
                    let length = self.number(4)?;
                    let value = self.skip(length)?;
                    self.push(value)?;
                }
                b'I' | b'L' => {
                    let line = self.line()?;
                    let number = line.trim_end_matches('L').parse();
                    self.push(number.map_or(Value::Other, Value::Int))?;
                }
                b'F' => {
                    self.line()?;
                    self.push(Value::Other)?;
                }
                b'G' => {
                    let value = self.skip(8)?;
                    self.push(value)?;
                }
                b'X' | b'T' | b'B' | b'U' | 0x8c | b'C' | 0x8d | 0x8e | 0x96 => {
                    let length = self.number(match code {
                        b'X' | b'T' | b'B' => 4,
                        b'U' | b'C' | 0x8c => 1,
                        _ => 8,
                    })?;
                    let is_text = matches!(code, b'X' | b'T' | b'U' | 0x8c | 0x8d);
                    let value = if is_text { self.text(length)? } else { self.skip(length)? };
                    self.push(value)?;
                }
                b'S' | b'V' => {
                    let line = self.line()?;
                    self.push(Value::Text(line.trim_matches(['\'', '"']).to_owned()))?;
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.push(Value::Global(module, name))?;
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let text = |id: Id| match &self.values[id] {
                        Value::Text(text) => text.clone(),
                        _ => String::new(),
                    };
                    let value = Value::Global(text(module), text(name));
                    self.push(value)?;
                }
                b'q' | b'r' => {
                    let at = self.number(if code == b'q' { 1 } else { 4 })?;
                    self.put(at)?;
                }
                b'p' | b'g' => {
                    let at = self.line()?.parse().unwrap_or(u64::MAX);
                    if code == b'p' { self.put(at)? } else { self.get(at)? }
                }
                0x94 => {
                    let at = self.memo.len() as u64;
                    self.put(at)?;
                }
                b'h' | b'j' => {
                    let at = self.number(if code == b'h' { 1 } else { 4 })?;
                    self.get(at)?;
                }
                b'R' | 0x81 => {
                    let args = self.pop()?;
                    self.call(args)?;
                }
                0x92 => {
                    let (_, args) = (self.pop()?, self.pop()?);
                    self.call(args)?;
                }
                b'i' | b'o' => {
                    let mut items = self.marked()?;
                    if code == b'i' {
                        let (module, name) = (self.line()?, self.line()?);
                        self.push(Value::Global(module, name))?;
                    } else if !items.is_empty() {
                        self.stack.push(items.remove(0));
                    }
                    self.push(Value::List(items))?;
                    let args = self.pop()?;
                    self.call(args)?;
                }
                b'b' => {
                    let state = self.pop()?;
                    let Some(&target) = self.stack.last() else {
                        return self.bad("a state without an object");
                    };
                    if let Value::Call { state: slot, .. } = &mut self.values[target] {
                        *slot = Some(state);
                    }
                }
                b'Q' => {
                    let id = self.pop()?;
                    self.push(Value::Persistent(id))?;
                }
                b'P' => {
                    let line = self.line()?;
                    self.push(Value::Text(line))?;
                    let id = self.pop()?;
                    self.push(Value::Persistent(id))?;
                }
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.entries += 2;
                    self.set(&[key, value])?;
                }
                b'u' => {
                    let items = self.marked()?;
                    self.set(&items)?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.entries += 1;
                    self.append(&[item])?;
                }
                b'e' | 0x90 => {
                    let items = self.marked()?;
                    self.append(&items)?;
                }
                b'0' => {
                    self.pop()?;
                }
                b'1' => {
                    self.marked()?;
                }
                b'2' => {
                    let Some(&top) = self.stack.last() else {
                        return self.bad("it copies a value that is not there");
                    };
                    self.stack.push(top);
                }
                0x97 | 0x98 => self.push(Value::Other)?,
                other => return self.bad(&format!("the opcode 0x{other:02x} is not known")),
            }
        }
    }
}
