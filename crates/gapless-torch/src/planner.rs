//! Makes plans for steps that repeat, on a thread of its own while training goes on.
//!
//! The request that asks waits a little, with its card locked: most plans are ready by then and serve the very step
//! that begins. A slower plan is installed when it is ready, and used from the next step on. Each plan is searched
//! once, so most steps do not wait, and the card mostly has queued work meanwhile.

use crate::background;
use crate::cards;
use crate::process;
use gapless_cuda::locks::{Lock, SetOnce, Signal};
use gapless_plan::repeated::{self, Request};
use gapless_pool::{Period, Planner, Recurring, Spot};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// The longest wait of a request for the plan of the step that it begins.
const PATIENCE: Duration = Duration::from_millis(100);
/// The most search nodes, and the most time, for each way of packing a step.
const EFFORT: u64 = 2_000;
const LONGEST: Duration = Duration::from_secs(2);

/// Plans the steps of one card.
#[derive(Debug)]
pub struct Background {
    pub device: i32,
}

/// The state that a request and the planning thread share.
#[derive(Debug)]
struct Answer {
    state: Lock<Waiting>,
    ready: Signal,
}

#[derive(Debug, Default)]
enum Waiting {
    #[default]
    Yes,
    No,
    Answered(Vec<Spot>),
}

struct Task {
    device: i32,
    period: Period,
    answer: Arc<Answer>,
}

static WORK: SetOnce<Option<Sender<Task>>> = SetOnce::new();

impl Planner for Background {
    fn plan(&mut self, period: Period) -> Option<Vec<Spot>> {
        let start = || {
            let (send, receive) = channel();
            background::spawn("gapless-planner", move || work(&receive)).ok().map(|_| send)
        };
        let sender = WORK.get_or_init(start).as_ref()?;
        let fresh = Waiting::default;
        let answer = Arc::new(Answer { state: Lock::with(fresh(), fresh), ready: Signal::new() });
        sender.send(Task { device: self.device, period, answer: answer.clone() }).ok()?;
        let (began, mut state) = (Instant::now(), answer.state.lock());
        while let (Waiting::Yes, Some(left)) = (&*state, PATIENCE.checked_sub(began.elapsed())) {
            state = answer.ready.wait_for(state, left);
        }
        match std::mem::replace(&mut *state, Waiting::No) {
            Waiting::Answered(spots) => Some(spots),
            Waiting::Yes | Waiting::No => None,
        }
    }
}

fn work(tasks: &Receiver<Task>) {
    for Task { device, period, answer } in tasks {
        let made = std::panic::catch_unwind(|| pack(&period)).ok().flatten();
        let spots = {
            let mut state = answer.state.lock();
            match (&*state, made) {
                (Waiting::Yes, made) => {
                    *state = made.map_or(Waiting::No, Waiting::Answered);
                    answer.ready.notify_all();
                    continue;
                }
                (_, Some(spots)) => spots,
                (_, None) => continue,
            }
        };
        if let Some(mut card) = cards::existing(device).filter(|_| !process::is_forked()) {
            card.pool.install(period.ticket, spots);
        }
    }
}

fn pack(period: &Period) -> Option<Vec<Spot>> {
    let request = |r: &Recurring| Request { size: r.size, start: r.start, end: r.end };
    let requests: Vec<Request> = period.requests.iter().map(request).collect();
    let options = gapless_plan::Options {
        effort: Some(EFFORT),
        time_limit: Some(LONGEST),
        ..gapless_plan::Options::default()
    };
    let packed = repeated::pack(&requests, period.length, &period.holes, &options).ok()?;
    let spot = |spot: repeated::Spot| Spot { region: spot.region, offset: spot.offset };
    Some(packed.spots.into_iter().map(spot).collect())
}
