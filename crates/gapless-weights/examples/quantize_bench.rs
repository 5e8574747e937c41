//! Times the quantisation of one matrix in memory, on one thread. Prints JSON: for each scheme, GB/s of bf16 input.
//!
//! Usage: quantize_bench FILE ROWS COLUMNS ROUNDS     FILE holds ROWS by COLUMNS values in bf16

use gapless_weights::quantize::matrix::{Kind, largest, rows, whole_scale};
use gapless_weights::quantize::scheme::Scheme;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, height, width, rounds] = &args[..] else {
        return Err("usage: quantize_bench FILE ROWS COLUMNS ROUNDS".into());
    };
    let (height, width, rounds): (usize, usize, usize) = (height.parse()?, width.parse()?, rounds.parse()?);
    let bytes = std::fs::read(file)?;
    if bytes.len() != 2 * height * width {
        return Err(format!("{file} has {} bytes, not {}", bytes.len(), 2 * height * width).into());
    }
    // Like `quantize`, it takes a mebibyte at a time, in whole blocks of rows.
    let step = ((1 << 20) / (2 * width)).max(1).next_multiple_of(128);
    let mut speeds = serde_json::Map::new();
    for scheme in Scheme::ALL.into_iter().filter(|scheme| !scheme.is_sparse()) {
        let mut best = f64::INFINITY;
        for _ in 0..rounds {
            let start = Instant::now();
            // nvfp4 has a pass for the largest value.
            let whole = if scheme == Scheme::Nvfp4 {
                let most = largest(Kind::Bf16, &bytes).map_err(|fault| format!("{fault:?}"))?;
                whole_scale(Kind::Bf16, most)
            } else {
                1.0
            };
            for some in bytes.chunks(step * 2 * width) {
                let done =
                    rows(scheme, Kind::Bf16, some, width, whole).map_err(|fault| format!("{fault:?}"))?;
                std::hint::black_box(done);
            }
            best = best.min(start.elapsed().as_secs_f64());
        }
        speeds.insert(scheme.name().to_owned(), (bytes.len() as f64 / best / 1e9).into());
    }
    println!("{}", serde_json::Value::Object(speeds));
    Ok(())
}
