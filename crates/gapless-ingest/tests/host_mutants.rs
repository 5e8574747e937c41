//! Recordings of host memory from untrusted sources: thousands of mutants of a good one end in an error or in a trace
//! that can be analysed, and none makes the reader panic.

use gapless_ingest::ReadOptions;
use gapless_trace::{History, leaks};

/// A recording, put together from records: kind, then numbers and texts.
#[derive(Default)]
struct Recording(Vec<u8>);

impl Recording {
    fn record(&mut self, kind: u8, body: &[u8]) {
        self.0.extend(((body.len() as u32) << 8 | u32::from(kind)).to_le_bytes());
        self.0.extend(body);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

fn small(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn large(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn good() -> Vec<u8> {
    let mut all = Recording(b"GAPHOST1".to_vec());
    let texts = [&small(&[9])[..], b"python x.", &small(&[4]), b"node"].concat();
    all.record(1, &[small(&[1, 77, 1, 11]), large(&[1_000_000, 500, 0, 1 << 20]), texts].concat());
    all.record(2, &[large(&[0x1000, 0x9000, 0, 0, 0]), b"/nowhere/lib.so".to_vec()].concat());
    for number in 1..4 {
        let names = [&b"keeps"[..], b"train.py", &[0x80, 0, 1, 2, 0xF8, 3]].concat();
        all.record(3, &[small(&[number, 10 * number, 5, 8, 6]), names].concat());
        all.record(4, &[small(&[number, 1, 1]), large(&[0x1234]), small(&[number, 4])].concat());
    }
    for at in 0..120u64 {
        let stack = at as u32 % 3 + 1;
        all.record(5, &[large(&[0x10_000 + at * 64, 48, 16 << 10, 600 + at]), small(&[stack, 1])].concat());
        if at % 2 == 0 {
            all.record(6, &large(&[0x10_000 + at * 64, 700 + at]));
        }
        if at % 10 == 0 {
            all.record(7, &large(&[610 + at]));
            all.record(8, &large(&[611 + at, 5 << 20, 1 << 20, 3 << 20, 20 << 20, 16 << 10, 0]));
        }
    }
    all.record(9, &small(&[1]));
    all.record(10, &large(&[5_000]));
    all.0
}

fn random(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) as usize
}

fn mutant(seed: &mut u64) -> Vec<u8> {
    let mut bytes = good();
    for _ in 0..=random(seed) % 4 {
        let at = 8 + random(seed) % (bytes.len() - 8);
        match random(seed) % 6 {
            0 => bytes[at] ^= 1 << (random(seed) % 8),
            1 => bytes[at] = [0, 0xFF, 0x7F, 0x80][random(seed) % 4],
            2 => bytes.truncate(at.max(12)),
            3 => {
                let end = (at + 8).min(bytes.len());
                bytes[at..end].fill(0xFF);
            }
            4 => {
                let (end, to) =
                    ((at + random(seed) % 200).min(bytes.len()), 8 + random(seed) % (bytes.len() - 8));
                let part = bytes[at..end].to_vec();
                bytes.splice(to..to, part);
            }
            _ => {
                let end = (at + random(seed) % 60).min(bytes.len());
                bytes.drain(at..end);
            }
        }
        if bytes.len() < 16 {
            break;
        }
    }
    bytes
}

fn read(bytes: &[u8]) -> bool {
    let input = std::io::Cursor::new(bytes.to_vec());
    let Ok(trace) = gapless_ingest::read(input, "mutant", &ReadOptions::default()) else { return false };
    for device in &trace.devices {
        let _ = History::rebuild(&trace, device);
    }
    if let Some(sample) = &trace.host_sample {
        let (_, _) = (leaks::growing(&trace, sample), leaks::never_freed(&trace, sample));
        let _ = leaks::live_at(sample, sample.end);
        for state in &sample.states {
            let _ = state.large + state.kept + state.small + state.resident;
        }
    }
    true
}

#[test]
fn mutants_of_a_recording_are_read_or_refused_without_a_panic() {
    assert!(read(&good()), "the recording itself is good");
    let mut seed = 11;
    let rounds = 3_000;
    let read = (0..rounds).filter(|_| read(&mutant(&mut seed))).count();
    // Both ends are tested only if there are some of each.
    assert!(read > rounds / 10 && read < rounds * 9 / 10, "{read} of {rounds} were read");
}
