//! A trace: the record of one run. Made by a reader, never changed afterwards.

use crate::events::Events;
use crate::settings::AllocatorSettings;
use crate::stacks::{Frames, StackId, Stacks};
use crate::strings::{StringId, Strings};
use crate::words::{Bytes, DeviceAddr, EventIndex, Micros, PoolId, StreamId, Tick};

/// The record of a run.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub source: Source,
    pub strings: Strings,
    pub frames: Frames,
    pub stacks: Stacks,
    /// One for each device that has events or segments, by device number.
    pub devices: Vec<DeviceTrace>,
    /// Named scopes of the run, in the order recorded.
    pub annotations: Vec<Annotation>,
    /// `None`: the source does not say.
    pub settings: Option<AllocatorSettings>,
    /// The process that was recorded, if the source names it.
    pub process: Process,
    /// Pinned host memory, which is never part of a device's figures; `None`: nothing was recorded of it.
    pub host: Option<HostMemory>,
    /// The data of a recording of host memory beside its events; `None`: the trace is of a device.
    pub host_sample: Option<HostSample>,
}

/// The process that was recorded. Empty texts and `None`: the source does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The program's name: `python train.py`. Never its arguments: those may hold secrets.
    pub program: String,
    pub pid: Option<u64>,
    pub host: String,
    /// Its rank of `world` in a distributed run.
    pub rank: Option<u64>,
    pub world: Option<u64>,
    /// The release of torch: `2.11.0+cu130`.
    pub torch: String,
    /// The allocator that served the run: `gapless 0.1.0`.
    pub allocator: String,
}

impl Process {
    /// True if anything is known of it.
    #[must_use]
    pub fn is_known(&self) -> bool {
        *self != Process::default()
    }
}

/// Memory of PyTorch's allocator of pinned host memory. Sizes are of its blocks, which it rounds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// Events that were recorded.
    pub events: u64,
    /// Blocks at the end, in use or cached.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub held: Bytes,
    /// The part of `held` that the program used at the end.
    pub in_use: Bytes,
    pub peak_held: Bytes,
    pub peak_in_use: Bytes,
}

/// A sample of the allocations of a process in the host's memory, as it was recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostSample {
    /// Mean bytes between two samples, at the end.
    pub interval: Bytes,
    /// From this size on every block is recorded.
    pub exact_from: Bytes,
    /// In order of birth; as many as the device has allocations.
    pub blocks: Vec<SampledBlock>,
    /// Beginnings of steps.
    pub steps: Vec<Micros>,
    /// Memory that the process held, now and then.
    pub states: Vec<HostState>,
    /// The last moment that is known.
    pub end: Micros,
    /// True if the process ended by itself.
    pub is_whole: bool,
    /// Samples that could not be written.
    pub lost: u64,
}

/// One block of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledBlock {
    pub born: Micros,
    pub died: Option<Micros>,
    /// Bytes that the caller asked for.
    pub size: Bytes,
    /// Bytes that the sample stands for.
    pub estimate: Bytes,
    /// The variance of `estimate`, in bytes squared.
    pub variance: f64,
    pub stack: StackId,
}

/// Host memory that a process held at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostState {
    pub time: Micros,
    /// Buffers of 1 MiB or more in the program's hands.
    pub large: Bytes,
    /// Memory of freed buffers that is kept for the next one.
    pub kept: Bytes,
    /// Memory of small objects, in use or not.
    pub small: Bytes,
    /// Resident memory of the whole process, by the kernel.
    pub resident: Bytes,
}

/// The origin of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The format by its usual name: "PyTorch snapshot (pickle protocol 4)".
    pub format: String,
    /// The program that wrote it, if the content shows it: "torch 2.11 or later". Empty: unknown.
    pub producer: String,
    /// True if block sizes follow PyTorch's rules, so that they can be rebuilt from requests.
    pub torch_rules: bool,
    /// Facts that the reader had to leave out, infer or repair.
    pub notes: Vec<Note>,
}

impl Source {
    /// The producer of compiled programs.
    pub const XLA: &str = "XLA";

    /// True if the trace is what a compiler planned, and not what a run did.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        self.producer == Source::XLA
    }

    /// The producer that our own allocator's recordings name.
    #[must_use]
    pub fn gapless(version: &str) -> String {
        format!("gapless {version}")
    }

    /// True if our own allocator served the run. Blocks then have the requested size, rounded up to 512 bytes, wherever
    /// they lie.
    #[must_use]
    pub fn is_gapless(&self) -> bool {
        !self.torch_rules && self.producer.starts_with("gapless ")
    }
}

/// A change that a reader or the rebuilding made, and that the user must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// A stable word for programs: "ring-incomplete".
    pub code: &'static str,
    pub text: String,
}

/// Everything of one device.
#[derive(Clone, Debug, Default)]
pub struct DeviceTrace {
    /// The device's number in the run.
    pub device: u32,
    pub events: Events,
    /// Streams by first use; events and segments hold indices into this.
    pub streams: Vec<StreamId>,
    /// Pools by first use, the default pool first; events and segments hold indices into this.
    pub pools: Vec<PoolId>,
    /// The heap when the trace was saved, by address; empty if the source has none.
    pub segments: Vec<Segment>,
    /// The blocks of all segments; a segment holds a range of this.
    pub blocks: Vec<Block>,
    /// Notes of the program on blocks after they were allocated, in the order of ticks.
    pub notes: Vec<BlockNote>,
    /// Allocations at or around an address that the program chose, in order.
    pub exact: Vec<EventIndex>,
}

/// A note on a block, made while the block was in use. It is no event: the heap does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNote {
    /// The instant: after so many of the device's events.
    pub tick: Tick,
    /// First address of the block.
    pub addr: DeviceAddr,
    pub text: StringId,
}

/// The one of PyTorch's two pools that a segment belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SizeClass {
    Small,
    #[default]
    Large,
}

impl SizeClass {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SizeClass::Small => "small",
            SizeClass::Large => "large",
        }
    }
}

/// A segment as it stood at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub addr: DeviceAddr,
    pub size: Bytes,
    pub stream: u16,
    pub pool: u16,
    pub class: SizeClass,
    pub expandable: bool,
    pub stack: StackId,
    /// `blocks[first_block .. first_block + block_count]` of the device, by address, covering the segment.
    pub first_block: u32,
    pub block_count: u32,
}

/// A block as it stood at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub addr: DeviceAddr,
    pub size: Bytes,
    /// Bytes that the caller asked for; meaningless when free.
    pub requested: Bytes,
    pub state: BlockState,
    pub stack: StackId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// In the caller's hands.
    Live,
    /// Given back, still used by another stream.
    Pending,
    Free,
}

/// The beginning or end of a named scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    pub name: StringId,
    pub stage: Stage,
    pub device: u32,
    pub time: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    Start,
    End,
}

impl DeviceTrace {
    #[must_use]
    pub fn new(device: u32) -> DeviceTrace {
        DeviceTrace { device, pools: vec![PoolId::DEFAULT], ..DeviceTrace::default() }
    }

    /// The index of `stream`, added on first sight; `None` past 65,535 streams.
    pub fn stream_index(&mut self, stream: StreamId) -> Option<u16> {
        index_of(&mut self.streams, stream)
    }

    /// The index of `pool`, added on first sight; `None` past 65,535 pools.
    pub fn pool_index(&mut self, pool: PoolId) -> Option<u16> {
        index_of(&mut self.pools, pool)
    }

    #[must_use]
    pub fn blocks_of(&self, segment: &Segment) -> &[Block] {
        &self.blocks[segment.first_block as usize..][..segment.block_count as usize]
    }
}

/// Linear on purpose: runs have a handful of streams, and the last one used is the likeliest.
fn index_of<T: PartialEq + Copy>(known: &mut Vec<T>, value: T) -> Option<u16> {
    if let Some(at) = known.iter().position(|&k| k == value) {
        return Some(at as u16);
    }
    if known.len() > u16::MAX as usize - 1 {
        return None;
    }
    known.push(value);
    Some((known.len() - 1) as u16)
}
