//! Budgets of scopes: allocations of any thread of this process while a scope is open are charged to its tag until they
//! are freed.
//!
//! Scopes of all threads are one list, and the newest open one takes the charge. A tag keeps its count when its scope
//! ends, and each card counts separately. A process without scopes pays one load a request.

use crate::process::CARDS;
use gapless_cuda::locks::{Guard, Lock, SetOnce};
use gapless_pool::Budget;
use gapless_pool::budget::BudgetStats;
use std::fmt::Write;
use std::sync::atomic::{AtomicU16, Ordering};

/// Tags that a process may have; 0 means none.
const TAGS: usize = 256;

/// The tag to which a card's requests are charged.
static OPEN: [AtomicU16; CARDS] = [const { AtomicU16::new(0) }; CARDS];
/// Each card's budgets, by tag. Made for the first request that is charged there.
static TABLES: [SetOnce<Box<[Budget]>>; CARDS] = [const { SetOnce::new() }; CARDS];
static SCOPES: Lock<Scopes> =
    Lock::new(|| Scopes { tags: Vec::new(), last: Vec::new(), open: Vec::new(), count: 0 });

#[derive(Clone, Copy, Debug)]
struct Scope {
    token: i64,
    tag: u16,
    limit: u64,
    soft: u64,
    /// `None` means every card, each by itself.
    device: Option<i32>,
}

impl Scope {
    fn is_of(&self, device: i32) -> bool {
        self.device.is_none_or(|own| own == device)
    }
}

/// All scopes of this process. Tag `n` has the name `tags[n - 1]`, and `last[n - 1]` is its newest scope, open or not.
#[derive(Debug)]
struct Scopes {
    tags: Vec<String>,
    last: Vec<Scope>,
    open: Vec<Scope>,
    count: i64,
}

fn scopes() -> Guard<'static, Scopes> {
    SCOPES.lock()
}

/// The budget to which a request on `device` is charged.
#[inline]
#[must_use]
pub fn open_on(device: i32) -> Option<&'static Budget> {
    match OPEN.get(usize::try_from(device).ok()?)?.load(Ordering::Relaxed) {
        0 => None,
        tag => table(device)?.get(usize::from(tag)),
    }
}

#[cold]
fn table(device: i32) -> Option<&'static [Budget]> {
    let slot = TABLES.get(usize::try_from(device).ok()?)?;
    if slot.get().is_none() {
        let scopes = scopes();
        slot.get_or_init(|| (0..TAGS).map(|_| Budget::default()).collect());
        scopes.set_limits(device);
    }
    slot.get().map(|table| &**table)
}

impl Scopes {
    /// Updates a card's open tag, and the limits of each tag: those of its newest open scope, or else of its last
    /// scope.
    fn set_limits(&self, device: i32) {
        let open = |tag: Option<u16>| {
            self.open.iter().rev().find(|scope| scope.is_of(device) && tag.is_none_or(|tag| scope.tag == tag))
        };
        let turn = open(None).map_or(0, |scope| scope.tag);
        OPEN[device as usize].store(turn, Ordering::Relaxed);
        if let Some(table) = TABLES[device as usize].get() {
            for (at, last) in self.last.iter().enumerate() {
                let tag = at as u16 + 1;
                let newest = open(Some(tag)).or_else(|| last.is_of(device).then_some(last));
                if let Some(scope) = newest {
                    let budget = &table[usize::from(tag)];
                    let BudgetStats { limit, soft, .. } = budget.stats();
                    if (limit, soft) != (scope.limit, scope.soft) {
                        budget.set_limits(scope.limit, scope.soft);
                    }
                }
            }
        }
    }

    fn set_all_limits(&self) {
        for device in 0..CARDS as i32 {
            self.set_limits(device);
        }
    }
}

/// Opens a scope. Returns a number to close it by.
///
/// # Errors
/// If the tag is invalid, or if there are too many.
pub fn open(tag: &str, limit: u64, soft: u64, device: Option<i32>) -> Result<i64, String> {
    if !is_tag(tag) {
        return Err(format!("invalid tag {tag:?}: use 1 to 63 letters, digits, _, - or /"));
    }
    let mut scopes = scopes();
    let at = match scopes.tags.iter().position(|name| name == tag) {
        Some(at) => at,
        None if scopes.tags.len() + 1 < TAGS => {
            scopes.tags.push(tag.to_owned());
            scopes.tags.len() - 1
        }
        None => return Err(format!("there are {} budgets already: use their tags again", TAGS - 1)),
    };
    scopes.count += 1;
    let scope = Scope { token: scopes.count, tag: at as u16 + 1, limit, soft, device };
    if at == scopes.last.len() {
        scopes.last.push(scope);
    } else {
        scopes.last[at] = scope;
    }
    scopes.open.push(scope);
    scopes.set_all_limits();
    Ok(scope.token)
}

/// Closes a scope. Scopes that were opened later stay open.
pub fn close(token: i64) {
    let mut scopes = scopes();
    scopes.open.retain(|scope| scope.token != token);
    scopes.set_all_limits();
}

/// Every tag with its figures on a card.
fn all_on(device: i32) -> Vec<(String, BudgetStats)> {
    let Some(table) = usize::try_from(device).ok().and_then(|at| TABLES.get(at)?.get()) else {
        return Vec::new();
    };
    let scopes = scopes();
    scopes.tags.iter().zip(table.iter().skip(1)).map(|(tag, budget)| (tag.clone(), budget.stats())).collect()
}

/// Peaks start again from the present charges.
pub fn restart_peaks(device: i32) {
    if let Some(table) = usize::try_from(device).ok().and_then(|at| TABLES.get(at)?.get()) {
        table.iter().for_each(Budget::reset_peak);
    }
}

/// Statistics: `"gapless.budgets.eval.live":1,` and so on for each tag.
pub fn write_json(out: &mut String, device: i32) {
    for (tag, BudgetStats { live, peak, limit, soft, pressed, refused }) in all_on(device) {
        let mut put = |name: &str, value: u64| {
            let _ = write!(out, "\"gapless.budgets.{tag}.{name}\":{value},");
        };
        put("live", live);
        put("peak", peak);
        put("limit", limit);
        if soft != u64::MAX {
            put("soft", soft);
        }
        put("pressed", pressed);
        put("refused", refused);
    }
}

/// Bytes that the open budget of a card still allows.
#[must_use]
pub fn left_on(device: i32) -> Option<u64> {
    let BudgetStats { live, limit, .. } = open_on(device)?.stats();
    Some(limit.saturating_sub(live))
}

/// The budget that refuses requests on a card now, as a sentence for the exception.
#[must_use]
pub fn sentence(device: i32) -> Option<String> {
    let tag = OPEN.get(usize::try_from(device).ok()?)?.load(Ordering::Relaxed);
    let (name, BudgetStats { live, limit, .. }) =
        all_on(device).into_iter().nth(usize::from(tag.checked_sub(1)?))?;
    let mib = |bytes: u64| format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20));
    Some(format!(" The budget {name:?} allows {}, of which {} is live.", mib(limit), mib(live)))
}

/// True if a tag can be part of a statistic's name.
#[must_use]
pub fn is_tag(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/');
    (1..=63).contains(&text.len()) && text.chars().all(fine)
}
