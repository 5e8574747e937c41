//! A machine for tests: two cards, a training job on both, a server on the first, and a process without Gapless.

use super::{CardReading, Machine};
use gapless_cuda::nvml::Memory;
use gapless_stats::{Card, Counters, Holder, Lane, Process, Sample, Statistics};

pub(crate) const GIB: u64 = 1 << 30;
/// The time of the test: a second after the statistics files were written.
pub(crate) const NOW: u64 = 1_700_000_240_000_000;

pub(crate) fn uuid(index: u32) -> [u8; 16] {
    let mut uuid = [0xab; 16];
    uuid[15] = index as u8;
    uuid
}

pub(crate) fn card(index: u32, live: u64, reserved: u64) -> Card {
    Card {
        index,
        uuid: Some(uuid(index)),
        name: "NVIDIA A100-SXM4-80GB".to_owned(),
        total: 80 * GIB,
        free: 30 * GIB,
        live,
        peak_live: live.saturating_add(live / 8),
        requested: live,
        active: live,
        reserved,
        peak_reserved: reserved.saturating_add(reserved / 8),
        blocks: 12,
        ..Card::default()
    }
}

pub(crate) fn statistics(pid: u32, cards: Vec<Card>) -> Statistics {
    let process = Process {
        pid,
        start: 1,
        namespace: 1,
        began: NOW - 3_725_000_000,
        command: "python train.py".to_owned(),
        program: "gapless 0.1.0".to_owned(),
    };
    Statistics { time: NOW - 1_000_000, cards, ..Statistics::new(process) }
}

/// A card with this many bytes in use.
fn used(used: u64) -> Option<Memory> {
    Some(Memory { total: 80 * GIB, used, free: 80 * GIB - used })
}

pub(crate) fn reading(index: u32) -> CardReading {
    CardReading {
        index,
        uuid: Some(gapless_cuda::Uuid(uuid(index)).to_string()),
        name: "NVIDIA A100-SXM4-80GB".to_owned(),
        memory: used(0),
        processes: Vec::new(),
        ..CardReading::default()
    }
}

/// A training's four minutes: steps that go up and down, a little higher each time.
fn samples(live: u64, reserved: u64) -> Vec<Sample> {
    let sample = |second: u64| {
        let (step, within) = (second / 20, second % 20);
        let height = if within < 12 { 4 + within } else { 28 - within };
        Sample {
            time: NOW - 241_000_000 + second * 1_000_000,
            live: (live / 16 * height).min(live) / 20 * (9 + step.min(11)),
            reserved: if second < 30 { reserved / 2 } else { reserved },
            allocations: second * 1234,
        }
    };
    (0..240).map(sample).collect()
}

fn busy(index: u32, live: u64, reserved: u64) -> Card {
    let lane = |stream, pool, live, reserved| Lane { stream, pool, blocks: 40, live, reserved };
    let holder = |what: &str, bytes, blocks| Holder { what: what.to_owned(), bytes, blocks };
    Card {
        stranded: 300 << 20,
        blocks: 1834,
        counters: Counters {
            allocations: 1_234_567,
            frees: 1_232_733,
            ooms: 1,
            retries: 3,
            creates: 812,
            maps: 1630,
            device_allocs: 77,
            device_frees: 2,
            harvested: 421,
            host_waits: 9,
            driver_ns: 1_530_000_000,
        },
        lanes: vec![
            lane(0, (0, 0), live - 3 * GIB, reserved - 4 * GIB),
            lane(0x5581_2af0, (0, 0), 2 * GIB, 3 * GIB),
            lane(0, (1, 0), GIB, GIB),
        ],
        holders: vec![
            holder("model.py:123 Block.forward", 12 * GIB, 96),
            holder("train.py:31 build", 7 * GIB, 291),
            holder("adamw.py:88 step", 6 * GIB, 582),
            holder("24 blocks of 96.0 MiB", 2304 << 20, 24),
        ],
        samples: samples(live, reserved),
        ..card(index, live, reserved)
    }
}

pub(crate) fn machine() -> Machine {
    let mut trainer = statistics(4242, vec![busy(0, 28 * GIB, 32 * GIB), busy(1, 30 * GIB, 32 * GIB)]);
    trainer.process.command =
        "/usr/bin/python3 -m torch.distributed.run train.py --config configs/llama-8b.yaml --batch 16"
            .to_owned();
    trainer.tenant = None;
    let mut server =
        statistics(977, vec![card(0, 3 * GIB, 4 * GIB)]).with_tenant("team-search", Some(10 * GIB));
    server.process.command = "python serve.py --port 8000".to_owned();
    server.time = NOW - 75_000_000;
    server.cards[0].limit = Some(10 * GIB);
    server.cards[0].samples = (0..30)
        .map(|t| Sample {
            time: NOW - 30_000_000 + t * 1_000_000,
            live: 3 * GIB,
            reserved: 4 * GIB,
            allocations: 5000,
        })
        .collect();
    let first = CardReading {
        memory: used(60 * GIB),
        processes: vec![(4242, Some(33 * GIB)), (31_337, Some(20 * GIB)), (977, None)],
        ..reading(0)
    };
    let second = CardReading { memory: used(33 * GIB), ..reading(1) };
    let who = |pid: u32| match pid {
        31_337 => ("alice".to_owned(), "/opt/tf/bin/python notebook.py".to_owned()),
        _ => ("ada".to_owned(), String::new()),
    };
    let mut machine = Machine::of(vec![trainer, server], Ok(vec![first, second]), NOW, None, &who);
    machine.host = "node-7".to_owned();
    machine
}
