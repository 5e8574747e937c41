//! Steps that repeat: recognised, planned and followed; and no loss if they do not repeat.

use crate::support::Numbers;
use crate::support::planner::{AtOnce, first_fit};
use gapless_pool::{
    Change, Options, Period, Planner, Pool, PoolKey, SharedPool, SimDevice, Spot, StreamHandle, Ticket,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const KEY: PoolKey = PoolKey(0, 0);
const STREAM: StreamHandle = StreamHandle(0);
const MIB: u64 = 1 << 20;

/// Keeps the periods that it is asked for, so that plans come later, or never.
#[derive(Clone, Debug, Default)]
struct Later(Arc<Mutex<Vec<Period>>>);

impl Later {
    fn take(&self) -> Vec<(Ticket, Vec<Spot>)> {
        let asked = std::mem::take(&mut *self.0.lock().expect("no panic"));
        asked.into_iter().map(|period| (period.ticket, first_fit(&period))).collect()
    }
}

impl Planner for Later {
    fn plan(&mut self, period: Period) -> Option<Vec<Spot>> {
        self.0.lock().expect("no panic").push(period);
        None
    }
}

/// A program over a pool whose every live byte is known.
struct Program {
    pool: Pool<SimDevice>,
    live: BTreeMap<u64, u64>,
}

impl Program {
    fn new(planner: impl Planner + 'static, capacity: u64) -> Program {
        let mut pool = Pool::new(SimDevice::new(capacity), Options::default());
        pool.set_planner(Some(Box::new(planner)));
        Program { pool, live: BTreeMap::new() }
    }

    fn alloc(&mut self, size: u64) -> u64 {
        let addr = self.pool.alloc(size, STREAM, KEY).expect("memory");
        assert!(self.pool.device().is_usable(addr, size), "{size} bytes at {addr:#x} have pages behind them");
        self.live.insert(addr, size);
        addr
    }

    fn free(&mut self, addr: u64) {
        self.live.remove(&addr);
        assert_eq!(self.pool.free(addr), Ok(()));
    }

    /// No two live blocks share memory, through any of its addresses.
    fn check(&self) {
        self.pool.check().expect("a whole state");
        let mut used: Vec<(u64, u64, u64)> = Vec::new();
        for (&addr, &size) in &self.live {
            used.extend(self.pool.device().physical(addr, size));
        }
        used.sort_unstable();
        for pair in used.windows(2) {
            assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{pair:?} share memory");
        }
    }

    /// A training step: activations that stay until backward, temporaries, gradients until the next step begins.
    fn train(&mut self, shape: u64, layers: u64, gradients: &mut Vec<u64>) {
        self.train_with(shape, layers, gradients, |_, _| ());
    }

    /// The same, with something more in each layer of the forward pass.
    fn train_with(
        &mut self,
        shape: u64,
        layers: u64,
        gradients: &mut Vec<u64>,
        mut more: impl FnMut(&mut Program, u64),
    ) {
        for addr in gradients.drain(..) {
            self.free(addr);
        }
        let mut saved = Vec::new();
        for layer in 0..layers {
            saved.push(self.alloc((3 * MIB + layer * 512 * 7) * shape / 4));
            let temporary = self.alloc((9 * MIB + layer * 1024) * shape / 4);
            more(self, layer);
            saved.push(self.alloc(2 * MIB * shape / 4 + 700 * 1024));
            self.free(temporary);
        }
        for layer in (0..layers).rev() {
            let temporary = self.alloc((7 * MIB + layer * 512) * shape / 4);
            for _ in 0..2 {
                let addr = saved.pop().expect("as many as were saved");
                self.free(addr);
            }
            gradients.push(self.alloc(MIB + 4096 + layer * 65536));
            self.free(temporary);
        }
    }
}

/// Weights, then steps. Optimizer states come in the middle of the first step.
fn training(
    program: &mut Program,
    steps: usize,
    marks: bool,
    shape: impl Fn(usize) -> u64,
) -> Vec<(u64, u64, u64)> {
    let layers = 24;
    for layer in 0..layers {
        program.alloc(MIB + 4096 + layer * 65536);
    }
    let (mut gradients, mut held) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let calls = |program: &Program| {
            let device = program.pool.device();
            device.creates + device.maps + device.unmaps + device.host_waits
        };
        let before = calls(program);
        program.train(shape(step), layers, &mut gradients);
        if step == 0 {
            for layer in 0..2 * layers {
                program.alloc(MIB + 4096 + layer / 2 * 65536);
            }
        }
        if marks {
            program.pool.mark_step();
        }
        program.check();
        held.push((
            program.pool.stats().reserved.current,
            program.pool.plan_stats().served,
            calls(program) - before,
        ));
    }
    held
}

#[test]
fn marked_steps_are_served_from_the_third_on() {
    let mut program = Program::new(AtOnce, 8 << 30);
    let held = training(&mut program, 12, true, |_| 4);
    let requests = 24 * 5;
    assert_eq!(held[1].1, 0);
    for step in 2..12 {
        assert_eq!(held[step].1 - held[step - 1].1, requests, "all of step {step}: {held:?}");
        assert!(step == 2 || held[step].2 == 0, "no driver call in step {step}: {held:?}");
    }
    let stats = program.pool.plan_stats();
    assert_eq!((stats.plans, stats.missed), (1, 0), "{stats:?}");
    assert!(stats.steps >= 9, "{stats:?}");
}

#[test]
fn who_adds_up_the_log_has_the_peak_of_the_statistics() {
    let mut program = Program::new(AtOnce, 8 << 30);
    program.pool.set_log(true);
    training(&mut program, 12, true, |_| 4);
    assert!(program.pool.stats().harvested > 0, "the plan moved pages");
    let (mut held, mut peak) = (0, 0);
    for change in program.pool.take_changes() {
        match change {
            Change::Mapped { size, .. } => held += size,
            Change::Unmapped { size, .. } => held -= size,
            Change::Completed { .. } => {}
        }
        peak = peak.max(held);
    }
    assert_eq!(peak, program.pool.stats().reserved.peak, "a page that moves is held once");
}

#[test]
fn in_the_pause_between_steps_a_plan_is_put_in_place() {
    let mut program = Program::new(AtOnce, 8 << 30);
    let calls = |program: &Program| {
        let device = program.pool.device();
        device.creates + device.maps + device.unmaps + device.host_waits
    };
    let mut gradients = Vec::new();
    for layer in 0..24 {
        program.alloc(MIB + 4096 + layer * 65536);
    }
    for step in 0..8 {
        let (before, served) = (calls(&program), program.pool.plan_stats().served);
        if step == 0 {
            // Workspaces of libraries, in the middle of the first step.
            program.train_with(4, 24, &mut gradients, |program, layer| {
                if layer == 1 || layer == 20 {
                    program.alloc(8 * MIB);
                }
            });
            for layer in 0..48 {
                program.alloc(MIB + 4096 + layer / 2 * 65536);
            }
        } else {
            program.train(4, 24, &mut gradients);
        }
        program.pool.mark_step();
        gradients.drain(..).for_each(|addr| program.free(addr));
        let (asked, held) = (calls(&program), program.pool.stats().reserved.current);
        program.pool.pause();
        program.check();
        let paused = calls(&program) - asked;
        if step == 1 {
            assert!(
                paused > 0 && program.pool.plan_stats().plans == 1,
                "the second step is known by its end"
            );
            assert!(program.pool.stats().reserved.current <= held, "no memory is taken");
        } else {
            assert_eq!(paused, 0, "after step {step}");
        }
        // In the second step the old addresses of the plan's pages go.
        if step >= 3 {
            assert_eq!(calls(&program) - before, 0, "driver calls of step {step}");
        }
        if step >= 2 {
            assert_eq!(program.pool.plan_stats().served - served, 24 * 5, "all of step {step}");
        }
    }
}

#[test]
fn steps_without_marks_are_found_too() {
    let mut program = Program::new(AtOnce, 8 << 30);
    let held = training(&mut program, 12, false, |_| 4);
    assert!(held[11].1 - held[5].1 == 6 * 24 * 5, "{held:?}");
    assert!(held[6..].iter().all(|step| step.2 == 0), "{held:?}");
}

#[test]
fn a_plan_never_holds_more_than_there_was_without() {
    let peak = |plans: bool, shape: fn(usize) -> u64| {
        let mut program = Program::new(AtOnce, 8 << 30);
        if !plans {
            program.pool.set_planner(None);
        }
        let held = training(&mut program, 40, true, shape);
        (program.pool.stats().reserved.peak, held[39].0, held.iter().map(|step| step.2).sum::<u64>())
    };
    for shape in [(|_| 4) as fn(usize) -> u64, |step| 4 + step as u64 % 2, |step| 4 + (step as u64 * 7) % 5] {
        let (with, without) = (peak(true, shape), peak(false, shape));
        assert!(with.0 <= without.0 + without.0 / 200, "{with:?}, {without:?}");
        assert!(with.1 <= without.1 + without.1 / 200, "{with:?}, {without:?}");
    }
}

#[test]
fn plans_for_several_shapes_are_kept() {
    let mut program = Program::new(AtOnce, 8 << 30);
    // Long runs of one shape, then of another, then back.
    let held = training(&mut program, 60, true, |step| if (step / 10) % 2 == 0 { 4 } else { 6 });
    let served = |step: usize| held[step].1 - held[step - 1].1;
    assert_eq!((served(9), served(19)), (120, 120), "{held:?}");
    // The first few requests of another shape are served without a plan; then its plan is found again.
    assert!((20..60).all(|step| served(step) >= 100 || step % 10 == 0), "{held:?}");
    assert_eq!(program.pool.plan_stats().plans, 2);
}

#[test]
fn the_plan_that_was_not_used_for_longest_makes_room() {
    let mut program = Program::new(AtOnce, 8 << 30);
    // More shapes than a lane keeps plans for, each for a long time, without marks.
    let held = training(&mut program, 12 * 20, false, |step| 3 + (step / 20) as u64);
    for shape in 1..12 {
        let (last, before) = (held[20 * shape + 19].1, held[20 * shape + 18].1);
        assert_eq!(last - before, 120, "the last step of shape {shape}");
    }
    assert_eq!(program.pool.plan_stats().plans, 8);
}

#[test]
fn plans_may_come_later_or_never() {
    let later = Later::default();
    let mut program = Program::new(later.clone(), 8 << 30);
    training(&mut program, 6, true, |_| 4);
    assert_eq!(program.pool.plan_stats().served, 0);
    let plans = later.take();
    assert_eq!(plans.len(), 1, "asked once");
    for (ticket, spots) in &plans {
        // A plan that does not fit its step is refused.
        program.pool.install(*ticket, spots[1..].to_vec());
        program.pool.install(*ticket, spots.clone());
        program.pool.install(*ticket, spots.clone());
    }
    let mut gradients = Vec::new();
    for _ in 0..4 {
        program.train(4, 24, &mut gradients);
        program.pool.mark_step();
        program.check();
    }
    // The gradients of the steps before were never freed, so one step's places are taken, and the others' are not.
    assert!(program.pool.plan_stats().served > 100, "{:?}", program.pool.plan_stats());
}

#[test]
fn random_deviations_keep_every_invariant() {
    for seed in 1..40 {
        let mut numbers = Numbers(seed);
        let mut program = Program::new(AtOnce, 2 << 30);
        let mut kept: Vec<u64> = Vec::new();
        let mut gradients = Vec::new();
        for _ in 0..30 {
            match numbers.below(12) {
                0 => kept.push(program.alloc(numbers.size() + 2 * MIB)),
                1 if !kept.is_empty() => {
                    let addr = kept.swap_remove(numbers.below(kept.len() as u64) as usize);
                    program.free(addr);
                }
                2 => {
                    program.pool.trim();
                }
                3 => program.pool.reset_peaks(),
                4 => program.train(2 + numbers.below(4), 3 + numbers.below(8), &mut gradients),
                _ => program.train(4, 8, &mut gradients),
            }
            if numbers.below(3) > 0 {
                program.pool.mark_step();
            }
            program.check();
        }
    }
}

#[test]
fn a_fault_at_any_device_call_of_a_plan_leaves_the_state_whole() {
    let calls = {
        let mut program = Program::new(AtOnce, 8 << 30);
        training(&mut program, 2, true, |_| 4);
        // This step puts the plan in place.
        program.pool.device_mut().fail_in = Some(10_000);
        let mut gradients = Vec::new();
        program.train(4, 24, &mut gradients);
        10_000 - program.pool.device().fail_in.expect("not so many calls")
    };
    assert!(calls > 20, "{calls}");
    for call in 0..calls {
        let mut program = Program::new(AtOnce, 8 << 30);
        let mut gradients = Vec::new();
        for layer in 0..24 {
            program.alloc(MIB + 4096 + layer * 65536);
        }
        for step in 0..6 {
            if step == 2 {
                program.pool.device_mut().fail_in = Some(call);
            }
            program.train(4, 24, &mut gradients);
            if step == 0 {
                for layer in 0..48 {
                    program.alloc(MIB + 4096 + layer / 2 * 65536);
                }
            }
            program.pool.mark_step();
            program.check();
        }
    }
}

#[test]
fn threads_follow_plans_of_their_own_streams() {
    let mut pool = Pool::new(SimDevice::new(16 << 30), Options::default());
    pool.set_planner(Some(Box::new(AtOnce)));
    let pool = SharedPool::new(pool);
    // Streams lend each other free memory, so not every place is free. A plan that found too few places free is not
    // used until it is made anew. The order of the threads decides how often that happens.
    let rounds = (1..=50).find(|_| {
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let pool = &pool;
                scope.spawn(move || forty_steps(pool, thread));
            }
        });
        pool.with(|pool| {
            pool.check().expect("a whole state");
            assert_eq!(pool.stats().allocated.current, 0);
            pool.plan_stats().served > 1000
        })
    });
    pool.with(|pool| {
        let stats = pool.plan_stats();
        assert!((1..=3).contains(&stats.plans), "{stats:?}");
        let rounds = rounds.unwrap_or_else(|| panic!("no plan is followed: {stats:?}"));
        assert_eq!(stats.requests, rounds * 3 * 40 * 60);
    });
}

/// Steps of a thread on its own stream, each with 60 requests.
fn forty_steps(pool: &SharedPool<SimDevice>, thread: u64) {
    let stream = StreamHandle(thread);
    for _ in 0..40 {
        let mut saved = Vec::new();
        for layer in 0..30 {
            saved.push(pool.alloc((2 + thread) * MIB + layer * 4096, stream, KEY).expect("memory"));
            let temporary = pool.alloc(5 * MIB + layer * 512, stream, KEY).expect("memory");
            assert_eq!(pool.free(temporary), Ok(()));
        }
        while let Some(addr) = saved.pop() {
            assert_eq!(pool.free(addr), Ok(()));
        }
    }
}
