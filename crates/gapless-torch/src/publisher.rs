//! The statistics file of this process, for `gapless top` and `gapless metrics` of the same user. A thread of its own
//! writes it four times a second.
//!
//! Requests do no work for it. An update takes each card's lock for some microseconds, to copy its counters. Figures
//! that need a walk over all live blocks (streams, holders, stranded bytes) are taken once a second, and less often if
//! that would cost the program more than a thousandth of its time. The card's free memory is asked without its lock. A
//! forked child has no statistics file. At the end of the process the file is removed; readers remove one that a killed
//! process left. Failures here are silent, because no training run should end for its statistics.

use crate::card::Card;
use crate::cards;
use crate::process::CARDS;
use crate::{background, holders, regions};
use gapless_cuda::locks::SetOnce;
use gapless_cuda::{Meter, identity};
use gapless_pool::{AllocationView, LaneView};
use gapless_stats::{
    Counters, Folder, Holder, Lane, Process, Region, Sample, Statistics, Tenant, Writer, folder, layout,
    process, reader,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Pause between two updates.
const BEAT: Duration = Duration::from_millis(250);
/// Beats between two samples.
const SAMPLE: u32 = 4;
/// The shortest time between two walks over all blocks, and its least ratio to the time of a walk.
const WALK: Duration = Duration::from_secs(1);
const RARELY: u32 = 1000;
/// The longest wait of a fork, and of the process's end, for an update that has begun.
const PATIENCE: Duration = Duration::from_millis(100);

static STARTED: AtomicBool = AtomicBool::new(false);
/// The statistics file.
static PAGE: SetOnce<PathBuf> = SetOnce::new();
/// One of the states below. An update takes cards' locks and asks the driver, so none may be under way when the process
/// forks or ends.
static STATE: AtomicU8 = AtomicU8::new(RESTING);
const RESTING: u8 = 0;
const BEATING: u8 = 1;
const FORKING: u8 = 2;
const ENDED: u8 = 3;

/// Starts to write the statistics file, because a card is in use.
pub fn start() {
    if !STARTED.swap(true, Ordering::AcqRel) && background::spawn("gapless-stats", run).is_ok() {
        background::at_exit(end);
        background::at_fork(before_fork, after_fork);
    }
}

fn run() {
    // A panic here ends only this thread.
    let _ = std::panic::catch_unwind(|| {
        let Some((mut publisher, mut writer)) = begin() else { return };
        loop {
            if turn(RESTING, BEATING) {
                publisher.update();
                let written = writer.write(&publisher.statistics);
                turn(BEATING, RESTING);
                if written.is_err() {
                    return;
                }
            } else if STATE.load(Ordering::Acquire) == ENDED {
                return;
            }
            std::thread::sleep(BEAT);
        }
    });
}

fn begin() -> Option<(Publisher, Writer)> {
    let writer = Writer::begin(|| {
        let process = Process::current(concat!("gapless ", env!("CARGO_PKG_VERSION")))?;
        let folder = Folder::make(&folder::candidates()).ok()?;
        reader::sweep(&folder);
        Some((folder, process))
    });
    let writer = writer.ok()?;
    PAGE.set(writer.path().to_owned()).ok()?;
    let statistics = Statistics::new(writer.process().clone());
    Some((Publisher { statistics, cards: Vec::new(), updates: 0 }, writer))
}

fn turn(from: u8, to: u8) -> bool {
    STATE.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Lets no update begin, after the one under way has ended or `PATIENCE` is over.
fn stop(to: u8) {
    let began = Instant::now();
    while !turn(RESTING, to) {
        if began.elapsed() > PATIENCE {
            STATE.store(to, Ordering::Release);
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

extern "C" fn before_fork() {
    stop(FORKING);
}

extern "C" fn after_fork() {
    turn(FORKING, RESTING);
}

/// Removes the statistics file. The driver is about to end too, so this waits a moment for an update that may be in it.
fn end() {
    let Some(path) = PAGE.get() else { return };
    stop(ENDED);
    let _ = std::fs::remove_file(path);
}

struct Publisher {
    statistics: Statistics,
    /// State of each card between updates, in the order of the statistics file.
    cards: Vec<Kept>,
    updates: u32,
}

struct Kept {
    device: i32,
    meter: Meter,
    /// The most live bytes since the last sample.
    most_live: u64,
    next_walk: Instant,
}

impl Publisher {
    fn update(&mut self) {
        self.statistics.time = process::now();
        let samples = self.updates.is_multiple_of(SAMPLE);
        self.updates = self.updates.wrapping_add(1);
        for device in 0..CARDS as i32 {
            if cards::fronts(device).is_some() {
                self.look_at(device, samples);
            }
        }
    }

    fn look_at(&mut self, device: i32, samples: bool) {
        let Some(card) = cards::existing(device) else { return };
        let at = match self.cards.iter().position(|kept| kept.device == device) {
            Some(at) => at,
            None => {
                let identity = identity::of(device);
                self.statistics.cards.push(gapless_stats::Card {
                    index: device as u32,
                    uuid: identity.uuid.map(|uuid| uuid.0),
                    name: identity.name.unwrap_or_default(),
                    ..Default::default()
                });
                let meter = card.pool.device().meter();
                self.cards.push(Kept { device, meter, most_live: 0, next_walk: Instant::now() });
                self.cards.len() - 1
            }
        };
        let (statistics, kept) = (&mut self.statistics.cards[at], &mut self.cards[at]);
        count(&card, statistics);
        let quota = card.pool.device().quota().clone();
        let began = Instant::now();
        let walked = (began >= kept.next_walk).then(|| walk(device, &card));
        drop(card);
        if let Some(tenant) = quota.figures().tenant {
            self.statistics.tenant = Some(Tenant { name: tenant.name, limit: Some(tenant.limit) });
        }
        if let Some(walked) = walked {
            show(walked, device, statistics);
            kept.next_walk = Instant::now() + (began.elapsed() * RARELY).max(WALK);
        }
        if let Some((free, total)) = kept.meter.memory() {
            (statistics.free, statistics.total) = (free, total);
        }
        kept.most_live = kept.most_live.max(statistics.live);
        if samples || statistics.samples.is_empty() {
            if statistics.samples.len() >= layout::SAMPLES {
                statistics.samples.remove(0);
            }
            let allocations = statistics.counters.allocations;
            let sample = Sample {
                time: self.statistics.time,
                live: kept.most_live,
                reserved: statistics.reserved,
                allocations,
            };
            statistics.samples.push(sample);
            kept.most_live = 0;
        }
    }
}

/// Figures that the pool counts anyway.
fn count(card: &Card, statistics: &mut gapless_stats::Card) {
    let (stats, device) = (card.pool.stats(), card.pool.device());
    statistics.limit = card.most();
    (statistics.live, statistics.peak_live) = (stats.allocated.current, stats.allocated.peak);
    (statistics.reserved, statistics.peak_reserved) = (stats.reserved.current, stats.reserved.peak);
    (statistics.requested, statistics.active) = (stats.requested.current, stats.active.current);
    statistics.blocks = stats.allocations.current;
    statistics.counters = Counters {
        allocations: stats.allocations.total,
        frees: stats.allocations.total - stats.allocations.current,
        ooms: card.failed,
        retries: stats.retries,
        creates: device.creates,
        maps: device.maps,
        device_allocs: stats.device_allocs,
        device_frees: stats.device_frees,
        harvested: stats.harvested,
        host_waits: stats.waits,
        driver_ns: device.driver_ns,
    };
}

/// Figures that need a look at every block. Under the card's lock they are only listed.
struct Walked {
    stranded: u64,
    lanes: Vec<LaneView>,
    live: Vec<AllocationView>,
    regions: Vec<regions::Shown>,
}

fn walk(device: i32, card: &Card) -> Walked {
    Walked {
        regions: regions::on_card(device, card),
        stranded: card.pool.stranded(),
        lanes: card.pool.lanes(),
        live: card.pool.live().collect(),
    }
}

fn region(shown: regions::Shown) -> Region {
    let regions::Shown { name, keep, live, held, asleep, host } = shown;
    Region { name, keep: keep.name().to_owned(), live, held, asleep, host }
}

fn show(walked: Walked, device: i32, statistics: &mut gapless_stats::Card) {
    statistics.stranded = walked.stranded;
    let mut lanes: Vec<Lane> = walked
        .lanes
        .iter()
        .map(|lane| Lane {
            stream: lane.stream.0,
            pool: (lane.pool.0, lane.pool.1),
            blocks: lane.blocks,
            live: lane.allocated,
            reserved: lane.reserved,
        })
        .filter(|lane| lane.reserved > 0 || lane.live > 0)
        .collect();
    lanes.sort_by_key(|lane| std::cmp::Reverse((lane.reserved, lane.live)));
    statistics.more_lanes = lanes.len().saturating_sub(layout::LANES) as u32;
    lanes.truncate(layout::LANES);
    statistics.lanes = lanes;
    statistics.regions = walked.regions.into_iter().map(region).collect();
    statistics.regions.sort_by_key(|region| std::cmp::Reverse(region.held + region.asleep));
    let holder =
        |found: holders::Holder| Holder { what: found.what, bytes: found.bytes, blocks: found.blocks };
    statistics.holders =
        holders::of(walked.live.into_iter(), device, layout::HOLDERS).into_iter().map(holder).collect();
}
