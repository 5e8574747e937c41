//! The promises of every allocator (`allocator.rs`), checked for each of them on random programs: after every step the
//! allocator is held against a plain record of its requests and answers.
//!
//! Another allocator joins with a line in `ALLOCATORS`.

mod support;

use gapless_pool::Options;
use gapless_replay::gapless::Gapless;
use gapless_replay::models::Model;
use gapless_replay::torch::{Torch, TorchSettings, TorchVersion};
use gapless_replay::{Allocator, Device, Lane, Oom, Op, Script, SimDevice, Slot, Stats};
use gapless_trace::{Bytes, DeviceAddr, History};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use support::{PRIVATE, Scenario, Step, lanes, scenario};

type Make = fn(&str, SimDevice, &[Lane]) -> Box<dyn Allocator>;

struct Candidate {
    name: &'static str,
    make: Make,
    /// True if every stretch of reserved memory is a segment of its own call: mapped pages are not.
    counts_segments: bool,
    /// True if blocks may lie at second addresses of their pages: then no segment need contain them.
    aliases: bool,
}

const fn model(name: &'static str) -> Candidate {
    let make: Make = |name, device, lanes| {
        let model: Model = name.parse().unwrap_or_else(|error| panic!("{error}"));
        model.build(device, lanes).unwrap_or_else(|error| panic!("{error}"))
    };
    Candidate { name, make, counts_segments: true, aliases: false }
}

/// `torch`, a version, and its settings as PyTorch reads them.
const fn torch(name: &'static str, counts_segments: bool) -> Candidate {
    let make: Make = |name, device, lanes| {
        let mut words = name.split(' ').skip(1);
        let version: TorchVersion = words.next().unwrap_or_default().parse().expect("a version");
        let settings = TorchSettings::parse(words.next().unwrap_or_default(), version);
        Box::new(Torch::new(settings.unwrap_or_else(|error| panic!("{error}")), version, device, lanes))
    };
    Candidate { name, make, counts_segments, aliases: false }
}

/// Our own, over its own simulated card of the same size.
const fn gapless(name: &'static str) -> Candidate {
    let make: Make = |_, device, lanes| Box::new(Gapless::new(device.available(), Options::default(), lanes));
    Candidate { name, make, counts_segments: false, aliases: true }
}

const ALLOCATORS: &[Candidate] = &[
    gapless("gapless"),
    torch("torch 2.10", true),
    torch("torch 2.12", true),
    torch("torch 2.12 expandable_segments:True", false),
    torch("torch 2.12 max_split_size_mb:64,garbage_collection_threshold:0.6", true),
    torch("torch 2.12 roundup_power2_divisions:4,large_segment_size_mb:32", true),
    torch("torch 2.13", true),
    torch("torch 2.13 max_split_size_mb:64,garbage_collection_threshold:0.6", true),
    torch("torch 2.15 expandable_segments:True", false),
    torch("torch 2.15 expandable_segments:True,expandable_segments_reserve:0.4", false),
    model("bfc"),
    model("bfc:gc:true"),
    model("bfc:preallocate:0.75"),
    model("bfc:fraction:0.5,fragmentation:0.01"),
    model("rmm-pool"),
    model("rmm-pool:initial:0"),
    model("rmm-pool:initial:16MiB,maximum:60MiB"),
    model("rmm-arena"),
    model("rmm-arena:size:60MiB"),
    model("buddy"),
    model("buddy:segment:2MiB"),
    model("exact"),
];

#[test]
fn every_allocator_is_tried_here_and_has_its_row_in_the_docs() {
    let page = include_str!("../../../docs/replay.md");
    for name in gapless_replay::machine::names() {
        // A plan is no allocator: it knows every lifetime.
        let tried = |one: &Candidate| one.name.split([' ', ':']).next() == Some(name);
        assert!(name == "plan" || ALLOCATORS.iter().any(tried), "{name} has no line in ALLOCATORS");
        assert!(page.contains(&format!("\n| `{name}` | ")), "{name} has no row in docs/replay.md");
    }
}

/// A caller's record of a block.
#[derive(Clone, Copy, Debug)]
struct Known {
    addr: DeviceAddr,
    requested: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Live,
    Pending,
    /// Was pending, and the allocator waited for all streams: it may be free, though the caller has not completed it
    /// yet.
    Waited,
}

/// An allocator, and the record it is held against.
struct Trial {
    allocator: Box<dyn Allocator>,
    counts_segments: bool,
    aliases: bool,
    capacity: u64,
    known: BTreeMap<Slot, Known>,
    /// Slots that were used and are free again.
    reusable: Vec<Slot>,
    next_slot: Slot,
    answers: Vec<Result<DeviceAddr, Oom>>,
    last: Stats,
    name: &'static str,
}

impl Trial {
    fn over(allocator: Box<dyn Allocator>, candidate: &Candidate, capacity: u64) -> Trial {
        Trial {
            last: *allocator.stats(),
            allocator,
            counts_segments: candidate.counts_segments,
            aliases: candidate.aliases,
            capacity,
            known: BTreeMap::new(),
            reusable: Vec::new(),
            next_slot: 0,
            answers: Vec::new(),
            name: candidate.name,
        }
    }

    fn pick(&self, pick: u16, pending: bool) -> Option<Slot> {
        let fitting: Vec<Slot> = self
            .known
            .iter()
            .filter(|(_, k)| (k.state != State::Live) == pending)
            .map(|(&slot, _)| slot)
            .collect();
        (!fitting.is_empty()).then(|| fitting[pick as usize % fitting.len()])
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Alloc { size, lane } => self.alloc(size, lane),
            Step::Free { pick } => self.pick(pick, false).into_iter().for_each(|slot| self.free(slot)),
            Step::FreeRequested { pick } => {
                self.pick(pick, false).into_iter().for_each(|slot| self.free_requested(slot));
            }
            Step::FreeCompleted { pick } => {
                self.pick(pick, true).into_iter().for_each(|slot| self.free_completed(slot));
            }
            Step::EmptyCache { pool } => self.allocator.empty_cache(pool),
        }
        self.after_wait();
    }

    fn free(&mut self, slot: Slot) {
        self.allocator.free(slot);
        self.forget(slot);
    }

    fn free_requested(&mut self, slot: Slot) {
        self.allocator.free_requested(slot);
        self.known.get_mut(&slot).expect("held").state = State::Pending;
    }

    fn free_completed(&mut self, slot: Slot) {
        self.allocator.free_completed(slot);
        self.forget(slot);
    }

    /// After a wait for all streams an allocator may use pending blocks again; its own rule decides.
    fn after_wait(&mut self) {
        if self.allocator.stats().syncs == self.last.syncs {
            return;
        }
        let inventory = self.allocator.inventory();
        for (slot, known) in self.known.iter_mut().filter(|(_, known)| known.state == State::Pending) {
            if !inventory.blocks.iter().any(|block| block.0 == *slot) {
                known.state = State::Waited;
            }
        }
    }

    /// Blocks that cannot be used again yet.
    fn active(&self) -> impl Iterator<Item = &Known> {
        self.known.values().filter(|known| known.state != State::Waited)
    }

    fn alloc(&mut self, size: u64, lane: u16) {
        let slot = if size.is_multiple_of(2) { self.reusable.pop() } else { None };
        let slot = slot.unwrap_or_else(|| {
            self.next_slot += 1;
            self.next_slot - 1
        });
        self.alloc_in(slot, size, lane);
    }

    fn alloc_in(&mut self, slot: Slot, size: u64, lane: u16) {
        let before = *self.allocator.stats();
        let answer = self.allocator.alloc(slot, Bytes(size), lane);
        let after = self.allocator.stats();
        match answer {
            Ok(addr) => {
                self.known.insert(slot, Known { addr, requested: size, state: State::Live });
                assert_eq!(after.ooms, before.ooms, "{}", self.name);
            }
            Err(oom) => {
                assert_eq!(oom.requested, Bytes(size), "{}", self.name);
                assert!(oom.asked.0 >= size, "{}: asked {}", self.name, oom.asked);
                assert_eq!(after.ooms, before.ooms + 1, "{}", self.name);
                let held = |s: &Stats| (s.allocations, s.allocated);
                assert_eq!(held(after), held(&before), "{}: a failure holds nothing", self.name);
                self.reusable.push(slot);
            }
        }
        self.answers.push(answer);
    }

    fn forget(&mut self, slot: Slot) {
        self.known.remove(&slot);
        self.reusable.push(slot);
    }

    /// Checks of the statistics that need no look at the blocks.
    fn check_stats(&mut self) {
        let (stats, name) = (*self.allocator.stats(), self.name);
        let live = self.active().filter(|known| known.state == State::Live).count() as u64;
        assert_eq!(stats.allocations.current, live, "{name}: blocks in callers' hands");
        assert_eq!(stats.active_blocks.current, self.active().count() as u64, "{name}: active blocks");
        let requested: u64 = self.active().map(|known| known.requested).sum();
        assert_eq!(stats.requested.current, requested, "{name}: requested");
        assert!(stats.requested.current <= stats.active.current, "{name}: blocks hold what was asked for");
        assert!(stats.allocated.current <= stats.active.current, "{name}: allocated <= active");
        assert!(stats.active.current <= stats.reserved.current, "{name}: active <= reserved");
        assert!(stats.reserved.peak <= self.capacity, "{name}: reserved <= the card");
        let gauges = |s: &Stats| {
            [s.allocations, s.allocated, s.requested, s.active_blocks, s.active, s.segments, s.reserved]
        };
        for (now, before) in gauges(&stats).into_iter().zip(gauges(&self.last)) {
            assert!(now.peak >= now.current && now.peak >= before.peak, "{name}: peaks only rise");
        }
        let counters = |s: &Stats| [s.device_allocs, s.device_frees, s.retries, s.ooms, s.syncs, s.driver_ns];
        for (now, before) in counters(&stats).into_iter().zip(counters(&self.last)) {
            assert!(now >= before, "{name}: counters only rise");
        }
        self.last = stats;
    }

    /// Checks the places of the blocks, and that they add up to the statistics.
    fn check_blocks(&self) {
        let (stats, inventory, name) = (self.allocator.stats(), self.allocator.inventory(), self.name);
        assert_eq!(inventory.blocks.len(), self.active().count(), "{name}");
        let (mut end, mut active, mut allocated) = (0, 0, 0);
        let mut spans = inventory.spans.iter().peekable();
        for &(slot, addr, size) in &inventory.blocks {
            let known = self
                .known
                .get(&slot)
                .unwrap_or_else(|| panic!("{name}: {slot} is held, but was not given out"));
            assert_eq!(addr, known.addr, "{name}: a block stays where it is");
            assert!(size.0 >= known.requested, "{name}: {size} for {}", known.requested);
            assert_eq!(addr.0 % 256, 0, "{name}: {addr} is not aligned");
            assert!(addr.0 >= end, "{name}: {addr} overlaps the block before it");
            end = addr.0 + size.0;
            while spans.next_if(|(start, bytes)| start.0 + bytes.0 <= addr.0).is_some() {}
            let inside =
                spans.peek().is_some_and(|(start, bytes)| start.0 <= addr.0 && end <= start.0 + bytes.0);
            assert!(inside || self.aliases, "{name}: {addr} + {size} is in no segment");
            active += size.0;
            allocated += if known.state == State::Live { size.0 } else { 0 };
        }
        assert_eq!((stats.active.current, stats.allocated.current), (active, allocated), "{name}");
        assert_eq!(inventory.active, Bytes(active), "{name}");
        assert!(inventory.spans.is_sorted_by(|a, b| a.0.0 + a.1.0 <= b.0.0), "{name}: segments overlap");
        assert_eq!(inventory.reserved, Bytes(stats.reserved.current), "{name}");
        assert_eq!(inventory.reserved, inventory.spans.iter().map(|span| span.1).sum(), "{name}");
        if self.counts_segments {
            assert_eq!(u64::from(inventory.segments), stats.segments.current, "{name}");
            assert_eq!(stats.device_allocs - stats.device_frees, stats.segments.current, "{name}");
        }
    }

    /// Frees everything, and asks for a little: earlier failures must not have broken anything.
    fn finish(&mut self) {
        while let Some(slot) = self.pick(0, false) {
            self.free_requested(slot);
            self.check_stats();
        }
        while let Some(slot) = self.pick(1, true) {
            self.free_completed(slot);
            self.check_stats();
        }
        let stats = self.allocator.stats();
        assert_eq!((stats.active.current, stats.allocated.current), (0, 0), "{}", self.name);
        for pool in PRIVATE {
            self.allocator.release_pool(pool);
        }
        self.allocator.empty_cache(None);
        self.check_blocks();
        self.alloc(1000, 0);
        self.after_wait();
        assert!(
            self.answers.last().is_some_and(Result::is_ok),
            "{}: nothing is held, yet 1000 B fail",
            self.name
        );
        self.check_stats();
        self.check_blocks();
    }
}

fn conforms(candidate: &Candidate, scenario: &Scenario) -> (Vec<Result<DeviceAddr, Oom>>, Stats) {
    let allocator = (candidate.make)(candidate.name, scenario.device(), &lanes());
    let mut trial = Trial::over(allocator, candidate, scenario.capacity - scenario.foreign);
    for (index, &step) in scenario.steps.iter().enumerate() {
        trial.run(step);
        trial.check_stats();
        if index % 5 == 0 {
            trial.check_blocks();
        }
    }
    trial.finish();
    (trial.answers, *trial.allocator.stats())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_allocator_keeps_its_promises(scenario in scenario(400)) {
        for candidate in ALLOCATORS {
            let (answers, stats) = conforms(candidate, &scenario);
            let (again, stats_again) = conforms(candidate, &scenario);
            prop_assert_eq!(&answers, &again, "{}: same input, same output", candidate.name);
            prop_assert_eq!(stats, stats_again, "{}", candidate.name);
        }
    }
}

/// A recorded run with four streams and pending frees, on a card that is large enough and on one that is not.
#[test]
fn every_allocator_keeps_its_promises_on_a_recorded_run() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces/multistream.pickle.gz");
    let trace = gapless_ingest::open(&path, &gapless_ingest::ReadOptions::default())
        .unwrap_or_else(|error| panic!("{error}"));
    let device = &trace.devices[0];
    let history = History::rebuild(&trace, device).expect("a consistent recording");
    let script = Script::of(&trace, device, &history);
    for candidate in ALLOCATORS {
        for capacity in [8 << 30, 1 << 30] {
            let allocator = (candidate.make)(candidate.name, SimDevice::new(capacity), &script.lanes);
            let mut trial = Trial::over(allocator, candidate, capacity);
            trial.next_slot = script.slots;
            for (i, &op) in script.ops.iter().enumerate() {
                let held = |slot: &Slot| trial.known.contains_key(slot);
                match op {
                    Op::Alloc { slot, size, lane } => trial.alloc_in(slot, size.0, lane),
                    Op::Free { slot } if held(&slot) => trial.free(slot),
                    Op::FreeRequested { slot } if held(&slot) => trial.free_requested(slot),
                    Op::FreeCompleted { slot } if held(&slot) => trial.free_completed(slot),
                    Op::EmptyCache { .. } => trial.allocator.empty_cache(None),
                    _ => {}
                }
                trial.after_wait();
                if i % 16 == 0 {
                    trial.check_stats();
                }
                if i % 512 == 0 {
                    trial.check_blocks();
                }
            }
            trial.finish();
        }
    }
}

/// Sizes up to the largest that a reader lets through: refused, never a panic.
#[test]
fn absurd_sizes_are_refused() {
    for candidate in ALLOCATORS {
        let mut allocator = (candidate.make)(candidate.name, SimDevice::new(64 << 20), &lanes());
        for size in [Bytes::LIMIT.0, Bytes::LIMIT.0 - 1, (1 << 59) + 1, 1 << 40, (64 << 20) + 1] {
            assert!(allocator.alloc(0, Bytes(size), 0).is_err(), "{}: {size}", candidate.name);
        }
        assert!(allocator.alloc(0, Bytes(1), 0).is_ok(), "{}", candidate.name);
        assert_eq!(allocator.stats().allocations.current, 1);
        assert_eq!(allocator.stats().ooms, 5);
    }
}

/// The suite works: an allocator that hands out a pending block fails it.
#[test]
#[should_panic(expected = "overlaps the block before it")]
fn a_block_given_out_twice_is_noticed() {
    #[derive(Default)]
    struct Careless(Stats, BTreeMap<Slot, u64>);
    impl Allocator for Careless {
        fn alloc(&mut self, slot: Slot, size: Bytes, _: u16) -> Result<DeviceAddr, Oom> {
            self.1.insert(slot, size.0);
            for gauge in [&mut self.0.allocations, &mut self.0.active_blocks] {
                gauge.add(1);
            }
            for gauge in [&mut self.0.allocated, &mut self.0.requested, &mut self.0.active] {
                gauge.add(size.0);
            }
            self.0.reserved = self.0.active;
            Ok(DeviceAddr(1 << 20))
        }
        fn free_requested(&mut self, _: Slot) {}
        fn free_completed(&mut self, _: Slot) {}
        fn stats(&self) -> &Stats {
            &self.0
        }
        fn inventory(&self) -> gapless_replay::Inventory {
            let blocks =
                self.1.iter().map(|(&slot, &size)| (slot, DeviceAddr(1 << 20), Bytes(size))).collect();
            gapless_replay::Inventory::of(vec![(DeviceAddr(1 << 20), Bytes(self.0.active.current))], blocks)
        }
    }
    let make: Make = |_, _, _| Box::new(Careless::default());
    let steps = vec![Step::Alloc { size: 512, lane: 0 }; 6];
    let scenario = Scenario { capacity: 1 << 30, highest: false, foreign: 0, steps };
    conforms(&Candidate { name: "careless", make, counts_segments: false, aliases: false }, &scenario);
}
