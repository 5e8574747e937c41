//! Small real files, damaged in thousands of ways that look random and are the same every time: never a panic, never
//! more than 64 MiB. The memory of the whole process is looked at, so this test has a file of its own.

mod support;

use gapless_ingest::{ReadOptions, read};
use gapless_trace::History;
use std::io::Read;
use std::path::Path;
use support::Dice;

/// Files to damage: all of the small corpus, and the first part of real traces.
fn corpus() -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let mut corpus = Vec::new();
    for name in ["cpython/torch_1_13.pickle", "cpython/torch_2_0.pickle"] {
        corpus.push(std::fs::read(root.join(name)).expect("the file"));
    }
    for name in ["cpython/protocol_2.pickle", "cpython/protocol_4.pickle"] {
        let whole = std::fs::read(root.join(name)).expect("the file");
        // The beginning and the end, so that some of it still closes.
        corpus.push([&whole[..4000], &whole[whole.len() - 1200..]].concat());
    }
    for name in ["gpt2_train_stacks", "multistream", "mixtral_moe_expandable"] {
        let file = std::fs::File::open(root.join(format!("traces/{name}.pickle.gz"))).expect("the file");
        let mut whole = Vec::new();
        flate2::read::GzDecoder::new(file).read_to_end(&mut whole).expect("gzip");
        corpus.push([&whole[..40_000], &whole[whole.len() - 600..]].concat());
        corpus.push([&whole[..3000], &whole[whole.len() - 3000..]].concat());
    }
    for name in ["train_2_15", "address_2_14", "host_2_14"] {
        let file = std::fs::File::open(root.join(format!("newer/{name}.pickle.gz"))).expect("the file");
        let mut whole = Vec::new();
        flate2::read::GzDecoder::new(file).read_to_end(&mut whole).expect("gzip");
        corpus.push(whole);
    }
    corpus.push(
        br#"{"segments": [{"device": 0, "address": 1048576, "total_size": 2097152, "stream": 0, "blocks":
        [{"address": 1048576, "size": 2097152, "state": "inactive", "frames": [{"name": "f", "filename": "g", "line": 3}]}]}],
        "device_traces": [[{"action": "alloc", "addr": 1048576, "size": 5, "stream": 0, "pool_id": [0, 1]},
        {"action": "free_completed", "addr": 1048576, "size": 5, "stream": 0, "time_us": 17}]]}"#
            .to_vec(),
    );
    corpus.push(
        b"Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00:000100,allocate,0x7f0000000000,1000,0x0\n\
          1,10:00:00:000200,free,0x7f0000000000,1000,0x0\n"
            .to_vec(),
    );
    corpus.push(b"id,lower,upper,size,offset,gaps\n1,0,9,100,0,\n2,3,7,50,100,4-5\n3,7,8,50,,\n".to_vec());
    let json = corpus[corpus.len() - 3].clone();
    corpus.push(zstd::encode_all(&json[..], 1).expect("memory"));
    corpus
}

/// One way of damaging `bytes`.
fn damage(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let at = |dice: &mut Dice, length: usize| dice.below(length.max(1) as u64) as usize;
    match dice.below(8) {
        0 => bytes.truncate(at(dice, bytes.len())),
        1 => {
            let start = at(dice, bytes.len());
            let end = (start + at(dice, 40)).min(bytes.len());
            bytes.drain(start..end);
        }
        2 => {
            let (from, into) = (at(dice, other.len()), at(dice, bytes.len()));
            let end = (from + at(dice, 300)).min(other.len());
            bytes.splice(into..into, other[from..end].iter().copied());
        }
        3 => {
            let (start, into) = (at(dice, bytes.len()), at(dice, bytes.len()));
            let end = (start + at(dice, 200)).min(bytes.len());
            let copy = bytes[start..end].to_vec();
            bytes.splice(into..into, copy);
        }
        4 => {
            // Opcodes are what hurts most.
            const OPCODES: &[u8] =
                b"().012}dsu]lae)tNJKMG\x85\x86\x87\x88\x8a\x8b\x8c\x8d\x8e\x94\x95\x96Xqrhj";
            let i = at(dice, bytes.len());
            if let Some(byte) = bytes.get_mut(i) {
                *byte = OPCODES[at(dice, OPCODES.len())];
            }
        }
        5 => {
            let i = at(dice, bytes.len());
            for byte in bytes.iter_mut().skip(i).take(8) {
                *byte = 0xff;
            }
        }
        _ => {
            let i = at(dice, bytes.len());
            if let Some(byte) = bytes.get_mut(i) {
                *byte ^= 1 << dice.below(8);
            }
        }
    }
}

fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[test]
fn damaged_files_never_panic_and_stay_small() {
    let corpus = corpus();
    let before = peak();
    let mut accepted = 0;
    for seed in 0..6000 {
        let mut dice = Dice::new(seed);
        let mut bytes = corpus[dice.below(corpus.len() as u64) as usize].clone();
        let other = &corpus[dice.below(corpus.len() as u64) as usize];
        for _ in 0..1 + dice.below(3) {
            damage(&mut bytes, other, &mut dice);
        }
        if let Ok(trace) = read(&bytes[..], "damaged", &ReadOptions::default()) {
            accepted += 1;
            for device in &trace.devices {
                let _ = History::rebuild(&trace, device);
            }
        }
    }
    // Some damage is harmless; were there none, the test would test nothing but the first bytes.
    assert!(accepted > 100, "{accepted}");
    if let (Some(before), Some(after)) = (before, peak()) {
        assert!(after < before + (64 << 20), "{} MiB", (after - before) >> 20);
    }
}
