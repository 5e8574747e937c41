//! The lifetimes of a module's buffers, as XLA's heap simulator told them.
//!
//! A buffer that shares another's memory counts as a use of that memory: it is free when all its users are gone. XLA
//! itself computes `peak_memory_in_bytes` so, and the largest sum of live buffers is that figure. Memory of arguments,
//! results and constants is there all through.

use gapless_formats::hlo::{Allocation, Assignment, EventKind, LogicalBuffer};
use rustc_hash::FxHashMap;

/// XLA's number of the host's memory.
pub(super) const HOST: i64 = 5;

/// The allocation that a block lies in, and its place there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) allocation: usize,
    pub(super) offset: u64,
}

/// Memory with the user that it was made for.
#[derive(Clone, Debug)]
pub(super) struct Block<'a> {
    pub(super) buffer: &'a LogicalBuffer,
    pub(super) place: Place,
    pub(super) size: u64,
    /// The instruction that the simulator was at when the last user was freed: the maker of the last buffer before. The
    /// event itself names the buffer's own maker. Empty: it was never freed.
    pub(super) last: &'a str,
}

/// A change of the heap, by the number of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Taken(usize),
    Freed(usize),
}

#[derive(Debug, Default)]
pub(super) struct Lives<'a> {
    pub(super) blocks: Vec<Block<'a>>,
    /// The first ones are of the static blocks.
    pub(super) changes: Vec<Change>,
    /// Buffers of the heap of which no event tells, and their bytes.
    pub(super) untold: (u64, u64),
    /// Events of buffers that are not in the file.
    pub(super) unknown: u64,
}

#[derive(Default)]
struct State {
    users: u32,
    /// The buffer whose memory it shares.
    with: Option<i64>,
    /// Its block while it has users.
    block: Option<usize>,
}

impl<'a> Lives<'a> {
    pub(super) fn of(assignment: &'a Assignment) -> Lives<'a> {
        let buffers: FxHashMap<i64, &LogicalBuffer> = assignment.buffers.iter().map(|b| (b.id, b)).collect();
        let mut places: FxHashMap<i64, Place> = FxHashMap::default();
        for (at, allocation) in assignment.allocations.iter().enumerate() {
            for assigned in &allocation.assigned {
                let offset = u64::try_from(assigned.offset).unwrap_or(0);
                places.entry(assigned.buffer).or_insert(Place { allocation: at, offset });
            }
        }
        let mut own = Lives::default();
        let mut states: FxHashMap<i64, State> = FxHashMap::default();
        for allocation in assignment.allocations.iter().filter(|a| is_static(a)) {
            let held = allocation.assigned.iter().filter_map(|a| buffers.get(&a.buffer));
            // The first of equals, as XLA has it.
            let largest = held.fold(None, |best: Option<&&LogicalBuffer>, b| match best {
                Some(best) if best.size >= b.size => Some(best),
                _ => Some(b).filter(|b| b.size > 0),
            });
            let Some(buffer) = largest else { continue };
            let state = states.entry(buffer.id).or_default();
            state.users += 1;
            state.block = own.take(buffer, &places);
        }
        let mut now = "";
        for event in assignment.traces.iter().flat_map(|trace| &trace.events) {
            if event.kind != EventKind::Free {
                now = &event.instruction;
            }
            let Some(&buffer) = buffers.get(&event.buffer) else {
                own.unknown += 1;
                continue;
            };
            match event.kind {
                EventKind::Alloc => own.use_of(buffer, &mut states, &places),
                EventKind::Share => {
                    let root = root(&states, event.with);
                    let Some(&shared) = buffers.get(&root) else {
                        own.unknown += 1;
                        continue;
                    };
                    if root != buffer.id {
                        states.entry(buffer.id).or_default().with = Some(root);
                    }
                    own.use_of(shared, &mut states, &places);
                }
                EventKind::Free => {
                    let root = root(&states, buffer.id);
                    states.entry(buffer.id).or_default().with = None;
                    let state = states.entry(root).or_default();
                    state.users = state.users.saturating_sub(1);
                    if let Some(block) = state.block.filter(|_| state.users == 0) {
                        state.block = None;
                        own.blocks[block].last = now;
                        own.changes.push(Change::Freed(block));
                    }
                }
            }
        }
        for allocation in assignment.allocations.iter().filter(|a| !is_static(a) && !a.is_thread_local) {
            for assigned in allocation.assigned.iter().filter(|a| !states.contains_key(&a.buffer)) {
                own.untold.0 += 1;
                own.untold.1 += u64::try_from(assigned.size).unwrap_or(0);
            }
        }
        own
    }

    fn use_of(
        &mut self,
        buffer: &'a LogicalBuffer,
        states: &mut FxHashMap<i64, State>,
        places: &FxHashMap<i64, Place>,
    ) {
        let state = states.entry(buffer.id).or_default();
        state.users += 1;
        if state.users == 1 {
            state.block = self.take(buffer, places);
        }
    }

    fn take(&mut self, buffer: &'a LogicalBuffer, places: &FxHashMap<i64, Place>) -> Option<usize> {
        let size = u64::try_from(buffer.size).unwrap_or(0);
        let Some(&place) = places.get(&buffer.id) else {
            self.unknown += 1;
            return None;
        };
        self.blocks.push(Block { buffer, place, size, last: "" });
        self.changes.push(Change::Taken(self.blocks.len() - 1));
        Some(self.blocks.len() - 1)
    }
}

/// True if the memory is there as long as the module runs.
pub(super) fn is_static(allocation: &Allocation) -> bool {
    !allocation.is_thread_local && (allocation.is_parameter || allocation.is_constant || allocation.is_output)
}

/// The buffer at the end of the chain that a buffer shares with. A file's chain may be a circle.
fn root(states: &FxHashMap<i64, State>, mut buffer: i64) -> i64 {
    for _ in 0..states.len() {
        match states.get(&buffer).and_then(|state| state.with) {
            Some(next) if next != buffer => buffer = next,
            _ => break,
        }
    }
    buffer
}
