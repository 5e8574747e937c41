//! The named scopes of a run as intervals of time, and the path of scopes that is open at an instant: the marks of
//! profilers and of `record_function`, modules and phases mostly. Ranges that `gapless.name_modules()` makes are notes
//! on blocks instead ([`crate::block_notes`]).

use crate::block_notes::MODULE;
use crate::strings::StringId;
use crate::trace::{DeviceTrace, Stage, Trace};

/// Deeper scopes do not lengthen a path: a bound for hostile input, far above real nesting.
const DEEPEST: usize = 16;

/// One scope, closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Microseconds.
    pub start: u64,
    pub duration: u64,
    /// Scopes that were open when it began.
    pub depth: u64,
    pub name: StringId,
}

/// The scopes of `device` by start. A start is closed by the next end of its name. A scope that is never closed has no
/// length and is left out. Without a clock for the events there is nothing to hold scopes against.
#[must_use]
pub fn of(trace: &Trace, device: &DeviceTrace) -> Vec<Scope> {
    let mut open: Vec<(StringId, u64)> = Vec::new();
    let mut scopes: Vec<Scope> = Vec::new();
    let is_note = |name| trace.strings.get(name).starts_with(MODULE);
    let own = trace.annotations.iter().filter(|a| a.device == device.device && device.events.has_times());
    let own = own.filter(|a| !is_note(a.name));
    for a in own {
        match a.stage {
            Stage::Start => open.push((a.name, a.time.0)),
            Stage::End => {
                if let Some(at) = open.iter().rposition(|o| o.0 == a.name) {
                    let (name, start) = open.remove(at);
                    let duration = a.time.0.saturating_sub(start);
                    scopes.push(Scope { start, duration, depth: at as u64, name });
                }
            }
        }
    }
    scopes.sort_by_key(|s| (s.start, std::cmp::Reverse(s.duration), s.depth));
    scopes
}

/// The path that is open at each instant.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    /// From this time on, this path.
    turns: Vec<(u64, u32)>,
    paths: Vec<Vec<StringId>>,
}

impl Paths {
    #[must_use]
    pub fn of(trace: &Trace, device: &DeviceTrace) -> Paths {
        let scopes = of(trace, device);
        let mut ends: Vec<(u64, usize)> =
            scopes.iter().enumerate().map(|(i, s)| (s.start.saturating_add(s.duration), i)).collect();
        ends.sort_unstable();
        let mut out = Paths { turns: Vec::new(), paths: vec![Vec::new()] };
        let mut numbers: rustc_hash::FxHashMap<Vec<StringId>, u32> = rustc_hash::FxHashMap::default();
        numbers.insert(Vec::new(), 0);
        let mut open: Vec<usize> = Vec::new();
        let (mut next, mut over) = (0, 0);
        while over < ends.len() {
            let starts = scopes.get(next).map_or(u64::MAX, |s| s.start);
            let time = starts.min(ends[over].0);
            if starts <= ends[over].0 {
                open.push(next);
                next += 1;
            } else {
                let gone = ends[over].1;
                open.retain(|&i| i != gone);
                over += 1;
            }
            let path: Vec<StringId> = open.iter().take(DEEPEST).map(|&i| scopes[i].name).collect();
            let count = out.paths.len() as u32;
            let number = *numbers.entry(path).or_insert_with_key(|path| {
                out.paths.push(path.clone());
                count
            });
            match out.turns.last_mut() {
                Some(last) if last.0 == time => last.1 = number,
                _ => out.turns.push((time, number)),
            }
        }
        out
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The names open at `time`, the outermost first.
    #[must_use]
    pub fn at(&self, time: u64) -> &[StringId] {
        let after = self.turns.partition_point(|turn| turn.0 <= time);
        after.checked_sub(1).map_or(&[], |at| &self.paths[self.turns[at].1 as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Run;
    use crate::trace::Annotation;
    use crate::words::Micros;

    #[test]
    fn the_path_is_what_is_open_and_unclosed_scopes_are_left_out() {
        let mut run = Run::new();
        run.alloc(512);
        let mut mark = |name: &str, stage, time| {
            let name = run.trace.strings.intern(name);
            run.trace.annotations.push(Annotation { name, stage, device: 0, time: Micros(time) });
        };
        use Stage::{End, Start};
        mark("lost", Start, 5);
        mark("model", Start, 10);
        mark("attention", Start, 20);
        mark("attention", End, 30);
        mark("model", End, 40);
        let (trace, _) = run.finish();
        let paths = Paths::of(&trace, &trace.devices[0]);
        let at = |time| -> Vec<&str> { paths.at(time).iter().map(|&name| trace.strings.get(name)).collect() };
        assert_eq!(at(9), [""; 0]);
        assert_eq!(at(10), ["model"]);
        assert_eq!(at(25), ["model", "attention"]);
        assert_eq!(at(30), ["model"]);
        assert_eq!(at(40), [""; 0]);
    }
}
