//! A request failed: the text of the exception, at most [`text::LINES`] lines that help, and the file that is left for `gapless oom`.
//!
//! [`Facts`] is everything that the text says; [`text`] renders it and [`advice`] finds the cheapest thing that would have helped: both are pure.
//! Facts of the card are collected under its lock, the rest without any: Python's lock is taken for the line that asked, a disk is written to.

pub mod advice;
pub mod batch;
pub mod tail;
pub mod text;

use crate::holders::{self, Holder};
use crate::recorder::held::Picture;
use crate::recorder::{self, frames};
use crate::state::Card;
use gapless_cuda::{Nvml, identity};
use gapless_pool::{Device, DeviceError, Holes, PoolKey, StreamHandle};
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
    /// A capture, or a memory pool of the program's own, is open: nothing could be waited for.
    pub is_quiet: bool,
    /// Block bytes that callers have, those that other streams still use besides, and what is held for all of them.
    pub live: u64,
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
    pub holders: Vec<Holder>,
    /// Handlers that were asked.
    pub handlers: usize,
    /// The share of the present batch that would have fit, in hundredths.
    pub batch: Option<u64>,
    pub tail: Tail,
}

/// What the card says, under its lock; with a picture of it where that is what is left behind.
pub(crate) fn look(
    card: &mut Card,
    device: i32,
    size: u64,
    stream: StreamHandle,
    error: DeviceError,
) -> (Facts, Option<Picture>) {
    let stats = *card.pool.stats();
    let (free, total) = card.pool.device_mut().memory();
    let pool = card.pool_of(stream);
    let by = if card.fraction < 1.0 { LimitBy::Fraction(card.fraction) } else { LimitBy::Option };
    let facts = Facts {
        device,
        size,
        stream,
        pool,
        is_quiet: !card.routings.is_empty(),
        live: stats.allocated.current,
        active: stats.active.current,
        reserved: stats.reserved.current,
        limit: card.pool.limit().map(|bytes| Limit { bytes, by }),
        free,
        total,
        holes: card.pool.holes(pool),
        spare: card.spare().to_vec(),
        missing: card.pool.shortfall(size, stream, pool),
        driver: match error {
            DeviceError::OutOfMemory => None,
            DeviceError::Driver(code) => Some(code),
        },
        holders: holders::largest(card, device, HOLDERS),
        ..Facts::default()
    };
    let picture = (!recorder::is_on() && tail::is_wanted()).then(|| card.picture(device));
    (facts, picture)
}

/// The rest of the facts, and the text. No lock of ours is held.
pub(crate) fn explain(mut facts: Facts, picture: Option<Picture>) -> String {
    let stack = frames::here();
    let asking = naming_line(stack.iter(), |place| place.file.as_str());
    facts.line = asking.map(|place| line_text(&place.name, &place.file, place.line));
    facts.others = others(facts.device);
    facts.tail = match &picture {
        Some(picture) => tail::leave(picture, &facts, &stack),
        None => tail::of_recording(),
    };
    if let Some(recorder) = recorder::on() {
        facts.batch = recorder.recent(|entries, marks| {
            let device = facts.device as u8;
            let most = facts.active + facts.size.saturating_sub(facts.missing);
            batch::share(device, entries, marks, facts.active, facts.size, most)
        });
    }
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
