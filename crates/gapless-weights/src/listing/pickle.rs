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

    fn tuple(&mut self, count: usize) -> Result<Value, Fault> {
        let mut items = vec![0; count];
        for item in items.iter_mut().rev() {
            *item = self.pop()?;
        }
        self.entries += count;
        Ok(Value::List(items))
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
            entries.extend(pairs(items));
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
            match self.take(1)?[0] {
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
                code @ (b'q' | b'r' | b'p' | 0x94 | b'g' | b'h' | b'j') => self.remember(code)?,
                code @ (b'0' | b'1' | b'2') => self.shuffle(code)?,
                code @ (b's' | b'u' | b'a' | b'e' | 0x90) => self.fill(code)?,
                code @ (b'R' | 0x81 | 0x92 | b'i' | b'o' | b'b') => self.make(code)?,
                code => {
                    let value = self.value(code)?;
                    self.push(value)?;
                }
            }
        }
    }

    /// Stores the value on the stack in the memo, or takes one from there.
    fn remember(&mut self, code: u8) -> Result<(), Fault> {
        let at = match code {
            b'q' | b'h' => self.number(1)?,
            b'r' | b'j' => self.number(4)?,
            0x94 => self.memo.len() as u64,
            _ => self.line()?.parse().unwrap_or(u64::MAX),
        };
        if matches!(code, b'g' | b'h' | b'j') { self.get(at) } else { self.put(at) }
    }

    /// Drops or doubles values on the stack.
    fn shuffle(&mut self, code: u8) -> Result<(), Fault> {
        match code {
            b'0' => self.pop().map(drop),
            b'1' => self.marked().map(drop),
            _ => {
                let Some(&top) = self.stack.last() else {
                    return self.bad("it copies a value that is not there");
                };
                self.stack.push(top);
                Ok(())
            }
        }
    }

    /// Adds entries to the dict or the list on the stack.
    fn fill(&mut self, code: u8) -> Result<(), Fault> {
        match code {
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.entries += 2;
                self.set(&[key, value])
            }
            b'a' => {
                let item = self.pop()?;
                self.entries += 1;
                self.append(&[item])
            }
            _ => {
                let items = self.marked()?;
                if code == b'u' { self.set(&items) } else { self.append(&items) }
            }
        }
    }

    /// Calls, and the state of what a call made.
    fn make(&mut self, code: u8) -> Result<(), Fault> {
        match code {
            b'b' => {
                let state = self.pop()?;
                let Some(&target) = self.stack.last() else {
                    return self.bad("a state without an object");
                };
                if let Value::Call { state: slot, .. } = &mut self.values[target] {
                    *slot = Some(state);
                }
                return Ok(());
            }
            // Keyword arguments say nothing about tensors.
            0x92 => {
                self.pop()?;
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
            }
            _ => {}
        }
        let args = self.pop()?;
        self.call(args)
    }

    /// The value of an opcode that pushes one.
    fn value(&mut self, code: u8) -> Result<Value, Fault> {
        Ok(match code {
            b')' | b']' | 0x8f => Value::List(Vec::new()),
            b'}' => Value::Dict(Vec::new()),
            b't' | b'l' | 0x91 => Value::List(self.marked()?),
            b'd' => Value::Dict(pairs(&self.marked()?).collect()),
            0x85..=0x87 => self.tuple(usize::from(code - 0x84))?,
            b'N' => Value::None,
            0x88 | 0x89 => Value::Bool,
            b'K' => Value::Int(self.number(1)? as i64),
            b'M' => Value::Int(self.number(2)? as i64),
            b'J' => Value::Int(i64::from(self.number(4)? as u32 as i32)),
            0x8a => {
                let length = self.number(1)? as usize;
                long(self.take(length)?)
            }
            0x8b => {
                let length = self.number(4)?;
                self.skip(length)?
            }
            b'I' | b'L' => self.line()?.trim_end_matches('L').parse().map_or(Value::Other, Value::Int),
            b'F' => {
                self.line()?;
                Value::Other
            }
            b'G' => self.skip(8)?,
            b'X' | b'T' | b'B' | b'U' | 0x8c | b'C' | 0x8d | 0x8e | 0x96 => {
                let length = self.number(match code {
                    b'X' | b'T' | b'B' => 4,
                    b'U' | b'C' | 0x8c => 1,
                    _ => 8,
                })?;
                let is_text = matches!(code, b'X' | b'T' | b'U' | 0x8c | 0x8d);
                if is_text { self.text(length)? } else { self.skip(length)? }
            }
            b'S' | b'V' => Value::Text(self.line()?.trim_matches(['\'', '"']).to_owned()),
            b'c' => Value::Global(self.line()?, self.line()?),
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let text = |id: Id| match &self.values[id] {
                    Value::Text(text) => text.clone(),
                    _ => String::new(),
                };
                Value::Global(text(module), text(name))
            }
            b'Q' => Value::Persistent(self.pop()?),
            b'P' => {
                let line = self.line()?;
                self.push(Value::Text(line))?;
                Value::Persistent(self.pop()?)
            }
            0x97 | 0x98 => Value::Other,
            other => return self.bad(&format!("the opcode 0x{other:02x} is not known")),
        })
    }
}

fn pairs(items: &[Id]) -> impl Iterator<Item = (Id, Id)> {
    items.chunks_exact(2).map(|pair| (pair[0], pair[1]))
}

/// Two's complement, little end first.
fn long(bytes: &[u8]) -> Value {
    if bytes.len() > 8 {
        return Value::Other;
    }
    let raw = bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let shift = 64 - 8 * bytes.len() as u32;
    Value::Int(if bytes.is_empty() { 0 } else { (raw << shift) as i64 >> shift })
}
