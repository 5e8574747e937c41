//! The peers of the published experiment that need no knowledge of the mix.

use crate::go_random::GoRandom;
use crate::ledger::{View, class};
use crate::words::{Request, WHOLE};

/// The largest node of the experiment, by which scores are normalised: 128 CPUs and 8 GPUs, in thousandths.
const MOST_CPU: f64 = 128_000.0;
const MOST_GPU: f64 = 8_000.0;

fn asked(view: View<'_>, request: &Request) -> u32 {
    request.gpus * request.milli_of(view.slot.units)
}

/// The node with the least left, over CPUs and GPUs.
pub(super) fn best_fit(view: View<'_>, request: &Request) -> i32 {
    let cpu = (view.slot.cpu - request.cpu_milli) as f64 / MOST_CPU * 0.5;
    let gpu = f64::from(view.slot.free.saturating_sub(asked(view, request))) / MOST_GPU * 0.5;
    ((1.0 - (cpu + gpu)) * 100.0) as i32
}

/// The node with the smallest product of free and requested resources.
pub(super) fn dot_product(view: View<'_>, request: &Request) -> i32 {
    let cpu = view.slot.cpu as f64 / MOST_CPU * (request.cpu_milli as f64 / MOST_CPU);
    let gpu = f64::from(view.slot.free) / MOST_GPU * (f64::from(asked(view, request)) / MOST_GPU);
    (100.0 * (1.0 - (cpu + gpu) / 2.0)) as i32
}

/// GPUs that are shared already, then free GPUs of nodes in use, then fresh nodes.
pub(super) fn packing(view: View<'_>, request: &Request) -> i32 {
    if request.gpus == 0 {
        return 0;
    }
    let whole = i32::from(view.slot.whole);
    if usize::from(view.slot.whole) == view.gpus() {
        return (33 - whole).max(whole);
    }
    let milli = request.milli_of(view.slot.units) as u16;
    let mut room: Vec<u16> = view.milli.iter().copied().filter(|&left| left >= milli).collect();
    room.sort_unstable();
    room.truncate(request.gpus as usize);
    let fresh = room.iter().filter(|&&left| u32::from(left) == WHOLE).count() as i32;
    if fresh > 0 {
        return (50 - fresh).max(33);
    }
    let free: i32 = room.iter().map(|&left| i32::from(left) * 100 / WHOLE as i32).sum();
    (100 - free / 10).max(50)
}

/// Nodes with pods of the same class, the fullest first.
pub(super) fn clustering(view: View<'_>, request: &Request) -> i32 {
    let class = class(request, view.slot.units);
    if class == 0 {
        return 0;
    }
    let with_gpus = view.classes().iter().filter(|(class, _)| *class != 0).count();
    let base = match (view.classes().iter().any(|(known, _)| *known == class), with_gpus) {
        (true, 1) => 75,
        (true, _) => 50,
        (false, 0) => 25,
        (false, _) => 0,
    };
    25 * (MOST_GPU as i32 - view.slot.free as i32) / MOST_GPU as i32 + base
}

/// A GPU drawn uniformly among those with room.
pub(super) fn any_gpu(left: &[u64], need: u64, random: &mut GoRandom) -> Option<u16> {
    let mut chosen = None;
    let mut seen = 0;
    for (gpu, _) in left.iter().enumerate().filter(|&(_, &left)| left >= need) {
        seen += 1;
        if random.below(seen) == 0 {
            chosen = Some(gpu as u16);
        }
    }
    chosen
}
