//! The recorded runs: figures rebuilt from a trace equal those that the run itself reported, to the byte.

use gapless_ingest::{ReadOptions, open};
use gapless_trace::{History, Trace};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces")
}

fn load(name: &str) -> Trace {
    let path = folder().join(format!("{name}.pickle.gz"));
    open(&path, &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

const TRACES: [(&str, &str, &str); 8] = [
    ("gpt2_train", "gpt2_train", "native.trace"),
    ("gpt2_train_stacks", "gpt2_train", "native.stacks"),
    ("llama1b_varlen_ckpt", "llama1b_varlen_ckpt", "native.trace"),
    ("llama_offload", "llama_offload", "native.trace"),
    ("mixtral_moe", "mixtral_moe", "native.trace"),
    ("mixtral_moe_expandable", "mixtral_moe", "expandable.trace"),
    ("multistream", "multistream", "native.trace"),
    ("resnet_varbatch", "resnet_varbatch", "native.trace"),
];

#[test]
fn peaks_equal_the_figures_of_the_run() {
    let truth = std::fs::read_to_string(folder().join("ground_truth.json")).expect("ground_truth.json");
    let truth: serde_json::Value = serde_json::from_str(&truth).expect("JSON");
    for (file, workload, row) in TRACES {
        let trace = load(file);
        let row = &truth[workload]["runs"][row];
        let figure = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{file}: no {key}"));
        assert_eq!(trace.devices.len(), 1, "{file}");
        let device = &trace.devices[0];
        assert_eq!(device.events.len() as u64, figure("events"), "{file}");
        let history = History::rebuild(&trace, device).unwrap_or_else(|error| panic!("{file}: {error}"));
        let usage = &history.usage;
        let ours = [
            usage.allocated.peak.0,
            usage.active.peak.0,
            usage.requested.peak.0,
            usage.reserved.peak.0,
            u64::from(history.segments_peak),
        ];
        let theirs = [
            figure("allocated_bytes.all.peak"),
            figure("active_bytes.all.peak"),
            figure("requested_bytes.all.peak"),
            figure("reserved_bytes.all.peak"),
            figure("segment.all.peak"),
        ];
        assert_eq!(ours, theirs, "{file}");
        assert!(history.notes.is_empty(), "{file}: {:?}", history.notes);
        assert!(trace.source.notes.is_empty(), "{file}: {:?}", trace.source.notes);
        assert_eq!(trace.source.producer, "torch 2.10 or 2.11", "{file}");
        assert_eq!(trace.source.format, "PyTorch snapshot (pickle protocol 4), gzip");
        assert!(trace.source.torch_rules);
    }
}

#[test]
fn settings_stacks_and_annotations_are_read() {
    let trace = load("mixtral_moe_expandable");
    let settings = trace.settings.as_ref().expect("settings");
    assert!(settings.expandable_segments);
    assert_eq!(settings.max_split_size, None);
    assert_eq!(settings.conf, "expandable_segments:True");
    assert!(settings.other.iter().any(|(name, text)| name == "pinned_num_register_threads" && text == "1"));
    assert!(trace.devices[0].segments.iter().any(|s| s.expandable));

    let trace = load("gpt2_train_stacks");
    assert_eq!(trace.annotations.len(), 12);
    assert_eq!(trace.strings.get(trace.annotations[0].name), "Optimizer.step#AdamW.step");
    let first = trace.devices[0].events.iter().next().expect("an event");
    let stack: Vec<(&str, &str, u32)> = trace
        .stacks
        .get(first.stack)
        .iter()
        .map(|&id| trace.frames.get(id))
        .map(|frame| (trace.strings.get(frame.name), trace.strings.get(frame.file), frame.line))
        .collect();
    assert_eq!(stack.len(), 7);
    assert_eq!(stack[4], ("gpt2_train", "train.py", 21));
    assert_eq!(stack[6], ("<module>", "train.py", 230));
}

#[test]
fn many_streams_are_told_apart() {
    let trace = load("multistream");
    assert!(trace.devices[0].streams.len() >= 4);
}
