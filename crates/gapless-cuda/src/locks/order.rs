//! The order in which threads take locks, in builds for tests. Two threads wait for each other for ever if one takes A
//! and then B, and the other one B and then A. That needs bad luck, but a test that runs both orders one after the
//! other needs none: each lock that is taken while others are held is noted, and a circle ends the process.
//!
//! Locks that are made in one place of the source are one lock here.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::sync::Mutex;

/// A place in the source where locks are made.
pub type Place = &'static Location<'static>;
type Name = (&'static str, u32);

thread_local! {
    /// The locks that this thread holds, the first one first.
    static HELD: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
    /// Pairs that this thread has noted.
    static NOTED: RefCell<BTreeSet<(Name, Name)>> = const { RefCell::new(BTreeSet::new()) };
}

/// For each lock those that were taken while it was held.
static TAKEN_UNDER: Mutex<BTreeMap<Name, BTreeSet<Name>>> = Mutex::new(BTreeMap::new());

fn name(place: Place) -> Name {
    (place.file(), place.line())
}

/// Notes that this thread is about to take a lock, for which it may wait.
///
/// # Panics
/// Ends the process if another order of the same locks was seen.
pub fn entering(place: Place) {
    // A thread that ends may take locks after its thread-local variables are gone.
    let held = HELD.try_with(|held| held.borrow().iter().map(|held| name(held)).collect::<Vec<_>>());
    for above in held.unwrap_or_default() {
        let pair = (above, name(place));
        // Locks of one place are taken in the order of their numbers: see `cards::Turn` of gapless-torch.
        let is_new = NOTED.try_with(|noted| noted.borrow_mut().insert(pair)).unwrap_or(false);
        if !is_new || pair.0 == pair.1 {
            continue;
        }
        // In a forked child it may never be opened.
        let Ok(mut taken) = TAKEN_UNDER.try_lock() else {
            let _ = NOTED.try_with(|noted| noted.borrow_mut().remove(&pair));
            continue;
        };
        taken.entry(pair.0).or_default().insert(pair.1);
        if let Some(circle) = circle(&taken, pair) {
            let shown: Vec<String> = circle.iter().map(|(file, line)| format!("{file}:{line}")).collect();
            eprintln!(
                "gapless: locks are taken in a circle, each while the one before it is held: {}",
                shown.join(" > ")
            );
            std::process::abort();
        }
    }
}

/// This thread has the lock.
pub fn entered(place: Place) {
    let _ = HELD.try_with(|held| held.borrow_mut().push(place));
}

/// This thread has given the lock up.
pub fn left(place: Place) {
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        if let Some(at) = held.iter().rposition(|one| name(one) == name(place)) {
            held.remove(at);
        }
    });
}

/// A way from the second lock back to the first.
fn circle(taken: &BTreeMap<Name, BTreeSet<Name>>, (first, second): (Name, Name)) -> Option<Vec<Name>> {
    let mut ways = vec![vec![first, second]];
    let mut seen = BTreeSet::from([second]);
    while let Some(way) = ways.pop() {
        let last = *way.last()?;
        if last == first {
            return Some(way);
        }
        for &next in taken.get(&last).into_iter().flatten() {
            if seen.insert(next) {
                ways.push(way.iter().copied().chain([next]).collect());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(line: u32) -> Name {
        ("a.rs", line)
    }

    #[test]
    fn a_circle_is_found_over_any_number_of_locks() {
        let mut taken: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
        for (above, below) in [(1, 2), (2, 3), (1, 3), (3, 4)] {
            taken.entry(at(above)).or_default().insert(at(below));
            assert_eq!(circle(&taken, (at(above), at(below))), None);
        }
        taken.entry(at(4)).or_default().insert(at(1));
        let found = circle(&taken, (at(4), at(1))).expect("a circle");
        assert_eq!((found.first(), found.last()), (Some(&at(4)), Some(&at(4))));
        assert!(found.windows(2).all(|pair| taken[&pair[0]].contains(&pair[1])), "{found:?}");
    }
}
