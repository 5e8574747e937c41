//! The reason why a request failed: its size, the free memory in each pool and stream, the cause, and the settings that
//! would have served it.

use crate::script::Script;
use crate::sweep::{self, Progress};
use crate::torch::{TorchSettings, TorchVersion};
use gapless_trace::moment::PoolLosses;
use gapless_trace::{Action, Bytes, DeviceTrace, EventIndex, History, Moment, SizeClass, Tick, torch_rules};

/// A failed request, examined.
#[derive(Clone, Debug)]
pub struct PostMortem {
    pub event: EventIndex,
    /// The instant before the failure, after the memory that the allocator gave back to serve it.
    pub tick: Tick,
    /// The rounded request, and the segment that it would have taken.
    pub asked: Bytes,
    pub segment: Bytes,
    pub class: SizeClass,
    /// Index into the device's streams.
    pub stream: u16,
    /// Bytes that the device still had.
    pub device_free: Bytes,
    pub reserved: Bytes,
    pub active: Bytes,
    pub allocated: Bytes,
    pub limit: Limit,
    pub cause: Cause,
    /// Free bytes that the allocator held, by pool, size class and stream; the request's own first, then by free bytes.
    pub cached: Vec<PoolLosses>,
    /// Requests that failed before this one.
    pub earlier: usize,
    /// True if the model, with the run's own settings under the same limit, fails at the same request.
    pub reproduced: bool,
    /// Settings that serve the request under the same limit, the fewest changes first.
    pub survivors: Vec<Survivor>,
    pub tried: usize,
}

/// The limit that refused the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The card: this much was within reach of the process.
    Card { usable: Bytes },
    /// A cap of the process's own (`set_per_process_memory_fraction`), between these two.
    Cap { at_least: Bytes, below: Bytes },
    /// The size that the caller gave.
    Given { usable: Bytes },
}

impl Limit {
    /// Bytes that were surely within reach.
    #[must_use]
    pub fn usable(self) -> Bytes {
        match self {
            Limit::Card { usable } | Limit::Given { usable } => usable,
            Limit::Cap { at_least, .. } => at_least,
        }
    }

    /// Bytes that were surely out of reach.
    fn below(self) -> Bytes {
        match self {
            Limit::Card { usable } | Limit::Given { usable } => usable,
            Limit::Cap { below, .. } => below,
        }
    }
}

/// The reason why it could not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// With every gap closed there would still be too little: by this much. The two differ if the cap is not known
    /// exactly; if the first is 0, there may have been just enough.
    TooLarge { at_least: Bytes, at_most: Bytes },
    /// Enough was free, in pieces: in all, and the largest piece that the request could have used.
    Fragmented { free: Bytes, largest: Bytes },
    /// A free block large enough was there, for another stream, pool or size class.
    Elsewhere { largest: Bytes },
}

/// Settings that would have served it.
#[derive(Clone, Debug)]
pub struct Survivor {
    pub conf: String,
    pub changes: u32,
    pub peak_reserved: Bytes,
    pub retries: u64,
}

/// Survivors that are listed.
const MOST: usize = 3;

/// Examines the last request of the trace that failed; `None` if none did. `capacity` is the bytes that the process
/// could have, if the caller knows them.
#[must_use]
#[allow(clippy::too_many_arguments)] // the trace in its four forms, and the question
pub fn examine(
    device: &DeviceTrace,
    history: &History,
    script: &Script,
    settings: &TorchSettings,
    version: TorchVersion,
    capacity: Option<Bytes>,
    threads: usize,
    progress: Progress<'_>,
) -> Option<PostMortem> {
    let events = &device.events;
    let failures: Vec<EventIndex> = events.indices().filter(|&i| events.action(i) == Action::Oom).collect();
    let (&index, before) = failures.split_last()?;
    let event = events.get(index);
    let tick = Tick(index.0);
    let moment = Moment::at(history, tick);
    let (asked, device_free) = (event.size, Bytes(event.addr.0));
    let segment = Bytes(settings.segment_size(asked.0));
    let class = if torch_rules::is_small(asked) { SizeClass::Small } else { SizeClass::Large };
    let reserved = moment.figures.reserved;
    let limit = if let Some(usable) = capacity {
        Limit::Given { usable }
    } else if device_free >= segment {
        // The device had enough, so a cap refused; each refusal of the run gives a bound of it from above.
        let below = script.recorded.refused.iter().copied().min().unwrap_or(reserved + segment);
        let at_least = history.usage.reserved.peak.max(reserved);
        Limit::Cap { at_least, below: below.min(reserved + segment).max(at_least) }
    } else {
        Limit::Card { usable: reserved + device_free }
    };
    let own = |p: &PoolLosses| p.stream == event.stream && p.class == class && p.pool == event.pool;
    let mut cached: Vec<PoolLosses> =
        moment.pools.iter().filter(|p| p.losses.external > Bytes::ZERO || own(p)).copied().collect();
    cached.sort_by_key(|p| (!own(p), std::cmp::Reverse(p.losses.external)));
    let cause = cause(&moment, &cached, own, asked, limit);

    let candidates = sweep::candidates(settings, version);
    let trials = sweep::sweep(script, version, &candidates, limit.usable(), threads, progress);
    let reproduced = trials.first().is_some_and(|t| !t.served_last);
    let mut alive: Vec<&sweep::Trial> =
        trials.iter().skip(1).filter(|t| t.survived() && t.served_last).collect();
    alive.sort_by_key(|t| (t.candidate.changes, t.stats.driver_ns, t.stats.reserved.peak));
    let survivors = alive.iter().take(MOST).map(|t| Survivor {
        conf: t.candidate.settings.to_conf_keeping_others(),
        changes: t.candidate.changes,
        peak_reserved: Bytes(t.stats.reserved.peak),
        retries: t.stats.retries,
    });
    Some(PostMortem {
        event: index,
        tick,
        asked,
        segment,
        class,
        stream: event.stream,
        device_free,
        reserved,
        active: moment.figures.active,
        allocated: moment.figures.allocated,
        limit,
        cause,
        cached,
        earlier: before.len(),
        reproduced,
        survivors: survivors.collect(),
        tried: trials.len(),
    })
}

fn cause(
    moment: &Moment,
    cached: &[PoolLosses],
    own: impl Fn(&PoolLosses) -> bool,
    asked: Bytes,
    limit: Limit,
) -> Cause {
    let need = moment.figures.active + asked;
    if need > limit.usable() {
        let (at_least, at_most) = (need.saturating_sub(limit.below()), need - limit.usable());
        return Cause::TooLarge { at_least, at_most };
    }
    let largest = |p: &PoolLosses| p.losses.largest_gap;
    let elsewhere = cached.iter().filter(|p| !own(p)).map(largest).max().unwrap_or_default();
    if elsewhere >= asked {
        return Cause::Elsewhere { largest: elsewhere };
    }
    let here = cached.iter().filter(|p| own(p)).map(largest).max().unwrap_or_default();
    Cause::Fragmented { free: moment.losses.external, largest: here }
}
