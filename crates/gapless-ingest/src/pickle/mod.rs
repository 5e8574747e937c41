//! The pickle machine: reads the value of a pickle, protocols 2 to 5, in one pass, into rows.
//!
//! It is the whole of the pickle language that data needs, with its memo by reference, and nothing that runs code. The
//! stack holds small values; a dict collapses into a row as soon as it becomes part of another value (see `builder`).
//! At the beginning of a dict `fast` tries to read it as a whole; dicts that it does not know come here, from their
//! first byte.
//!
//! Bounds: memory grows with the bytes read, not with the numbers in them; nothing recurses; every limit is an error.

mod fast;
mod opcodes;
mod shapes;

use crate::builder::Builder;
use crate::error::{Fault, Problem, malformed};
use crate::rows::Wrong;
use crate::value::{Value, push_joined};
use crate::window::Window;
use opcodes as op;

/// The content of a pickle.
#[derive(Debug)]
pub(crate) struct Pickle {
    pub(crate) builder: Builder,
    pub(crate) top: Value,
    pub(crate) protocol: u8,
    /// Offset of the end of the pickle.
    pub(crate) end: u64,
    pub(crate) trailing: bool,
}

pub(crate) fn read(window: Window<'_>, builder: Builder) -> Result<Pickle, Fault> {
    let mut machine = Machine {
        window,
        builder,
        stack: Vec::new(),
        marks: Vec::new(),
        fence: 0,
        protocol: 0,
        fast: fast::State::default(),
    };
    let top = machine.run()?;
    let end = machine.window.offset();
    let trailing = machine.window.has_more()?;
    Ok(Pickle { builder: machine.builder, top, protocol: machine.protocol, end, trailing })
}

struct Machine<'a> {
    window: Window<'a>,
    builder: Builder,
    stack: Vec<Value>,
    /// Lengths of the stack at the open marks.
    marks: Vec<u32>,
    /// The length of the stack at the last open mark, 0 without one: values below it cannot be taken.
    fence: usize,
    protocol: u8,
    fast: fast::State,
}

/// Enough for any opcode with its fixed argument.
const OPCODE: usize = 16;
/// Bytes that the fast path needs at hand: events with stacks written in full are a few KiB.
const DICT: usize = 32 << 10;

impl Machine<'_> {
    fn run(&mut self) -> Result<Value, Fault> {
        loop {
            self.window.fill(OPCODE)?;
            let Some(&opcode) = self.window.rest().first() else {
                return self.truncated("the pickle (the STOP opcode is missing)");
            };
            match opcode {
                op::EMPTY_DICT => self.dict()?,
                op::STOP => {
                    let top = self.pop()?;
                    self.window.skip(1);
                    return Ok(top);
                }
                _ => self.step(opcode)?,
            }
        }
    }

    #[inline]
    fn dict(&mut self) -> Result<(), Fault> {
        self.window.fill(DICT)?;
        if let Some((length, value)) = fast::dict(self.window.rest(), &mut self.builder, &mut self.fast) {
            self.window.skip(length);
            return self.push(value);
        }
        self.window.skip(1);
        let dict = self.builder.new_dict(Vec::new());
        let dict = self.right(dict)?;
        self.push(dict)
    }

    fn step(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            op::PROTO => {
                let [_, protocol] = self.take("PROTO")?;
                if protocol > 5 {
                    return self.wrong(format!("pickle protocol {protocol}; this reader knows 2 to 5"));
                }
                self.protocol = self.protocol.max(protocol);
                Ok(())
            }
            // The length of the next frame helps a reader that works in frames; the window does not.
            op::FRAME => self.take::<9>("FRAME").map(drop),
            op::MARK => {
                self.window.skip(1);
                if self.marks.len() >= self.builder.limits.stack {
                    return self.too_many("open marks", self.builder.limits.stack as u64);
                }
                self.fence = self.stack.len();
                self.marks.push(self.fence as u32);
                Ok(())
            }
            op::MEMOIZE | op::BINPUT | op::LONG_BINPUT | op::BINGET | op::LONG_BINGET => {
                self.remember(opcode)
            }
            op::EMPTY_LIST | op::EMPTY_TUPLE | op::EMPTY_SET => {
                self.window.skip(1);
                let list = self.builder.new_list(Vec::new());
                let list = self.right(list)?;
                self.push(list)
            }
            op::APPEND => {
                let item = self.pop()?;
                let list = self.top()?;
                let done = self.builder.extend_list(list, &[item]);
                self.right(done)?;
                self.window.skip(1);
                Ok(())
            }
            op::SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                let dict = self.top()?;
                let done = self.builder.extend_dict(dict, &[key, value]);
                self.right(done)?;
                self.window.skip(1);
                Ok(())
            }
            op::APPENDS | op::ADDITEMS => self.with_marked(Builder::extend_list),
            op::SETITEMS => {
                self.with_marked(Builder::extend_dict)?;
                self.settle_event()
            }
            op::LIST | op::TUPLE | op::FROZENSET | op::DICT => self.close_marked(opcode),
            op::TUPLE1 => self.tuple::<1>(),
            op::TUPLE2 => self.tuple::<2>(),
            op::TUPLE3 => self.tuple::<3>(),
            op::POP => {
                // POP of a mark removes the mark, as in Python.
                if self.stack.len() == self.fence && !self.marks.is_empty() {
                    self.unmark()?;
                } else {
                    self.pop()?;
                }
                self.window.skip(1);
                Ok(())
            }
            op::POP_MARK => {
                let mark = self.unmark()?;
                self.stack.truncate(mark);
                self.window.skip(1);
                Ok(())
            }
            op::DUP => {
                let top = self.top()?;
                self.builder.share(top);
                self.window.skip(1);
                self.push(top)
            }
            _ => {
                let value = self.scalar(opcode)?;
                self.push(value)
            }
        }
    }

    /// Numbers, strings and constants; anything else is refused here.
    fn scalar(&mut self, opcode: u8) -> Result<Value, Fault> {
        let simple = match opcode {
            op::NONE => Some(Value::None),
            op::NEWTRUE => Some(Value::Bool(true)),
            op::NEWFALSE => Some(Value::Bool(false)),
            _ => None,
        };
        if let Some(value) = simple {
            self.window.skip(1);
            return Ok(value);
        }
        match opcode {
            op::BININT1 => {
                let [_, value] = self.take("BININT1")?;
                Ok(Value::Int(i64::from(value)))
            }
            op::BININT2 => {
                let [_, value @ ..] = self.take::<3>("BININT2")?;
                Ok(Value::Int(i64::from(u16::from_le_bytes(value))))
            }
            op::BININT => {
                let [_, value @ ..] = self.take::<5>("BININT")?;
                Ok(Value::Int(i64::from(i32::from_le_bytes(value))))
            }
            op::BINFLOAT => {
                let [_, value @ ..] = self.take::<9>("BINFLOAT")?;
                Ok(Value::Float(f64::from_be_bytes(value)))
            }
            op::LONG1 => self.counted::<1>("a LONG1 integer", integer),
            op::LONG4 => self.counted::<4>("a LONG4 integer", integer),
            op::SHORT_BINUNICODE => self.counted::<1>("a string", string),
            op::BINUNICODE => self.counted::<4>("a string", string),
            op::BINUNICODE8 => self.counted::<8>("a string", string),
            op::SHORT_BINSTRING => self.counted::<1>("a string", string),
            op::BINSTRING => self.counted::<4>("a string", string),
            op::SHORT_BINBYTES => self.counted::<1>("bytes", |_, _| Ok(Value::Ignored)),
            op::BINBYTES => self.counted::<4>("bytes", |_, _| Ok(Value::Ignored)),
            op::BINBYTES8 | op::BYTEARRAY8 => self.counted::<8>("bytes", |_, _| Ok(Value::Ignored)),
            _ => self.refuse(opcode),
        }
    }

    #[cold]
    fn refuse(&self, opcode: u8) -> Result<Value, Fault> {
        let offset = self.window.offset();
        if let Some(opcode) = op::code_carrying(opcode) {
            return Err(Box::new(Problem::Code { opcode, offset }));
        }
        if let Some(name) = op::of_text_protocol(opcode) {
            return self.wrong(format!(
                "the opcode {name} of the text protocol 0; load the file in Python and dump it with protocol=4"
            ));
        }
        self.wrong(format!("invalid pickle opcode {opcode:#04x}: the file is damaged, or not a pickle"))
    }

    // ---- the stack ----

    #[inline]
    fn push(&mut self, value: Value) -> Result<(), Fault> {
        push_joined(&mut self.stack, self.fence, value);
        if self.stack.len() > self.builder.limits.stack {
            return self.too_many("values on the stack", self.builder.limits.stack as u64);
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, Fault> {
        if self.stack.len() <= self.fence {
            return self.underflow();
        }
        match self.stack.last_mut() {
            Some(Value::Rows(table, first, count)) if *count > 1 => {
                *count -= 1;
                Ok(Value::row(*table, *first + *count))
            }
            _ => match self.stack.pop() {
                Some(value) => Ok(value),
                None => self.underflow(),
            },
        }
    }

    fn top(&self) -> Result<Value, Fault> {
        match self.stack.last() {
            Some(Value::Rows(table, first, count)) if self.stack.len() > self.fence => {
                Ok(Value::row(*table, first + (count - 1)))
            }
            Some(value) if self.stack.len() > self.fence => Ok(*value),
            _ => self.underflow(),
        }
    }

    fn unmark(&mut self) -> Result<usize, Fault> {
        let Some(mark) = self.marks.pop() else {
            return self.wrong("an opcode wants a mark where there is none");
        };
        self.fence = self.marks.last().map_or(0, |&mark| mark as usize);
        Ok(mark as usize)
    }

    /// Hands everything above the last mark to `apply`, with the object below it.
    fn with_marked(
        &mut self,
        apply: fn(&mut Builder, Value, &[Value]) -> Result<(), Wrong>,
    ) -> Result<(), Fault> {
        let mark = self.unmark()?;
        let items = self.marked(mark);
        self.stack.truncate(mark);
        let below = self.top()?;
        let done = apply(&mut self.builder, below, &items);
        self.right(done)?;
        self.window.skip(1);
        Ok(())
    }

    /// An event is whole with its SETITEMS, and becomes a row now. If it became one later, when the list takes it,
    /// events that the fast path read in the meantime would stand before it.
    fn settle_event(&mut self) -> Result<(), Fault> {
        let top = self.top()?;
        if self.builder.is_event(top) {
            self.stack.pop();
            let settled = self.builder.settle(top);
            let settled = self.right(settled)?;
            self.push(settled)?;
        }
        Ok(())
    }

    /// The values above `mark`.
    fn marked(&self, mark: usize) -> Vec<Value> {
        self.stack[mark..].to_vec()
    }

    fn close_marked(&mut self, opcode: u8) -> Result<(), Fault> {
        let mark = self.unmark()?;
        let items = self.marked(mark);
        self.stack.truncate(mark);
        let made = self.make(opcode, &items);
        let made = self.right(made)?;
        self.window.skip(1);
        self.push(made)
    }

    fn make(&mut self, opcode: u8, items: &[Value]) -> Result<Value, Wrong> {
        if opcode == op::DICT {
            let dict = self.builder.new_dict(Vec::new())?;
            self.builder.extend_dict(dict, items)?;
            return Ok(dict);
        }
        let mut settled = Vec::with_capacity(items.len());
        for item in items {
            push_joined(&mut settled, 0, self.builder.settle(*item)?);
        }
        if opcode == op::TUPLE { self.builder.new_tuple(&settled) } else { self.builder.new_list(settled) }
    }

    fn tuple<const N: usize>(&mut self) -> Result<(), Fault> {
        let mut items = [Value::None; N];
        for item in items.iter_mut().rev() {
            let value = self.pop()?;
            let value = self.builder.settle(value);
            *item = self.right(value)?;
        }
        let tuple = self.builder.new_tuple(&items);
        let tuple = self.right(tuple)?;
        self.window.skip(1);
        self.push(tuple)
    }

    // ---- the memo ----

    /// An opcode that stores a value in the memo or takes one from it.
    #[inline]
    fn remember(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            op::MEMOIZE => {
                self.window.skip(1);
                let top = self.top()?;
                self.check_memo()?;
                let done = self.builder.memoize(top);
                self.right(done)
            }
            op::BINPUT => {
                let [_, index] = self.take("BINPUT")?;
                self.put(u32::from(index))
            }
            op::LONG_BINPUT => {
                let [_, index @ ..] = self.take::<5>("LONG_BINPUT")?;
                self.put(u32::from_le_bytes(index))
            }
            op::BINGET => {
                let [_, index] = self.take("BINGET")?;
                self.get(u32::from(index))
            }
            _ => {
                let [_, index @ ..] = self.take::<5>("LONG_BINGET")?;
                self.get(u32::from_le_bytes(index))
            }
        }
    }

    fn put(&mut self, index: u32) -> Result<(), Fault> {
        // Every entry costs at least a byte, so an honest index is below the offset: the memo cannot be blown up.
        if u64::from(index) > self.window.offset() {
            return self.wrong(format!(
                "memo index {index}, though only {} values have been stored",
                self.builder.memo.len()
            ));
        }
        let top = self.top()?;
        self.check_memo()?;
        if (index as usize) < self.builder.memo.len() {
            self.fast.forget();
        }
        let done = self.builder.put(index as usize, top);
        self.right(done)
    }

    /// A dump has an entry for every 30 bytes or so; a file that is nothing but entries is a bomb.
    fn check_memo(&self) -> Result<(), Fault> {
        let most = (1 << 20) + self.window.offset() / 16;
        if self.builder.memo.len() as u64 > most { self.too_many("memo entries", most) } else { Ok(()) }
    }

    fn get(&mut self, index: u32) -> Result<(), Fault> {
        match self.builder.get(index as usize) {
            Some(value) => self.push(value),
            None => self.wrong(format!("memo entry {index} is read before it is stored")),
        }
    }

    // ---- bytes ----

    /// The opcode and its fixed argument.
    #[inline]
    fn take<const N: usize>(&mut self, opcode: &'static str) -> Result<[u8; N], Fault> {
        match self.window.rest().first_chunk::<N>() {
            Some(bytes) => {
                let bytes = *bytes;
                self.window.skip(N);
                Ok(bytes)
            }
            None => self.truncated(&format!("the opcode {opcode}")),
        }
    }

    /// An opcode, a length in `N` bytes, and that many bytes for `make`.
    fn counted<const N: usize>(
        &mut self,
        what: &str,
        make: fn(&mut Builder, &[u8]) -> Result<Value, Wrong>,
    ) -> Result<Value, Fault> {
        let Some(length) = self.window.rest().get(1..=N) else { return self.truncated(what) };
        let mut full = [0; 8];
        full[..N].copy_from_slice(length);
        let length = u64::from_le_bytes(full);
        if length > self.builder.limits.string {
            return self.wrong(format!(
                "{what} of {length} bytes; more than {} are refused",
                self.builder.limits.string
            ));
        }
        let (head, length) = (1 + N, length as usize);
        self.window.fill(head + length)?;
        let Some(bytes) = self.window.rest().get(head..head + length) else {
            return self.truncated(&format!("{what} of {length} bytes"));
        };
        let made = make(&mut self.builder, bytes);
        let value = self.right(made)?;
        self.window.skip(head + length);
        Ok(value)
    }

    // ---- errors ----

    #[inline]
    fn right<T>(&self, result: Result<T, Wrong>) -> Result<T, Fault> {
        match result {
            Ok(value) => Ok(value),
            Err(what) => self.wrong(what),
        }
    }

    #[cold]
    fn wrong<T>(&self, what: impl Into<String>) -> Result<T, Fault> {
        malformed(self.window.offset(), what)
    }

    #[cold]
    fn underflow<T>(&self) -> Result<T, Fault> {
        self.wrong("an opcode takes a value from an empty stack: the file is damaged")
    }

    #[cold]
    fn too_many<T>(&self, what: &'static str, limit: u64) -> Result<T, Fault> {
        Err(Box::new(Problem::TooMany { offset: self.window.offset(), what, limit }))
    }

    #[cold]
    fn truncated<T>(&self, reading: &str) -> Result<T, Fault> {
        let offset = self.window.offset() + self.window.rest().len() as u64;
        Err(Box::new(Problem::Truncated { offset, reading: reading.to_owned() }))
    }
}

fn string(builder: &mut Builder, bytes: &[u8]) -> Result<Value, Wrong> {
    builder.rows.intern(bytes).map(Value::Str)
}

/// Two's complement, little end first, of any length.
fn integer(_: &mut Builder, bytes: &[u8]) -> Result<Value, Wrong> {
    let negative = bytes.last().is_some_and(|&b| b >= 0x80);
    let fill = if negative { 0xff } else { 0 };
    let mut low = [fill; 8];
    let n = bytes.len().min(8);
    low[..n].copy_from_slice(&bytes[..n]);
    let rest_is_sign = bytes[n..].iter().all(|&b| b == fill);
    let low = u64::from_le_bytes(low);
    Ok(match (rest_is_sign, negative, low >> 63 == 1) {
        (true, true, true) | (true, false, false) => Value::Int(low as i64),
        (true, false, true) => Value::Big(low),
        _ => Value::Huge,
    })
}
