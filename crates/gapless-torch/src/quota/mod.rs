//! Limits of this process's memory on a card: its own budget, and its tenant's share in the card's ledger. Both are
//! asked before the driver is. If the host's budget counts cards, it is asked too ([`host`]).
//!
//! [`QuotaDevice`] is a device that asks a [`Quota`] for every page, and reports every page that goes. A quota counts
//! the pool's memory and the memory outside of it ([`outside`]): context, modules, memory that libraries allocate
//! themselves. [`admission`] gives a card its quota, and [`ticker`] updates it four times a second. [`tenant`] adds a
//! process to a tenant while it runs.
//!
//! Order of locks: the card's, then the quota's seat, then the ledger file's. No thread waits with the seat locked.

pub mod admission;
pub mod host;
pub mod outside;
pub mod tenant;
pub mod ticker;

use gapless_cuda::locks::{Guard, Lock, SetOnce};
use gapless_ledger::{Answer, Ledger, LedgerError};
use gapless_pool::{Device, DeviceError, EventHandle, PageHandle, Refusal, StreamHandle};
use outside::Meter;
use std::fmt::Write;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest wait for a share that is lent to others, and the pause between two looks. Their ticks are four a second.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// One card's quota.
#[derive(Debug)]
pub struct Quota {
    /// True if there is any limit. A process without budgets reads only this.
    is_on: AtomicBool,
    /// The most that this process may hold of the card; `u64::MAX`: no such limit.
    budget: AtomicU64,
    /// Bytes of the pool, counted from before the driver is asked until after it has them back.
    reserved: AtomicU64,
    /// Bytes that are counted for everything else.
    outside: AtomicU64,
    /// Odd while pages are taken or given back: measurements are invalid then.
    changes: AtomicU64,
    /// Number of refused requests.
    refused: AtomicU64,
    seat: Lock<Option<Ledger>>,
    /// Asks for the bytes that this process holds in all, if they can be asked for.
    meter: SetOnce<Meter>,
    patience: Duration,
    /// Size of the last request that others must give memory back for.
    lent: AtomicU64,
    /// Bytes that the ledger has granted and that no page uses yet.
    credit: AtomicU64,
}

impl Default for Quota {
    fn default() -> Quota {
        Quota {
            is_on: AtomicBool::new(false),
            budget: AtomicU64::new(u64::MAX),
            reserved: AtomicU64::new(0),
            outside: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            // Not `Lock::new`: that lists the lock for good, and a quota may move and end.
            seat: Lock::with(None, || None),
            meter: SetOnce::new(),
            patience: PATIENCE,
            lent: AtomicU64::new(0),
            credit: AtomicU64::new(0),
        }
    }
}

/// The figures of a quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub budget: Option<u64>,
    pub reserved: u64,
    pub outside: u64,
    pub refused: u64,
    pub tenant: Option<Tenant>,
}

impl Figures {
    /// As JSON members, each followed by a comma; nothing if there is no limit.
    pub fn write_json(&self, out: &mut String) {
        let mut put = |name: &str, value: u64| {
            let _ = write!(out, "\"gapless.{name}\":{value},");
        };
        if self.budget.is_some() || self.tenant.is_some() {
            put("budget.outside", self.outside);
            put("budget.refused", self.refused);
        }
        if let Some(budget) = self.budget {
            put("budget.limit", budget);
        }
        if let Some(tenant) = &self.tenant {
            put("tenant.limit", tenant.limit);
            put("tenant.held", tenant.held);
            put("tenant.total", tenant.total);
            put("tenant.capacity", tenant.capacity);
            put("tenant.borrow", u64::from(tenant.borrow));
        }
    }
}

/// This process's tenant on a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    pub name: String,
    pub limit: u64,
    pub borrow: bool,
    /// Bytes of all its processes.
    pub held: u64,
    /// Bytes of all tenants of the card.
    pub total: u64,
    pub capacity: u64,
}

impl Quota {
    fn seat(&self) -> Guard<'_, Option<Ledger>> {
        self.seat.lock()
    }

    fn get(number: &AtomicU64) -> u64 {
        number.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Bytes of the pool.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        Self::get(&self.reserved)
    }

    /// Sets the most that this process may hold of the card.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Ordering::Relaxed);
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Takes a place in the card's ledger, with the bytes that the pool holds already.
    ///
    /// # Errors
    /// If the tenant has no room for the bytes that this process holds already.
    pub fn join(&self, mut ledger: Ledger, context: u64) -> Result<(), String> {
        let held = self.reserved();
        let answer = self.wait(|| ledger.ask(held)).map_err(|error| error.to_string())?;
        if answer != Answer::Granted {
            let name = ledger.entry().name.clone();
            ledger.leave();
            return Err(format!(
                "this process holds {:.0} MiB already, for which tenant {name} has no room: join before memory is used",
                held as f64 / f64::from(1 << 20)
            ));
        }
        // Memory outside of the pool cannot be refused: the measured figure is entered later.
        if self.wait(|| ledger.ask_outside(context)).is_ok_and(|answer| answer == Answer::Granted) {
            self.outside.store(context, Ordering::Relaxed);
        } else {
            ledger.withdraw();
        }
        *self.seat() = Some(ledger);
        self.is_on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// True if this process has a place in the card's ledger.
    #[must_use]
    pub fn has_seat(&self) -> bool {
        self.seat().is_some()
    }

    /// Asks until the answer is no longer to wait, at most for this quota's patience.
    fn wait(&self, mut ask: impl FnMut() -> Result<Answer, LedgerError>) -> Result<Answer, LedgerError> {
        let began = Instant::now();
        loop {
            match ask()? {
                Answer::Wait if began.elapsed() < self.patience => std::thread::sleep(PAUSE),
                answer => return Ok(answer),
            }
        }
    }

    /// Repeats `again` while it is refused because others have borrowed from this tenant's share, each time after the
    /// ledger has granted the missing bytes. Ends when the patience is over. `size` is the most that it may need in
    /// all. No card is locked, so other threads go on meanwhile.
    pub fn when_lent<T, E>(
        &self,
        size: u64,
        is_lent: impl Fn(&E) -> bool,
        mut again: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let mut done = again();
        let mut missing = 0;
        while done.as_ref().is_err_and(&is_lent) {
            missing = if missing == 0 { Self::get(&self.lent) } else { size.max(2 * missing) };
            if !self.wait_for_credit(missing, began) {
                break;
            }
            done = again();
        }
        if missing > 0
            && let Some(ledger) = self.seat().as_mut()
        {
            ledger.give(self.credit.swap(0, Ordering::AcqRel));
            ledger.withdraw();
        }
        done
    }

    /// True if the ledger grants `bytes` before the patience is over.
    fn wait_for_credit(&self, bytes: u64, began: Instant) -> bool {
        loop {
            match self.seat().as_mut().map(|ledger| ledger.ask(bytes)) {
                Some(Ok(Answer::Granted)) => {
                    self.credit.fetch_add(bytes, Ordering::AcqRel);
                    return true;
                }
                Some(Ok(Answer::Wait)) if began.elapsed() < self.patience => {}
                _ => return false,
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Counts `bytes` that the driver is about to be asked for. If `waits`, waits for memory that others have borrowed.
    fn ask(&self, bytes: u64, waits: bool) -> Result<(), Refusal> {
        let result = self.may_take(bytes, waits).and_then(|()| self.charge_host(bytes));
        match result {
            Ok(()) => self.reserved.fetch_add(bytes, Ordering::Relaxed),
            Err(_) => self.refused.fetch_add(1, Ordering::Relaxed),
        };
        result
    }

    fn may_take(&self, bytes: u64, waits: bool) -> Result<(), Refusal> {
        if !self.is_on() {
            return Ok(());
        }
        let sum = self.reserved() + Self::get(&self.outside);
        if sum.saturating_add(bytes) > Self::get(&self.budget) {
            return Err(Refusal::Process);
        }
        if !self.has_seat() {
            return Ok(());
        }
        let take = |credit: u64| credit.checked_sub(bytes);
        if self.credit.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok() {
            return Ok(());
        }
        let ask = || self.seat().as_mut().map_or(Ok(Answer::Granted), |ledger| ledger.ask(bytes));
        match if waits { self.wait(ask) } else { ask() } {
            Ok(Answer::Granted) => Ok(()),
            Ok(Answer::Wait) => {
                self.lent.store(bytes, Ordering::Relaxed);
                if let Some(ledger) = self.seat().as_mut() {
                    ledger.withdraw();
                }
                Err(Refusal::Lent)
            }
            Ok(Answer::Refused) => Err(Refusal::Share),
            Err(_) => Err(Refusal::Ledger),
        }
    }

    /// Asked last: if the host refuses, the share gets its bytes back.
    fn charge_host(&self, bytes: u64) -> Result<(), Refusal> {
        if host::budget().is_none_or(|budget| budget.charge(bytes)) {
            return Ok(());
        }
        self.leave_share(bytes);
        Err(Refusal::Host)
    }

    /// Returns `bytes` that the driver has again, or did not give.
    fn give(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(budget) = host::budget() {
            budget.discharge(bytes);
        }
        self.leave_share(bytes);
    }

    /// Returns `bytes` to the tenant's share.
    fn leave_share(&self, bytes: u64) {
        if self.is_on()
            && let Some(ledger) = self.seat().as_mut()
        {
            ledger.give(bytes);
        }
    }

    /// Sets the bytes that are counted outside of the pool.
    pub fn set_outside(&self, bytes: u64) {
        if self.outside.swap(bytes, Ordering::Relaxed) != bytes
            && let Some(ledger) = self.seat().as_mut()
        {
            ledger.set_outside(bytes);
        }
    }

    /// Bytes outside of the pool if the process holds `used` bytes of the card in all. `None` if pages came or went
    /// meanwhile, or if `used` is less than the pool, so that it must be another process's figure.
    fn beside(&self, used: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let before = self.changes.load(Ordering::Acquire);
        let reserved = self.reserved();
        let used = used()?;
        let is_quiet = before.is_multiple_of(2) && self.changes.load(Ordering::Acquire) == before;
        if is_quiet { used.checked_sub(reserved) } else { None }
    }

    /// Removes dead processes from the ledger. Returns the bytes that this process should give back if it has them
    /// free.
    pub fn tick(&self) -> u64 {
        let excess = (self.reserved() + Self::get(&self.outside)).saturating_sub(Self::get(&self.budget));
        let mut seat = self.seat();
        let Some(ledger) = seat.as_mut() else { return excess };
        ledger.tick().map_or(excess, |tick| excess.max(tick.overdue))
    }

    #[must_use]
    pub fn figures(&self) -> Figures {
        let budget = Self::get(&self.budget);
        let tenant = self.seat().as_ref().and_then(|ledger| {
            let (book, me) = (ledger.look().ok()?, ledger.entry());
            Some(Tenant {
                name: me.name.clone(),
                limit: me.limit,
                borrow: me.borrow,
                held: book.held_by(&me.name),
                total: book.total(),
                capacity: book.capacity,
            })
        });
        Figures {
            budget: (budget != u64::MAX).then_some(budget),
            reserved: self.reserved(),
            outside: Self::get(&self.outside),
            refused: Self::get(&self.refused),
            tenant,
        }
    }

    /// The most that the pool may hold by the process's budget and its tenant's share; `None` without either.
    #[must_use]
    pub fn most(&self) -> Option<u64> {
        let Figures { budget, reserved, outside, tenant, .. } = self.figures();
        let by_budget = budget.map(|budget| budget.saturating_sub(outside));
        // The tenant's other processes, and this one outside of its pool, use a part of the share.
        let share = |tenant: Tenant| tenant.limit.saturating_sub(tenant.held.saturating_sub(reserved));
        let by_share = tenant.map(share);
        by_budget.into_iter().chain(by_share).min()
    }

    /// The reason for a refusal, as a sentence for the exception; `None` if the quota did not refuse.
    #[must_use]
    pub fn sentence(&self, why: Refusal) -> Option<String> {
        let mib = |bytes: u64| format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20));
        let Figures { budget, reserved, outside, tenant, .. } = self.figures();
        match why {
            Refusal::Process => Some(format!(
                " The budget of this process is {}: its pool holds {}, and {} is counted for context, modules and libraries (GAPLESS_PROCESS_LIMIT).",
                mib(budget?),
                mib(reserved),
                mib(outside)
            )),
            Refusal::Share | Refusal::Lent => {
                let Tenant { name, limit, borrow, held, total, capacity } = tenant?;
                let more = match (why, borrow) {
                    (Refusal::Lent, _) => "others have borrowed of it, and did not give it back in time",
                    (_, true) => "this would be beyond it, and there is nothing to borrow",
                    _ => "this would be beyond it",
                };
                let (held, limit, total, capacity) = (mib(held), mib(limit), mib(total), mib(capacity));
                Some(format!(
                    " Tenant {name:?} holds {held} of its share of {limit}: {more}. All tenants hold {total} of {capacity}."
                ))
            }
            Refusal::Ledger => {
                Some(" The tenants' ledger cannot be used, so nobody can be granted more.".to_owned())
            }
            Refusal::Host => {
                let (limit, total) = host::budget()?.figures();
                let (limit, total, reserved) = (mib(limit), mib(total), mib(reserved));
                Some(format!(
                    " Host and GPU memory have one budget of {limit}: all processes of the run hold {total} of it, this \
                     card's pool {reserved} (--host-limit-gpu)."
                ))
            }
            Refusal::Limit | Refusal::Budget => None,
        }
    }
}

/// A device that asks a quota first.
#[derive(Debug)]
pub struct QuotaDevice<D> {
    device: D,
    quota: Arc<Quota>,
    /// True if it waits for memory that others have borrowed. False if a card is locked meanwhile.
    waits: bool,
}

impl<D> QuotaDevice<D> {
    pub fn new(device: D, quota: Arc<Quota>) -> QuotaDevice<D> {
        QuotaDevice { device, quota, waits: false }
    }

    /// A device that waits, for use with no card locked.
    #[must_use]
    pub fn patient(self) -> QuotaDevice<D> {
        QuotaDevice { waits: true, ..self }
    }

    #[must_use]
    pub fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }
}

impl<D> Deref for QuotaDevice<D> {
    type Target = D;
    fn deref(&self) -> &D {
        &self.device
    }
}

impl<D> DerefMut for QuotaDevice<D> {
    fn deref_mut(&mut self) -> &mut D {
        &mut self.device
    }
}

impl<D: Device> Device for QuotaDevice<D> {
    fn unreserve(&mut self, addr: u64, size: u64) {
        self.device.unreserve(addr, size);
    }

    fn create(&mut self, size: u64) -> Result<PageHandle, DeviceError> {
        self.quota.look_closer(size);
        let changes = &self.quota.changes;
        changes.fetch_add(1, Ordering::AcqRel);
        let made = self
            .quota
            .ask(size, self.waits)
            .map_err(DeviceError::Refused)
            .and_then(|()| self.device.create(size).inspect_err(|_| self.quota.give(size)));
        changes.fetch_add(1, Ordering::AcqRel);
        made
    }

    fn release(&mut self, page: PageHandle, size: u64) {
        let changes = &self.quota.changes;
        changes.fetch_add(1, Ordering::AcqRel);
        self.device.release(page, size);
        self.quota.give(size);
        changes.fetch_add(1, Ordering::AcqRel);
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.device.reserve(size)
    }

    fn address_room(&self) -> u64 {
        self.device.address_room()
    }

    fn map(&mut self, addr: u64, size: u64, page: PageHandle) -> Result<(), DeviceError> {
        self.device.map(addr, size, page)
    }

    fn grant(&mut self, addr: u64, size: u64) -> Result<(), DeviceError> {
        self.device.grant(addr, size)
    }

    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), DeviceError> {
        self.device.unmap(addr, size)
    }

    fn record(&mut self, stream: StreamHandle) -> Result<EventHandle, DeviceError> {
        self.device.record(stream)
    }

    fn is_done(&mut self, event: EventHandle) -> Result<bool, DeviceError> {
        self.device.is_done(event)
    }

    fn wait(&mut self, event: EventHandle) -> Result<(), DeviceError> {
        self.device.wait(event)
    }

    fn wait_for_all(&mut self) -> Result<(), DeviceError> {
        self.device.wait_for_all()
    }

    fn is_covered(&self, stream: StreamHandle) -> bool {
        self.device.is_covered(stream)
    }

    /// True if a living process may have mapped the page and has not dropped it.
    fn is_shared(&self, page: PageHandle) -> bool {
        self.device.is_shared(page)
    }

    fn discard(&mut self, event: EventHandle) {
        self.device.discard(event);
    }

    fn memory(&mut self) -> (u64, u64) {
        self.device.memory()
    }
}

#[cfg(test)]
mod tests;
