//! Calls that never wait inside of the pool: the program waits itself, and other threads go on meanwhile. What they do
//! are the program's next operations, as far as another thread may do them at any moment.

use super::super::clock::Line;
use super::super::ops::Op;
use super::super::streams::OWN_CONTEXT;
use super::super::violation::Rule;
use super::super::world::Call;
use super::{DEFAULT_POOL, Runner};
use gapless_pool::budget::Budget;
use gapless_pool::device::StreamHandle;
use gapless_pool::pool::{AllocError, Patience, PoolKey, Unserved, Wait};

/// Operations of other threads during one wait.
const MEANWHILE: usize = 6;
/// Waits inside of waits.
const DEEPEST: usize = 3;
/// A call that waits more often waits for ever.
const MOST_WAITS: u32 = 10_000;

/// A call that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    slot: u8,
    line: Option<Line>,
    key: PoolKey,
    /// True if a device call failed in it. Calls of others may fail or wait for the same reason.
    pub(super) had_failure: bool,
}

impl Waiter {
    pub(super) const NOBODY: Waiter =
        Waiter { slot: u8::MAX, line: None, key: DEFAULT_POOL, had_failure: false };
}

impl Runner {
    /// A request of a thread that waits outside of the pool.
    pub(super) fn alloc_asking(
        &mut self,
        size: u64,
        (slot, line, handle): (u8, Line, u64),
        key: PoolKey,
        budget: Option<&'static Budget>,
    ) -> Result<u64, AllocError> {
        if let Some(addr) = self.driver.alloc_at_front(size, handle, key, budget) {
            return Ok(addr);
        }
        let waiter = Waiter { slot, line: Some(line), key, had_failure: false };
        let mut patience = Patience::default();
        for _ in 0..MOST_WAITS {
            let stream = StreamHandle(handle);
            let asked = self.driver.with(|pool| pool.alloc_asking(size, stream, key, budget, &mut patience));
            match asked {
                Ok(addr) => return Ok(addr),
                Err(Unserved::Failed(error)) => return Err(error),
                Err(Unserved::Later(wait)) => self.wait_outside(wait, waiter, &mut patience),
            }
        }
        self.world.borrow_mut().broken((Rule::HostWait, "a request waits for ever".to_owned()));
        self.driver.alloc(size, handle, key, budget)
    }

    /// A trim of a thread that waits outside of the pool: of all, or of one private pool.
    pub(super) fn trim_asking(&mut self, name: &'static str, key: Option<PoolKey>) -> u64 {
        let mut patience = Patience::default();
        for _ in 0..MOST_WAITS {
            self.world.borrow_mut().call = Call { name, may_wait: true, is_asking: true, ..Call::default() };
            let asked = self.driver.with(|pool| match key {
                Some(key) => pool.trim_pool_asking(key, &mut patience),
                None => pool.trim_asking(&mut patience),
            });
            match asked {
                Ok(given) => {
                    self.world.borrow_mut().call = Call::default();
                    return given;
                }
                Err(wait) => self.wait_outside(wait, Waiter::NOBODY, &mut patience),
            }
        }
        self.world.borrow_mut().broken((Rule::HostWait, "a trim waits for ever".to_owned()));
        0
    }

    fn wait_outside(&mut self, wait: Wait, waiter: Waiter, patience: &mut Patience) {
        self.totals.outside_waits += 1;
        let (call, thread, clock) = {
            let mut world = self.world.borrow_mut();
            if world.capture.is_some() {
                world.broken((Rule::WaitInCapture, "a caller is to wait during a capture".to_owned()));
            }
            let clock = world.streams.all(OWN_CONTEXT);
            if !world.streams.is_done(&clock) && !world.call.may_wait && !world.call.had_failure {
                world.broken((Rule::HostWait, "a caller is to wait for streams".to_owned()));
            }
            world.counts.waits += 1;
            (std::mem::take(&mut world.call), world.thread, clock)
        };
        self.waiters.push(Waiter { had_failure: call.had_failure, ..waiter });
        self.meanwhile();
        self.waiters.pop();
        {
            let mut world = self.world.borrow_mut();
            world.call = call;
            world.thread = thread;
        }
        let is_done = {
            let mut world = self.world.borrow_mut();
            let clock = match wait {
                Wait::Event(event) => world.clock_of(event).ok(),
                Wait::All(_) => Some(clock),
            };
            match clock.filter(|_| !world.fails()) {
                Some(clock) => {
                    world.host_wait(&clock);
                    true
                }
                None => false,
            }
        };
        if !is_done {
            patience.give_up();
        }
        self.driver.with(|pool| pool.end_wait(wait, is_done));
    }

    /// Runs the next operations, as other threads would do them while this one waits.
    fn meanwhile(&mut self) {
        if self.waiters.len() > DEEPEST {
            return;
        }
        for _ in 0..MEANWHILE {
            let Some(&(at, op)) = self.ahead.front() else { return };
            if !self.waiters.iter().all(|waiter| self.is_any_time(op, *waiter)) || self.is_broken() {
                return;
            }
            self.ahead.pop_front();
            let before = std::mem::replace(&mut self.world.borrow_mut().at, at);
            self.totals.operations += 1;
            self.totals.meanwhile += 1;
            self.step(op);
            let mut world = self.world.borrow_mut();
            if world.violation().is_none() {
                world.at = before;
            }
        }
    }

    /// True if a thread may do this while another one is in a request. A program may not destroy the stream of that
    /// request, nor owe it a wait, nor release its pool.
    fn is_any_time(&self, op: Op, waiter: Waiter) -> bool {
        match op {
            Op::Alloc { .. }
            | Op::Touch { .. }
            | Op::Announce { .. }
            | Op::Borrow { .. }
            | Op::Free { .. }
            | Op::Wait { .. }
            | Op::Run { .. }
            | Op::SyncStream { .. }
            | Op::Create { .. }
            | Op::Replay { .. }
            | Op::Trim
            | Op::TrimBehind { .. }
            | Op::Poll
            | Op::ResetPeaks => true,
            Op::LateWait { id, .. } => {
                let owner = self.held.get(&id).map(|held| held.line);
                owner.is_none() || owner != waiter.line
            }
            Op::Destroy { stream } => stream != waiter.slot,
            Op::DropGraph { .. }
            | Op::ReleasePool { .. }
            | Op::TrimPool { .. }
            | Op::TrimGraphPool { .. } => waiter.key == DEFAULT_POOL,
            _ => false,
        }
    }
}
