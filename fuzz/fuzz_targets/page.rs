//! Statistics pages: the bytes are a body, sealed as a writer would, so that what is behind the sum is reached; and a
//! whole file.

#![no_main]

use gapless_stats::layout::{decode, seal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = decode(bytes);
    if let Ok(page) = decode(&seal(bytes, 1)) {
        for card in &page.cards {
            assert!((0.0..=1.0).contains(&card.fragmentation()));
            assert!(card.allocations_per_second() >= 0.0);
        }
    }
});
