//! The part of a class that threads share: whole batches of objects that pass from thread to thread untouched, and the
//! spans in which the other free objects lie.
//!
//! Invariants, proved by [`Shelf::fault`]: a span is in the list exactly while it has free objects, `carved - used` of
//! them in its own list and `capacity - carved` that were never handed out.

use super::classes::{CLASSES, Class, SLICE};
use super::spans::{NO_SPAN, Span, SpanNumber, Spans};

/// At most this many batches are kept whole.
const BATCHES: usize = 16;

#[derive(Debug)]
pub struct Shelf {
    batches: [*mut u8; BATCHES],
    filled: usize,
    /// Spans with free objects. Fuller ones tend to come first, so that the others can become empty.
    first: SpanNumber,
    /// Objects that threads and the program have.
    out: u64,
}

// SAFETY: the pointers are to free objects, which belong to the thread that has the shelf's lock.
unsafe impl Send for Shelf {}

impl Shelf {
    #[must_use]
    pub const fn new() -> Shelf {
        Shelf { batches: [std::ptr::null_mut(); BATCHES], filled: 0, first: NO_SPAN, out: 0 }
    }

    /// Objects that threads or the program have.
    #[must_use]
    pub fn out(&self) -> u64 {
        self.out
    }

    /// Takes up to a batch of objects as a list; none if there is no memory. Returns the first one and their number.
    pub fn take(&mut self, class: u8, most: u32, spans: &Spans) -> (*mut u8, u32) {
        let (first, count) = self.find(class, most, spans);
        self.out += u64::from(count);
        (first, count)
    }

    fn find(&mut self, class: u8, most: u32, spans: &Spans) -> (*mut u8, u32) {
        let about = CLASSES[class as usize];
        if most == about.batch && self.filled > 0 {
            self.filled -= 1;
            return (self.batches[self.filled], about.batch);
        }
        let mut first = std::ptr::null_mut();
        let mut last: *mut u8 = std::ptr::null_mut();
        let mut count = 0;
        while count < most {
            if self.first == NO_SPAN {
                match spans.make(class, about) {
                    Some(made) => self.enlist(made, spans),
                    None => break,
                }
            }
            let number = self.first;
            let block = spans.change(number, |span| take_one(span, spans.start(number), about));
            if spans.get(number).used == about.capacity {
                self.delist(number, spans);
            }
            if last.is_null() {
                first = block;
            } else {
                // SAFETY: `last` is a free object that this call took out of a span.
                unsafe { last.cast::<*mut u8>().write(block) };
            }
            last = block;
            count += 1;
        }
        if !last.is_null() {
            // SAFETY: `last` is a free object that this call took out of a span.
            unsafe { last.cast::<*mut u8>().write(std::ptr::null_mut()) };
        }
        if count < most && self.filled > 0 {
            // The caller wants less than a batch, or there is no memory for a span, so a batch is taken apart.
            self.filled -= 1;
            let batch = self.batches[self.filled];
            self.scatter(batch, about.batch, class, spans);
            if count == 0 {
                return self.find(class, most, spans);
            }
        }
        (first, count)
    }

    /// Takes a list of objects back.
    pub fn give(&mut self, first: *mut u8, count: u32, class: u8, spans: &Spans) {
        self.out -= u64::from(count);
        if count == CLASSES[class as usize].batch && self.filled < BATCHES {
            self.batches[self.filled] = first;
            self.filled += 1;
        } else {
            self.scatter(first, count, class, spans);
        }
    }

    /// Takes all batches apart, so that empty spans can be given back.
    pub fn settle(&mut self, class: u8, spans: &Spans) {
        while self.filled > 0 {
            self.filled -= 1;
            let batch = self.batches[self.filled];
            self.scatter(batch, CLASSES[class as usize].batch, class, spans);
        }
    }

    /// Returns each object to its span.
    fn scatter(&mut self, first: *mut u8, count: u32, class: u8, spans: &Spans) {
        let about = CLASSES[class as usize];
        let mut block = first;
        for _ in 0..count {
            // SAFETY: the callers hand over free objects, each with the next one in its first word.
            let next = unsafe { block.cast::<*mut u8>().read() };
            let number = spans.of(block);
            let used = spans.change(number, |span| {
                // SAFETY: `block` is a free object, and the shelf's lock keeps other threads out.
                unsafe { block.cast::<*mut u8>().write(span.free) };
                span.free = block;
                span.used -= 1;
                span.used
            });
            if used + 1 == about.capacity {
                self.enlist(number, spans);
            }
            // The last span is kept, because the next object would need it again.
            let is_alone = self.first == number && spans.get(number).next == NO_SPAN;
            if used == 0 && !is_alone {
                self.delist(number, spans);
                spans.end(number, about);
            }
            block = next;
        }
    }

    fn enlist(&mut self, number: SpanNumber, spans: &Spans) {
        let next = self.first;
        spans.change(number, |span| (span.previous, span.next) = (NO_SPAN, next));
        if next != NO_SPAN {
            spans.change(next, |span| span.previous = number);
        }
        self.first = number;
    }

    fn delist(&mut self, number: SpanNumber, spans: &Spans) {
        let Span { previous, next, .. } = spans.get(number);
        if previous == NO_SPAN {
            self.first = next;
        } else {
            spans.change(previous, |span| span.next = next);
        }
        if next != NO_SPAN {
            spans.change(next, |span| span.previous = previous);
        }
    }

    /// Describes an error; for tests.
    #[must_use]
    pub fn fault(&self, class: u8, spans: &Spans) -> Option<&'static str> {
        let about = CLASSES[class as usize];
        let (mut number, mut previous) = (self.first, NO_SPAN);
        while number != NO_SPAN {
            let span = spans.get(number);
            if span.previous != previous {
                return Some("the list of spans is broken");
            }
            if span.used >= about.capacity || span.carved > about.capacity || span.used > span.carved {
                return Some("a span miscounts its objects");
            }
            let (mut free, mut block) = (0, span.free);
            while !block.is_null() && free <= about.capacity {
                if spans.of(block) != number
                    || !(block as usize - spans.start(number) as usize).is_multiple_of(about.size as usize)
                {
                    return Some("an object lies in another span");
                }
                free += 1;
                // SAFETY: a free object, which has the address of the next in its first word.
                block = unsafe { block.cast::<*mut u8>().read() };
            }
            if free != span.carved - span.used {
                return Some("a span's list has another length");
            }
            (previous, number) = (number, span.next);
        }
        None
    }
}

/// Takes an object from a span that has a free one.
fn take_one(span: &mut Span, start: *mut u8, about: Class) -> *mut u8 {
    span.used += 1;
    let block = span.free;
    if block.is_null() {
        let at = span.carved as usize * about.size as usize;
        span.carved += 1;
        debug_assert!(at + about.size as usize <= about.slices as usize * SLICE);
        // SAFETY: `carved < capacity`, so the object lies inside of the span.
        return unsafe { start.add(at) };
    }
    // SAFETY: a free object, which has the address of the next in its first word.
    span.free = unsafe { block.cast::<*mut u8>().read() };
    block
}
