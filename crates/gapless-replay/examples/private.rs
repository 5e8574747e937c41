//! Prints the most that private pools hold over the most that is live in them: of graphs captured in one pool, of trees
//! of graphs whose pool is put back to earlier states, and of recorded training steps captured whole; without windows
//! and with them, and the driver's time for each.
//!
//! `cargo run --release -p gapless-replay --example private`

#[allow(dead_code, reason = "other examples and tests use the rest")]
#[path = "../tests/support/scripts.rs"]
mod scripts;

use gapless_pool::{Options, Pool, PoolKey, Saved, SimDevice, StreamHandle};
use gapless_replay::{Op, Script};
use rustc_hash::FxHashMap;

const MIB: u64 = 1 << 20;
const CARD: u64 = 1 << 40;
const STREAM: StreamHandle = StreamHandle(7);
const GRAPHS: PoolKey = PoolKey(1, 0);
const TRACES: [&str; 5] =
    ["gpt2_train", "llama1b_varlen_ckpt", "llama_offload", "resnet_varbatch", "mixtral_moe"];

/// A pool that requests of graphs go to, and its live blocks.
struct Graphs {
    pool: Pool<SimDevice>,
    sizes: FxHashMap<u64, u64>,
    live: u64,
    peak: u64,
}

impl Graphs {
    fn new(options: Options) -> Graphs {
        let mut pool = Pool::new(SimDevice::new(CARD), options);
        pool.use_pool(GRAPHS);
        Graphs { pool, sizes: FxHashMap::default(), live: 0, peak: 0 }
    }

    fn begin(&mut self) {
        self.pool.set_quiet(true);
    }

    fn end(&mut self) {
        self.pool.set_quiet(false);
    }

    fn take(&mut self, size: u64) -> u64 {
        let addr = self.pool.alloc(size, STREAM, GRAPHS).expect("the card is large");
        let size = size.div_ceil(512).max(1) * 512;
        self.sizes.insert(addr, size);
        self.live += size;
        self.peak = self.peak.max(self.live);
        addr
    }

    fn give(&mut self, addr: u64) {
        self.live -= self.sizes.remove(&addr).expect("it is live");
        self.pool.free(addr).expect("it is live");
    }

    fn restore(&mut self, saved: &[Saved], live: &[(u64, u64)]) {
        self.pool.restore(GRAPHS, saved).expect("the pool is in use");
        self.sizes = live.iter().copied().collect();
        self.live = live.iter().map(|(_, size)| size).sum();
    }

    fn state(&self) -> (Vec<Saved>, Vec<(u64, u64)>) {
        (self.pool.save(GRAPHS), self.sizes.iter().map(|(&addr, &size)| (addr, size)).collect())
    }

    /// Held over live, both at most.
    fn ratio(&self) -> f64 {
        self.pool.stats().reserved.peak as f64 / self.peak as f64
    }
}

/// A model's sizes.
#[derive(Clone, Copy)]
struct Model {
    layers: u64,
    width: u64,
    inner: u64,
    heads: u64,
    words: u64,
}

const SMALL: Model = Model { layers: 12, width: 768, inner: 3072, heads: 12, words: 50_304 };
const LARGE: Model = Model { layers: 32, width: 4096, inner: 14_336, heads: 32, words: 128_256 };

/// One pass without gradients over `rows` tokens, in 16 bits, as eager PyTorch asks for it. The logits stay.
fn infer(on: &mut Graphs, model: Model, rows: u64, context: u64) -> u64 {
    let row = |width: u64| rows * width * 2;
    let mut hidden = on.take(row(model.width));
    for _ in 0..model.layers {
        let norm = on.take(row(model.width));
        let qkv = on.take(row(3 * model.width));
        on.give(norm);
        let scores = on.take(rows * model.heads * context * 4);
        let weights = on.take(rows * model.heads * context * 2);
        on.give(scores);
        let mixed = on.take(row(model.width));
        on.give(weights);
        on.give(qkv);
        let out = on.take(row(model.width));
        on.give(mixed);
        let sum = on.take(row(model.width));
        on.give(hidden);
        on.give(out);
        let norm = on.take(row(model.width));
        let up = on.take(row(2 * model.inner));
        on.give(norm);
        let act = on.take(row(model.inner));
        on.give(up);
        let down = on.take(row(model.width));
        on.give(act);
        hidden = on.take(row(model.width));
        on.give(sum);
        on.give(down);
    }
    let logits = on.take(rows * model.words * 2);
    let scaled = on.take(rows * model.words * 4);
    on.give(logits);
    on.give(hidden);
    scaled
}

/// A forward pass over `rows` tokens that keeps the tensors for its backward pass: last the loss's input.
fn forward(on: &mut Graphs, model: Model, rows: u64) -> Vec<u64> {
    let row = |width: u64| rows * width * 2;
    let mut kept = vec![on.take(row(model.width))];
    for _ in 0..model.layers {
        kept.push(on.take(row(model.width)));
        kept.push(on.take(rows * 4));
        kept.push(on.take(row(3 * model.width)));
        kept.push(on.take(row(model.width)));
        kept.push(on.take(rows * model.heads * 4));
        let out = on.take(row(model.width));
        kept.push(on.take(row(model.width)));
        on.give(out);
        kept.push(on.take(row(model.width)));
        kept.push(on.take(row(model.inner)));
        kept.push(on.take(row(model.inner)));
        let down = on.take(row(model.width));
        kept.push(on.take(row(model.width)));
        on.give(down);
    }
    kept.push(on.take(rows * model.words * 2));
    kept
}

/// The backward pass: gradients of weights, which stay, and of activations, which do not.
fn backward(on: &mut Graphs, model: Model, rows: u64, mut kept: Vec<u64>) -> Vec<u64> {
    let row = |width: u64| rows * width * 2;
    let mut weights = Vec::new();
    let down = |on: &mut Graphs, kept: &mut Vec<u64>, many: usize| {
        for addr in kept.drain(kept.len() - many..).rev() {
            on.give(addr);
        }
    };
    let logits = on.take(rows * model.words * 4);
    down(on, &mut kept, 1);
    let mut grad = on.take(row(model.width));
    weights.push(on.take(model.words * model.width * 2));
    on.give(logits);
    for _ in 0..model.layers {
        let inner = on.take(row(model.inner));
        weights.push(on.take(model.inner * model.width * 2));
        down(on, &mut kept, 1);
        let act = on.take(row(model.inner));
        on.give(inner);
        down(on, &mut kept, 2);
        let narrow = on.take(row(model.width));
        weights.push(on.take(model.inner * model.width * 2));
        on.give(act);
        down(on, &mut kept, 2);
        let sum = on.take(row(model.width));
        on.give(grad);
        on.give(narrow);
        let out = on.take(row(model.width));
        weights.push(on.take(model.width * model.width * 2));
        let qkv = on.take(row(3 * model.width));
        on.give(out);
        down(on, &mut kept, 3);
        let narrow = on.take(row(model.width));
        weights.push(on.take(3 * model.width * model.width * 2));
        on.give(qkv);
        down(on, &mut kept, 2);
        grad = on.take(row(model.width));
        on.give(sum);
        on.give(narrow);
    }
    down(on, &mut kept, 1);
    on.give(grad);
    weights
}

/// Numbers that look random, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Order {
    Falling,
    Rising,
    Random,
}

fn batches(order: Order, list: &[u64]) -> Vec<u64> {
    let mut list = list.to_vec();
    match order {
        Order::Rising => list.sort_unstable(),
        Order::Falling => list.sort_unstable_by_key(|batch| std::cmp::Reverse(*batch)),
        Order::Random => Random(11).shuffle(&mut list),
    }
    list
}

/// A graph for each batch size, in one pool; each one's result stays, or goes before the next.
fn servers(on: &mut Graphs, model: Model, list: &[u64], context: u64, keeps: bool) {
    for &batch in list {
        on.begin();
        let result = infer(on, model, batch, context);
        on.end();
        if !keeps {
            on.give(result);
        }
    }
}

/// A graph of a forward and one of a backward pass for each batch size, in one pool, as `make_graphed_callables` and
/// `torch.compile` make them: gradients of weights go when the optimizer has stepped.
fn trainers(on: &mut Graphs, model: Model, list: &[u64], keeps: bool) {
    for &rows in list {
        on.begin();
        let kept = forward(on, model, rows);
        let gradients = backward(on, model, rows, kept);
        on.end();
        if !keeps {
            gradients.into_iter().for_each(|addr| on.give(addr));
        }
    }
}

/// A tree of graphs: from each state several paths go on with other shapes, each behind the state of its parent.
fn tree(on: &mut Graphs, model: Model, seed: u64, rows: u64, context: u64) {
    let mut random = Random(seed);
    let mut states = vec![on.state()];
    for _ in 0..40 {
        let from = random.below(states.len() as u64) as usize;
        let (saved, live) = states[from].clone();
        on.restore(&saved, &live);
        on.begin();
        let batch = 1 + random.below(rows);
        let mut results = Vec::new();
        // A few calls of compiled parts, whose results are alive when the next is recorded.
        for _ in 0..1 + random.below(3) {
            results.push(infer(
                on,
                Model { layers: 1 + random.below(3), words: model.width, ..model },
                batch,
                context,
            ));
        }
        if random.below(2) == 0 {
            let part = Model { layers: 1 + random.below(2), words: model.width, ..model };
            let kept = forward(on, part, batch);
            if random.below(2) == 0 {
                results.extend(backward(on, part, batch, kept));
            } else {
                results.extend(kept);
            }
        }
        on.end();
        // The program drops some before the next is recorded.
        random.shuffle(&mut results);
        for addr in results.drain(..results.len() / 2) {
            on.give(addr);
        }
        if states.len() < 12 && on.peak > 0 {
            states.push(on.state());
        }
    }
}

/// The requests of a recorded run that are given back in it, as if each step were captured in one pool.
fn recorded(on: &mut Graphs, script: &Script) {
    let mut freed = vec![false; script.slots as usize + 1];
    for op in &script.ops {
        if let Op::Free { slot } | Op::FreeRequested { slot } = *op {
            freed[slot as usize] = true;
        }
    }
    let mut slots: FxHashMap<u32, u64> = FxHashMap::default();
    on.begin();
    for op in &script.ops {
        match *op {
            Op::Alloc { slot, size, .. } if freed[slot as usize] => {
                let addr = on.take(size.0);
                if let Some(old) = slots.insert(slot, addr) {
                    on.give(old);
                }
            }
            Op::Free { slot } | Op::FreeRequested { slot } => {
                if let Some(addr) = slots.remove(&slot) {
                    on.give(addr);
                }
            }
            _ => {}
        }
    }
    on.end();
}

/// Runs the same graphs with and without windows in their pool.
fn show(name: &str, run: impl Fn(&mut Graphs)) {
    let [without, with] = [false, true].map(|private_windows| {
        let mut graphs = Graphs::new(Options { private_windows, ..Options::default() });
        run(&mut graphs);
        graphs
    });
    let live = with.peak as f64 / MIB as f64;
    let ms = |graphs: &Graphs| graphs.pool.device().driver_ns as f64 / 1e6;
    println!(
        "{name:<44} {live:>9.1} {:>8.3} {:>8.3} {:>8.1} {:>8.1} {:>8}",
        without.ratio(),
        with.ratio(),
        ms(&without),
        ms(&with),
        with.pool.stats().private_windows
    );
}

fn main() {
    println!(
        "{:<44} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "graphs", "live MiB", "without", "with", "ms", "ms", "windows"
    );
    let sizes: Vec<u64> = (1..=64).collect();
    let vllm: Vec<u64> = [1, 2, 4].into_iter().chain((1..=64).map(|n| 8 * n)).collect();
    let rows: Vec<u64> = (1..=16).map(|n| 128 * n + 17 * (n % 5)).collect();
    for (name, order) in [("falling", Order::Falling), ("rising", Order::Rising), ("random", Order::Random)] {
        for (what, keeps) in [("results go", false), ("results stay", true)] {
            show(&format!("large, 1 to 64 rows, {name}, {what}"), |on| {
                servers(on, LARGE, &batches(order, &sizes), 2048, keeps);
            });
            show(&format!("large, 1 to 512 rows, {name}, {what}"), |on| {
                servers(on, LARGE, &batches(order, &vllm), 128, keeps);
            });
            show(&format!("small, 128 to 2048 rows, {name}, {what}"), |on| {
                servers(on, SMALL, &batches(order, &rows), 1024, keeps);
            });
        }
        show(&format!("training small, 128 to 2048 rows, {name}"), |on| {
            trainers(on, SMALL, &batches(order, &rows), false);
        });
        show(&format!("training large/8, 128 to 2048 rows, {name}"), |on| {
            trainers(on, Model { layers: 4, ..LARGE }, &batches(order, &rows), false);
        });
    }
    for seed in 1..=4 {
        show(&format!("tree of small, seed {seed}"), |on| tree(on, SMALL, seed, 2048, 512));
        show(&format!("tree of large, seed {seed}"), |on| tree(on, LARGE, seed, 2048, 512));
        show(&format!("tree of large, 1 to 64 rows, seed {seed}"), |on| tree(on, LARGE, seed, 64, 2048));
    }
    for name in TRACES {
        let script = scripts::recorded(&scripts::trace(name)).expect("a trace of this repository");
        show(&format!("captured: {name}"), |on| recorded(on, &script));
    }
}
