//! Runs of many ranks, made from a recorded one: the odd rank and its cause are named, and nothing else is.

#[path = "../examples/rank_cases/generate.rs"]
#[allow(dead_code)] // the example uses the rest
mod generate;

use gapless_report::Analysis;
use gapless_report::ranks::{self, RankFile, Ranks, Run, Summary};
use gapless_trace::Trace;
use generate::{Base, Fault, Noise};
use std::path::Path;

const NOISE: Noise = Noise { sizes: 0.02, each: 0.0, times: 0.03, logging: 1 << 20, stage: 1.0, bare: false };

fn base(name: &str) -> Base {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    Base::open(&traces.join(format!("{name}.pickle.gz")))
}

fn file(rank: u32, trace: &Trace) -> RankFile {
    let devices = Summary::of(&Analysis::of(trace).expect("a run that can be"));
    RankFile { file: format!("rank{rank}"), rank, devices, error: None }
}

fn run(files: Vec<RankFile>) -> Ranks {
    ranks::report(&Run { path: "ranks".to_owned(), files, ..Run::default() })
}

/// `count` ranks, one of which has a fault.
fn planted(base: &Base, count: u32, seed: u64, odd: Option<(u32, Fault)>, stacks: bool) -> Ranks {
    let fault = |rank: u32| odd.filter(|(at, _)| *at == rank).map(|(_, fault)| fault);
    run((0..count).map(|rank| file(rank, &base.rank(rank, seed, NOISE, fault(rank), stacks))).collect())
}

fn named(ranks: &Ranks) -> Vec<(u32, &'static str)> {
    ranks.odd_ranks.iter().map(|odd| (odd.rank, odd.why.word())).collect()
}

#[test]
fn each_fault_is_named_with_its_rank_and_nothing_else_is() {
    let base = base("gpt2_train_stacks");
    let faults = [
        (Fault::Leak(200 << 20), "leak"),
        (Fault::Batch { factor: 1.4, step: None }, "larger-batch"),
        (Fault::Batch { factor: 1.6, step: Some(1) }, "larger-batch"),
        (Fault::Buffer(400 << 20), "extra-buffer"),
        (Fault::Scratch(2 << 30), "extra-buffer"),
        (Fault::Settings("expandable_segments:True"), "settings"),
        (Fault::SmallCard(0.8), "out-of-memory"),
        (Fault::Slow(1.3), "straggler"),
    ];
    for (i, (fault, why)) in faults.into_iter().enumerate() {
        for stacks in [true, false] {
            let odd = (3 * i as u32 + 1) % 5;
            let ranks = planted(&base, 5, 40 + i as u64, Some((odd, fault)), stacks);
            assert_eq!(named(&ranks), [(odd, why)], "{fault:?}, stacks {stacks}");
            if stacks && matches!(fault, Fault::Leak(_) | Fault::Buffer(_)) {
                let holder = &ranks.odd_ranks[0].holders[0];
                assert_eq!(holder.label, "extra.py:12 remember");
            }
            assert_eq!(ranks.waiting.len(), usize::from(why == "straggler"));
        }
    }
}

#[test]
fn ranks_that_differ_only_by_noise_are_not_odd() {
    let base = base("gpt2_train_stacks");
    for seed in 0..6 {
        let ranks = planted(&base, [3, 4, 8][seed as usize % 3], seed, None, seed % 2 == 0);
        assert_eq!(named(&ranks), [], "seed {seed}");
        assert_eq!(ranks.groups.len(), 1);
    }
}

/// `count` ranks, recorded with stacks if `stacked` has a bit.
fn recorded(base: &Base, count: u32, stacked: u32, odd: Option<(u32, Fault)>) -> Ranks {
    let fault = |rank: u32| odd.filter(|(at, _)| *at == rank).map(|(_, fault)| fault);
    let rank = |rank: u32| base.rank(rank, 7, NOISE, fault(rank), stacked >> rank & 1 == 1);
    run((0..count).map(|number| file(number, &rank(number))).collect())
}

/// The ranks that were recorded in another way than most.
fn recorded_otherwise(count: u32, stacked: u32) -> Vec<u32> {
    let with = stacked.count_ones();
    let unusual = |&rank: &u32| 2 * with == count || (stacked >> rank & 1 == 1) != (2 * with > count);
    (0..count).filter(unusual).collect()
}

#[test]
fn how_a_rank_was_recorded_makes_it_neither_odd_nor_slow() {
    let base = base("gpt2_train_stacks");
    for count in 2..5u32 {
        // Only the number of ranks with stacks matters.
        for stacked in (0..=count).map(|with| (1 << with) - 1) {
            let unlike = recorded_otherwise(count, stacked);
            let ranks = recorded(&base, count, stacked, None);
            assert_eq!(named(&ranks), [], "{count} ranks, stacks {stacked:b}");
            assert!(ranks.differences.is_empty(), "{count} ranks, stacks {stacked:b}");
            assert_eq!(ranks.not_compared.is_empty(), unlike.is_empty(), "{count} ranks, stacks {stacked:b}");
            if let Some(&slow) = unlike.first() {
                let ranks = recorded(&base, count, stacked, Some((slow, Fault::Slow(1.4))));
                assert_eq!(
                    named(&ranks),
                    [],
                    "{count} ranks, stacks {stacked:b}: recording stacks takes time"
                );
            }
        }
    }
}

#[test]
fn what_a_rank_holds_is_found_however_it_was_recorded() {
    let base = base("gpt2_train_stacks");
    let faults = [
        (Fault::Leak(200 << 20), "leak"),
        (Fault::Buffer(400 << 20), "extra-buffer"),
        (Fault::Scratch(2 << 30), "extra-buffer"),
        (Fault::Batch { factor: 1.4, step: None }, "larger-batch"),
        (Fault::SmallCard(0.8), "out-of-memory"),
    ];
    for (fault, why) in faults {
        // One of five with stacks, or one without; the fault is on that one or on another.
        for stacked in [0b00100, 0b11011] {
            for odd in [1, 2] {
                let ranks = recorded(&base, 5, stacked, Some((odd, fault)));
                assert_eq!(named(&ranks), [(odd, why)], "{fault:?}, stacks {stacked:b}");
            }
        }
    }
}

#[test]
fn two_recordings_of_one_training_with_and_without_stacks_are_not_odd() {
    let read = |name: &str| {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../testdata/traces/{name}.pickle.gz"));
        gapless_ingest::open(&path, &gapless_ingest::ReadOptions::default()).expect("a readable trace")
    };
    // Six steps without stacks, three with.
    let [a, b] = ["gpt2_train", "gpt2_train_stacks"].map(read);
    for pair in [[&a, &b], [&b, &a]] {
        let ranks = run((0..).zip(pair).map(|(rank, trace)| file(rank, trace)).collect());
        assert_eq!(named(&ranks), []);
        assert!(ranks.differences.is_empty() && ranks.waiting.is_empty());
        assert_eq!(ranks.not_compared.len(), 1);
        assert!(ranks.not_compared[0].starts_with("ranks 0-1 were recorded in different ways"));
    }
}

/// The recording as a ring of events leaves it that lost the first `lost` tenths.
fn late(trace: &Trace, lost: usize) -> Trace {
    let mut trace = trace.clone();
    for device in &mut trace.devices {
        let events = std::mem::take(&mut device.events);
        let first = events.len() * lost / 10;
        events.iter().skip(first).for_each(|event| device.events.push(event));
    }
    trace
}

#[test]
fn a_recording_that_began_late_accuses_no_rank_and_no_fragmentation() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces/gpt2_train_stacks.pickle.gz");
    let whole =
        gapless_ingest::open(&path, &gapless_ingest::ReadOptions::default()).expect("a readable trace");
    for lost in [2, 5, 9, 10] {
        let cut = late(&whole, lost);
        for count in 2..5 {
            let of = |rank: u32| if rank + 1 == count { &cut } else { &whole };
            let ranks = run((0..count).map(|rank| file(rank, of(rank))).collect());
            assert_eq!(named(&ranks), [], "{lost} tenths are lost of one in {count}");
            assert!(ranks.differences.is_empty(), "{lost} tenths are lost of one in {count}");
            let said = ranks.not_compared.join(" ");
            // A recording of little may look like another stage of a pipeline, which is compared with none.
            assert!(
                said.contains("recorded from") || ranks.groups.len() > 1,
                "{lost} tenths are lost of one in {count}: {said}"
            );
        }
        // Of three steps a fifth less leaves two, and less than one tells nothing of the cache.
        let report = Analysis::of(&cut).expect("a run that can be").report("run.pickle", 5);
        let accused =
            report.findings.iter().any(|finding| ["GAP101", "GAP102"].contains(&finding.code.as_str()));
        assert!(lost == 5 || accused == (lost < 5), "{lost} tenths are lost");
    }
}

#[test]
fn a_leak_diverges_in_the_step_in_which_it_begins_to_show() {
    let base = base("gpt2_train");
    let ranks = planted(&base, 6, 9, Some((2, Fault::Leak(600 << 20))), false);
    let first = ranks.first_divergence.expect("they diverge");
    assert_eq!(first.rank, 2);
    assert!(first.step.is_some_and(|step| step <= 3), "{first:?}");
    assert!(first.bytes > first.peer_bytes + (500 << 20));
}

#[test]
fn of_two_ranks_the_one_is_odd_that_fails_holds_more_or_is_slower() {
    let base = base("gpt2_train_stacks");
    let faults = [
        (Fault::Leak(400 << 20), "leak"),
        (Fault::Batch { factor: 1.6, step: None }, "larger-batch"),
        (Fault::Buffer(800 << 20), "extra-buffer"),
        (Fault::SmallCard(0.8), "out-of-memory"),
        (Fault::Slow(1.5), "straggler"),
    ];
    for (fault, why) in faults {
        let ranks = planted(&base, 2, 5, Some((1, fault)), true);
        assert_eq!(named(&ranks), [(1, why)], "{fault:?}");
        assert!(ranks.differences.is_empty(), "what is named is not told twice");
    }
    for seed in 0..4 {
        assert_eq!(named(&planted(&base, 2, seed, None, true)), [], "seed {seed}");
    }
}

#[test]
fn of_two_ranks_with_other_settings_none_is_odd() {
    let base = base("gpt2_train_stacks");
    let settings = Fault::Settings("max_split_size_mb:64");
    assert_eq!(named(&planted(&base, 2, 5, Some((1, settings)), true)), []);
}

#[test]
fn a_longer_batch_is_named_where_no_steps_are_recorded() {
    for (name, step) in [("gpt2_train", 1), ("multistream", 2), ("resnet_varbatch", 0)] {
        let base = base(name);
        let bare = Noise { bare: true, ..NOISE };
        let fault = |rank: u32| (rank == 3).then_some(Fault::Batch { factor: 1.7, step: Some(step) });
        let files = (0..6).map(|rank| file(rank, &base.rank(rank, 11, bare, fault(rank), false)));
        assert_eq!(named(&run(files.collect())), [(3, "larger-batch")], "{name}");
    }
}

#[test]
fn what_differs_between_two_ranks_is_told_where_neither_is_odd() {
    let base = base("gpt2_train_stacks");
    let ranks = planted(&base, 2, 5, Some((1, Fault::Buffer(250 << 20))), true);
    assert_eq!(named(&ranks), []);
    assert!(!ranks.groups[0].comparable);
    let difference = &ranks.differences[0];
    assert!(
        difference.holders[1].iter().any(|holder| holder.label == "extra.py:12 remember"),
        "{difference:?}"
    );
}

#[test]
fn stages_of_a_pipeline_are_compared_among_themselves() {
    let (first, second) = (base("gpt2_train_stacks"), base("resnet_varbatch"));
    let mut files: Vec<RankFile> = Vec::new();
    for rank in 0..8u32 {
        // Both models, by turns; rank 5 of the second one keeps a buffer.
        let fault = (rank == 5).then_some(Fault::Buffer(500 << 20));
        let base = if rank % 2 == 0 { &first } else { &second };
        files.push(file(rank, &base.rank(rank, 3, NOISE, fault, rank % 2 == 0)));
    }
    let ranks = run(files);
    let members: Vec<Vec<u32>> =
        ranks.groups.iter().map(|group| group.ranks.iter().map(|id| id.rank).collect()).collect();
    assert_eq!(members, [[0, 2, 4, 6], [1, 3, 5, 7]]);
    assert_eq!(named(&ranks), [(5, "extra-buffer")]);
}

#[test]
fn many_ranks_fit_a_screen_and_the_odd_one_keeps_its_line() {
    let base = base("gpt2_train_stacks");
    let usual = file(0, &base.rank(1, 1, NOISE, None, true));
    let odd = file(0, &base.rank(2, 1, NOISE, Some(Fault::Buffer(900 << 20)), true));
    let of = |rank: u32| {
        let file = if rank == 77 { &odd } else { &usual };
        RankFile { rank, ..file.clone() }
    };
    let ranks = run((0..100).map(of).collect());
    let text = ranks::text(&ranks);
    assert!(text.lines().count() < 50, "{text}");
    assert!(text.contains("ranks 0-6") && text.contains("rank 77"), "{text}");
    assert!(text.contains("extra-buffer"), "{text}");
}

#[test]
fn missing_and_repeated_ranks_are_told_and_errors_are_rows() {
    let base = base("gpt2_train_stacks");
    let usual = file(0, &base.rank(1, 1, NOISE, None, true));
    let mut files: Vec<RankFile> =
        [0, 1, 1, 4].iter().map(|&rank| RankFile { rank, ..usual.clone() }).collect();
    files.push(RankFile {
        file: "rank6".to_owned(),
        rank: 6,
        error: Some("torn".to_owned()),
        ..RankFile::default()
    });
    let ranks = run(files);
    assert_eq!(ranks.missing_ranks, [2, 3, 5]);
    assert_eq!(ranks.duplicate_ranks, [1]);
    assert_eq!(ranks.ranks[4].error.as_deref(), Some("torn"));
    assert_eq!(ranks.imbalance, Some(0.0));
    let text = ranks::text(&ranks);
    assert!(text.contains("no file for ranks\u{1b}[0m 2-3, 5") && text.contains("torn"), "{text}");
    let counted_from_one = run((1..4).map(|rank| RankFile { rank, ..usual.clone() }).collect());
    assert!(counted_from_one.missing_ranks.is_empty());
}
