//! Names and lines of native code, from the files that the recording names: only from the very file that was mapped, by
//! its size and time of change. An address in a file that cannot be read stays an offset in it.

use super::body::Body;
use super::program::{NativeFrame, Program};
use crate::error::Fault;
use rustc_hash::FxHashMap;

struct Module {
    start: u64,
    end: u64,
    offset: u64,
    program: usize,
}

#[derive(Default)]
pub(super) struct Symbols {
    /// The latest last: it is the one that is mapped now.
    modules: Vec<Module>,
    programs: Vec<Program>,
    by_path: FxHashMap<(String, u64, u64), usize>,
    known: FxHashMap<(usize, u64), Vec<NativeFrame>>,
}

impl Symbols {
    pub(super) fn module(&mut self, body: &mut Body<'_>) -> Result<(), Fault> {
        let [start, end, offset, size, modified] =
            [body.u64()?, body.u64()?, body.u64()?, body.u64()?, body.u64()?];
        let path = String::from_utf8_lossy(body.rest()).into_owned();
        let programs = &mut self.programs;
        let program = *self.by_path.entry((path.clone(), size, modified)).or_insert_with(|| {
            programs.push(Program::new(path, size, modified));
            programs.len() - 1
        });
        self.modules.push(Module { start, end, offset, program });
        Ok(())
    }

    /// The frames of return addresses, innermost first. Inlined functions are frames too.
    /// `in_python`: frames of the interpreter itself say nothing beside those of Python.
    pub(super) fn frames(&mut self, addresses: &[u64], in_python: bool) -> Vec<NativeFrame> {
        let mut frames = Vec::new();
        for &address in addresses {
            // A return address is behind the call: one byte before is inside of it.
            let address = address.wrapping_sub(1);
            let found =
                self.modules.iter().rev().find(|module| address >= module.start && address < module.end);
            let Some(module) = found else { continue };
            let program = &mut self.programs[module.program];
            if (in_python && program.is_python()) || program.is_recorder() {
                continue;
            }
            let place = (module.program, address - module.start + module.offset);
            let known = self.known.entry(place).or_insert_with(|| program.frames(place.1));
            frames.extend(known.iter().cloned());
        }
        // Frames in headers and libraries of the system come before the program's own line, and help less.
        if !in_python {
            let own = |frame: &NativeFrame| frame.line > 0 && !frame.file.starts_with("/usr/");
            if let Some(first) = frames.iter().position(own) {
                frames.drain(..first);
            }
        }
        frames
    }

    /// Files that could not be read, and why; a few of them.
    pub(super) fn unread(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.programs.iter().filter_map(Program::unread).take(4)
    }
}
