//! Pinned memory, counted by the card's driver: in a process of its own, in which no other test pins memory.

mod common;

use common::{Model, card};
use gapless_loader::Catalogue;
use std::sync::Arc;

#[test]
fn pinned_memory_is_bounded_by_the_threads_and_given_back() {
    let model = Model::new();
    for path in [model.plain(), model.packed()] {
        let catalogue = Arc::new(Catalogue::open(&path).unwrap());
        card(&catalogue, 4, true).unwrap();
    }
    let (now, most) = common::pinned();
    assert_eq!(now, 0);
    assert!(most > 0 && most <= (4 * 11) << 20, "{most}");
}
