//! Training runs made up without a recording: a model of a few layers, steps that keep activations and free them in
//! reverse order, gradients, an optimizer's state, a clock. Model, length, noise, fault and the recording's contents
//! (steps, stacks) are random. The model of PyTorch's allocator places the blocks.

use super::generate::{Random, Writer};
use gapless_replay::Lane;
use gapless_replay::device::{Placement, SimDevice};
use gapless_replay::torch::{Torch, TorchSettings, TorchVersion};
use gapless_trace::stacks::Frame;
use gapless_trace::{Action, Annotation, Micros, PoolId, StackId, Stage, StreamId, Trace};

const MIB: f64 = (1 << 20) as f64;
const VERSION: TorchVersion = TorchVersion(2, 11);

/// The fault of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Bytes that stay behind in every step, from one on.
    Leak {
        bytes: u64,
        from: usize,
    },
    /// A factor on sizes that follow the batch, in one step or in all.
    Batch {
        factor: f64,
        step: Option<usize>,
    },
    /// A buffer that is kept: from before the first step, or from the middle of one.
    Buffer {
        bytes: u64,
        step: Option<usize>,
    },
    /// A buffer that is taken and given back in every step.
    Scratch(u64),
    Settings(&'static str),
    /// The size of the card.
    Card(u64),
    /// A request that failed, after which the program went on.
    Caught {
        bytes: u64,
        step: usize,
    },
    /// A factor on all durations.
    Slow(f64),
    /// Microseconds that the rank waits before every step.
    Waits(u64),
}

impl Fault {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Fault::Leak { .. } => "leak",
            Fault::Batch { .. } => "larger-batch",
            Fault::Buffer { .. } | Fault::Scratch(_) => "extra-buffer",
            Fault::Settings(_) => "settings",
            Fault::Card(_) | Fault::Caught { .. } => "out-of-memory",
            Fault::Slow(_) | Fault::Waits(_) => "straggler",
        }
    }
}

/// The number of kinds of faults that [`Case::new`] plants.
pub(crate) const FAULTS: u64 = 10;

/// A model, or a stage of one.
#[derive(Clone, Debug)]
struct Model {
    /// The weights of each layer.
    layers: Vec<Vec<u64>>,
    activation: f64,
    /// Activations that a layer keeps.
    per_layer: usize,
    /// Copies of the weights that the optimizer makes in the first step.
    states: usize,
}

impl Model {
    fn new(random: &mut Random, scale: f64) -> Model {
        let layers = [2, 4, 6, 12][random.below(4)];
        let width = (f64::from(1 << random.below(5)) * MIB * scale) as u64;
        Model {
            layers: vec![vec![width, 3 * width, width / 3 + 4096, 4096]; layers],
            activation: random.real(2.0, 10.0) * MIB * scale,
            per_layer: [2, 3, 5][random.below(3)],
            states: random.below(3),
        }
    }
}

/// A run: its ranks, and the rank with a fault.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    seed: u64,
    pub(crate) ranks: u32,
    models: Vec<Model>,
    /// True if ranks of one stage are contiguous; else the stages take turns.
    in_blocks: bool,
    /// The length of the batch of each step, on all ranks.
    lengths: Vec<f64>,
    /// Shares by which sizes of a step, lengths of batches and the clock differ between ranks.
    sizes: f64,
    varied: f64,
    times: f64,
    logging: u64,
    pub(crate) annotated: bool,
    pub(crate) stacks: bool,
    pub(crate) odd: Option<(u32, Fault)>,
}

impl Case {
    /// Case number `i` of a seed: with one of the faults by turns, or clean.
    pub(crate) fn new(i: u64, seed: u64, planted: bool) -> Case {
        let mut random = Random::new(seed.wrapping_mul(1_000_003) + 2 * i + u64::from(planted));
        let stages = [1, 1, 1, 2][random.below(4)];
        // Of two replicas, the one that failed is known, but not the one with usual settings; stages
        // have three or more.
        let fewest = if planted && i % FAULTS == 3 { 1 } else { 0 };
        let sizes: [u32; 12] = [2, 3, 4, 4, 6, 8, 8, 12, 16, 24, 32, 64];
        let mut ranks = sizes[fewest + random.below(sizes.len() - fewest)];
        if stages == 2 {
            ranks = ranks.max(6);
        }
        let scale = [0.5, 1.0, 1.0, 2.0, 8.0][random.below(5)];
        let steps = [4, 5, 8, 12, 20, 40][random.below(6)];
        let is_even = random.below(3) < 2;
        let lengths = (0..steps).map(|_| if is_even { 1.0 } else { random.real(0.6, 1.4) }).collect();
        let mut case = Case {
            seed: random.next(),
            ranks,
            models: (0..stages).map(|_| Model::new(&mut random, scale)).collect(),
            in_blocks: random.below(2) == 0,
            lengths,
            sizes: [0.0, 0.01, 0.03][random.below(3)],
            varied: [0.0, 0.0, 0.0, 0.1][random.below(4)],
            times: [0.005, 0.02, 0.04][random.below(3)],
            logging: (random.next() % 2) << 20,
            annotated: random.below(2) == 0,
            stacks: random.below(5) < 3,
            odd: None,
        };
        if planted {
            let odd = random.below(ranks as usize) as u32;
            let fault = case.fault(i, odd, &mut random);
            case.odd = Some((odd, fault));
        }
        case
    }

    fn fault(&self, i: u64, odd: u32, random: &mut Random) -> Fault {
        let usual = self.rank(odd);
        let events = &usual.devices[0].events;
        let (mut live, mut peak) = (0i64, 0i64);
        for event in events.indices().map(|at| events.get(at)) {
            match event.action {
                Action::Alloc => live += event.size.0 as i64,
                Action::FreeRequested => live -= event.size.0 as i64,
                _ => {}
            }
            peak = peak.max(live);
        }
        let steps = self.lengths.len();
        let length = events
            .time_at(gapless_trace::Tick(events.len() as u32 - 1))
            .since(events.time_at(gapless_trace::Tick(0)))
            .0;
        let share = |random: &mut Random, low, high| (peak as f64 * random.real(low, high)) as u64;
        // A fault must be larger if batches vary between ranks, and between two ranks, to stand out.
        let more = if self.varied > 0.0 { 1.3 } else { 1.0 };
        let pair = if self.ranks == 2 { 1.3 } else { 1.0 };
        match i % FAULTS {
            0 => Fault::Leak { bytes: share(random, 0.015 * pair, 0.05), from: random.below(steps - 3) },
            1 => {
                Fault::Batch { factor: random.real(1.4 * more, 2.2 * more), step: Some(random.below(steps)) }
            }
            2 => Fault::Buffer {
                bytes: share(random, 0.04, 0.2).max(8 << 20),
                step: (random.below(2) == 0).then(|| random.below(steps)),
            },
            3 => Fault::Settings(
                ["expandable_segments:True", "max_split_size_mb:64", "garbage_collection_threshold:0.8"]
                    [random.below(3)],
            ),
            4 => Fault::Card(share(random, 0.6, 0.9)),
            5 => Fault::Slow(random.real(1.25 * pair, 2.0)),
            6 => Fault::Batch { factor: random.real(1.3 * more * pair, 2.0 * more), step: None },
            7 => Fault::Scratch(share(random, 0.15, 0.3).max(8 << 20)),
            8 => Fault::Caught { bytes: share(random, 0.1, 0.4), step: random.below(steps) },
            _ => Fault::Waits((length as f64 / steps as f64 * random.real(0.4, 1.0)) as u64),
        }
    }

    fn stage(&self, rank: u32) -> usize {
        let stages = self.models.len() as u32;
        (if self.in_blocks { rank * stages / self.ranks } else { rank % stages }) as usize
    }

    /// One rank of the run, as a trace.
    pub(crate) fn rank(&self, rank: u32) -> Trace {
        let fault = self.odd.filter(|(odd, _)| *odd == rank).map(|(_, fault)| fault);
        let mut maker = Maker::new(self, rank, fault);
        maker.run(&self.models[self.stage(rank)]);
        maker.trace.devices.push(maker.writer.out);
        maker.trace
    }
}

/// One rank while it is made.
struct Maker<'a> {
    case: &'a Case,
    rank: u32,
    fault: Option<Fault>,
    random: Random,
    trace: Trace,
    writer: Writer,
    next: u32,
    pace: f64,
}

impl<'a> Maker<'a> {
    fn new(case: &'a Case, rank: u32, fault: Option<Fault>) -> Maker<'a> {
        let mut random = Random::new(case.seed ^ (u64::from(rank) << 32));
        let mut settings = TorchSettings::default();
        if let Some(Fault::Settings(conf)) = fault {
            settings = TorchSettings::parse(conf, VERSION).expect("settings");
            conf.clone_into(&mut settings.base.conf);
        }
        let mut trace = Trace { settings: Some(settings.base.clone()), ..Trace::default() };
        trace.source.format = "made up".to_owned();
        trace.source.torch_rules = true;
        let card = if let Some(Fault::Card(bytes)) = fault { bytes } else { 1 << 42 };
        let lanes = [Lane { stream: StreamId(0), pool: PoolId::default() }];
        let torch = Torch::new(settings, VERSION, SimDevice::placing(card, Placement::Lowest), &lanes);
        let start = 1_700_000_000_000_000 + random.next() % 10_000_000;
        let pace = 1.0 + random.real(-case.times, case.times);
        Maker {
            case,
            rank,
            fault,
            trace,
            writer: Writer::new(0, torch, start, &lanes),
            next: 0,
            pace,
            random,
        }
    }

    fn pass(&mut self, us: f64) {
        self.writer.now += (us * self.pace) as u64 + 1;
    }

    fn stack(&mut self, name: &str, file: &str, line: u32) -> StackId {
        if !self.case.stacks {
            return StackId::NONE;
        }
        let mut frame = |name: &str, file: &str, line: u32| {
            let (name, file) = (self.trace.strings.intern(name), self.trace.strings.intern(file));
            self.trace.frames.intern(Frame { name, file, line })
        };
        let frames = [frame(name, file, line), frame("main", "/app/train.py", 10)];
        self.trace.stacks.intern(&frames)
    }

    fn alloc(&mut self, bytes: f64, (name, file, line): (&str, &str, u32)) -> u32 {
        let us = self.random.real(5.0, 60.0);
        self.pass(us);
        let stack = self.stack(name, file, line);
        let slot = self.next;
        self.next += 1;
        if !self.writer.failed {
            self.writer.alloc(slot, (bytes as u64).max(1), 0, stack);
        }
        slot
    }

    fn free(&mut self, slot: u32) {
        let us = self.random.real(2.0, 20.0);
        self.pass(us);
        if !self.writer.failed {
            self.writer.free(slot);
        }
    }

    fn mark(&mut self, step: usize, stage: Stage) {
        if self.case.annotated {
            let name = self.trace.strings.intern(&format!("ProfilerStep#{step}"));
            self.trace.annotations.push(Annotation { name, stage, device: 0, time: Micros(self.writer.now) });
        }
    }

    fn run(&mut self, model: &Model) {
        for (l, layer) in model.layers.iter().enumerate() {
            for (k, &bytes) in layer.iter().enumerate() {
                self.alloc(bytes as f64, ("empty", "/torch/linear.py", (4 * (l % 4) + k) as u32));
            }
        }
        if let Some(Fault::Buffer { bytes, step: None }) = self.fault {
            self.alloc(bytes as f64, ("cache", "/app/extra.py", 7));
        }
        if let Some(Fault::Slow(factor)) = self.fault {
            self.pace *= factor;
        }
        for step in 0..self.case.lengths.len() {
            if !self.writer.failed {
                self.step(model, step);
            }
        }
    }

    fn step(&mut self, model: &Model, step: usize) {
        if let Some(Fault::Waits(us)) = self.fault {
            self.pass(us as f64);
        }
        self.mark(step, Stage::Start);
        let (sizes, varied) = (self.case.sizes, self.case.varied);
        let mut length = self.case.lengths[step] * (1.0 + self.random.real(-sizes, sizes));
        length *= 1.0 + self.random.real(-varied, varied);
        if let Some(Fault::Batch { factor, step: which }) = self.fault
            && which.is_none_or(|which| which == step)
        {
            length *= factor;
        }
        let input = self.alloc(65536.0 * length, ("collate", "/app/data.py", 5));
        let (mut kept, mut scratch) = (Vec::new(), None);
        for l in 0..model.layers.len() {
            for j in 0..model.per_layer {
                let line = 10 * (l % 4) as u32 + j as u32;
                let brief =
                    self.alloc(model.activation * length / 2.0, ("softmax", "/torch/functional.py", line));
                let bytes = model.activation * length * (1.0 + 0.3 * j as f64);
                kept.push(self.alloc(bytes, ("linear", "/app/model.py", line)));
                self.free(brief);
            }
            match self.fault {
                Some(Fault::Scratch(bytes)) if l == model.layers.len() / 2 => {
                    scratch = Some(self.alloc(bytes as f64, ("debug", "/app/extra.py", 22)));
                }
                _ => {}
            }
        }
        match self.fault {
            Some(Fault::Buffer { bytes, step: Some(at) }) if at == step => {
                self.alloc(bytes as f64, ("cache", "/app/extra.py", 7));
            }
            Some(Fault::Leak { bytes, from }) if step >= from => {
                self.alloc(bytes as f64, ("remember", "/app/extra.py", 12));
            }
            Some(Fault::Caught { bytes, step: at }) if at == step => {
                self.writer.push(Action::Oom, 5 << 20, bytes, (0, 0), StackId::NONE);
            }
            _ => {}
        }
        let mut gradients = Vec::new();
        for layer in model.layers.iter().rev() {
            for _ in 0..model.per_layer {
                if let Some(slot) = kept.pop() {
                    self.free(slot);
                }
            }
            for &bytes in layer {
                gradients.push(self.alloc(bytes as f64, ("backward", "/torch/graph.py", 80)));
            }
        }
        if let Some(slot) = scratch {
            self.free(slot);
        }
        if step == 0 {
            for &bytes in model.layers.iter().flatten() {
                for state in 0..model.states {
                    self.alloc(bytes as f64, ("_init_group", "/torch/optim/adamw.py", 100 + state as u32));
                }
            }
        }
        for slot in gradients {
            self.free(slot);
        }
        self.free(input);
        if self.rank == 0 && self.case.logging > 0 {
            let slot = self.alloc(self.case.logging as f64, ("log", "/app/log.py", 3));
            self.free(slot);
        }
        self.pass(2000.0);
        self.mark(step, Stage::End);
    }
}
