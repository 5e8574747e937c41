//! A training run made up: weights, then steps of a forward pass that keeps activations, a backward pass that frees
//! them in reverse order, an optimizer that makes its states in the first step, and temporaries everywhere. Sizes vary
//! from step to step. Blocks are placed as PyTorch places them (best fit, split, merge), so that the history of the
//! events is consistent.

#![allow(dead_code)]

use gapless_trace::{
    Action, AllocatorSettings, Annotation, Bytes, DeviceAddr, DeviceTrace, Event, Frame, Micros, StackId,
    Stage, StreamId, Tick, Trace, torch_rules,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const KINDS: [&str; 5] = ["weights", "gradients", "optimizer_state", "activations", "temporaries"];

pub(crate) struct Run {
    pub(crate) trace: Trace,
    /// By allocation, in order of birth.
    pub(crate) kinds: Vec<u8>,
    pub(crate) steps: Vec<(Tick, Tick)>,
}

/// A run of at least `allocations` allocations. `hostile` is the name and the file of one frame.
pub(crate) fn run(allocations: usize, hostile: &str) -> Run {
    let mut trace = Trace::default();
    trace.source.format = "made up".into();
    trace.source.torch_rules = true;
    trace.settings = Some(AllocatorSettings::default());
    let names = ["linear", "attention", "gelu", "layer_norm", "embedding", "cross_entropy", "step", hostile];
    let root = frame(&mut trace, "main", "/home/someone/train.py", 12);
    let mut stacks = Vec::new();
    for (i, name) in names.iter().enumerate() {
        for line in 0..6 {
            let file = match i {
                7 => hostile.to_string(),
                6 => "/usr/lib/python3/site-packages/torch/optim/adamw.py".to_string(),
                _ => format!("/usr/lib/python3/site-packages/models/{name}.py"),
            };
            let own = frame(&mut trace, name, &file, 10 + line);
            let forward = frame(&mut trace, "forward", "/home/someone/model.py", 40 + i as u32);
            stacks.push(trace.stacks.intern(&[own, forward, root]));
        }
    }
    let mut machine = Machine::new(stacks);
    let mut random = Random(42);
    let weights: Vec<u64> =
        (0..120).map(|i| if i % 3 == 0 { 3 << 20 } else { 5 << 10 } * (1 + i % 4)).collect();
    for (i, &size) in weights.iter().enumerate() {
        machine.alloc(size, i % 6, 0);
    }
    let mut steps = Vec::new();
    let mut states = false;
    while machine.kinds.len() < allocations {
        let from = machine.now();
        annotate(&mut trace, "step", Stage::Start, machine.time);
        let length = 256 + 64 * (random.next() % 9);
        let mut kept = Vec::new();
        for layer in 0..48 {
            for _ in 0..4 {
                let size = length * (700 + 37 * (layer % 7)) * 4 + random.next() % 2 * 512;
                let temporary = machine.alloc(size / 2, 8 + (layer % 5) as usize * 6, 4);
                kept.push(machine.alloc(size, (layer % 8) as usize * 6 + (random.next() % 6) as usize, 3));
                machine.free(temporary);
                let small = machine.alloc(512 * (1 + random.next() % 5), 14, 4);
                machine.free(small);
            }
        }
        let mut gradients = Vec::new();
        while let Some(addr) = kept.pop() {
            let temporary = machine.alloc(length * 2048, 20, 4);
            if kept.len() % 4 == 0 {
                let size = weights[gradients.len() % weights.len()];
                gradients.push(machine.alloc(size, 26, 1));
            }
            machine.free(temporary);
            machine.free(addr);
        }
        if !states {
            for &size in &weights {
                machine.alloc(size, 36, 2);
                machine.alloc(size, 37, 2);
            }
            states = true;
        }
        for addr in gradients {
            machine.free(addr);
        }
        machine.time += 400;
        annotate(&mut trace, "step", Stage::End, machine.time);
        steps.push((from, machine.now()));
    }
    trace.devices.push(machine.device);
    Run { trace, kinds: machine.kinds, steps }
}

fn frame(trace: &mut Trace, name: &str, file: &str, line: u32) -> gapless_trace::stacks::FrameId {
    let (name, file) = (trace.strings.intern(name), trace.strings.intern(file));
    trace.frames.intern(Frame { name, file, line })
}

fn annotate(trace: &mut Trace, name: &str, stage: Stage, time: u64) {
    let name = trace.strings.intern(name);
    trace.annotations.push(Annotation { name, stage, device: 0, time: Micros(time) });
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

struct Machine {
    device: DeviceTrace,
    stacks: Vec<StackId>,
    kinds: Vec<u8>,
    time: u64,
    next_segment: u64,
    /// (small, size, address) of free blocks.
    free: BTreeSet<(bool, u64, u64)>,
    /// Address to (size, free, small, first of its segment).
    blocks: BTreeMap<u64, (u64, bool, bool, bool)>,
    requested: BTreeMap<u64, (u64, StackId)>,
    random: Random,
}

impl Machine {
    fn new(stacks: Vec<StackId>) -> Machine {
        let mut device = DeviceTrace::new(0);
        let _ = device.stream_index(StreamId(0));
        Machine {
            device,
            stacks,
            kinds: Vec::new(),
            time: 1_700_000_000_000_000,
            next_segment: 0x7f00_0000_0000,
            free: BTreeSet::new(),
            blocks: BTreeMap::new(),
            requested: BTreeMap::new(),
            random: Random(7),
        }
    }

    fn now(&self) -> Tick {
        Tick(self.device.events.len() as u32)
    }

    fn push(&mut self, action: Action, addr: u64, size: u64, stack: StackId) {
        self.time += 1 + self.random.next() % 9 * (self.random.next() % 5);
        self.device.events.push(Event {
            action,
            addr: DeviceAddr(addr),
            size: Bytes(size),
            time: Micros(self.time),
            stack,
            ..Event::default()
        });
    }

    fn alloc(&mut self, requested: u64, stack: usize, kind: u8) -> u64 {
        let stack = self.stacks[stack % self.stacks.len()];
        let settings = AllocatorSettings::default();
        let rounded = torch_rules::round_size(Bytes(requested), &settings);
        let small = torch_rules::is_small(rounded);
        let found = self.free.range((small, rounded.0, 0)..(small, u64::MAX, 0)).next().copied();
        let (_, size, addr) = found.unwrap_or_else(|| {
            let size = if small { 2 << 20 } else { rounded.0.next_multiple_of(2 << 20).max(20 << 20) };
            let addr = self.next_segment;
            self.next_segment += size.next_multiple_of(2 << 20) + (4 << 20);
            self.push(Action::SegmentAlloc, addr, size, stack);
            self.blocks.insert(addr, (size, true, small, true));
            self.free.insert((small, size, addr));
            (small, size, addr)
        });
        self.free.remove(&(small, size, addr));
        let first = self.blocks[&addr].3;
        let mut own = size;
        if torch_rules::splits(Bytes(size), rounded, false, &settings) {
            own = rounded.0;
            self.blocks.insert(addr + own, (size - own, true, small, false));
            self.free.insert((small, size - own, addr + own));
        }
        self.blocks.insert(addr, (own, false, small, first));
        self.push(Action::Alloc, addr, requested, stack);
        self.requested.insert(addr, (requested, stack));
        self.kinds.push(kind);
        addr
    }

    fn free(&mut self, addr: u64) {
        let (requested, stack) = self.requested.remove(&addr).expect("allocated before");
        self.push(Action::FreeRequested, addr, requested, stack);
        self.push(Action::FreeCompleted, addr, requested, stack);
        let (mut size, _, small, mut first) = self.blocks[&addr];
        let mut start = addr;
        if let Some((&next, &(other, true, _, false))) = self.blocks.range(addr + 1..).next()
            && next == addr + size
        {
            self.free.remove(&(small, other, next));
            self.blocks.remove(&next);
            size += other;
        }
        if !first
            && let Some((&before, &(other, true, _, begins))) = self.blocks.range(..addr).next_back()
            && before + other == addr
        {
            self.free.remove(&(small, other, before));
            self.blocks.remove(&addr);
            (start, size, first) = (before, size + other, begins);
        }
        self.blocks.insert(start, (size, true, small, first));
        self.free.insert((small, size, start));
    }
}
