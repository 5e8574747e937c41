//! The Python line that asked for each live block. The scribe keeps this, for questions while the program runs.
//!
//! It follows the entries that the scribe pops, so it is some milliseconds late. A block that is not here was requested
//! just now, or by a thread that runs no Python.

use super::Entry;
use gapless_trace::Action;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

#[derive(Debug, Default)]
pub struct Lines {
    /// By card and address: the number of the stack.
    live: FxHashMap<(u8, u64), u32>,
    /// The name of each stack, by its number minus one.
    names: Vec<Arc<str>>,
    /// Names that are in use, so that stacks can share them.
    known: FxHashSet<Arc<str>>,
}

impl Lines {
    /// Sets the name of the next stack.
    pub fn name(&mut self, text: &str) {
        let name = match self.known.get(text) {
            Some(name) => Arc::clone(name),
            None => {
                let name: Arc<str> = Arc::from(text);
                self.known.insert(Arc::clone(&name));
                name
            }
        };
        self.names.push(name);
    }

    pub fn follow(&mut self, entries: &[Entry]) {
        for entry in entries {
            let key = (entry.device, entry.addr);
            match entry.action {
                Action::Alloc if entry.stack > 0 => {
                    self.live.insert(key, entry.stack);
                }
                Action::Alloc | Action::FreeCompleted => {
                    self.live.remove(&key);
                }
                _ => {}
            }
        }
    }

    pub fn forget(&mut self, device: u8, addr: u64) {
        self.live.remove(&(device, addr));
    }

    /// The line that asked for the block at `addr`.
    #[must_use]
    pub fn of(&self, device: u8, addr: u64) -> Option<&Arc<str>> {
        let stack = *self.live.get(&(device, addr))?;
        self.names.get(stack as usize - 1).filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_pool::{PoolKey, StreamHandle};

    fn entry(action: Action, addr: u64, stack: u32) -> Entry {
        let (stream, pool) = (StreamHandle(0), PoolKey(0, 0));
        Entry { action, device: 1, stack, module: 0, addr, size: 8, stream, pool, time: 0 }
    }

    #[test]
    fn a_block_has_the_line_of_its_last_request() {
        let mut lines = Lines::default();
        lines.name("train.py:3 step");
        lines.name("model.py:9 forward");
        lines.name("");
        lines.follow(&[
            entry(Action::Alloc, 64, 1),
            entry(Action::Alloc, 128, 2),
            entry(Action::Alloc, 256, 3),
        ]);
        let of = |lines: &Lines, addr| lines.of(1, addr).map(|name| name.to_string());
        assert_eq!(of(&lines, 64).as_deref(), Some("train.py:3 step"));
        assert_eq!(of(&lines, 256), None, "a stack without a name");
        assert_eq!(lines.of(0, 64), None, "another card");
        lines.follow(&[entry(Action::FreeRequested, 64, 0)]);
        assert!(of(&lines, 64).is_some(), "another stream still uses it");
        lines.follow(&[
            entry(Action::FreeCompleted, 64, 0),
            entry(Action::Alloc, 128, 0),
            entry(Action::Alloc, 64, 2),
        ]);
        assert_eq!(of(&lines, 128), None, "now asked for by somebody unknown");
        assert_eq!(of(&lines, 64).as_deref(), Some("model.py:9 forward"));
        // A number that has no name.
        lines.follow(&[entry(Action::Alloc, 512, 99)]);
        assert_eq!(of(&lines, 512), None);
    }
}
