//! Compiled programs of XLA: a module dumped with `--xla_dump_hlo_as_proto`, or all modules of a dump's folder.
//!
//! The trace is one run of the module: an event for each change of its heap, in the order of the schedule, and a
//! segment for each allocation that XLA takes. Modules of a folder run one after the other. A block is named by the
//! scopes of the operator that makes it (a note of its module) and by its kind (a note); its stack has the program's
//! lines.
//! Memory of the host is apart, in [`HostMemory`].

pub(crate) mod folder;
mod kinds;
mod lives;
mod program;

use crate::error::{Fault, Problem};
use crate::options::Limits;
use gapless_formats::fault::Problem as FormatProblem;
use gapless_formats::hlo::{self, Allocation, Hlo};
use gapless_trace::block_notes::MODULE;
use gapless_trace::kinds::NOTE;
use gapless_trace::numbers::plural;
use gapless_trace::{
    Action, BlockNote, Bytes, DeviceAddr, DeviceTrace, Event, HostMemory, Note, Source, StackId, StreamId,
    StringId, Tick, Trace,
};
use kinds::Kinds;
use lives::{Block, Change, HOST, Lives};
use program::{Program, argument, scope};
use std::io::Read;

/// Addresses begin here, so that none is null.
const BASE: u64 = 1 << 20;
/// Allocations are apart as those of XLA's allocators.
const ALIGNMENT: u64 = 256;
/// Protocol buffers cannot be longer.
const LONGEST: u64 = 1 << 31;

pub(crate) fn read(input: &mut (dyn Read + Send), format: String, limits: Limits) -> Result<Trace, Fault> {
    let mut traces = Modules::new(limits);
    traces.add(&parse(input, limits)?, "")?;
    traces.finish(format)
}

/// The protocol buffer of a module.
fn parse(input: &mut (dyn Read + Send), limits: Limits) -> Result<Hlo, Fault> {
    let mut bytes = Vec::new();
    let limit = limits.bytes.min(LONGEST);
    let read = input.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|source| Box::new(Problem::Io { offset: bytes.len() as u64, source }))?;
    if bytes.len() as u64 > limit {
        let what = "bytes of one module";
        return Err(Box::new(Problem::TooMany { offset: limit, what, limit }));
    }
    hlo::read(bytes).map_err(|problem| {
        Box::new(match *problem {
            FormatProblem::Truncated { offset, reading } => Problem::Truncated { offset, reading },
            FormatProblem::Malformed { offset, what } => Problem::Malformed { offset, what },
            FormatProblem::Io { offset, source } => Problem::Io { offset, source },
            other => Problem::Malformed { offset: 0, what: other.to_string() },
        })
    })
}

fn without_buffers() -> Fault {
    Box::new(Problem::NotATrace {
        looks_like: "a module of XLA without its buffers".into(),
        help: "give the dump whose name ends in after_optimizations.hlo.pb, or the folder of the dump",
    })
}

/// The trace that is made.
struct Modules {
    trace: Trace,
    device: DeviceTrace,
    limits: Limits,
    /// The first address of the next allocation.
    next: u64,
    host: HostMemory,
    count: u64,
    /// Devices that run a module together, the most of all.
    devices: u64,
    untold: (u64, u64),
    unknown: u64,
    overlapping: u64,
}

impl Modules {
    fn new(limits: Limits) -> Modules {
        let mut device = DeviceTrace::new(0);
        device.streams.push(StreamId(0));
        Modules {
            trace: Trace::default(),
            device,
            limits,
            next: BASE,
            host: HostMemory::default(),
            count: 0,
            devices: 0,
            untold: (0, 0),
            unknown: 0,
            overlapping: 0,
        }
    }

    /// One run of a module; `prefix` stands before the scopes of its blocks.
    fn add(&mut self, hlo: &Hlo, prefix: &str) -> Result<(), Fault> {
        let Some(assignment) = &hlo.assignment else {
            return Err(without_buffers());
        };
        let program = Program::of(&hlo.module);
        let kinds = Kinds::of(&program);
        let lives = Lives::of(assignment);
        let bases = self.segments(&assignment.allocations)?;
        let mut live: std::collections::BTreeMap<u64, u64> = std::collections::BTreeMap::new();
        let mut skipped = vec![false; lives.blocks.len()];
        let mut host = (0u64, 0u64);
        for change in &lives.changes {
            let (Change::Taken(at) | Change::Freed(at)) = *change;
            let block = &lives.blocks[at];
            let allocation = &assignment.allocations[block.place.allocation];
            let taken = matches!(change, Change::Taken(_));
            if allocation.color == HOST {
                host.0 = if taken { host.0 + block.size } else { host.0.saturating_sub(block.size) };
                host.1 = host.1.max(host.0);
                continue;
            }
            let addr = bases[block.place.allocation].saturating_add(block.place.offset);
            let end = addr.saturating_add(block.size);
            let fits = block.place.offset.saturating_add(block.size) <= sized(allocation);
            if taken {
                let before = live.range(..end).next_back().is_some_and(|(_, &other)| other > addr);
                if before || !fits || block.size == 0 {
                    skipped[at] = true;
                    self.overlapping += u64::from(block.size > 0);
                    continue;
                }
                live.insert(addr, end);
                self.alloc(&program, &kinds, block, allocation, addr, prefix)?;
            } else if !skipped[at] {
                live.remove(&addr);
                self.event(Action::FreeCompleted, addr, block.size, StackId::NONE, StringId(0))?;
            }
        }
        for (addr, end) in live {
            self.event(Action::FreeCompleted, addr, end - addr, StackId::NONE, StringId(0))?;
        }
        for (allocation, base) in assignment.allocations.iter().zip(&bases).filter(|(a, _)| is_taken(a)) {
            self.event(Action::SegmentFree, *base, sized(allocation), StackId::NONE, StringId(0))?;
        }
        self.host.peak_in_use = self.host.peak_in_use.max(Bytes(host.1));
        let held = assignment.allocations.iter().filter(|a| a.color == HOST && !a.is_thread_local).map(sized);
        self.host.peak_held = self.host.peak_held.max(Bytes(held.fold(0, u64::saturating_add)));
        self.count += 1;
        self.devices = self.devices.max(hlo.module.devices);
        self.untold = (self.untold.0 + lives.untold.0, self.untold.1.saturating_add(lives.untold.1));
        self.unknown += lives.unknown;
        Ok(())
    }

    /// A segment for each allocation that XLA takes; the first addresses of all.
    fn segments(&mut self, allocations: &[Allocation]) -> Result<Vec<u64>, Fault> {
        let mut bases = Vec::with_capacity(allocations.len());
        for allocation in allocations {
            bases.push(self.next);
            let size = sized(allocation);
            if !is_taken(allocation) {
                continue;
            }
            self.event(Action::SegmentAlloc, self.next, size, StackId::NONE, StringId(0))?;
            self.next = self.next.saturating_add(size.next_multiple_of(ALIGNMENT));
            if size > Bytes::LIMIT.0 || self.next > 1 << 62 {
                let what =
                    format!("allocation {} of {size} bytes passes the end of addresses", allocation.index);
                return Err(Box::new(Problem::Malformed { offset: 0, what }));
            }
        }
        Ok(bases)
    }

    fn alloc(
        &mut self,
        program: &Program<'_>,
        kinds: &Kinds<'_>,
        block: &Block<'_>,
        allocation: &Allocation,
        addr: u64,
        prefix: &str,
    ) -> Result<(), Fault> {
        let mut maker = program.maker(block.buffer.instruction, &block.buffer.instruction_name);
        let mut path = String::new();
        if allocation.is_parameter {
            maker = kinds.parameter(allocation.parameter).or(maker);
        }
        if let Some(maker) = maker {
            path = match allocation.is_parameter {
                true => argument(&maker.op_name),
                false => scope(program.op_name(maker)),
            };
        }
        let kind = kinds.block(block, allocation, maker);
        let stack = maker.map_or(StackId::NONE, |maker| program.stack(maker, &mut self.trace));
        let path = [prefix, &path].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
        let module = if path.is_empty() { StringId(0) } else { self.text(&format!("{MODULE}{path}")) };
        self.event(Action::Alloc, addr, block.size, stack, module)?;
        let text = self.text(&format!("{NOTE}{}", kind.name()));
        let tick = Tick(self.device.events.len() as u32);
        self.device.notes.push(BlockNote { tick, addr: DeviceAddr(addr), text });
        Ok(())
    }

    fn text(&mut self, text: &str) -> StringId {
        self.trace.strings.try_intern(text).unwrap_or_default()
    }

    fn event(
        &mut self,
        action: Action,
        addr: u64,
        size: u64,
        stack: StackId,
        user_metadata: StringId,
    ) -> Result<(), Fault> {
        let events = &mut self.device.events;
        if events.len() as u64 >= self.limits.events.min(gapless_trace::Events::MAX as u64) {
            let limit = self.limits.events;
            return Err(Box::new(Problem::TooMany { offset: 0, what: "changes of the heap", limit }));
        }
        let (addr, size) = (DeviceAddr(addr), Bytes(size));
        events.push(Event { action, addr, size, stack, user_metadata, ..Event::default() });
        Ok(())
    }

    fn finish(mut self, format: String) -> Result<Trace, Fault> {
        if self.device.events.is_empty() {
            return Err(Box::new(Problem::EmptyTrace));
        }
        let mut notes = Vec::new();
        let mut note = |code, text: String| notes.push(Note { code, text });
        note(
            "compiled-program",
            "this is what XLA planned for one run: live bytes are its peak_memory_in_bytes, and reserved bytes are its \
             allocations with the arguments; what else the process holds is not in it"
                .to_owned(),
        );
        if self.count > 1 {
            note("modules-in-turn", format!("{} run one after the other", plural(self.count, "module")));
        }
        if self.devices > 1 {
            note(
                "many-devices",
                format!("{} devices run it together; figures are of each of them", self.devices),
            );
        }
        if self.untold.0 > 0 {
            let (count, bytes) = (plural(self.untold.0, "buffer"), Bytes(self.untold.1));
            note("lifetimes-unknown", format!("{count} of {bytes} without a lifetime are left out"));
        }
        if self.unknown > 0 {
            note(
                "events-left-out",
                format!("{} of buffers that the file does not have", plural(self.unknown, "event")),
            );
        }
        if self.overlapping > 0 {
            let count = plural(self.overlapping, "buffer");
            note("overlaps-left-out", format!("{count} in memory that another one has are left out"));
        }
        self.trace.source = Source { format, producer: Source::XLA.to_owned(), torch_rules: false, notes };
        self.trace.host = (self.host != HostMemory::default()).then_some(self.host);
        self.trace.devices = vec![self.device];
        Ok(self.trace)
    }
}

/// Bytes of an allocation; files may claim less than nothing.
fn sized(allocation: &Allocation) -> u64 {
    u64::try_from(allocation.size).unwrap_or(0)
}

/// True if the device's allocator gives it out.
fn is_taken(allocation: &Allocation) -> bool {
    !allocation.is_thread_local && allocation.color != HOST && sized(allocation) > 0
}
