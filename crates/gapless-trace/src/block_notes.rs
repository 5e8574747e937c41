//! Notes of the program on its blocks: metadata at the allocation, annotations after it.
//!
//! A note belongs to the allocation that held the block's address at that instant. Notes are free text. Some are paths
//! of modules (`model.layers.3.mlp`), and those can name a holder: [`module_of`] finds them, [`pattern`] joins the
//! layers of a model under one name. `gapless.name_modules()` writes paths behind [`MODULE`], so that `lm_head` is one
//! too. If the recorder keeps no notes, its named ranges of time tell which module ran.

use crate::allocations::{AllocationId, Allocations};
use crate::events::Action;
use crate::strings::{StringId, Strings};
use crate::trace::{DeviceTrace, Stage, Trace};
use crate::words::Tick;
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;

/// Notes by allocation.
#[derive(Clone, Debug, Default)]
pub struct BlockNotes {
    /// Sorted by allocation; for each, the order in which the notes were made.
    notes: Vec<(AllocationId, StringId)>,
    /// Annotations of addresses at which no block was in use.
    pub unmatched: u32,
}

impl BlockNotes {
    /// The notes of the allocations of `device`. Costs nothing if the recording has none.
    #[must_use]
    pub fn of(trace: &Trace, device: &DeviceTrace, allocations: &Allocations) -> BlockNotes {
        let mut own = BlockNotes::default();
        own.in_ranges(trace, device, allocations);
        if device.events.has_user_metadata() {
            for id in allocations.ids() {
                let Some(event) = Tick(allocations.starts[id.0 as usize]).event() else { continue };
                if device.events.action(event) == Action::Alloc {
                    own.add(id, device.events.user_metadata(event));
                }
            }
        }
        if !device.notes.is_empty() {
            own.annotated(device, allocations);
        }
        own.notes.sort_by_key(|&(id, _)| id);
        own
    }

    /// Allocations inside a range that is named after a module: the innermost one that is open then.
    fn in_ranges(&mut self, trace: &Trace, device: &DeviceTrace, allocations: &Allocations) {
        if trace.annotations.is_empty() || !device.events.has_times() {
            return;
        }
        let is_module = |name: StringId| trace.strings.get(name).starts_with(MODULE);
        let mut marks: Vec<_> = trace
            .annotations
            .iter()
            .filter(|mark| mark.device == device.device && is_module(mark.name))
            .collect();
        // One that ends where another begins is over.
        marks.sort_by_key(|mark| mark.time);
        let mut open: Vec<StringId> = Vec::new();
        let mut next = 0;
        for id in allocations.ids() {
            if next == marks.len() && open.is_empty() {
                break;
            }
            let Some(event) = Tick(allocations.starts[id.0 as usize]).event() else { continue };
            if device.events.action(event) != Action::Alloc {
                continue;
            }
            let time = device.events.time(event);
            while let Some(mark) = marks.get(next).filter(|mark| mark.time <= time) {
                match mark.stage {
                    Stage::Start => open.push(mark.name),
                    Stage::End => {
                        if let Some(at) = open.iter().rposition(|&name| name == mark.name) {
                            open.remove(at);
                        }
                    }
                }
                next += 1;
            }
            if let Some(&name) = open.last() {
                self.add(id, name);
            }
        }
    }

    fn add(&mut self, id: AllocationId, text: StringId) {
        if text != StringId(0) {
            self.notes.push((id, text));
        }
    }

    fn annotated(&mut self, device: &DeviceTrace, allocations: &Allocations) {
        let wanted: FxHashSet<u64> = device.notes.iter().map(|note| note.addr.0).collect();
        // In order of birth: of the blocks at an address the last one born by then is the one in use, if any is.
        let mut at: FxHashMap<u64, Vec<AllocationId>> = FxHashMap::default();
        for id in allocations.ids() {
            let addr = allocations.addrs[id.0 as usize];
            if wanted.contains(&addr) {
                at.entry(addr).or_default().push(id);
            }
        }
        for note in &device.notes {
            let known = at.get(&note.addr.0).map_or(&[][..], Vec::as_slice);
            let born = known.partition_point(|id| allocations.starts[id.0 as usize] <= note.tick.0);
            match born.checked_sub(1).map(|last| known[last]) {
                Some(id) if allocations.ends[id.0 as usize] > note.tick.0 => self.add(id, note.text),
                _ => self.unmatched = self.unmatched.saturating_add(1),
            }
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    /// All notes, by allocation.
    pub fn iter(&self) -> impl Iterator<Item = (AllocationId, StringId)> + '_ {
        self.notes.iter().copied()
    }

    /// The notes of an allocation, the oldest first.
    pub fn get(&self, id: AllocationId) -> impl DoubleEndedIterator<Item = StringId> + '_ {
        let first = self.notes.partition_point(|note| note.0 < id);
        let count = self.notes[first..].partition_point(|note| note.0 == id);
        self.notes[first..first + count].iter().map(|note| note.1)
    }

    /// The module that an allocation belongs to: the newest of its notes that names one.
    #[must_use]
    pub fn module<'a>(&self, strings: &'a Strings, id: AllocationId) -> Option<&'a str> {
        self.get(id).rev().find_map(|text| module_of(strings.get(text)))
    }
}

/// Text before the path of a module in notes and ranges that `gapless.name_modules()` makes.
pub const MODULE: &str = "module: ";

/// Names under which a note that is a JSON object gives its module.
const MODULE_KEYS: [&str; 4] = ["module", "module_path", "fqn", "name"];

/// Longer texts are prose, not paths.
const LONGEST_PATH: usize = 200;

/// The path of a module in a note: the note itself, or a member of a JSON object; `None` if there is none.
#[must_use]
pub fn module_of(note: &str) -> Option<&str> {
    let note = note.trim();
    if let Some(path) = note.strip_prefix(MODULE) {
        // The program's own name of a module, in whatever form.
        return Some(path.trim()).filter(|path| !path.is_empty());
    }
    if !note.starts_with('{') {
        return Some(note).filter(|note| is_module_path(note));
    }
    MODULE_KEYS.iter().find_map(|name| {
        // Keys and paths of modules need no escapes, so the text can be searched as it is.
        let (_, rest) = note.split_once(&format!("\"{name}\""))?;
        let value = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        let (path, _) = value.split_once('"')?;
        Some(path).filter(|path| is_module_path(path))
    })
}

/// Identifiers and numbers between dots, at least two identifiers: `model.layers.3.mlp`, but neither `v1.2` nor
/// `train.py`.
fn is_module_path(text: &str) -> bool {
    let mut names = 0;
    for part in text.split('.') {
        let word = part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if part.is_empty() || !word {
            return false;
        }
        let number = part.bytes().all(|b| b.is_ascii_digit());
        if !number && part.as_bytes()[0].is_ascii_digit() {
            return false;
        }
        names += usize::from(!number);
    }
    names >= 2 && text.len() <= LONGEST_PATH && !text.ends_with(".py")
}

/// The path with `*` for every number, so that equal parts of all layers are one: `model.layers.*.mlp`.
#[must_use]
pub fn pattern(path: &str) -> Cow<'_, str> {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !path.split('.').any(number) {
        return Cow::Borrowed(path);
    }
    let parts: Vec<&str> = path.split('.').map(|part| if number(part) { "*" } else { part }).collect();
    Cow::Owned(parts.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Run;
    use crate::trace::{Annotation, BlockNote};
    use crate::words::Micros;
    use crate::{DeviceAddr, Event, History};

    #[test]
    fn paths_of_modules_are_told_from_other_notes() {
        for (note, module) in [
            ("model.layers.3.mlp", Some("model.layers.3.mlp")),
            (" encoder.embed_tokens.weight ", Some("encoder.embed_tokens.weight")),
            (r#"{"step":3,"module":"model.layers.0.attn"}"#, Some("model.layers.0.attn")),
            (r#"{"fqn": "lm_head.weight"}"#, Some("lm_head.weight")),
            (r#"{"module":"forward","name":"a.b"}"#, Some("a.b")),
            (r#"{"module":3}"#, None),
            (r#"{"module":"a.b"#, None),
            ("module: lm_head", Some("lm_head")),
            ("module: 0.conv-1.\u{f6}", Some("0.conv-1.\u{f6}")),
            ("module: ", None),
            ("backward", None),
            ("v1.2", None),
            ("train.py", None),
            ("saved for backward. See docs.", None),
            ("model..weight", None),
            ("model.3d.weight", None),
            ("", None),
        ] {
            assert_eq!(module_of(note), module, "{note}");
        }
        assert_eq!(module_of(&"a.".repeat(200)), None);
        assert_eq!(pattern("model.layers.3.mlp"), "model.layers.*.mlp");
        assert_eq!(pattern("lm_head.weight"), "lm_head.weight");
    }

    #[test]
    fn a_note_belongs_to_the_block_that_was_in_use_then() {
        let mut trace = Trace::default();
        let mut device = DeviceTrace::new(0);
        device.stream_index(crate::StreamId(0));
        let (early, late, lost) =
            (trace.strings.intern("early"), trace.strings.intern("late"), trace.strings.intern("lost"));
        let at_birth = trace.strings.intern("at birth");
        let mut event = |action, user_metadata| {
            let event = Event {
                action,
                addr: DeviceAddr(512),
                size: crate::Bytes(512),
                user_metadata,
                ..Event::default()
            };
            device.events.push(event);
        };
        event(Action::Alloc, StringId(0));
        event(Action::FreeRequested, StringId(0));
        event(Action::FreeCompleted, StringId(0));
        event(Action::Alloc, at_birth);
        let note = |tick, text| BlockNote { tick: Tick(tick), addr: DeviceAddr(512), text };
        device.notes = vec![note(0, lost), note(1, early), note(3, lost), note(4, late)];
        let history = History::rebuild(&trace, &device).expect("a history");
        let notes = |id| history.block_notes.get(AllocationId(id)).collect::<Vec<_>>();
        assert_eq!((notes(0), notes(1)), (vec![early], vec![at_birth, late]));
        assert_eq!(history.block_notes.unmatched, 2);
        let codes: Vec<&str> = history.notes.iter().map(|note| note.code).collect();
        assert!(codes.contains(&"annotations-unmatched"), "{codes:?}");
    }

    /// Ranges lie inside of each other in a forward pass, and follow each other in a backward pass.
    #[test]
    fn an_allocation_in_a_range_of_a_module_is_that_module_s() {
        let mut run = Run::new();
        for _ in 0..8 {
            run.alloc(512);
        }
        let (mut trace, _) = run.finish();
        let events = &trace.devices[0].events;
        let times: Vec<Micros> = events
            .indices()
            .filter(|&event| events.action(event) == Action::Alloc)
            .map(|event| events.time(event))
            .collect();
        let mut mark = |name: &str, stage, time| {
            let name = trace.strings.intern(name);
            trace.annotations.push(Annotation { name, stage, device: 0, time });
        };
        use Stage::{End, Start};
        mark("module: a", Start, times[1]);
        mark("module: a.0", Start, times[2]);
        mark("train_step", Start, times[2]);
        mark("module: a.0", End, times[3]);
        mark("module: a", End, times[5]);
        mark("module: b", Start, times[5]);
        mark("module: b", End, times[6]);
        mark("module: never closed", Start, times[7]);
        let history = History::rebuild(&trace, &trace.devices[0]).expect("a history");
        let module = |id| history.block_notes.module(&trace.strings, AllocationId(id));
        let found: Vec<_> = (0..8).map(module).collect();
        let (a, b) = (Some("a"), Some("b"));
        assert_eq!(found, [None, a, Some("a.0"), a, a, b, None, Some("never closed")]);
        // They are no scopes of the program's own, and no steps.
        assert!(crate::scopes::of(&trace, &trace.devices[0]).is_empty());
    }
}
