//! What this process may take of a card: its own budget, and its tenant's share in the card's ledger, asked before the
//! driver is; the host's budget too where that counts cards ([`host`]).
//!
//! [`QuotaDevice`] is a device that asks a [`Quota`] for every page, and tells it of every page that goes. A quota
//! counts what the pool holds and what is outside of it ([`outside`]): context, modules, what libraries take for
//! themselves. [`admission`] is how a card gets one, [`ticker`] looks around four times a second.
//!
//! Order of locks: the card's, then the quota's seat, then the ledger file's. Nothing is waited for with the seat
//! locked.

pub mod admission;
pub mod host;
pub mod outside;
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

/// How long a process waits for what is its own and lent to others, and how often it looks: their ticks are four a
/// second.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// One card's quota.
#[derive(Debug)]
pub struct Quota {
    /// Whether anything is limited: all that a process without budgets looks at.
    is_on: AtomicBool,
    /// The most that this process may hold of the card; `u64::MAX`: no such limit.
    budget: AtomicU64,
    /// What the pool holds, from before the driver is asked until after it has it back.
    reserved: AtomicU64,
    /// What is counted for everything else.
    outside: AtomicU64,
    /// Odd while pages are being taken or given back: what the driver says then is of no use.
    changes: AtomicU64,
    /// Growth that was refused.
    refused: AtomicU64,
    seat: Lock<Option<Ledger>>,
    /// What this process holds in all, where that can be asked.
    meter: SetOnce<Meter>,
    patience: Duration,
    /// The last growth that others have to give back for.
    lent: AtomicU64,
    /// Granted by the ledger and taken by no page yet.
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
            seat: Lock::new(|| None),
            meter: SetOnce::new(),
            patience: PATIENCE,
            lent: AtomicU64::new(0),
            credit: AtomicU64::new(0),
        }
    }
}

/// A quota in figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub budget: Option<u64>,
    pub reserved: u64,
    pub outside: u64,
    pub refused: u64,
    pub tenant: Option<Tenant>,
}

impl Figures {
    /// As statistics, each with a comma behind it; nothing where nothing is limited.
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
    /// By all of its processes.
    pub held: u64,
    /// By all tenants of the card.
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

    /// What the pool holds.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        Self::get(&self.reserved)
    }

    /// The most that this process may hold of the card.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Ordering::Relaxed);
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Takes a place in the card's ledger, before anything is held or with what is.
    ///
    /// # Errors
    /// When the tenant has no room for what this process holds already.
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
        // What will be outside is refused by nobody: the measured figure follows.
        if self.wait(|| ledger.ask_outside(context)).is_ok_and(|answer| answer == Answer::Granted) {
            self.outside.store(context, Ordering::Relaxed);
        } else {
            ledger.withdraw();
        }
        *self.seat() = Some(ledger);
        self.is_on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether this process has a place in the card's ledger.
    #[must_use]
    pub fn has_seat(&self) -> bool {
        self.seat().is_some()
    }

    /// Asks until the answer is no longer to wait, for as long as that is worth it.
    fn wait(&self, mut ask: impl FnMut() -> Result<Answer, LedgerError>) -> Result<Answer, LedgerError> {
        let began = Instant::now();
        loop {
            match ask()? {
                Answer::Wait if began.elapsed() < self.patience => std::thread::sleep(PAUSE),
                answer => return Ok(answer),
            }
        }
    }

    /// Does what was refused because others have borrowed of this tenant's share again, once the ledger has granted
    /// what was missing, for as long as that is worth it. `size` is what the whole of it may need. No card is locked:
    /// other threads go on meanwhile.
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

    /// Whether the ledger has granted `bytes` before it was too late.
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

    /// Enters `bytes` that the driver is about to be asked for. Waits for what others have borrowed where `waits`.
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

    /// The last to be asked: who refuses here has the others' consent taken back.
    fn charge_host(&self, bytes: u64) -> Result<(), Refusal> {
        if host::budget().is_none_or(|budget| budget.charge(bytes)) {
            return Ok(());
        }
        self.leave_share(bytes);
        Err(Refusal::Host)
    }

    /// The driver has `bytes` again, or never gave them.
    fn give(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(budget) = host::budget() {
            budget.discharge(bytes);
        }
        self.leave_share(bytes);
    }

    /// The tenant's share has `bytes` again.
    fn leave_share(&self, bytes: u64) {
        if self.is_on()
            && let Some(ledger) = self.seat().as_mut()
        {
            ledger.give(bytes);
        }
    }

    /// Sets what is counted for what is outside of the pool.
    pub fn set_outside(&self, bytes: u64) {
        if self.outside.swap(bytes, Ordering::Relaxed) != bytes
            && let Some(ledger) = self.seat().as_mut()
        {
            ledger.set_outside(bytes);
        }
    }

    /// What is outside of the pool, where the process holds `used` bytes of the card in all; `None`: pages came or went
    /// meanwhile, or it cannot be this process that was looked at.
    fn beside(&self, used: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let before = self.changes.load(Ordering::Acquire);
        let reserved = self.reserved();
        let used = used()?;
        let is_quiet = before.is_multiple_of(2) && self.changes.load(Ordering::Acquire) == before;
        if is_quiet { used.checked_sub(reserved) } else { None }
    }

    /// Looks around: forgets the dead in the ledger, and says how many bytes this process should give back, if it has
    /// them free.
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

    /// The most that the pool may hold by the process's budget and its tenant's share; `None`: nothing says.
    #[must_use]
    pub fn most(&self) -> Option<u64> {
        let Figures { budget, reserved, outside, tenant, .. } = self.figures();
        let by_budget = budget.map(|budget| budget.saturating_sub(outside));
        // What the tenant's other processes hold, and this one outside of its pool, is not the pool's.
        let share = |tenant: Tenant| tenant.limit.saturating_sub(tenant.held.saturating_sub(reserved));
        let by_share = tenant.map(share);
        by_budget.into_iter().chain(by_share).min()
    }

    /// Why memory was refused, as a sentence for the exception; nothing where it was not the quota.
    #[must_use]
    pub fn sentence(&self, why: Refusal) -> Option<String> {
        let mib = |bytes: u64| format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20));
        let Figures { budget, reserved, outside, tenant, .. } = self.figures();
        match why {
            Refusal::Process => Some(format!(
                " The budget of this process is {}: its pool holds {}, and {} is counted for context, modules and libraries (GAPLESS_BUDGET).",
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
    /// Whether it waits for what others have borrowed: not where a card is locked meanwhile.
    waits: bool,
}

impl<D> QuotaDevice<D> {
    pub fn new(device: D, quota: Arc<Quota>) -> QuotaDevice<D> {
        QuotaDevice { device, quota, waits: false }
    }

    /// One that is used with no card locked.
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

    /// Whether it may be mapped elsewhere, by a process that lives and has not dropped it.
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
