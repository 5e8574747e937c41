//! Synthetic runs with known truth: a builder of events over a toy allocator (addresses are never reused), and programs
//! that allocate as training, inference and serving do.

use crate::events::{Action, Event};
use crate::history::History;
use crate::stacks::{Frame, StackId};
use crate::trace::{Annotation, Block, BlockState, DeviceTrace, Segment, SizeClass, Stage, Trace};
use crate::words::{Bytes, DeviceAddr, Micros, StreamId, Tick};
use std::collections::BTreeMap;

const BASE: u64 = 1 << 40;

/// A small generator of numbers, the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.roll() % n
    }

    /// In `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        self.roll() as f64 / (1u64 << 53) as f64
    }
}

/// A block in the caller's hands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held(u64);

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) trace: Trace,
    pub(crate) device: DeviceTrace,
    next: u64,
    live: BTreeMap<u64, (u64, StackId)>,
    pub(crate) stream: u16,
    pub(crate) stack: StackId,
}

impl Run {
    pub(crate) fn new() -> Run {
        let mut device = DeviceTrace::new(0);
        device.stream_index(StreamId(0));
        Run {
            trace: Trace::default(),
            device,
            next: BASE,
            live: BTreeMap::new(),
            stream: 0,
            stack: StackId::NONE,
        }
    }

    pub(crate) fn now(&self) -> Tick {
        Tick(self.device.events.len() as u32)
    }

    pub(crate) fn push(&mut self, action: Action, addr: u64, size: u64) {
        let time = Micros(1_000_000 + 10 * self.device.events.len() as u64);
        let (stream, stack) = (self.stream, self.stack);
        self.device.events.push(Event {
            action,
            addr: DeviceAddr(addr),
            size: Bytes(size),
            stream,
            stack,
            time,
            ..Event::default()
        });
    }

    pub(crate) fn alloc(&mut self, size: u64) -> Held {
        let addr = self.next;
        self.next += size.next_multiple_of(512).max(512);
        self.live.insert(addr, (size, self.stack));
        self.push(Action::Alloc, addr, size);
        Held(addr)
    }

    pub(crate) fn free(&mut self, held: Held) {
        let (size, _) = self.live.remove(&held.0).expect("held");
        self.push(Action::FreeRequested, held.0, size);
        self.push(Action::FreeCompleted, held.0, size);
    }

    /// Allocates and frees at once.
    pub(crate) fn touch(&mut self, size: u64) {
        let held = self.alloc(size);
        self.free(held);
    }

    pub(crate) fn set_stack(&mut self, frames: &[(&str, &str, u32)]) {
        let ids: Vec<_> = frames
            .iter()
            .map(|&(name, file, line)| {
                let frame = Frame {
                    name: self.trace.strings.intern(name),
                    file: self.trace.strings.intern(file),
                    line,
                };
                self.trace.frames.intern(frame)
            })
            .collect();
        self.stack = self.trace.stacks.intern(&ids);
    }

    pub(crate) fn mark(&mut self, name: &str, stage: Stage) {
        let time = Micros(1_000_000 + 10 * self.device.events.len() as u64 - 5);
        let name = self.trace.strings.intern(name);
        self.trace.annotations.push(Annotation { name, stage, device: 0, time });
    }

    /// The trace and its history.
    pub(crate) fn finish(self) -> (Trace, History) {
        let (mut trace, device) = (self.trace, self.device);
        let history = History::rebuild(&trace, &device).expect("a sound run");
        trace.devices.push(device);
        (trace, history)
    }

    /// As a ring that kept all but the first `dropped` events, with the heap at the end.
    pub(crate) fn finish_ring(mut self, dropped: usize) -> (Trace, History) {
        let mut device = DeviceTrace::new(0);
        device.streams = self.device.streams.clone();
        for event in self.device.events.iter().skip(dropped) {
            device.events.push(event);
        }
        let mut at = BASE;
        for (&addr, &(size, stack)) in &self.live {
            if addr > at {
                device.blocks.push(block(at, addr - at, BlockState::Free, StackId::NONE));
            }
            device.blocks.push(block(addr, size, BlockState::Live, stack));
            at = addr + size;
        }
        device.blocks.push(block(at, self.next + 512 - at, BlockState::Free, StackId::NONE));
        device.segments.push(Segment {
            addr: DeviceAddr(BASE),
            size: Bytes(self.next + 512 - BASE),
            stream: 0,
            pool: 0,
            class: SizeClass::Large,
            expandable: false,
            stack: StackId::NONE,
            first_block: 0,
            block_count: device.blocks.len() as u32,
        });
        self.device = device;
        self.finish()
    }
}

fn block(addr: u64, size: u64, state: BlockState, stack: StackId) -> Block {
    Block { addr: DeviceAddr(addr), size: Bytes(size), requested: Bytes(size), state, stack }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Optimizer {
    /// Works in place.
    Sgd,
    /// One state a weight.
    Momentum,
    /// Two states a weight, and temporaries of the weights' sizes.
    Adam,
}

/// A training run of a small network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Training {
    pub(crate) layers: u64,
    pub(crate) steps: u64,
    /// Rows of a step's batch; 0: vary.
    pub(crate) rows: u64,
    pub(crate) optimizer: Optimizer,
    /// Passes a step.
    pub(crate) accumulate: u64,
    pub(crate) annotate: bool,
    pub(crate) stacks: bool,
    /// `zero_grad` at the beginning of a step instead of its end.
    pub(crate) zero_first: bool,
    /// Gradients are zeroed in place, not dropped.
    pub(crate) keep_gradients: bool,
    /// Bytes that each step keeps for ever.
    pub(crate) leak: u64,
}

impl Default for Training {
    fn default() -> Self {
        Training {
            layers: 6,
            steps: 10,
            rows: 32,
            optimizer: Optimizer::Adam,
            accumulate: 1,
            annotate: false,
            stacks: false,
            zero_first: false,
            keep_gradients: false,
            leak: 0,
        }
    }
}

/// The true figures of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    /// The beginning of each step, and the last one's end.
    pub(crate) cuts: Vec<Tick>,
    pub(crate) weights: u64,
    pub(crate) gradients: u64,
    pub(crate) state: u64,
}

const WIDTH: u64 = 256;

impl Training {
    fn weight_sizes(&self) -> Vec<u64> {
        let mut sizes = vec![4 * 10_000 * WIDTH];
        for _ in 0..self.layers {
            sizes.extend([4 * 3 * WIDTH * WIDTH, 4 * 3 * WIDTH, 4 * 4 * WIDTH * WIDTH, 4 * 4 * WIDTH]);
        }
        sizes
    }

    pub(crate) fn run(&self, run: &mut Run) -> Truth {
        let sizes = self.weight_sizes();
        let total: u64 = sizes.iter().sum();
        let states = match self.optimizer {
            Optimizer::Sgd => 0,
            Optimizer::Momentum => 1,
            Optimizer::Adam => 2,
        };
        self.at(
            run,
            &[("__init__", "site-packages/torch/nn/modules/linear.py", 100), ("build", "train.py", 10)],
        );
        for &size in &sizes {
            run.touch(size / 2);
            run.alloc(size);
        }
        let mut truth = Truth { weights: total, gradients: total, state: states * total, ..Truth::default() };
        let mut dice = Dice::new(7);
        let mut gradients: Vec<Option<Held>> = vec![None; sizes.len()];
        for step in 0..self.steps {
            truth.cuts.push(run.now());
            if self.zero_first {
                self.zero_grad(run, &mut gradients);
            }
            for _ in 0..self.accumulate {
                let rows = if self.rows == 0 { 8 + dice.below(500) } else { self.rows };
                self.pass(run, rows, &sizes, &mut gradients);
            }
            self.optimize(run, step, &sizes);
            if !self.zero_first {
                self.zero_grad(run, &mut gradients);
            }
            if self.leak > 0 {
                self.at(run, &[("append", "train.py", 77)]);
                run.alloc(self.leak);
            }
        }
        truth.cuts.push(run.now());
        truth
    }

    fn at(&self, run: &mut Run, frames: &[(&str, &str, u32)]) {
        if self.stacks {
            run.set_stack(frames);
        }
    }

    /// Forward and backward.
    fn pass(&self, run: &mut Run, rows: u64, sizes: &[u64], gradients: &mut [Option<Held>]) {
        self.at(run, &[("forward", "site-packages/torch/nn/functional.py", 5), ("forward", "model.py", 123)]);
        let input = run.alloc(rows * 8);
        let mut saved = Vec::new();
        for layer in 0..self.layers {
            run.touch(rows * WIDTH * 12);
            saved.push(run.alloc(rows * WIDTH * 4));
            saved.push(run.alloc(rows * WIDTH * 12 + layer % 2));
            run.touch(4);
            saved.push(run.alloc(rows * 4));
        }
        let loss = run.alloc(4);
        self.at(
            run,
            &[("backward", "site-packages/torch/autograd/graph.py", 800), ("train", "train.py", 30)],
        );
        let mut upstream = run.alloc(rows * WIDTH * 4);
        for weight in (0..sizes.len()).rev() {
            let gradient = run.alloc(sizes[weight]);
            // Accumulation adds to the gradient that is there.
            match gradients[weight] {
                Some(_) => run.free(gradient),
                None => gradients[weight] = Some(gradient),
            }
            if weight % 4 == 1 {
                for _ in 0..3 {
                    if let Some(activation) = saved.pop() {
                        run.free(activation);
                    }
                }
                let next = run.alloc(rows * WIDTH * 4);
                run.free(upstream);
                upstream = next;
            }
        }
        run.free(upstream);
        for activation in saved {
            run.free(activation);
        }
        run.free(loss);
        run.free(input);
    }

    fn optimize(&self, run: &mut Run, step: u64, sizes: &[u64]) {
        self.at(
            run,
            &[("_multi_tensor", "site-packages/torch/optim/adamw.py", 400), ("train", "train.py", 31)],
        );
        if self.annotate {
            run.mark("Optimizer.step#AdamW.step", Stage::Start);
        }
        if step == 0 {
            for &size in sizes {
                match self.optimizer {
                    Optimizer::Sgd => {}
                    Optimizer::Momentum => drop(run.alloc(size)),
                    Optimizer::Adam => {
                        run.alloc(size);
                        run.alloc(size);
                    }
                }
            }
        }
        if self.optimizer == Optimizer::Adam {
            let temporaries: Vec<Held> = sizes.iter().map(|&size| run.alloc(size)).collect();
            for held in temporaries {
                run.free(held);
            }
        }
        if self.annotate {
            run.mark("Optimizer.step#AdamW.step", Stage::End);
        }
    }

    fn zero_grad(&self, run: &mut Run, gradients: &mut [Option<Held>]) {
        if self.annotate {
            run.mark("Optimizer.zero_grad#AdamW.zero_grad", Stage::Start);
        }
        for gradient in gradients.iter_mut().filter(|_| !self.keep_gradients) {
            if let Some(held) = gradient.take() {
                run.free(held);
            }
        }
        if self.annotate {
            run.mark("Optimizer.zero_grad#AdamW.zero_grad", Stage::End);
        }
    }
}

/// Forward passes only. Rows 0: vary.
pub(crate) fn inference(run: &mut Run, requests: u64, rows: u64) -> Truth {
    let mut dice = Dice::new(3);
    let weights: Vec<u64> = (0..20).map(|i| 4 * WIDTH * WIDTH * (1 + i % 4)).collect();
    for &size in &weights {
        run.alloc(size);
    }
    let mut truth = Truth { weights: weights.iter().sum(), ..Truth::default() };
    for _ in 0..requests {
        truth.cuts.push(run.now());
        let rows = if rows == 0 { 4 + dice.below(900) } else { rows };
        let input = run.alloc(rows * 8);
        let mut hidden = run.alloc(rows * WIDTH * 4);
        for _ in 0..20 {
            let normed = run.alloc(rows * WIDTH * 4);
            let wide = run.alloc(rows * WIDTH * 16);
            run.free(normed);
            run.touch(rows * 4);
            let next = run.alloc(rows * WIDTH * 4);
            run.free(wide);
            run.free(hidden);
            hidden = next;
        }
        let logits = run.alloc(rows * 1000 * 4);
        run.free(hidden);
        run.touch(rows * 8);
        run.free(logits);
        run.free(input);
    }
    truth.cuts.push(run.now());
    truth
}

/// Requests with a cache of keys and values that grows with every token, by copying.
pub(crate) fn serving(run: &mut Run, requests: u64, tokens: u64) -> Truth {
    const LAYERS: usize = 8;
    let weights: Vec<u64> = (0..LAYERS as u64 * 4).map(|i| 2 * WIDTH * WIDTH * (1 + i % 4)).collect();
    for &size in &weights {
        run.alloc(size);
    }
    let mut truth = Truth { weights: weights.iter().sum(), ..Truth::default() };
    for request in 0..requests {
        let mut length = 100 + request * 13;
        let mut cache: Vec<Option<Held>> = vec![None; LAYERS];
        for token in 0..tokens {
            truth.cuts.push(run.now());
            let rows = if token == 0 { length } else { 1 };
            length += u64::from(token > 0);
            let embedded = run.alloc(rows * WIDTH * 2);
            for slot in &mut cache {
                let q = run.alloc(rows * WIDTH * 2 + 64);
                let grown = run.alloc(length * WIDTH * 4);
                if let Some(old) = slot.replace(grown) {
                    run.free(old);
                }
                run.touch(rows * WIDTH * 8);
                run.free(q);
            }
            run.touch(32_000 * 2);
            run.free(embedded);
        }
        for held in cache.into_iter().flatten() {
            run.free(held);
        }
    }
    truth.cuts.push(run.now());
    truth
}

/// No structure: random sizes, random lifetimes. `sizes` 0: any size.
pub(crate) fn noise(run: &mut Run, allocations: u64, sizes: u64, seed: u64) {
    let mut dice = Dice::new(seed);
    let mut held = Vec::new();
    for _ in 0..allocations {
        let size = if sizes == 0 { 1 + dice.below(1 << 20) } else { 512 * (1 + dice.below(sizes)) };
        held.push(run.alloc(size));
        while held.len() > 60 {
            let at = dice.below(held.len() as u64) as usize;
            let one = held.swap_remove(at);
            run.free(one);
        }
    }
}
