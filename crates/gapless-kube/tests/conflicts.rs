//! Conflicts with other replicas, false annotations and outages: binds that find another GPU or are tried again,
//! variables of containers, nodes that vanish, and an API server with invalid versions.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;
#[allow(dead_code, reason = "other tests use the rest")]
mod replica;

use fake::Fake;
use gapless_kube::objects::{TENANT, UUIDS};
use gapless_kube::retry::RETRIED;
use replica::{GIB, Replica, asks, book, bookings, edit, held, none_is_over_booked};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn pod_of(fake: &Fake, name: &str) -> Value {
    fake.get(&format!("/api/v1/namespaces/default/pods/{name}")).expect("the pod")
}

#[test]
fn a_bind_that_comes_second_takes_another_gpu_of_the_node() {
    let fake = Fake::start();
    fake.node("n0", 4, 80);
    // Many rounds, because the event of the other booking may also come before the bind.
    for round in 0..20 {
        let replica = Replica::start(&fake);
        let (mine, other) = (format!("mine{round}"), format!("other{round}"));
        let pod = fake.pod(&mine, &asks("80GiB"));
        fake.pod(&other, &asks("80GiB"));
        replica.wait("it knows both", |replica| replica.extender.gauges().known >= 2);
        assert_eq!(replica.filter(&fake, &pod)["NodeNames"], json!(["n0"]));
        let chosen = replica.extender.assumed_gpus(&format!("uid-{mine}")).expect("it is assumed");
        book(&fake, "n0", &other, chosen[0], 80);
        assert_eq!(replica.bind(&pod, "n0"), "", "three GPUs are free");
        let got = pod_of(&fake, &mine)["metadata"]["annotations"]["gapless.dev/gpu-indices"].clone();
        assert_ne!(got, json!(chosen[0].to_string()));
        none_is_over_booked(&fake, 80 * GIB);
        replica.extender.check().expect("the account is right");
        for name in [mine, other] {
            fake.delete(&format!("/api/v1/namespaces/default/pods/{name}"));
        }
    }
    fake.stop();
}

#[test]
fn a_bind_that_fails_is_tried_again_soon() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let replica = Replica::start(&fake);
    let pod = fake.pod("mine", &asks("80GiB"));
    fake.pod("other", &asks("80GiB"));
    replica.wait("it knows both", |replica| replica.extender.gauges().known == 2);
    assert_eq!(replica.filter(&fake, &pod)["NodeNames"], json!(["n0"]));
    book(&fake, "n0", "other", 0, 80);
    let why = replica.bind(&pod, "n0");
    assert!(why.contains("another booking came first") || why.contains("Gapless"), "{why}");
    let retried = || pod_of(&fake, "mine")["metadata"]["annotations"][RETRIED].clone();
    replica.extender.retry(Instant::now() + Duration::from_secs(2));
    replica.wait("the scheduler hears of a pod that has changed", |_| retried().is_string());
    assert!(pod_of(&fake, "other")["metadata"]["annotations"][RETRIED].is_null());
    // Once the other pod is gone, there is room.
    fake.delete("/api/v1/namespaces/default/pods/other");
    replica.wait("other is gone", |replica| replica.extender.gauges().known == 1);
    assert!(replica.schedule(&fake, &pod).is_some());
    fake.stop();
}

#[test]
fn a_binding_writes_what_the_containers_read() {
    let fake = Fake::start();
    (0..2).for_each(|i| fake.node(&format!("n{i}"), 1, 80));
    let replica = Replica::start(&fake);
    let bound = |name: &str, more: &[(&str, &str)]| {
        let mut notes = asks("20GiB");
        more.iter().for_each(|(name, value)| notes[*name] = json!(value));
        assert!(replica.schedule(&fake, &fake.pod(name, &notes)).is_some());
        let notes = pod_of(&fake, name)["metadata"]["annotations"].clone();
        (notes[TENANT].clone(), notes[UUIDS].as_str().expect("GPUs").to_owned())
    };
    let (tenant, gpus) = bound("a", &[]);
    assert_eq!(tenant, format!("pod-uid-a:{}", 20 * GIB));
    assert!(gpus.starts_with("GPU-"), "{gpus}");
    let lies = [(TENANT, "other:80GiB"), (UUIDS, "GPU-of-another")];
    let (tenant, gpus) = bound("b", &lies);
    assert_eq!(tenant, format!("pod-uid-b:{}", 20 * GIB), "the pod's own value is written over");
    assert!(!gpus.contains("another"), "{gpus}");
    fake.stop();
}

#[test]
fn a_node_that_vanishes_between_filter_and_bind_leaves_nothing() {
    let fake = Fake::start();
    (0..2).for_each(|i| fake.node(&format!("n{i}"), 1, 80));
    let replica = Replica::start(&fake);
    let pod = fake.pod("p", &asks("80GiB"));
    let node = replica.filter(&fake, &pod)["NodeNames"][0].as_str().expect("it fits").to_owned();
    fake.delete(&format!("/api/v1/nodes/{node}"));
    let why = replica.bind(&pod, &node);
    assert!(!why.is_empty());
    assert!(pod_of(&fake, "p")["spec"]["nodeName"].is_null(), "it is not bound to nowhere");
    replica.wait("the node is gone", |replica| replica.extender.gauges().total_milli == 1000);
    let next = replica.schedule(&fake, &pod).expect("the other node has room");
    assert_ne!(next, node);
    replica.extender.check().expect("the account is right");
    fake.stop();
}

#[test]
fn a_server_that_comes_back_from_a_backup_books_no_gpu_twice() {
    let fake = Fake::start();
    (0..2).for_each(|i| fake.node(&format!("n{i}"), 2, 80));
    let replica = Replica::start(&fake);
    for i in 0..2 {
        assert!(replica.schedule(&fake, &fake.pod(&format!("a{i}"), &asks("80GiB"))).is_some());
    }
    // Many versions, so that those after the restore stay smaller for a while.
    for i in 0..50 {
        edit(&fake, "/api/v1/nodes/n0", &json!({"note": i.to_string()}));
    }
    let lists = replica.extender.gauges().lists;
    fake.restore();
    replica.wait("it lists again", |replica| replica.extender.gauges().lists >= lists + 2);
    for i in 0..2 {
        assert!(replica.schedule(&fake, &fake.pod(&format!("b{i}"), &asks("80GiB"))).is_some());
    }
    none_is_over_booked(&fake, 80 * GIB);
    assert_eq!(held(&fake).len(), 4);
    let late = fake.pod("late", &asks("1GiB"));
    assert!(replica.schedule(&fake, &late).is_none(), "all four GPUs are full");
    fake.delete("/api/v1/namespaces/default/pods/a0");
    replica.wait("a0 is gone", |replica| replica.extender.gauges().pods == 3);
    assert!(replica.schedule(&fake, &late).is_some(), "events count although their versions are smaller");
    replica.extender.check().expect("the account is right");
    fake.stop();
}

#[test]
fn versions_that_are_no_numbers_book_no_gpu_twice() {
    let fake = Fake::start();
    fake.write_odd_versions();
    fake.node("n0", 2, 80);
    let (one, two) = (Replica::start(&fake), Replica::start(&fake));
    let mut bound = 0;
    for i in 0..6 {
        let pod = fake.pod(&format!("p{i}"), &asks("40GiB"));
        let replica = if i % 2 == 0 { &one } else { &two };
        bound += usize::from((0..20).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            replica.schedule(&fake, &pod).is_some()
        }));
    }
    assert_eq!(bound, 4);
    none_is_over_booked(&fake, 80 * GIB);
    fake.stop();
}

#[test]
fn a_binding_whose_answer_is_lost_keeps_its_gpu_until_there_is_proof() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let replica = Replica::start(&fake);
    let pod = fake.pod("mine", &asks("80GiB"));
    let other = fake.pod("other", &asks("80GiB"));
    replica.wait("it knows both", |replica| replica.extender.gauges().known == 2);
    assert_eq!(replica.filter(&fake, &pod)["NodeNames"], json!(["n0"]));
    // The API server binds the pod, but loses its answer and refuses questions about it.
    fake.loses_bindings.store(true, Ordering::Relaxed);
    assert_ne!(replica.bind(&pod, "n0"), "");
    assert!(bookings(&fake, "n0")["uid-mine"].is_string(), "{}", bookings(&fake, "n0"));
    fake.loses_bindings.store(false, Ordering::Relaxed);
    assert_eq!(replica.schedule(&fake, &other), None, "the GPU is in use");
    assert_eq!(replica.bind(&pod, "n0"), "", "it is bound");
    none_is_over_booked(&fake, 80 * GIB);
    replica.extender.check().expect("the account is right");
    fake.stop();
}

#[test]
fn a_pod_that_another_replica_bound_with_another_gpu_is_no_success() {
    let fake = Fake::start();
    fake.node("n0", 2, 80);
    let replica = Replica::start(&fake);
    let pod = fake.pod("mine", &asks("40GiB"));
    replica.wait("it knows the pod", |replica| replica.extender.gauges().known == 1);
    assert_eq!(replica.filter(&fake, &pod)["NodeNames"], json!(["n0"]));
    let mine = replica.extender.assumed_gpus("uid-mine").expect("it is assumed")[0];
    // No event of it comes before the bind, as if the watch were slower.
    let notes = json!({"gapless.dev/node": "n0", "gapless.dev/gpu-indices": (1 - mine).to_string(),
        "gapless.dev/gpu-booked": (40 * GIB).to_string(), "gapless.dev/gpu-uuids": format!("GPU-n0-{}", 1 - mine)});
    fake.bind_behind_the_back("mine", "n0", &notes);
    let said = replica.bind(&pod, "n0");
    let got = pod_of(&fake, "mine")["metadata"]["annotations"]["gapless.dev/gpu-indices"].clone();
    assert_eq!(got, json!((1 - mine).to_string()), "{said}");
    replica.wait("the account follows the pod", |replica| {
        let held = bookings(&fake, "n0");
        let is_false = held["uid-mine"].as_str().is_some_and(|text| text.contains(&format!(" {mine} ")));
        !is_false && replica.extender.check().is_ok()
    });
    fake.stop();
}

/// A scheduler that has just become the leader, or whose call was late, may ask for a pod that is bound.
#[test]
fn a_filter_for_a_bound_pod_gives_up_none_of_its_memory() {
    let fake = Fake::start();
    (0..3).for_each(|i| fake.node(&format!("n{i}"), 2, 80));
    let replica = Replica::start(&fake);
    let pods: Vec<Value> = (0..3).map(|i| fake.pod(&format!("p{i}"), &asks("50GiB"))).collect();
    for pod in &pods {
        assert!(replica.schedule(&fake, pod).is_some());
    }
    // As the scheduler knew them before, and as they are now.
    let now = ["p0", "p1", "p2"].map(|name| pod_of(&fake, name));
    let free = replica.extender.gauges().free_milli;
    for pod in pods.iter().chain(&now) {
        let answer = replica.filter(&fake, pod);
        assert_eq!(answer["NodeNames"], json!([]), "{answer}");
        assert!(answer["FailedNodes"]["n0"].as_str().is_some_and(|why| why.contains("bound to")), "{answer}");
        let gauges = replica.extender.gauges();
        assert_eq!((gauges.free_milli, gauges.assumed), (free, 0));
    }
    replica.extender.check().expect("the account is right");
    fake.stop();
}
