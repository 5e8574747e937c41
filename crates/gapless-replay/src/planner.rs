//! Plans for the steps of our own allocator in a replay: made at once, with a bounded effort, so that the same trace
//! gives the same bytes.

use gapless_plan::repeated::{self, Request};
use gapless_pool::{Period, Planner, Spot};

/// Search nodes for each of the ways that are tried: a step of a thousand requests takes some milliseconds.
const EFFORT: u64 = 2_000;

/// A planner that the allocator waits for.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtOnce;

impl Planner for AtOnce {
    fn plan(&mut self, period: Period) -> Option<Vec<Spot>> {
        let request = |r: &gapless_pool::Recurring| Request { size: r.size, start: r.start, end: r.end };
        let requests: Vec<Request> = period.requests.iter().map(request).collect();
        let options = gapless_plan::Options { effort: Some(EFFORT), ..gapless_plan::Options::default() };
        let packed = repeated::pack(&requests, period.length, &period.holes, &options).ok()?;
        let spot = |spot: repeated::Spot| Spot { region: spot.region, offset: spot.offset };
        Some(packed.spots.into_iter().map(spot).collect())
    }
}
