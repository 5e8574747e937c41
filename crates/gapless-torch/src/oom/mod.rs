//! A failed request: the text of the exception, with at most [`text::LINES`] lines that help, and the file for
//! `gapless oom`.
//!
//! [`Facts`] has everything that the text says. [`text`] renders it, and [`advice`] finds the cheapest change that
//! would have helped; both are pure. Facts of the card are collected under its lock, the others without any lock,
//! because they take Python's lock for the requesting line and write to a disk.

pub mod advice;
pub mod batch;
pub mod setting;
pub mod tail;
pub mod text;
mod words;

use crate::card::Card;
use crate::holders::{self, Holder};
use crate::recorder::held::Picture;
use crate::recorder::{self, frames};
use crate::regions;
use crate::watcher::Caller;
use gapless_cuda::{Nvml, identity};
use gapless_pool::{Device, DeviceError, Holes, Options, PoolKey, Refusal, StreamHandle};
use gapless_trace::Action;
use gapless_trace::holders::{line_text, naming_line};
use tail::Tail;

pub use crate::card::{Limit, LimitBy};

/// The most holders that are listed.
const HOLDERS: usize = 4;

/// Facts of a failed request, and of the card at that moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    pub device: i32,
    pub size: u64,
    /// The requesting Python line: `train.py:88 step`.
    pub line: Option<String>,
    pub stream: StreamHandle,
    pub pool: PoolKey,
    /// A capture is open, so the pool could not wait for streams.
    pub is_quiet: bool,
    /// Bytes in blocks that callers have, those that other streams still use in addition, and bytes of all pages.
    pub allocated: u64,
    pub active: u64,
    pub reserved: u64,
    pub limit: Option<Limit>,
    /// Of the device.
    pub free: u64,
    pub total: u64,
    /// Other processes on the device and their bytes, largest first; `None` if unknown.
    pub others: Option<Vec<(u32, u64)>>,
    pub holes: Holes,
    /// Private pools that already share their free memory.
    pub spare: Vec<PoolKey>,
    /// Bytes that are missing even if the request got all free memory.
    pub missing: u64,
    /// The driver's error, if it was not out-of-memory.
    pub driver: Option<i32>,
    /// The budget or share that refused the request, as a sentence.
    pub refusal: Option<String>,
    pub holders: Vec<Holder>,
    /// Regions that are awake on the device, except the requesting one, with their bytes, largest first.
    pub regions: Vec<(String, u64)>,
    /// Number of handlers that were asked.
    pub handlers: usize,
    /// The page size with which the request would have been served, if the present one is larger.
    pub pages: Option<u64>,
    /// The share of the present batch that would have fit, in hundredths.
    pub batch: Option<u64>,
    pub tail: Tail,
}

/// The state of a card, for an explanation without the card's lock.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) facts: Facts,
    /// Taken only if a file or a replay needs it.
    picture: Option<Picture>,
    options: Options,
}

/// Collects the card's facts, under its lock.
pub(crate) fn look(
    card: &mut Card,
    (size, stream, pool): (u64, StreamHandle, PoolKey),
    error: DeviceError,
) -> Seen {
    let device = card.device;
    let stats = *card.pool.stats();
    let (free, total) = card.pool.device_mut().memory();
    let facts = Facts {
        device,
        size,
        stream,
        pool,
        is_quiet: card.routings.has_capture(),
        allocated: stats.allocated.current,
        active: stats.active.current,
        reserved: stats.reserved.current,
        limit: card.limit(),
        free,
        total,
        holes: card.pool.holes_for(pool),
        spare: card.spare().to_vec(),
        missing: card.pool.shortfall(size, stream, pool),
        driver: match error {
            DeviceError::Driver(code) => Some(code),
            DeviceError::OutOfMemory | DeviceError::Refused(_) => None,
        },
        refusal: match error {
            // The text of these is part of the line about held memory.
            DeviceError::Refused(Refusal::Limit) | DeviceError::OutOfMemory | DeviceError::Driver(_) => None,
            DeviceError::Refused(why) => Some(card.refusal(why).trim().to_owned()),
        },
        holders: holders::largest(card, device, HOLDERS),
        ..Facts::default()
    };
    // A picture contains the pool's log, which the recording must have too.
    card.tell_changes(&Caller::NOBODY);
    // Enough memory is free, but in pages that live blocks pin. A replay can tell if smaller pages would have served.
    let is_pinned = recorder::is_on() && facts.holes.pinned >= facts.missing;
    let picture = (is_pinned || (!recorder::is_on() && tail::is_wanted())).then(|| card.picture(device));
    Seen { facts, picture, options: *card.pool.options() }
}

/// Collects the other facts and writes the text. No lock of ours is held.
pub(crate) fn explain(Seen { mut facts, picture, options }: Seen) -> String {
    let stack = frames::here();
    let asking = naming_line(stack.iter(), |place| place.file.as_str());
    facts.line = asking.map(|place| line_text(&place.name, &place.file, place.line));
    facts.others = others(facts.device);
    facts.regions = regions::awake_on(facts.device, facts.pool);
    let Some(recorder) = recorder::on() else {
        facts.tail = picture.map_or_else(tail::of_earlier, |picture| tail::leave(&picture, &facts, &stack));
        return text::text(&facts);
    };
    facts.tail = tail::of_recording();
    let device = facts.device as u8;
    recorder.recent(|entries, marks| {
        // The replay ends before the failure.
        let end = entries.iter().rposition(|entry| entry.action == Action::Oom && entry.device == device);
        let entries = &entries[..end.unwrap_or(entries.len())];
        let most = facts.active + facts.size.saturating_sub(facts.missing);
        facts.batch = batch::share(device, entries, marks, facts.active, facts.size, most);
        facts.pages = picture.and_then(|picture| {
            let held: Vec<_> =
                picture.blocks.iter().map(|(addr, b)| (*addr, (b.size, b.stream, b.pool))).collect();
            let request = (facts.size, facts.stream, facts.pool);
            let most = facts.reserved + facts.free;
            setting::Run { device, entries, held: &held, request, options, most }.smaller_pages()
        });
    });
    text::text(&facts)
}

/// Other processes on a card, from NVIDIA's management library.
fn others(device: i32) -> Option<Vec<(u32, u64)>> {
    let processes = Nvml::open().ok()?.device_by_uuid(identity::of(device).uuid?)?.processes()?;
    let own = std::process::id();
    // In a container the driver may know this process by another number. It must not count as another process.
    if !processes.iter().any(|process| process.pid == own) {
        return None;
    }
    let mut others: Vec<(u32, u64)> = processes
        .iter()
        .filter(|process| process.pid != own)
        .filter_map(|process| Some((process.pid, process.used?)))
        .filter(|(_, bytes)| *bytes > 0)
        .collect();
    others.sort_unstable_by_key(|&(pid, bytes)| (std::cmp::Reverse(bytes), pid));
    Some(others)
}
