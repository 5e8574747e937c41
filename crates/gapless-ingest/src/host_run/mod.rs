//! Recordings of host memory by `libgapless_malloc.so` with `GAPLESS_HOST_RECORD`. The bytes are drawn in
//! `crates/gapless-host/src/record/journal.rs`.
//!
//! A block of the trace stands for all that were allocated like it: its size is the estimate, and its address is made
//! up, because blocks that stand for others would overlap. [`HostSample`] has the blocks that were really recorded.

mod body;
mod lines;
mod program;
mod symbols;

use crate::error::{Fault, Problem, wrong};
use crate::options::Limits;
use body::Body;
use gapless_trace::stacks::Frame;
use gapless_trace::trace::{HostSample, HostState, SampledBlock};
use gapless_trace::{
    Action, Annotation, Bytes, DeviceAddr, DeviceTrace, Event, Micros, Note, Process, Source, StackId, Stage,
    StreamId, Trace,
};
use rustc_hash::FxHashMap;
use std::io::Read;
use symbols::Symbols;

pub(crate) const MAGIC: &[u8] = b"GAPHOST1";

/// The name of a step's scope.
const STEP: &str = "step";

/// A code object of Python.
struct Code {
    name: String,
    file: String,
    lines: lines::Lines,
}

#[derive(Default)]
struct Reader {
    trace: Trace,
    device: DeviceTrace,
    sample: HostSample,
    symbols: Symbols,
    codes: FxHashMap<u32, Code>,
    stacks: FxHashMap<u32, StackId>,
    /// By real address: the block, and its made-up address.
    live: FxHashMap<u64, (usize, u64)>,
    next: u64,
    /// The release of Python, as its minor number; 0: none.
    python: u32,
    /// From the machine's clock to the calendar's, in microseconds.
    epoch: u64,
    time: u64,
    steps: u64,
    missed_frees: u64,
}

pub(crate) fn read(input: &mut (dyn Read + Send), format: String, limits: Limits) -> Result<Trace, Fault> {
    let mut reader = Reader { device: DeviceTrace::new(0), next: 1 << 20, ..Reader::default() };
    reader.device.stream_index(StreamId(0));
    let mut at = MAGIC.len() as u64;
    let mut magic = [0; 8];
    take(input, &mut magic, 0)?;
    let mut bytes = Vec::new();
    loop {
        let mut header = [0; 4];
        if !take(input, &mut header, at)? {
            break;
        }
        let header = u32::from_le_bytes(header);
        // Room that a killed process had reserved.
        if header == 0 {
            break;
        }
        let (kind, length) = (header as u8, (header >> 8) as usize);
        bytes.clear();
        bytes.resize(length.next_multiple_of(4), 0);
        if !take(input, &mut bytes, at + 4)? {
            break;
        }
        if at > limits.bytes {
            return wrong(at, format!("the recording is longer than {} bytes", limits.bytes));
        }
        if reader.device.events.len() as u64 >= limits.events {
            return wrong(at, format!("more than {} events", limits.events));
        }
        reader.record(kind, &mut Body::new(&bytes[..length], at))?;
        at += 4 + bytes.len() as u64;
    }
    reader.finish(format)
}

/// Fills the buffer; false if the file ends before, as that of a killed process may.
fn take(input: &mut (dyn Read + Send), buffer: &mut [u8], offset: u64) -> Result<bool, Fault> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(false),
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Box::new(Problem::Io { offset, source })),
        }
    }
    Ok(true)
}

impl Reader {
    fn record(&mut self, kind: u8, body: &mut Body<'_>) -> Result<(), Fault> {
        match kind {
            1 => self.head(body),
            2 => self.symbols.module(body),
            3 => self.code(body),
            4 => self.stack(body),
            5 => self.alloc(body),
            6 => self.free(body),
            7 => self.step(body),
            8 => self.state(body),
            9 => self.note(body),
            10 => {
                self.sample.is_whole = true;
                Ok(())
            }
            other => wrong(body.at(), format!("unknown record {other}: a newer Gapless may have written it")),
        }
    }

    fn head(&mut self, body: &mut Body<'_>) -> Result<(), Fault> {
        let version = body.u32()?;
        if version != 1 {
            return wrong(
                body.at(),
                format!("version {version} of the recording is not known: update Gapless"),
            );
        }
        let (pid, _parent) = (body.u32()?, body.u32()?);
        self.python = body.u32()?;
        let (date, clock) = (body.u64()?, body.u64()?);
        self.epoch = date.wrapping_sub(clock);
        let (interval, exact) = (body.u64()?, body.u64()?);
        self.sample.interval = Bytes(interval.min(Bytes::LIMIT.0));
        self.sample.exact_from = Bytes(exact.min(Bytes::LIMIT.0));
        let (program, host) = (body.text()?, body.text()?);
        self.trace.process = Process {
            program,
            pid: Some(u64::from(pid)),
            host,
            allocator: "gapless (host memory)".to_owned(),
            ..Process::default()
        };
        Ok(())
    }

    fn code(&mut self, body: &mut Body<'_>) -> Result<(), Fault> {
        let (number, first_line) = (body.u32()?, body.u32()?);
        let lengths = [body.u32()?, body.u32()?, body.u32()?];
        let [name, file, table] = [body.bytes(lengths[0])?, body.bytes(lengths[1])?, body.bytes(lengths[2])?];
        let lines = lines::Lines::new(self.python, first_line, table);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.codes.insert(number, Code { name: text(name), file: text(file), lines });
        Ok(())
    }

    fn stack(&mut self, body: &mut Body<'_>) -> Result<(), Fault> {
        let (number, native, python) = (body.u32()?, body.u32()?, body.u32()?);
        let mut natives = Vec::new();
        for _ in 0..native {
            natives.push(body.u64()?);
        }
        let mut frames = Vec::new();
        for frame in self.symbols.frames(&natives, python > 0) {
            frames.push(self.frame(&frame.name, &frame.file, frame.line));
        }
        for _ in 0..python {
            let (code, instruction) = (body.u32()?, body.u32()?);
            let Some(code) = self.codes.get(&code) else { continue };
            if code.name.starts_with("<interpreter") {
                continue;
            }
            let (name, file) = (code.name.clone(), code.file.clone());
            let line = code.lines.at(instruction);
            frames.push(self.frame(&name, &file, line));
        }
        let ids: Vec<_> = frames.iter().map(|frame| self.trace.frames.intern(*frame)).collect();
        let id = self.trace.stacks.intern(&ids);
        self.stacks.insert(number, id);
        Ok(())
    }

    fn frame(&mut self, name: &str, file: &str, line: u32) -> Frame {
        let strings = &mut self.trace.strings;
        Frame { name: strings.intern(name), file: strings.intern(file), line }
    }

    /// A time that never goes back, as those of several threads' records may.
    fn time(&mut self, body: &mut Body<'_>) -> Result<u64, Fault> {
        let time = body.u64()?.wrapping_add(self.epoch);
        self.time = if time >> 62 == 0 { self.time.max(time) } else { self.time };
        Ok(self.time)
    }

    fn alloc(&mut self, body: &mut Body<'_>) -> Result<(), Fault> {
        let (addr, size, interval) = (body.u64()?, body.u64()?.max(1), body.u64()?);
        let born = self.time(body)?;
        let (stack, _thread) = (body.u32()?, body.u32()?);
        if size > Bytes::LIMIT.0 {
            return wrong(body.at(), format!("invalid size {size}: a size is at most 2^60 bytes"));
        }
        // Its free was missed.
        if self.live.contains_key(&addr) {
            self.missed_frees += 1;
            self.end_of(addr, born);
        }
        let (estimate, variance) = estimate(size, interval);
        let stack = self.stacks.get(&stack).copied().unwrap_or_default();
        let place = self.next;
        self.next += estimate.next_multiple_of(512);
        if self.next > 1 << 62 {
            return wrong(body.at(), "the sizes of all blocks exceed 2^62 bytes");
        }
        self.live.insert(addr, (self.sample.blocks.len(), place));
        self.sample.blocks.push(SampledBlock {
            born: Micros(born),
            died: None,
            size: Bytes(size),
            estimate: Bytes(estimate),
            variance,
            stack,
        });
        self.push(Action::Alloc, place, estimate, born, stack);
        Ok(())
    }

    fn push(&mut self, action: Action, addr: u64, size: u64, time: u64, stack: StackId) {
        let (addr, size, time) = (DeviceAddr(addr), Bytes(size), Micros(time));
        self.device.events.push(Event { action, addr, size, time, stack, ..Event::default() });
    }

    fn free(&mut self, body: &mut Body<'_>) -> Result<(), Fault> {
        let addr = body.u64()?;
        let time = self.time(body)?;
        // A forked child frees blocks of its parent, which its file does not have.
        self.end_of(addr, time);
        Ok(())
    }

    fn end_of(&mut self, addr: u64, time: u64) {
        let Some((at, place)) = self.live.remove(&addr) else { return };
        let block = &mut self.sample.blocks[at];
        block.died = Some(Micros(time));
        let (estimate, stack) = (block.estimate.0, block.stack);
        self.push(Action::FreeCompleted, place, estimate, time, stack);
    }

    fn step(&mut self, body: &mut Body<'_>) -> Result<(), Fault> {
        let time = Micros(self.time(body)?);
        self.sample.steps.push(time);
        let name = self.trace.strings.intern(STEP);
        let mut mark = |stage| self.trace.annotations.push(Annotation { name, stage, device: 0, time });
        if self.steps > 0 {
            mark(Stage::End);
        }
        mark(Stage::Start);
        self.steps += 1;
        Ok(())
    }

    fn state(&mut self, body: &mut Body<'_>) -> Result<(), Fault> {
        let time = Micros(self.time(body)?);
        let [large, kept, small, resident, interval, lost] =
            [body.u64()?, body.u64()?, body.u64()?, body.u64()?, body.u64()?, body.u64()?];
        // Figures that a file makes up must not overflow sums.
        let [large, kept, small, resident, interval] =
            [large, kept, small, resident, interval].map(|bytes| bytes.min(Bytes::LIMIT.0));
        self.sample.interval = Bytes(interval);
        self.sample.lost = lost;
        self.sample.states.push(HostState {
            time,
            large: Bytes(large),
            kept: Bytes(kept),
            small: Bytes(small),
            resident: Bytes(resident),
        });
        Ok(())
    }

    fn note(&mut self, body: &mut Body<'_>) -> Result<(), Fault> {
        let text = match body.u32()? {
            1 => {
                "this build of Python is not known to Gapless (3.9 to 3.14 are, without free threading): stacks have no lines \
                 of Python"
            }
            _ => return Ok(()),
        };
        self.trace.source.notes.push(Note { code: "python-unknown", text: text.to_owned() });
        Ok(())
    }

    fn finish(mut self, format: String) -> Result<Trace, Fault> {
        if self.device.events.is_empty() {
            return Err(Box::new(Problem::EmptyTrace));
        }
        self.sample.end = Micros(self.time);
        let mut notes = std::mem::take(&mut self.trace.source.notes);
        let mut note = |code, text: String| notes.push(Note { code, text });
        note(
            "sampled",
            format!(
                "figures are estimates from a sample: of small blocks about one in {} is recorded, and every block of {} or more",
                self.sample.interval, self.sample.exact_from
            ),
        );
        if !self.sample.is_whole {
            note(
                "recording-cut",
                "the process was killed or is still running: the recording is read up to there".into(),
            );
        }
        if self.sample.lost > 0 {
            note("events-lost", format!("{} sampled allocation(s) could not be written", self.sample.lost));
        }
        if self.missed_frees > 0 {
            note("frees-missed", format!("{} free(s) were not recorded", self.missed_frees));
        }
        for (path, why) in self.symbols.unread() {
            note("names-unknown", format!("functions of {path} are not named: {why}"));
        }
        self.trace.source =
            Source { format, producer: "gapless host recorder".to_owned(), torch_rules: false, notes };
        self.trace.devices = vec![self.device];
        self.trace.host_sample = Some(self.sample);
        Ok(self.trace)
    }
}

/// The bytes that a sample of `size` bytes stands for, and their variance.
fn estimate(size: u64, interval: u64) -> (u64, f64) {
    if interval == 0 {
        return (size, 0.0);
    }
    let bytes = size as f64;
    let p = -(-bytes / interval as f64).exp_m1();
    // At most 2^60: an interval that a file makes up must not overflow sums.
    let estimate = (bytes / p).min((1u64 << 50) as f64).max(bytes);
    (estimate.round() as u64, bytes * bytes * (1.0 - p) / (p * p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_stands_for_its_interval_or_for_itself() {
        assert_eq!(estimate(1 << 20, 0), (1 << 20, 0.0));
        let (bytes, variance) = estimate(16, 16 << 10);
        assert!((16_384..16_400).contains(&bytes) && variance.sqrt() > 16_000.0);
        let (bytes, variance) = estimate(1 << 19, 16 << 10);
        assert_eq!(bytes, 1 << 19);
        assert!(variance < 1.0, "so large a block is always a sample");
        assert!(estimate(1, u64::MAX).0 <= 1 << 50);
    }
}
