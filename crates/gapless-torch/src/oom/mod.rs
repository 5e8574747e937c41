//! A request failed: the text of the exception, at most [`text::LINES`] lines that help, and the file that is left for
//! `gapless oom`.
//!
//! [`Facts`] is everything that the text says; [`text`] renders it and [`advice`] finds the cheapest thing that would
//! have helped: both are pure. Facts of the card are collected under its lock, the rest without any: Python's lock is
//! taken for the line that asked, a disk is written to.

pub mod advice;
pub mod batch;
pub mod setting;
pub mod tail;
pub mod text;
mod words;

use crate::holders::{self, Holder};
use crate::recorder::held::Picture;
use crate::recorder::{self, frames};
use crate::regions;
use crate::state::Card;
use crate::watcher::Caller;
use gapless_cuda::{Nvml, identity};
use gapless_pool::{Device, DeviceError, Holes, Options, PoolKey, Refusal, StreamHandle};
use gapless_trace::Action;
use gapless_trace::holders::{line_text, naming_line};
use tail::Tail;

/// Holders that are listed.
const HOLDERS: usize = 4;

/// What caps the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LimitBy {
    /// The option `limit`.
    Option,
    /// `torch.cuda.set_per_process_memory_fraction`, with what was given.
    Fraction(f64),
}

/// The most bytes that the process may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    pub bytes: u64,
    pub by: LimitBy,
}

/// What is known of a request that failed, and of the card at that moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    pub device: i32,
    pub size: u64,
    /// Where Python stood: `train.py:88 step`.
    pub line: Option<String>,
    pub stream: StreamHandle,
    pub pool: PoolKey,
    /// A capture is open: nothing could be waited for.
    pub is_quiet: bool,
    /// Block bytes that callers have, those that other streams still use besides, and what is held for all of them.
    pub allocated: u64,
    pub active: u64,
    pub reserved: u64,
    pub limit: Option<Limit>,
    /// Of the device.
    pub free: u64,
    pub total: u64,
    /// Other processes on the device and their bytes, the most first; `None`: not known.
    pub others: Option<Vec<(u32, u64)>>,
    pub holes: Holes,
    /// Private pools whose free memory may serve others' requests: set already.
    pub spare: Vec<PoolKey>,
    /// What is missing, were all that is free used for the request.
    pub missing: u64,
    /// What the driver said, where that was not that there is no memory.
    pub driver: Option<i32>,
    /// The budget or share that did not allow it, as a sentence.
    pub refusal: Option<String>,
    pub holders: Vec<Holder>,
    /// Regions that are awake on the device, but for the one that asked, and their bytes: the most first.
    pub regions: Vec<(String, u64)>,
    /// Handlers that were asked.
    pub handlers: usize,
    /// The size of pages that would have served it, where the present ones are larger.
    pub pages: Option<u64>,
    /// The share of the present batch that would have fit, in hundredths.
    pub batch: Option<u64>,
    pub tail: Tail,
}

/// A card as it was, for those who explain it without its lock.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) facts: Facts,
    /// Where it is wanted: for a file, or to replay what was recorded.
    picture: Option<Picture>,
    options: Options,
}

/// What the card says, under its lock.
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
            // Told with what is held.
            DeviceError::Refused(Refusal::Limit) | DeviceError::OutOfMemory | DeviceError::Driver(_) => None,
            DeviceError::Refused(why) => Some(card.refusal(why).trim().to_owned()),
        },
        holders: holders::largest(card, device, HOLDERS),
        ..Facts::default()
    };
    // A picture has what is in the pool's log, and the recording must have it too.
    card.tell_changes(&Caller::NOBODY);
    // Enough is free, in pages that others pin: perhaps it would not be in smaller ones.
    let is_pinned = recorder::is_on() && facts.holes.pinned >= facts.missing;
    let picture = (is_pinned || (!recorder::is_on() && tail::is_wanted())).then(|| card.picture(device));
    Seen { facts, picture, options: *card.pool.options() }
}

/// The rest of the facts, and the text. No lock of ours is held.
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
        // The failure itself, and what came after it, is no part of what led to it.
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

/// Other processes on a card, by the management library.
fn others(device: i32) -> Option<Vec<(u32, u64)>> {
    let processes = Nvml::open().ok()?.device_by_uuid(identity::of(device).uuid?)?.processes()?;
    let own = std::process::id();
    // In a container the driver may know this process by another number, and it is not to be taken for another one.
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
