//! Changes of a cluster while pods run: GPUs are lost, memory becomes known, nodes are deleted and made again,
//! backups are restored and annotations edited. No GPU is booked twice.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;
#[allow(dead_code, reason = "other tests use the rest")]
mod replica;

use fake::Fake;
use gapless_kube::api::{Address, Api};
use replica::{GIB, Replica, asks, bookings, edit};
use serde_json::{Value, json};

const NODE: &str = "/api/v1/nodes/n0";

/// The bytes of one GPU in all pods' annotations, by its UUID.
fn told(fake: &Fake, uuid: &str) -> u64 {
    let of = |pod: &Value| {
        let notes = &pod["metadata"]["annotations"];
        let is_on =
            notes["gapless.dev/gpu-uuids"].as_str().is_some_and(|all| all.split(',').any(|one| one == uuid));
        let booked = notes["gapless.dev/gpu-booked"].as_str().unwrap_or_default().to_owned();
        match booked.strip_suffix('m') {
            _ if !is_on || pod["spec"]["nodeName"].is_null() => 0,
            Some(milli) => 80 * GIB / 1000 * milli.parse::<u64>().expect("thousandths"),
            None => booked.parse().expect("bytes"),
        }
    };
    fake.all("pods").iter().map(of).sum()
}

fn place(fake: &Fake, replica: &Replica, name: &str) -> bool {
    let pod = fake.pod(name, &asks("80GiB"));
    replica.schedule(fake, &pod).is_some()
}

#[test]
fn a_gpu_that_is_lost_gives_its_place_to_no_other() {
    let fake = Fake::start();
    fake.node("n0", 2, 80);
    let first = Replica::start(&fake);
    assert!(place(&fake, &first, "a") && place(&fake, &first, "b"));
    edit(&fake, NODE, &json!({"gapless.dev/gpus": "1", "gapless.dev/gpu-uuids": "GPU-n0-1"}));
    first.wait("it knows", |replica| replica.extender.gauges().total_milli == 1000);
    for (at, replica) in [&first, &Replica::start(&fake)].into_iter().enumerate() {
        assert!(!place(&fake, replica, &format!("late{at}")), "the GPU that is left is in use");
        replica.extender.check().expect("the account is right");
    }
    edit(&fake, NODE, &json!({"gapless.dev/gpus": "2", "gapless.dev/gpu-uuids": "GPU-n0-1,GPU-n0-0"}));
    first.wait("it is back", |replica| replica.extender.gauges().total_milli == 2000);
    assert!(!place(&fake, &first, "later"));
    for uuid in ["GPU-n0-0", "GPU-n0-1"] {
        assert_eq!(told(&fake, uuid), 80 * GIB, "{uuid}");
    }
    fake.stop();
}

#[test]
fn memory_that_becomes_known_later_frees_nothing() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    edit(&fake, NODE, &json!({"gapless.dev/gpu-memory": null}));
    let first = Replica::start(&fake);
    assert!(place(&fake, &first, "a"));
    let words = bookings(&fake, "n0")["uid-a"].as_str().expect("an entry").to_owned();
    assert!(words.contains(" 1000m "), "{words}");
    edit(&fake, NODE, &json!({"gapless.dev/gpu-memory": "80GiB"}));
    let knows = |replica: &Replica| replica.extender.gauges().free_milli == 0;
    first.wait("the GPU is full", knows);
    for (at, replica) in [&first, &Replica::start(&fake)].into_iter().enumerate() {
        let pod = fake.pod(&format!("late{at}"), &asks("1GiB"));
        assert_eq!(replica.schedule(&fake, &pod), None);
    }
    assert!(told(&fake, "GPU-n0-0") <= 80 * GIB);
    fake.stop();
}

#[test]
fn a_node_that_is_made_anew_closes_if_nobody_can_tell_what_its_pods_have() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let first = Replica::start(&fake);
    assert!(place(&fake, &first, "a"));
    let anew = |uid: &str| {
        fake.delete(NODE);
        fake.node_of("n0", uid, 1, 80);
    };
    // A replica's memory and the pod's annotations that agree with it are enough.
    anew("uid-2");
    first.wait("it holds", |replica| replica.extender.gauges().free_milli == 0);
    let small = |name: &str| fake.pod(name, &asks("1GiB"));
    assert_eq!(first.schedule(&fake, &small("b")), None, "the GPU is in use");
    // An edited annotation, or a replica without memory, is not enough.
    edit(&fake, "/api/v1/namespaces/default/pods/a", &json!({"gapless.dev/gpu-booked": "1"}));
    anew("uid-3");
    for (at, replica) in [&first, &Replica::start(&fake)].into_iter().enumerate() {
        assert_eq!(replica.schedule(&fake, &small(&format!("c{at}"))), None, "nobody can tell");
        // The scheduler tries to bind all the same.
        let said = replica.bind(&small(&format!("d{at}")), "n0");
        assert!(!said.is_empty());
    }
    first.wait("the metric says so", |replica| replica.extender.gauges().closed == 1);
    fake.delete("/api/v1/namespaces/default/pods/a");
    first.wait("a is gone", |replica| replica.extender.gauges().closed == 0);
    let (node, pod) = (Some("n0".to_owned()), small("e"));
    first.wait("it is open again", |replica| replica.schedule(&fake, &pod) == node);
    fake.stop();
}

#[test]
fn a_pod_that_comes_back_from_a_backup_holds_its_gpu() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let replica = Replica::start(&fake);
    assert!(place(&fake, &replica, "a"));
    let backup = fake.backup();
    fake.delete("/api/v1/namespaces/default/pods/a");
    replica.wait("a is gone", |replica| replica.extender.gauges().pods == 0);
    let lists = replica.extender.gauges().lists;
    fake.restore_from(backup);
    replica.wait("it lists again", |replica| replica.extender.gauges().lists >= lists + 2);
    assert!(!place(&fake, &replica, "b"), "a is back");
    assert_eq!(told(&fake, "GPU-n0-0"), 80 * GIB);
    replica.extender.check().expect("the account is right");
    fake.stop();
}

#[test]
fn a_booking_whose_replica_died_gives_its_place_back() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let left = fake.pod("left", &asks("80GiB"));
    replica::book(&fake, "n0", "left", 0, 80);
    let replica = Replica::start(&fake);
    let next = fake.pod("next", &asks("80GiB"));
    assert_eq!(replica.schedule(&fake, &next), None, "it may yet be bound");
    let now = std::time::Instant::now();
    replica.extender.expire(now);
    assert!(bookings(&fake, "n0")["uid-left"].is_string(), "not yet");
    replica.extender.expire(now + gapless_kube::limits::BOOKED_FOR * 2);
    assert!(
        bookings(&fake, "n0")["uid-left"].is_null(),
        "binds of it that are on their way find another version"
    );
    assert!(replica.schedule(&fake, &next).is_some());
    // The old bind comes late, with the version that was booked.
    let address = Address { host: "127.0.0.1".to_owned(), port: fake.port, tls: None, token: None };
    let metadata = json!({"uid": "uid-left", "resourceVersion": left["metadata"]["resourceVersion"]});
    let body = json!({"metadata": metadata, "target": {"name": "n0"}});
    let late = Api::new(address).post("/api/v1/namespaces/default/pods/left/binding", &body);
    assert_eq!(late.expect_err("another version").status(), Some(409));
    assert_eq!(told(&fake, "GPU-n0-0"), 80 * GIB);
    fake.stop();
}
