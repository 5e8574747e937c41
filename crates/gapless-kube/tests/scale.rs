//! The cost of an event in a large cluster: it makes work for its own node or pod only. The test counts
//! work instead of time, and prints the times for `cargo xtask bench fleet scale`.

use gapless_kube::account::Account;
use gapless_kube::book::written;
use gapless_kube::log::Log;
use gapless_kube::objects;
use gapless_ledger::promise::{Amount, Entry};
use serde_json::{Value, json};
use std::time::Instant;

const NODES: usize = 5_000;
const PODS_OF_ONE: usize = 10;

fn entry(pod: usize) -> Entry {
    let (node, gpu) = (pod / PODS_OF_ONE, pod % PODS_OF_ONE % 8);
    Entry {
        uid: format!("u{pod}"),
        pod: format!("d/p{pod}"),
        gpus: vec![format!("GPU-{node}-{gpu}")],
        amount: Amount::Bytes(10 << 30),
        seen: "1".to_owned(),
    }
}

fn node(number: usize, version: u64, gpus: std::ops::Range<usize>, entries: &[Entry]) -> Value {
    let name = format!("n{number:05}");
    let uuids: Vec<String> = gpus.map(|gpu| format!("GPU-{number}-{gpu}")).collect();
    json!({
        "metadata": {"name": name, "uid": name, "resourceVersion": version.to_string(), "annotations": {
            "gapless.dev/gpus": uuids.len().to_string(), "gapless.dev/gpu-memory": "80GiB",
            "gapless.dev/gpu-model": "H200", "gapless.dev/gpu-uuids": uuids.join(","),
            "gapless.dev/bookings": written(&name, entries),
        }},
        "status": {"allocatable": {"cpu": "128", "memory": "1024Gi", "pods": "110"}},
    })
}

fn entries_of(number: usize) -> Vec<Entry> {
    (number * PODS_OF_ONE..(number + 1) * PODS_OF_ONE).map(entry).collect()
}

fn pod(number: usize) -> Value {
    json!({
        "metadata": {"name": format!("p{number}"), "namespace": "d", "uid": format!("u{number}"),
            "annotations": {"gapless.dev/gpu-memory": "10GiB"}},
        "spec": {"nodeName": format!("n{:05}", number / PODS_OF_ONE)},
        "status": {"phase": "Running"},
    })
}

#[test]
fn a_change_of_one_node_costs_the_work_of_that_node() {
    let log = Log::default();
    log.silence();
    let mut account = Account::default();
    let nodes: Vec<Value> = (0..NODES).map(|number| node(number, 1, 0..8, &entries_of(number))).collect();
    account.replace_nodes(&nodes, &log);
    for number in 0..NODES * PODS_OF_ONE {
        account.see_pod(objects::pod(&pod(number)), &log);
    }
    assert_eq!(account.desk().pods(), NODES * PODS_OF_ONE);
    let policies = account.desk().policies_made();
    let total = NODES as u64 * 8000;
    type Change = Box<dyn Fn(&mut Account, &Log)>;
    let see = |object: Value| -> Change { Box::new(move |account, log| account.see_node(&object, log)) };
    let changes: [(&str, Change, u64); 6] = [
        ("a GPU is lost", see(node(7, 2, 1..8, &entries_of(7))), total - 1000),
        ("it is back", see(node(7, 3, 0..8, &entries_of(7))), total),
        ("a booking goes", see(node(8, 2, 0..8, &entries_of(8)[1..])), total),
        ("a node joins", see(node(NODES, 1, 0..8, &[])), total + 8000),
        ("a node leaves", Box::new(|account, _| account.forget_node("n00009")), total),
        ("and joins again", see(node(9, 5, 0..8, &entries_of(9))), total + 8000),
    ];
    for (what, change, right) in changes {
        let before = account.settled;
        let began = Instant::now();
        change(&mut account, &log);
        println!("{what}: {:.3} ms with {NODES} nodes", began.elapsed().as_secs_f64() * 1e3);
        let settled = account.settled - before;
        assert!(settled <= PODS_OF_ONE as u64 + 2, "{what}: {settled} pods were looked at");
        assert_eq!(account.desk().policies_made(), policies, "{what}");
        assert_eq!(account.desk().free().1, right, "{what}");
        account.desk().check().unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
    }
    assert_eq!(account.conflicts, 1, "the pod whose booking has gone");
}

#[test]
fn nodes_that_come_and_go_leave_nothing_behind() {
    let log = Log::default();
    log.silence();
    let mut account = Account::default();
    for number in 0..1_000 {
        account.see_node(&node(number, 1, 0..8, &[]), &log);
        account.forget_node(&format!("n{number:05}"));
        assert_eq!(account.desk().free(), (0, 0));
        assert!(account.desk().node_places() < 200);
    }
}
