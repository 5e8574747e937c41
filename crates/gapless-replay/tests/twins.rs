//! The models against naive twins: the rules written down once more as lists that are walked from end to end, block for
//! block the same addresses. The twins follow the sources of the real allocators literally, bins and all; they share no
//! code with the models.

mod support;

#[path = "twins/bfc.rs"]
mod bfc;
#[path = "twins/buddy.rs"]
mod buddy;
#[path = "twins/rmm_arena.rs"]
mod rmm_arena;
#[path = "twins/rmm_pool.rs"]
mod rmm_pool;

use gapless_replay::models::Model;
use gapless_trace::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use support::{Scenario, Step, lanes, scenario};

/// An allocator without bookkeeping: blocks are named by their address.
trait Twin {
    fn alloc(&mut self, size: u64, lane: u16) -> Option<u64>;
    /// `size` is the requested one.
    fn free(&mut self, addr: u64, size: u64, lane: u16);
    fn empty_cache(&mut self) {}
    fn reserved(&self) -> u64;
}

fn agree(spec: &str, mut twin: impl Twin, scenario: &Scenario) -> Result<(), TestCaseError> {
    let model: Model = spec.parse().expect("a model");
    let mut model = model.build(scenario.device(), &lanes()).expect("it fits");
    let mut held: BTreeMap<u32, (u64, u64, u16, bool)> = BTreeMap::new();
    for (slot, &step) in (0u32..).zip(&scenario.steps) {
        let pick = |pick: u16, pending: bool| {
            let fitting: Vec<u32> =
                held.iter().filter(|(_, h)| h.3 == pending).map(|(&slot, _)| slot).collect();
            (!fitting.is_empty()).then(|| fitting[pick as usize % fitting.len()])
        };
        match step {
            Step::Alloc { size, lane } => {
                let (ours, theirs) = (model.alloc(slot, Bytes(size), lane), twin.alloc(size, lane));
                prop_assert_eq!(
                    ours.ok().map(|addr| addr.0),
                    theirs,
                    "{}: step {}, {} bytes",
                    spec,
                    slot,
                    size
                );
                if let Some(addr) = theirs {
                    held.insert(slot, (addr, size, lane, false));
                }
            }
            Step::FreeRequested { pick: which } => {
                if let Some(slot) = pick(which, false) {
                    model.free_requested(slot);
                    held.get_mut(&slot).expect("picked").3 = true;
                }
            }
            Step::Free { pick: which } | Step::FreeCompleted { pick: which } => {
                let pending = matches!(step, Step::FreeCompleted { .. });
                if let Some(slot) = pick(which, pending) {
                    if pending {
                        model.free_completed(slot);
                    } else {
                        model.free(slot);
                    }
                    let (addr, size, lane, _) = held.remove(&slot).expect("picked");
                    twin.free(addr, size, lane);
                }
            }
            Step::EmptyCache { pool } => {
                model.empty_cache(pool);
                twin.empty_cache();
            }
        }
        prop_assert_eq!(model.stats().reserved.current, twin.reserved(), "{}: step {}", spec, slot);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bfc_places_as_its_twin_does(scenario in scenario(400)) {
        for (spec, preallocate, gc) in
            [("bfc", false, false), ("bfc:gc:true", false, true), ("bfc:preallocate:1.0", true, false)]
        {
            agree(spec, bfc::Naive::new(scenario.device(), preallocate, gc), &scenario)?;
        }
    }

    #[test]
    fn rmm_pool_places_as_its_twin_does(scenario in scenario(400)) {
        for (spec, initial, maximum) in [
            ("rmm-pool", None, None),
            ("rmm-pool:initial:1MiB", Some(1 << 20), None),
            ("rmm-pool:initial:8MiB,maximum:63MiB", Some(8 << 20), Some(63 << 20)),
        ] {
            agree(spec, rmm_pool::Naive::new(scenario.device(), &lanes(), initial, maximum), &scenario)?;
        }
    }

    #[test]
    fn rmm_arena_places_as_its_twin_does(scenario in scenario(400)) {
        for (spec, size) in [("rmm-arena", None), ("rmm-arena:size:9MiB", Some(9 << 20))] {
            agree(spec, rmm_arena::Naive::new(scenario.device(), &lanes(), size), &scenario)?;
        }
    }

    #[test]
    fn buddy_places_as_its_twin_does(scenario in scenario(400)) {
        for (spec, segment) in [("buddy", 32 << 20), ("buddy:segment:1MiB", 1 << 20)] {
            agree(spec, buddy::Naive::new(scenario.device(), segment), &scenario)?;
        }
    }
}
