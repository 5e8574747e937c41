//! The thread that writes: it pops entries, tracks live blocks and mapped memory, and appends blocks to the file.
//!
//! A block is written when it is full or a quarter of a second old, so a killed process loses no more than that. Every
//! file begins empty, or with the state at its beginning as events, and is consistent: a free of an unknown block is
//! left out. So each file can be read alone, up to any of its blocks. With a limit, a full file becomes the older one
//! and replaces the one before.

use super::clock::Clock;
use super::frames::{self, News, Place};
use super::modules::{Notes, Owned};
use super::{Entry, Recorder, process};
use crate::recorder::held::{Block, Held, Picture, Piece};
use gapless_pool::{PoolKey, StreamHandle};
use gapless_trace::gtrace::{EventBatch, GtraceError, Tables, Writer};
use gapless_trace::holders::{line_text, naming_line};
use gapless_trace::stacks::{Frame, Frames, Stacks};
use gapless_trace::strings::Strings;
use gapless_trace::trace::{Annotation, BlockNote, Note, Source};
use gapless_trace::{
    Action, Bytes, DeviceAddr, DeviceTrace, Event, Micros, PoolId, StackId, StreamId, StringId, Tick,
};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Events in a block.
const BLOCK: usize = 1 << 15;
/// The age at which a block is written.
const AGE: Duration = Duration::from_millis(250);
/// The pause of the scribe when it has little to do.
const REST: Duration = Duration::from_millis(4);
/// The most entries that are popped at once.
const GULP: usize = 1 << 14;

/// The state of one card, as far as the file describes it.
#[derive(Debug)]
struct Card {
    /// Its streams and pools; the events are elsewhere.
    trace: DeviceTrace,
    held: Held,
    pending: Vec<Event>,
    /// Notes on blocks that were live when their module was reported.
    notes: Vec<BlockNote>,
    /// Number of events of this file, written or pending.
    events: u32,
    /// Time of the last event: times never go back, even if the clock does.
    time: u64,
}

struct Scribe<'a> {
    recorder: &'a Recorder,
    writer: Option<Writer<File>>,
    strings: Strings,
    frames: Frames,
    stacks: Stacks,
    /// Codes that were reported, as name and file.
    codes: Vec<Frame>,
    /// Stacks that were reported, by their numbers in the file.
    stack_ids: Vec<StackId>,
    cards: Vec<Card>,
    marks: Vec<Annotation>,
    modules: Notes<StringId>,
    /// Blocks of modules, until all entries that were pushed before are applied.
    owned: Vec<Owned>,
    /// The time since which something waits to be written.
    waiting: Option<Instant>,
    gulp: Vec<Entry>,
    /// Bytes of the state with which the file began.
    beginning: u64,
    turned: bool,
    told_lost: u64,
}

/// Writes until the recording ends. `look` takes pictures of all cards, and calls its argument while no card can
/// change.
///
/// # Errors
/// If the file cannot be written.
pub fn run(recorder: &Recorder, look: impl Fn(&dyn Fn()) -> Vec<Picture>) -> Result<(), GtraceError> {
    let mut scribe = Scribe {
        recorder,
        writer: None,
        strings: Strings::new(),
        frames: Frames::default(),
        stacks: Stacks::default(),
        codes: Vec::new(),
        stack_ids: Vec::new(),
        cards: Vec::new(),
        marks: Vec::new(),
        modules: Notes::default(),
        owned: Vec::new(),
        waiting: None,
        gulp: Vec::with_capacity(GULP),
        beginning: 0,
        turned: false,
        told_lost: 0,
    };
    loop {
        let ending = recorder.ending.load(Ordering::Acquire);
        let asked = recorder.asked.load(Ordering::Acquire);
        let is_asked = asked != recorder.answered.load(Ordering::Relaxed);
        let popped = scribe.drain();
        scribe.take_marks();
        // A note on a block waits for one more turn.
        let is_settled = popped == 0 && scribe.owned.is_empty();
        scribe.flush_if_due(is_settled && (ending || is_asked))?;
        if is_settled && is_asked {
            recorder.answered.store(asked, Ordering::Release);
        }
        if popped == 0 && recorder.ring.is_empty() {
            if ending && is_settled {
                return scribe.finish();
            }
            if recorder.ring.is_closed() {
                let pictures = look(&|| recorder.ring.open());
                scribe.set_right(pictures);
                continue;
            }
        }
        if popped < GULP / 4 {
            std::thread::park_timeout(REST);
        }
    }
}

/// The name of the older one of two files: `run.gtrace` has `run.older.gtrace`.
#[must_use]
pub fn older(path: &Path) -> PathBuf {
    beside(path, "older")
}

/// A file beside another: its name with a word before the extension.
#[must_use]
pub fn beside(path: &Path, word: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(".");
    name.push(word);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Writes a separate file: the state of a card, and the request that failed on it (the device's free bytes, and the
/// request's size, stream and pool), with the innermost line of `stack`.
///
/// # Errors
/// If the file cannot be written.
pub fn write_picture(
    file: File,
    picture: &Picture,
    (free, size, stream, pool): (u64, u64, StreamHandle, PoolKey),
    stack: &[Place],
) -> Result<(), GtraceError> {
    let (mut strings, mut frames, mut stacks) = (Strings::new(), Frames::default(), Stacks::default());
    let lines: Vec<_> = stack
        .iter()
        .map(|Place { name, file, line }| {
            frames.intern(Frame { name: strings.intern(name), file: strings.intern(file), line: *line })
        })
        .collect();
    let stack = stacks.intern(&lines);
    let mut card = Card::new(picture.device);
    card.held.set_pieces(&picture.pieces);
    card.held.live.extend(picture.blocks.iter().copied());
    let now = Clock::default().now();
    card.restate(now);
    card.push(Action::Oom, free, &Block { size, stream, pool, stack, ..Block::default() }, now);
    let text = "nothing was recorded before the failure: the file begins with what was held then, and says nothing of when it came";
    let source = Source {
        format: "Gapless picture of a failed request".to_owned(),
        producer: Source::gapless(env!("CARGO_PKG_VERSION")),
        torch_rules: false,
        notes: vec![Note { code: "picture-only", text: text.to_owned() }],
    };
    let mut writer = Writer::new(file)?;
    writer.source(&source)?;
    writer.process(&process::with_torch(&process::describe()))?;
    let tables = Tables { strings: &strings, frames: &frames, stacks: &stacks };
    let Card { trace, pending, .. } = &card;
    for events in pending.chunks(BLOCK) {
        let (device, streams, pools) = (trace.device, &trace.streams, &trace.pools);
        writer.append(&EventBatch { device, streams, pools, events }, tables)?;
    }
    writer.finish()?;
    Ok(())
}

impl Scribe<'_> {
    fn drain(&mut self) -> usize {
        let mut gulp = std::mem::take(&mut self.gulp);
        gulp.clear();
        while gulp.len() < GULP {
            match self.recorder.ring.pop() {
                Some(words) => gulp.extend(Entry::of(words)),
                None => break,
            }
        }
        // After the entries: news that an entry refers to came before the entry.
        if self.recorder.config.stacks {
            self.take_news();
        }
        // Blocks that were reported before this turn. Entries that were pushed before them are applied after this turn.
        let owned = std::mem::take(&mut self.owned);
        self.take_modules();
        for entry in &gulp {
            self.apply(entry);
        }
        if gulp.len() < GULP {
            owned.iter().for_each(|block| self.note(block));
        } else {
            self.owned.extend(owned);
        }
        if self.recorder.config.stacks {
            self.recorder.lines.lock().follow(&gulp);
        }
        self.recorder.recent.lock().follow(&gulp);
        let popped = gulp.len();
        self.gulp = gulp;
        popped
    }

    fn take_news(&mut self) {
        for news in frames::take_news() {
            match news {
                News::Code { name, file } => {
                    let (name, file) = (self.strings.intern(&name), self.strings.intern(&file));
                    self.codes.push(Frame { name, file, line: 0 });
                }
                News::Stack(lines) => {
                    let (codes, frames) = (&self.codes, &mut self.frames);
                    let stack: Vec<_> = lines
                        .iter()
                        .filter_map(|line| codes.get(line.code as usize).map(|code| (code, line.line)))
                        .map(|(code, line)| frames.intern(Frame { line, ..*code }))
                        .collect();
                    let line = naming_line(stack.iter().map(|&id| frames.get(id)), |frame| {
                        self.strings.get(frame.file)
                    });
                    let text = line.map(|frame| {
                        line_text(self.strings.get(frame.name), self.strings.get(frame.file), frame.line)
                    });
                    self.recorder.lines.lock().name(text.as_deref().unwrap_or_default());
                    self.stack_ids.push(self.stacks.intern(&stack));
                }
            }
        }
    }

    fn take_modules(&mut self) {
        let told = self.recorder.modules.take();
        for (number, note) in told.names {
            self.modules.set(number, self.strings.intern(&note));
        }
        self.owned.extend(told.owned);
    }

    /// Notes a live block as a module's.
    fn note(&mut self, Owned { device, addr, size, module }: &Owned) {
        let text = self.modules.of(*module);
        let at = self.card(*device);
        let card = &mut self.cards[at];
        match card.held.live.get_mut(addr) {
            Some(block) if block.size == *size && block.module != text => {
                block.module = text;
                card.notes.push(BlockNote { tick: Tick(card.events), addr: DeviceAddr(*addr), text });
                self.waiting.get_or_insert_with(Instant::now);
            }
            _ => {}
        }
    }

    fn take_marks(&mut self) {
        let marks = std::mem::take(&mut *self.recorder.marks.lock());
        for mark in marks {
            let name = self.strings.intern(&mark.name);
            let time = Micros(mark.time);
            self.marks.push(Annotation { name, stage: mark.stage, device: mark.device, time });
            self.recorder.recent.lock().mark(mark);
            self.waiting.get_or_insert_with(Instant::now);
        }
    }

    fn card(&mut self, device: u32) -> usize {
        match self.cards.iter().position(|card| card.trace.device == device) {
            Some(at) => at,
            None => {
                self.cards.push(Card::new(device));
                self.cards.len() - 1
            }
        }
    }

    /// Applies an entry to the state, and adds its event to the pending block.
    fn apply(&mut self, entry: &Entry) {
        let stack = match entry.stack {
            0 => StackId::NONE,
            told => self.stack_ids.get(told as usize - 1).copied().unwrap_or_default(),
        };
        let module = self.modules.of(entry.module);
        let at = self.card(u32::from(entry.device));
        self.waiting.get_or_insert_with(Instant::now);
        let card = &mut self.cards[at];
        let Entry { action, addr, size, stream, pool, time, .. } = *entry;
        let block = Block { size, stream, pool, stack, module, is_pending: false };
        match action {
            Action::Alloc => {
                // The free of the block before was missed.
                if let Some(before) = card.held.live.insert(addr, block) {
                    card.push(Action::FreeCompleted, addr, &before, time);
                }
                card.push(action, addr, &block, time);
            }
            Action::FreeRequested => match card.held.live.get_mut(&addr) {
                Some(block) if !block.is_pending => {
                    block.is_pending = true;
                    let block = *block;
                    card.push(action, addr, &block, time);
                }
                _ => {}
            },
            Action::FreeCompleted => {
                if let Some(block) = card.held.live.remove(&addr) {
                    card.push(action, addr, &block, time);
                }
            }
            Action::SegmentMap => {
                card.held.map(Piece { addr, size, stream, pool });
                card.push(action, addr, &block, time);
            }
            Action::SegmentUnmap => {
                card.held.unmap(addr, size);
                card.push(action, addr, &block, time);
            }
            _ => card.push(action, addr, &block, time),
        }
    }

    fn tables(&self) -> Tables<'_> {
        Tables { strings: &self.strings, frames: &self.frames, stacks: &self.stacks }
    }

    fn flush_if_due(&mut self, now: bool) -> Result<(), GtraceError> {
        let full = self.cards.iter().any(|card| card.pending.len() >= BLOCK);
        let Some(waiting) = self.waiting else { return Ok(()) };
        if !full && !now && waiting.elapsed() < AGE {
            return Ok(());
        }
        self.flush()?;
        self.recorder.clock.compare();
        let limit = self.recorder.config.limit;
        let written = self.writer.as_ref().map_or(0, Writer::bytes_written);
        // A state that is large by itself must not make the next file begin at once.
        if limit > 0 && written >= (limit / 2).max(2 * self.beginning) {
            self.turn()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), GtraceError> {
        self.waiting = None;
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.begin()?,
        };
        let lost = self.recorder.lost();
        if lost != self.told_lost {
            self.told_lost = lost;
            writer.source(&self.source())?;
        }
        for card in &mut self.cards {
            let trace = &card.trace;
            for events in card.pending.chunks(BLOCK) {
                let (streams, pools) = (&trace.streams, &trace.pools);
                let batch = EventBatch { device: trace.device, streams, pools, events };
                let tables = Tables { strings: &self.strings, frames: &self.frames, stacks: &self.stacks };
                writer.append(&batch, tables)?;
                self.recorder.written.fetch_add(events.len() as u64, Ordering::Release);
            }
            card.pending.clear();
            if !card.notes.is_empty() {
                let trace = &card.trace;
                let (streams, pools) = (&trace.streams, &trace.pools);
                let batch = EventBatch { device: trace.device, streams, pools, events: &[] };
                let tables = Tables { strings: &self.strings, frames: &self.frames, stacks: &self.stacks };
                writer.block_notes(&batch, &card.notes, tables)?;
                card.notes.clear();
            }
        }
        if !self.marks.is_empty() {
            writer.annotations(&self.marks, self.tables())?;
            self.marks.clear();
        }
        self.writer = Some(writer);
        Ok(())
    }

    /// Begins a new file, with its source.
    fn begin(&mut self) -> Result<Writer<File>, GtraceError> {
        let path = &self.recorder.path();
        if !self.turned {
            // The older file of another run does not belong to this recording.
            let _ = std::fs::remove_file(older(path));
        }
        let mut writer = Writer::new(File::create(path)?)?;
        self.told_lost = self.recorder.lost();
        writer.source(&self.source())?;
        writer.process(&process::with_torch(&self.recorder.process))?;
        Ok(writer)
    }

    fn source(&self) -> Source {
        let mut notes = Vec::new();
        if self.turned {
            let text = "the recording has a limit: this file begins with what was held then, and earlier events are in the file \
                        beside it, or gone";
            notes.push(Note { code: "recording-continued", text: text.to_owned() });
        }
        if self.told_lost > 0 {
            let text = format!(
                "{} event(s) are missing: they came faster than they could be written; what is held is right again after each gap",
                self.told_lost
            );
            notes.push(Note { code: "events-lost", text });
        }
        Source {
            format: "Gapless recording".to_owned(),
            producer: Source::gapless(env!("CARGO_PKG_VERSION")),
            torch_rules: false,
            notes,
        }
    }

    /// Makes the full file the older one, and begins a new file with the present state.
    fn turn(&mut self) -> Result<(), GtraceError> {
        if let Some(writer) = self.writer.take() {
            writer.finish()?;
        }
        let path = &self.recorder.path();
        std::fs::rename(path, older(path))?;
        self.turned = true;
        for card in &mut self.cards {
            let time = card.time;
            card.events = 0;
            card.restate(time);
        }
        self.flush()?;
        self.beginning = self.writer.as_ref().map_or(0, Writer::bytes_written);
        Ok(())
    }

    /// Corrects the state after a gap from the cards' own.
    fn set_right(&mut self, pictures: Vec<Picture>) {
        let time = self.recorder.clock.now();
        self.recorder.recent.lock().forget();
        for picture in pictures {
            let at = self.card(picture.device);
            let card = &mut self.cards[at];
            let difference = card.held.difference(&picture);
            for (addr, block) in difference.gone {
                card.held.live.remove(&addr);
                self.recorder.lines.lock().forget(picture.device as u8, addr);
                card.push(Action::FreeCompleted, addr, &block, time);
            }
            for (action, pieces) in
                [(Action::SegmentUnmap, difference.unmapped), (Action::SegmentMap, difference.mapped)]
            {
                for Piece { addr, size, stream, pool } in pieces {
                    let block = Block { size, stream, pool, ..Block::default() };
                    card.push(action, addr, &block, time);
                }
            }
            for (addr, block) in difference.new {
                card.held.live.insert(addr, block);
                card.push(Action::Alloc, addr, &block, time);
                if block.is_pending {
                    card.push(Action::FreeRequested, addr, &block, time);
                }
            }
            card.held.set_pieces(&picture.pieces);
        }
        self.waiting.get_or_insert_with(Instant::now);
    }

    fn finish(mut self) -> Result<(), GtraceError> {
        if self.recorder.lost() != self.told_lost {
            self.flush()?;
        }
        if let Some(writer) = self.writer.take() {
            writer.finish()?;
        }
        Ok(())
    }
}

impl Card {
    fn new(device: u32) -> Card {
        Card {
            trace: DeviceTrace::new(device),
            held: Held::default(),
            pending: Vec::new(),
            notes: Vec::new(),
            events: 0,
            time: 0,
        }
    }

    fn push(&mut self, action: Action, addr: u64, block: &Block, time: u64) {
        self.time = self.time.max(time);
        self.events = self.events.saturating_add(1);
        let is_request = matches!(action, Action::Alloc | Action::Oom);
        self.pending.push(Event {
            action,
            addr: DeviceAddr(addr),
            size: Bytes(block.size.min(Bytes::LIMIT.0)),
            // If a file has more streams or pools than it can name, the rest count as the first.
            stream: self.trace.stream_index(StreamId(block.stream.0)).unwrap_or(0),
            pool: self.trace.pool_index(PoolId(block.pool.0, block.pool.1)).unwrap_or(0),
            time: Micros(self.time),
            stack: block.stack,
            user_metadata: if is_request { block.module } else { StringId(0) },
            ..Event::default()
        });
    }

    /// Adds the whole state as events.
    fn restate(&mut self, time: u64) {
        for Piece { addr, size, stream, pool } in self.held.pieces() {
            let block = Block { size, stream, pool, ..Block::default() };
            self.push(Action::SegmentMap, addr, &block, time);
        }
        let mut live: Vec<(u64, Block)> =
            self.held.live.iter().map(|(&addr, &block)| (addr, block)).collect();
        live.sort_unstable_by_key(|(addr, _)| *addr);
        for (addr, block) in live {
            self.push(Action::Alloc, addr, &block, time);
            if block.is_pending {
                self.push(Action::FreeRequested, addr, &block, time);
            }
        }
    }
}
