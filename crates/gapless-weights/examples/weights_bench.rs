//! weights_bench REPEATS KIND FILE...: ratio, encode and decode speed of the codec on raw values, one thread.
//!
//! KIND: bf16, fp16, fp32 or one. Paths take turns within each repeat, so that other load slows all of them. memcpy
//! into the same buffers is the reference; it is measured twice, and the difference of its two lines is noise.
//! Encoders and decoders are kept from file to file, as `pack` and `unpack` keep them. Prints JSON: `cargo xtask
//! bench weights` puts it beside the peers' figures.

use gapless_weights::codec::{Decoder, Encoder, Kind, Path, entropy};
use gapless_weights::stream;
use std::hint::black_box;
use std::time::Instant;

/// Memory that begins on a boundary of 64 bytes.
struct Aligned(Vec<u8>, usize, usize);

impl Aligned {
    fn new(length: usize) -> Aligned {
        let bytes = vec![1u8; length + 64];
        let from = bytes.as_ptr().align_offset(64);
        Aligned(bytes, from, length)
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.0[self.1..self.1 + self.2]
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (Some(repeats), Some(kind)) = (args.get(1).and_then(|text| text.parse::<usize>().ok()), args.get(2))
    else {
        eprintln!("usage: weights_bench REPEATS bf16|fp16|fp32|one FILE...");
        std::process::exit(2);
    };
    let kind = match kind.as_str() {
        "bf16" => Kind::Bf16,
        "fp16" => Kind::Fp16,
        "fp32" => Kind::Fp32,
        _ => Kind::One,
    };
    let whole = |mut bytes: Vec<u8>| {
        bytes.truncate(bytes.len() / kind.width() * kind.width());
        bytes
    };
    let data: Vec<Vec<u8>> =
        args[3..].iter().map(|name| whole(std::fs::read(name).expect("a file"))).collect();
    let total: usize = data.iter().map(Vec::len).sum();
    let speed = |seconds: f64| total as f64 / 1e9 / seconds;
    let mut files = Vec::new();
    for (name, values) in args[3..].iter().zip(&data) {
        let packed = stream::encode(kind, values, Path::best());
        let chunk = kind.chunk() * kind.width();
        let bound: f64 =
            values.chunks(chunk).map(|part| entropy(kind, part).ratio() * part.len() as f64).sum::<f64>();
        files.push(format!(
            "{{\"file\":{:?},\"bytes\":{},\"ratio\":{:.5},\"bound\":{:.5}}}",
            name.rsplit('/').next().unwrap_or(name),
            values.len(),
            packed.len() as f64 / values.len() as f64,
            bound / values.len() as f64
        ));
    }
    let paths = Path::all();
    let mut outs: Vec<Aligned> = data.iter().map(|values| Aligned::new(values.len())).collect();
    let mut packed: Vec<Aligned> =
        data.iter().map(|values| Aligned::new(stream::most(kind, values.len()))).collect();
    let mut lengths = vec![0; data.len()];
    // Encode and decode, each to memory through the caches and past them; for each path.
    let mut times = vec![[const { Vec::new() }; 4]; paths.len()];
    let mut copies = [Vec::new(), Vec::new()];
    let mut encoders: Vec<Encoder> = paths.iter().map(|path| Encoder::new(kind, *path)).collect();
    let mut decoders: Vec<[Decoder; 2]> =
        paths.iter().map(|path| [false, true].map(|stream| Decoder::new(kind, *path, stream))).collect();
    for round in 0..=repeats {
        for copy in &mut copies {
            let start = Instant::now();
            for (values, out) in data.iter().zip(&mut outs) {
                out.get().copy_from_slice(black_box(values));
            }
            if round > 0 {
                copy.push(speed(start.elapsed().as_secs_f64()));
            }
        }
        let codecs = encoders.iter_mut().zip(&mut decoders);
        for ((path, times), (encoder, decoders)) in paths.iter().zip(&mut times).zip(codecs) {
            // Encoding through the caches comes last, so that a decoder finds small files there.
            for past_caches in [true, false] {
                let start = Instant::now();
                for ((values, packed), length) in data.iter().zip(&mut packed).zip(&mut lengths) {
                    *length = stream::encode_with(encoder, values, packed.get(), past_caches);
                }
                if round > 0 {
                    times[usize::from(past_caches)].push(speed(start.elapsed().as_secs_f64()));
                }
            }
            for past_caches in [false, true] {
                let start = Instant::now();
                for ((packed, length), out) in packed.iter_mut().zip(&lengths).zip(&mut outs) {
                    let decoder = &mut decoders[usize::from(past_caches)];
                    stream::decode_with(decoder, &packed.get()[..*length], out.get())
                        .expect("a whole stream");
                }
                if round > 0 {
                    times[2 + usize::from(past_caches)].push(speed(start.elapsed().as_secs_f64()));
                }
                if round == 0 {
                    for (values, out) in data.iter().zip(&mut outs) {
                        assert!(out.get() == &values[..], "{path:?} is not exact");
                    }
                }
            }
        }
    }
    let rows: Vec<String> = paths
        .iter()
        .zip(times)
        .map(|(path, times)| {
            let [encode, encode_streamed, decode, decode_streamed] = times.map(median);
            format!(
                "{{\"path\":\"{path:?}\",\"encode\":{encode:.3},\"encode_streamed\":{encode_streamed:.3},\
                 \"decode\":{decode:.3},\"decode_streamed\":{decode_streamed:.3}}}"
            )
        })
        .collect();
    let [first, second] = copies.map(median);
    println!(
        "{{\"bytes\":{total},\"packed\":{},\"memcpy\":{first:.3},\"memcpy_again\":{second:.3},\"paths\":[{}],\"files\":[{}]}}",
        lengths.iter().sum::<usize>(),
        rows.join(","),
        files.join(",")
    );
}
