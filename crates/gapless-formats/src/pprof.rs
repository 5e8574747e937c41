//! Profiles of pprof: samples with values, labels and stacks, as `jax.profiler.device_memory_profile()` writes them.
//!
//! Texts are numbers of the table of strings, which comes last, so a profile is read whole.

use crate::fault::{Fault, malformed};
use crate::protobuf::{Wire, bytes, field, integers, message, skip, varint};
use crate::source::Source;
use std::collections::HashMap;
use std::io::Cursor;

type Bytes = Source<Cursor<Vec<u8>>>;

/// Things of one kind in a file. A list that claims more is refused.
const MOST: usize = 1 << 24;

#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// The names of the values: `allocations`, `space`.
    pub values: Vec<String>,
    pub samples: Vec<Sample>,
    frames: HashMap<i64, Vec<Line>>,
}

#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub values: Vec<i64>,
    pub labels: Vec<(String, String)>,
    locations: Vec<i64>,
}

/// A line of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub function: String,
    pub file: String,
    pub line: i64,
}

impl Profile {
    /// The stack of a sample, innermost line first.
    pub fn stack(&self, sample: &Sample) -> impl Iterator<Item = &Line> {
        sample.locations.iter().filter_map(|id| self.frames.get(id)).flatten()
    }

    /// The place of the value of that name among a sample's.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<usize> {
        self.values.iter().position(|value| value == name)
    }
}

/// True if these first bytes begin a profile: the type of its values, which is a pair of small numbers.
#[must_use]
pub fn is_pprof(head: &[u8]) -> bool {
    matches!(*head, [0x0a, 4, 0x08, kind, 0x10, unit, next, ..] if kind < 0x80 && unit < 0x80 && matches!(next, 0x0a | 0x12))
}

/// Texts by number, until the table of strings is known.
#[derive(Default)]
struct Raw {
    values: Vec<i64>,
    samples: Vec<(Sample, Vec<[i64; 3]>)>,
    /// By number of the location: functions and lines.
    locations: Vec<(i64, Vec<[i64; 2]>)>,
    /// By number: name and file.
    functions: HashMap<i64, [i64; 2]>,
    strings: Vec<String>,
}

/// Reads a profile.
///
/// # Errors
/// When the bytes are none.
pub fn read(bytes: Vec<u8>) -> Result<Profile, Fault> {
    let mut source = Source::new(Cursor::new(bytes))?;
    let end = source.size();
    let mut raw = Raw::default();
    while let Some((number, wire)) = field(&mut source, end)? {
        if wire != Wire::Length || !matches!(number, 1 | 2 | 4 | 5 | 6) {
            skip(&mut source, end, wire)?;
            continue;
        }
        raw.part(number, &mut source, end)?;
    }
    Ok(raw.finish())
}

impl Raw {
    fn part(&mut self, number: u64, source: &mut Bytes, end: u64) -> Result<(), Fault> {
        if self.samples.len().max(self.locations.len()).max(self.strings.len()) >= MOST {
            return malformed(source.at(), format!("more than {MOST} samples, lines or texts"));
        }
        if number == 6 {
            let text = bytes(source, end, 1 << 20, "a text")?;
            self.strings.push(String::from_utf8_lossy(&text).into_owned());
            return Ok(());
        }
        let inner = message(source, end)?;
        match number {
            1 => self.values.push(numbers::<2>(source, inner)?[0]),
            2 => self.sample(source, inner)?,
            4 => self.location(source, inner)?,
            _ => {
                // Number, name, system's name, file.
                let [id, name, _, file] = numbers::<4>(source, inner)?;
                self.functions.insert(id, [name, file]);
            }
        }
        Ok(())
    }

    fn sample(&mut self, source: &mut Bytes, end: u64) -> Result<(), Fault> {
        let (mut sample, mut labels) = (Sample::default(), Vec::new());
        while let Some((number, wire)) = field(source, end)? {
            match (number, wire) {
                (1, _) => integers(source, end, wire, 1 << 12, &mut sample.locations)?,
                (2, _) => integers(source, end, wire, 1 << 8, &mut sample.values)?,
                (3, Wire::Length) if labels.len() < 256 => {
                    let inner = message(source, end)?;
                    labels.push(numbers::<3>(source, inner)?);
                }
                _ => skip(source, end, wire)?,
            }
        }
        self.samples.push((sample, labels));
        Ok(())
    }

    fn location(&mut self, source: &mut Bytes, end: u64) -> Result<(), Fault> {
        let (mut id, mut lines) = (0, Vec::new());
        while let Some((number, wire)) = field(source, end)? {
            match (number, wire) {
                (1, Wire::Varint) => id = varint(source, end)? as i64,
                (4, Wire::Length) if lines.len() < 256 => {
                    let inner = message(source, end)?;
                    lines.push(numbers::<2>(source, inner)?);
                }
                _ => skip(source, end, wire)?,
            }
        }
        self.locations.push((id, lines));
        Ok(())
    }

    fn finish(self) -> Profile {
        let text = |at: i64| -> String {
            usize::try_from(at).ok().and_then(|at| self.strings.get(at)).cloned().unwrap_or_default()
        };
        let line = |&[function, line]: &[i64; 2]| {
            let [name, file] = self.functions.get(&function).copied().unwrap_or_default();
            Line { function: text(name), file: text(file), line }
        };
        let label = |&[key, value, number]: &[i64; 3]| {
            (text(key), if value == 0 { number.to_string() } else { text(value) })
        };
        Profile {
            values: self.values.iter().map(|&at| text(at)).collect(),
            frames: self
                .locations
                .iter()
                .map(|(id, lines)| (*id, lines.iter().map(line).collect()))
                .collect(),
            samples: self
                .samples
                .iter()
                .map(|(sample, labels)| Sample {
                    labels: labels.iter().map(label).collect(),
                    ..sample.clone()
                })
                .collect(),
        }
    }
}

/// The first `N` fields of a message of numbers.
fn numbers<const N: usize>(source: &mut Bytes, end: u64) -> Result<[i64; N], Fault> {
    let mut own = [0; N];
    while let Some((number, wire)) = field(source, end)? {
        match (usize::try_from(number - 1).ok().and_then(|at| own.get_mut(at)), wire) {
            (Some(place), Wire::Varint) => *place = varint(source, end)? as i64,
            _ => skip(source, end, wire)?,
        }
    }
    Ok(own)
}
