//! Chunks of every kind, on every path: no panic, nothing out of bounds.
#![no_main]

use gapless_weights::codec::{Decoder, Kind, Path};
use libfuzzer_sys::fuzz_target;

const KINDS: [Kind; 7] = [Kind::Bf16, Kind::Fp16, Kind::Fp32, Kind::One, Kind::Two, Kind::Four, Kind::Eight];

fuzz_target!(|bytes: &[u8]| {
    let [choice, count @ ..] = bytes.first_chunk::<3>().copied().unwrap_or_default();
    let Some(chunk) = bytes.get(3..) else { return };
    let kind = KINDS[usize::from(choice) % KINDS.len()];
    let count = usize::from(u16::from_le_bytes([count[0], count[1]]));
    let mut out = vec![0; count * kind.width()];
    for path in Path::all() {
        let _ = Decoder::new(kind, path, false).chunk(chunk, &mut out);
    }
});
