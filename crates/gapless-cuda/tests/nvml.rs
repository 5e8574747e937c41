//! The management library over the stand-in of torch-bench: the answers of a card, and of a driver that answers
//! nothing.
//!
//! The loader reads its path when a process begins, so each case runs this test program again.

use gapless_cuda::nvml::Process;
use gapless_cuda::{Nvml, NvmlError, Uuid};
use std::path::{Path, PathBuf};
use std::process::Command;

const UUID: &str = "GPU-6a70c0de-0000-4000-8000-000000000001";

fn standin(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../torch-bench/standin/nvml.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([folder.join("libnvidia-ml.so.1"), source])
        .status()
        .expect("the C compiler that Rust links with");
    assert!(built.success());
    folder
}

/// Runs one of the ignored tests below with the stand-in and an environment.
fn ask(case: &str, folder: &Path, environment: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", case, "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder)
        .envs(environment.iter().copied())
        .output()
        .expect("this test runs again");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_card_and_its_processes_are_told() {
    let folder = standin("card");
    ask(
        "child_card",
        &folder,
        &[("STANDIN_CAPACITY", "8589934592"), ("STANDIN_PROCESSES", "12:1048576,7:?")],
    );
}

#[test]
fn more_processes_than_there_was_room_for_are_told() {
    let folder = standin("many");
    let many: Vec<String> = (1..=300).map(|pid| format!("{pid}:4096")).collect();
    ask("child_many", &folder, &[("STANDIN_PROCESSES", &many.join(","))]);
}

#[test]
fn a_machine_without_a_driver_is_an_error_in_words() {
    let folder = standin("unloaded");
    ask("child_unloaded", &folder, &[("STANDIN_NVML", "9")]);
}

#[test]
fn a_card_without_memory_of_its_own_has_the_hosts() {
    let folder = standin("unified");
    ask("child_unified", &folder, &[("STANDIN_UNIFIED", "1"), ("STANDIN_PROCESSES", "7:4096")]);
}

#[test]
fn instances_of_a_divided_card_are_cards_of_their_own() {
    let folder = standin("mig");
    let environment = [
        ("STANDIN_MIG", "2:5368709120,9:10737418240"),
        ("STANDIN_PROCESSES", "7:1048576"),
        ("STANDIN_CAPACITY", "1"),
    ];
    ask("child_mig", &folder, &environment);
}

#[test]
fn clients_of_the_multi_process_service_are_processes() {
    let folder = standin("mps");
    ask("child_mps", &folder, &[("STANDIN_PROCESSES", "30:2048,31:?"), ("STANDIN_CLIENTS", "31:4096,32:?")]);
}

#[test]
#[ignore = "run by the tests above"]
fn child_unified() {
    let nvml = Nvml::open().expect("the stand-in");
    let card = nvml.device(0).expect("a card");
    assert_eq!(card.memory(), None, "it has none");
    let (memory, is_host) = card.memory_or_host().expect("the host's");
    let text = std::fs::read_to_string("/proc/meminfo").expect("the kernel tells");
    let first = text.lines().next().and_then(|line| line.split_whitespace().nth(1)).expect("MemTotal");
    assert!(is_host);
    assert_eq!(memory.total, 1024 * first.parse::<u64>().expect("a number"));
    assert_eq!(memory.used + memory.free, memory.total);
    assert_eq!(card.processes(), Some(vec![Process { pid: 7, used: Some(4096) }]));
}

#[test]
#[ignore = "run by the tests above"]
fn child_mig() {
    let nvml = Nvml::open().expect("the stand-in");
    let all: Vec<_> = nvml.devices().collect();
    let identities: Vec<_> = all.iter().map(|card| (card.uuid(), card.index(), card.instance())).collect();
    let uuid = |end: &str| Some(format!("MIG-6a70c0de-0000-4000-8000-0000000000{end}"));
    assert_eq!(identities, [(uuid("02"), Some(0), Some(2)), (uuid("09"), Some(0), Some(9))]);
    let memory: Vec<_> = all.iter().map(|card| card.memory().expect("its own").total >> 30).collect();
    assert_eq!(memory, [5, 10]);
    assert_eq!(all[0].name().as_deref(), Some("Stand-in card MIG 1g.5gb"));
    let counts: Vec<_> = all.iter().map(|card| card.processes().map(|list| list.len())).collect();
    assert_eq!(counts, [Some(1), Some(0)]);
    // The name that CUDA gives this instance in a process that has it.
    let found = Uuid::parse(&uuid("09").expect("a text")).and_then(|uuid| nvml.device_by_uuid(uuid));
    assert_eq!(found.and_then(|card| card.memory()).map(|memory| memory.total >> 30), Some(10));
    let card = nvml.device(0).expect("the card itself");
    assert_eq!((card.instance(), card.instances().len()), (None, 2));
}

#[test]
#[ignore = "run by the tests above"]
fn child_mps() {
    let nvml = Nvml::open().expect("the stand-in");
    let processes = nvml.device(0).and_then(|card| card.processes()).expect("processes");
    let told = |pid, used| Process { pid, used };
    assert_eq!(processes, [told(30, Some(2048)), told(31, Some(4096)), told(32, None)]);
    assert_eq!(nvml.device(0).and_then(|card| card.instance()), None);
}

#[test]
#[ignore = "run by the tests above"]
fn child_card() {
    let nvml = Nvml::open().expect("the stand-in");
    assert_eq!(nvml.count(), 1);
    assert!(nvml.device(1).is_none());
    let card = nvml.devices().next().expect("a card");
    assert_eq!(card.uuid().as_deref(), Some(UUID));
    assert_eq!(card.name().as_deref(), Some("Stand-in card"));
    assert_eq!(card.index(), Some(0));
    let memory = card.memory().expect("its memory");
    assert_eq!((memory.total, memory.used, memory.free), (8 << 30, 1 << 20, (8 << 30) - (1 << 20)));
    let processes = card.processes().expect("its processes");
    assert_eq!(processes, [Process { pid: 7, used: None }, Process { pid: 12, used: Some(1 << 20) }]);
    let same = nvml.device_by_uuid(Uuid::parse(UUID).expect("a UUID")).expect("the same card");
    assert_eq!(same.uuid(), card.uuid());
    assert!(nvml.device_by_uuid(Uuid::default()).is_none());
}

#[test]
#[ignore = "run by the tests above"]
fn child_many() {
    let nvml = Nvml::open().expect("the stand-in");
    let processes = nvml.device(0).and_then(|card| card.processes()).expect("processes");
    assert_eq!(processes.len(), 300);
}

#[test]
#[ignore = "run by the tests above"]
fn child_unloaded() {
    assert_eq!(Nvml::open().err(), Some(NvmlError::Start(9)));
}
