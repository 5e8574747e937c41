//! Figures of regions: their bytes on each card, awake and asleep.

use super::{Keep, Region, key_of, regions};
use crate::card::Card;
use crate::cards;
use crate::process::CARDS;
use gapless_pool::PoolKey;
use std::fmt::Write;

/// Figures of one region.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) keep: Keep,
    /// Bytes of live allocations, of pages, of sleeping memory, and of the host's memory for it.
    pub(crate) live: u64,
    pub(crate) held: u64,
    pub(crate) asleep: u64,
    pub(crate) host: u64,
}

/// Every region's figures on one card. The caller has the card's lock, which comes before that of the regions.
pub(crate) fn on_card(device: i32, card: &Card) -> Vec<Shown> {
    let regions = regions();
    let of = |(at, region): (usize, &Region)| {
        let pools = regions.pools(at, device);
        let (live, held) = card.pool.awake_in(&pools);
        let kept = region.asleep.iter().chain(&region.retained).filter(|(on, _)| *on == device);
        Shown {
            name: region.name.clone(),
            keep: region.keep,
            live,
            held,
            asleep: card.pool.asleep_in(&regions.pools_ever(at, device)),
            host: kept.map(|(_, store)| store.host_bytes()).sum(),
        }
    };
    regions.all.iter().enumerate().map(of).collect()
}

/// Every region's figures, summed over all cards.
pub(crate) fn shown() -> Vec<Shown> {
    let new = |region: &Region| {
        let (name, keep) = (region.name.clone(), region.keep);
        Shown { name, keep, live: 0, held: 0, asleep: 0, host: 0 }
    };
    let mut all: Vec<Shown> = regions().all.iter().map(new).collect();
    for device in 0..CARDS as i32 {
        if let Some(card) = cards::existing(device) {
            // Regions are never removed, so new ones are at the end.
            for (sum, one) in all.iter_mut().zip(on_card(device, &card)) {
                sum.live += one.live;
                sum.held += one.held;
                sum.asleep += one.asleep;
                sum.host += one.host;
            }
        }
    }
    all
}

/// Statistics of a card: the figures of each region there. The caller has the card's lock.
pub(crate) fn write_json(out: &mut String, device: i32, card: &Card) {
    for Shown { name, live, held, asleep, host, .. } in on_card(device, card) {
        for (figure, bytes) in [("live", live), ("held", held), ("asleep", asleep), ("host", host)] {
            let _ = write!(out, "\"gapless.region.{name}.{figure}\":{bytes},");
        }
    }
}

/// Regions that are awake on a card, with their bytes there, largest first. Leaves out the one whose pool is `asking`.
pub(crate) fn awake_on(device: i32, asking: PoolKey) -> Vec<(String, u64)> {
    let names: Vec<String> = regions().all.iter().map(|region| region.name.clone()).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let Some(card) = cards::existing(device) else { return Vec::new() };
    let of = |(at, name): (usize, String)| (name, card.pool.awake_in(&regions().pools(at, device)).1);
    let others = names.into_iter().enumerate().filter(|(at, _)| key_of(*at as u32 + 1) != asking);
    let mut found: Vec<(String, u64)> = others.map(of).filter(|(_, bytes)| *bytes > 0).collect();
    found.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    found
}

/// True if the allocation at `addr` sleeps.
pub(crate) fn is_asleep(addr: u64) -> bool {
    let mut found = false;
    cards::for_each(|_, card| {
        let start = card.pool.containing(addr).map(|(start, _)| start);
        found |= start.is_some_and(|start| card.pool.is_asleep(start));
    });
    found
}

/// Every region, as JSON.
pub(crate) fn json() -> String {
    let mut text = "[".to_owned();
    for region in shown() {
        let keep = region.keep.name();
        let separator = if text.len() > 1 { "," } else { "" };
        // The name was checked when the region was opened, so it needs no escaping.
        let _ = write!(
            text,
            "{separator}{{\"name\":\"{}\",\"keep\":\"{keep}\",\"live\":{},\"held\":{},\"asleep\":{},\"host\":{}}}",
            region.name, region.live, region.held, region.asleep, region.host
        );
    }
    text + "]"
}

/// The sleeping addresses as JSON: each region's name, and its ranges as address and size.
pub(crate) fn asleep_json() -> String {
    let mut text = "[".to_owned();
    for (name, ranges) in super::sleeping() {
        let separator = if text.len() > 1 { "," } else { "" };
        let ranges: Vec<String> = ranges.iter().map(|(addr, size)| format!("[{addr},{size}]")).collect();
        let _ = write!(text, "{separator}[\"{name}\",[{}]]", ranges.join(","));
    }
    text + "]"
}
