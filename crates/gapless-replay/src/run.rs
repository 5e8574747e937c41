//! The replay itself: a script's ops, one by one, on an allocator.

use crate::allocator::{Allocator, Inventory, LaneIndex, Oom, Slot, Stats};
use crate::recorded::RecordedDevice;
use crate::script::{DeviceCall, Op, Recorded, Script};
use crate::torch::{Torch, TorchSettings, TorchVersion};
use gapless_trace::{Bytes, DeviceAddr, Tick};

/// An observer of a replay.
pub trait Watch {
    /// After op `op`, which led to the instant `tick`.
    fn after(&mut self, _op: u32, _tick: Tick, _stats: &Stats) {}

    /// A request that failed in the recorded run was served here.
    fn served(&mut self, _op: u32, _tick: Tick) {}
}

/// An observer that ignores everything.
impl Watch for () {}

/// The request at which a replay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub op: u32,
    pub tick: Tick,
    pub oom: Oom,
}

/// Replays `script` on `allocator` until its end, or until a request fails that the recorded run could serve or ended
/// by.
pub fn replay<A: Allocator + ?Sized, W: Watch>(
    script: &Script,
    allocator: &mut A,
    watch: &mut W,
) -> Option<Failure> {
    replay_until(script, allocator, u32::MAX, watch)
}

/// The same for the ops before `until`.
pub fn replay_until<A: Allocator + ?Sized, W: Watch>(
    script: &Script,
    allocator: &mut A,
    until: u32,
    watch: &mut W,
) -> Option<Failure> {
    let last = script.ended_by();
    for (i, op) in script.ops.iter().enumerate().take(until as usize) {
        let i = i as u32;
        let oom = step(script, allocator, watch, i, *op);
        // If the program went on after a refusal, that does not end the replay; a refusal that ended the run does.
        if let Some(oom) = oom.filter(|_| !matches!(op, Op::Failed { .. }) || last == Some(i)) {
            return Some(Failure { op: i, tick: script.ticks[i as usize], oom });
        }
    }
    None
}

/// Does one op; returns the refusal, if it was refused.
#[inline]
fn step<A: Allocator + ?Sized, W: Watch>(
    script: &Script,
    a: &mut A,
    watch: &mut W,
    i: u32,
    op: Op,
) -> Option<Oom> {
    let tick = || script.ticks[i as usize];
    let mut refused = None;
    match op {
        Op::Alloc { slot, size, lane } => {
            if let Err(oom) = a.alloc(slot, size, lane) {
                return Some(oom);
            }
        }
        Op::Free { slot } => a.free(slot),
        Op::FreeRequested { slot } => a.free_requested(slot),
        Op::FreeCompleted { slot } => a.free_completed(slot),
        Op::Failed { size, lane } => match a.alloc(script.slots, size, lane) {
            // The recording does not show how long the program would have kept it.
            Ok(_) => {
                watch.served(i, tick());
                a.free(script.slots);
            }
            Err(oom) => refused = Some(oom),
        },
        Op::EmptyCache { pool } => a.empty_cache(pool.map(|p| script.pools[p as usize])),
        Op::ReleasePool { pool } => a.release_pool(script.pools[pool as usize]),
    }
    watch.after(i, tick(), a.stats());
    refused
}

/// How a replay with the recorded settings compares with the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exactness {
    /// Requests that were placed.
    pub placed: u32,
    /// Those of them that landed elsewhere.
    pub misplaced: u32,
    /// The first of them: instant, recorded address, replayed address.
    pub first: Option<(Tick, DeviceAddr, DeviceAddr)>,
    /// Device calls that only one of the two made.
    pub call_differences: u32,
    pub stats: Stats,
}

impl Exactness {
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.differences() == 0
    }

    /// Misplaced requests, and device calls that only one of the two made.
    #[must_use]
    pub fn differences(&self) -> u32 {
        self.misplaced.saturating_add(self.call_differences)
    }
}

/// Replays `script` with the settings it was recorded under, on a device that answers as the recorded one did.
pub fn verify<W: Watch>(
    script: &Script,
    settings: &TorchSettings,
    version: TorchVersion,
    watch: &mut W,
) -> Exactness {
    repeat(script, settings, version, u32::MAX, watch).0
}

/// The heap of the recording after the ops before `until`.
#[must_use]
pub fn recorded_heap(
    script: &Script,
    settings: &TorchSettings,
    version: TorchVersion,
    until: u32,
) -> Inventory {
    repeat(script, settings, version, until, &mut ()).1.inventory()
}

/// The allocator as it was when the recording began.
fn beginning<'a>(
    script: &'a Script,
    settings: &TorchSettings,
    version: TorchVersion,
) -> Torch<RecordedDevice<'a>> {
    let device = RecordedDevice::new(&script.recorded, RECORDED_CARD);
    let mut torch = Torch::new(settings.clone(), version, device, &script.lanes);
    torch.set_cap(None);
    for segment in &script.recorded.initial {
        torch.install(segment);
    }
    torch
}

/// The first op at which a replay and its recording differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mismatch {
    pub(crate) op: u32,
    /// The instant of the op before, and of this one.
    pub(crate) since: Tick,
    pub(crate) tick: Tick,
    /// For a request, its slot and the address at which the replay put it.
    pub(crate) placed: Option<(Slot, DeviceAddr)>,
    /// The recorded device calls of the op.
    pub(crate) calls: Vec<DeviceCall>,
    /// Addresses of calls that only the replay made, and of those that only the recording has.
    pub(crate) extra: Vec<u64>,
    pub(crate) missing: Vec<u64>,
}

/// As [`verify`], up to the first difference; `None` without one.
pub(crate) fn first_mismatch(
    script: &Script,
    settings: &TorchSettings,
    version: TorchVersion,
) -> Option<Mismatch> {
    let mut torch = beginning(script, settings, version);
    for (i, op) in script.ops.iter().enumerate().skip(script.preexisting as usize) {
        torch.device_mut().begin(i as u32, matches!(op, Op::Failed { .. }));
        let mut placed = None;
        let mut agrees = true;
        if let Op::Alloc { slot, size, lane } = *op {
            let addr = place(script, &mut torch, i, slot, size, lane);
            agrees = addr == script.recorded.addrs[slot as usize];
            placed = Some((slot, addr));
        } else {
            let refused = step(script, &mut torch, &mut (), i as u32, *op).is_some();
            agrees &= !refused || matches!(op, Op::Failed { .. });
        }
        let device = torch.device();
        if !agrees || device.differences > 0 || device.is_behind() {
            let since = if i == 0 { Tick(0) } else { script.ticks[i - 1] };
            return Some(Mismatch {
                op: i as u32,
                since: since.min(script.ticks[i]),
                tick: script.ticks[i],
                placed,
                calls: device.calls_of_op().to_vec(),
                extra: device.extra.clone(),
                missing: device.missing().map(|call| call.addr.0).collect(),
            });
        }
    }
    None
}

/// Serves the request of op `i` as the recorded allocator did: at the recorded address if the program chose it.
fn place(
    script: &Script,
    torch: &mut Torch<RecordedDevice<'_>>,
    i: usize,
    slot: Slot,
    size: Bytes,
    lane: LaneIndex,
) -> DeviceAddr {
    let Recorded { exact, addrs, .. } = &script.recorded;
    let chosen = |slot: Slot| exact.binary_search(&slot).is_ok();
    if !exact.is_empty() && chosen(slot) {
        let addr = addrs[slot as usize];
        // Bytes before a chosen address are an allocation of their own, right before.
        let is_front = |op: &Op| match *op {
            Op::Alloc { slot: next, .. } => {
                chosen(next) && addrs[next as usize] == DeviceAddr(addr.0 + size.0)
            }
            _ => false,
        };
        let served = match script.ops.get(i + 1).is_some_and(is_front) {
            true => torch.alloc_front_at(slot, size, lane, addr),
            false => torch.alloc_at(slot, size, lane, addr).map(|exact| exact.addr),
        };
        if let Some(addr) = served {
            return addr;
        }
    }
    // The device refuses only what the recording refused, so a request that was served then is served now.
    torch.alloc(slot, size, lane).unwrap_or_default()
}

fn repeat<'a, W: Watch>(
    script: &'a Script,
    settings: &TorchSettings,
    version: TorchVersion,
    until: u32,
    watch: &mut W,
) -> (Exactness, Torch<RecordedDevice<'a>>) {
    let mut torch = beginning(script, settings, version);
    let mut exactness = Exactness::default();
    let ops = script.ops.iter().enumerate().take(until as usize);
    for (i, op) in ops.skip(script.preexisting as usize) {
        torch.device_mut().begin(i as u32, matches!(op, Op::Failed { .. }));
        if let Op::Alloc { slot, size, lane } = *op {
            exactness.placed += 1;
            let recorded = script.recorded.addrs[slot as usize];
            let addr = place(script, &mut torch, i, slot, size, lane);
            if addr != recorded {
                exactness.misplaced += 1;
                exactness.first.get_or_insert((script.ticks[i], recorded, addr));
            }
            watch.after(i as u32, script.ticks[i], torch.stats());
        } else if step(script, &mut torch, watch, i as u32, *op).is_some() && !matches!(op, Op::Failed { .. })
        {
            exactness.call_differences += 1;
        }
    }
    torch.device_mut().close();
    exactness.call_differences += torch.device().differences;
    exactness.stats = *torch.stats();
    (exactness, torch)
}

/// The size of the recorded card is not in a snapshot; it decides only how long reserved ranges are.
const RECORDED_CARD: u64 = 192 << 30;
