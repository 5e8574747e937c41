//! The extender against a fake API server: pods get their GPUs, and no GPU is booked twice, with two replicas, restarts
//! at random moments, lost answers, forgotten versions and pods that vanish.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;
#[allow(dead_code, reason = "other tests use the rest")]
mod replica;

use fake::Fake;
use gapless_kube::auto::{Sizer, Wish};
use replica::{GIB, Replica, asks, book, bookings, edit, held, none_is_over_booked};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

#[test]
fn pods_get_their_gpus_until_the_cluster_is_full() {
    let fake = Fake::start();
    (0..4).for_each(|i| fake.node(&format!("n{i}"), 2, 80));
    let replica = Replica::start(&fake);
    // 8 GPUs of 80 GiB take 16 pods of 40 GiB, and not one more.
    for i in 0..16 {
        let pod = fake.pod(&format!("p{i}"), &asks("40GiB"));
        let answer = replica.filter(&fake, &pod);
        let node = answer["NodeNames"][0].as_str().expect("it fits");
        let scores = replica.post("/prioritize", &json!({"pod": pod, "nodenames": ["n0", "n1", "n2", "n3"]}));
        let best = scores
            .as_array()
            .expect("a list")
            .iter()
            .find(|score| score["Score"] == 10)
            .expect("one is best");
        assert_eq!(best["Host"], node);
        assert_eq!(replica.bind(&pod, node), "");
        assert_eq!(replica.bind(&pod, node), "", "a bind may be repeated");
    }
    assert_eq!(held(&fake).len(), 8);
    none_is_over_booked(&fake, 80 * GIB);
    let uuids = &fake.get("/api/v1/namespaces/default/pods/p0").expect("p0")["metadata"]["annotations"]["gapless.dev/gpu-uuids"];
    assert!(uuids.as_str().is_some_and(|text| text.starts_with("GPU-n")), "{uuids}");
    let late = fake.pod("late", &asks("1GiB"));
    let refused = replica.filter(&fake, &late);
    assert_eq!(refused["NodeNames"], json!([]));
    assert!(refused["FailedNodes"]["n0"].as_str().is_some_and(|why| why.contains("Gapless")), "{refused}");
    fake.delete("/api/v1/namespaces/default/pods/p3");
    replica.wait("p3 is gone", |replica| replica.extender.gauges().pods == 15);
    assert!(replica.schedule(&fake, &late).is_some(), "there is room again");
    none_is_over_booked(&fake, 80 * GIB);
    replica.extender.check().expect("the account is right");
    fake.stop();
}

#[test]
fn what_makes_no_sense_is_told_in_the_event() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let replica = Replica::start(&fake);
    for (notes, part) in [
        (asks("90GiB"), "the largest GPU has 80"),
        (asks("lots"), "invalid size"),
        (asks("auto"), "not served here"),
        (json!({"gapless.dev/gpu-milli": "1001"}), "1001 thousandths"),
        (json!({"gapless.dev/gpus": "-1"}), "invalid number"),
        (json!({"gapless.dev/gpus": "0", "gapless.dev/gpu-milli": "5"}), "0 GPUs"),
        (json!({"gapless.dev/gpu-memory": "1GiB", "gapless.dev/gpu-models": "T4"}), "model"),
    ] {
        let pod = fake.pod("wrong", &notes);
        let answer = replica.filter(&fake, &pod);
        assert_eq!(answer["NodeNames"], json!([]), "{notes}");
        assert!(
            answer["FailedNodes"]["n0"].as_str().is_some_and(|why| why.contains(part)),
            "{notes}: {answer}"
        );
    }
    let other = fake.pod("other", &json!({}));
    assert_eq!(replica.filter(&fake, &other)["NodeNames"], json!(["n0"]), "pods of others are left alone");
    for (method, path, body, status) in [
        ("POST", "/filter", "no JSON", 400),
        ("POST", "/filter", "[]", 200),
        ("GET", "/filter", "", 405),
        ("GET", "/nowhere", "", 404),
        ("GET", "/healthz", "", 200),
        ("GET", "/readyz", "", 200),
    ] {
        assert_eq!(replica.ask(method, path, body.as_bytes()).0, status, "{method} {path}");
    }
    let (_, metrics) = replica.ask("GET", "/metrics", b"");
    let metrics = String::from_utf8(metrics).expect("text");
    assert!(metrics.contains("gapless_fleet_pods_refused_total 7"), "{metrics}");
    assert!(metrics.contains("gapless_fleet_gpu_total_milli 1000"), "{metrics}");
    fake.stop();
}

#[test]
fn a_pod_that_vanishes_between_filter_and_bind_leaves_nothing() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let replica = Replica::start(&fake);
    let pod = fake.pod("p", &asks("80GiB"));
    assert_eq!(replica.filter(&fake, &pod)["NodeNames"], json!(["n0"]));
    fake.delete("/api/v1/namespaces/default/pods/p");
    assert!(replica.bind(&pod, "n0").contains("deleted"));
    let next = fake.pod("q", &asks("80GiB"));
    assert!(replica.schedule(&fake, &next).is_some(), "the assumption is gone");
    fake.stop();
}

#[test]
fn assumptions_that_are_never_bound_expire() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let replica = Replica::start(&fake);
    let pod = fake.pod("p", &asks("80GiB"));
    replica.filter(&fake, &pod);
    let next = fake.pod("q", &asks("80GiB"));
    assert!(replica.schedule(&fake, &next).is_none());
    replica.extender.expire(Instant::now() + gapless_kube::extender::ASSUMED_FOR * 2);
    assert!(replica.schedule(&fake, &next).is_some());
    fake.stop();
}

#[test]
fn a_forgotten_version_is_listed_again() {
    let fake = Fake::start();
    (0..2).for_each(|i| fake.node(&format!("n{i}"), 1, 80));
    let replica = Replica::start(&fake);
    let pods: Vec<Value> = (0..2).map(|i| fake.pod(&format!("p{i}"), &asks("80GiB"))).collect();
    for pod in &pods {
        assert!(replica.schedule(&fake, pod).is_some());
    }
    // The deletion never comes as an event. Only a new list shows it.
    fake.delete("/api/v1/namespaces/default/pods/p0");
    fake.forget();
    replica.wait("the list tells", |replica| replica.extender.gauges().pods == 1);
    let next = fake.pod("q", &asks("80GiB"));
    assert!(replica.schedule(&fake, &next).is_some());
    none_is_over_booked(&fake, 80 * GIB);
    fake.stop();
}

/// Schedules pods until each is bound, or refused `patience` times in a row.
fn drive(fake: &Fake, replica: &Replica, pods: &[Value], patience: usize) -> usize {
    let mut bound = 0;
    for pod in pods {
        for _ in 0..patience {
            if replica.schedule(fake, pod).is_some() {
                bound += 1;
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    bound
}

#[test]
fn three_replicas_that_get_every_pod_and_lost_answers_book_no_gpu_twice() {
    let fake = Fake::start();
    (0..3).for_each(|i| fake.node(&format!("n{i}"), 4, 80));
    let replicas: Vec<Replica> = (0..3).map(|_| Replica::start(&fake)).collect();
    fake.drop_every.store(17, Ordering::Relaxed);
    // 12 GPUs take 24 of 40 pods, and each replica is asked to place all of them.
    let pods: Vec<Value> = (0..40).map(|i| fake.pod(&format!("p{i:02}"), &asks("40GiB"))).collect();
    std::thread::scope(|scope| {
        for (at, replica) in replicas.iter().enumerate() {
            let (fake, mut pods) = (&fake, pods.clone());
            pods.rotate_left(at);
            scope.spawn(move || drive(fake, replica, &pods, 6));
        }
    });
    none_is_over_booked(&fake, 80 * GIB);
    fake.drop_every.store(0, Ordering::Relaxed);
    // Once no answers are lost, the other pods find their places, by a new replica that reads all state.
    let fresh = Replica::start(&fake);
    let left: Vec<Value> =
        fake.all("pods").into_iter().filter(|pod| pod["spec"]["nodeName"].is_null()).collect();
    drive(&fake, &fresh, &left, 3);
    none_is_over_booked(&fake, 80 * GIB);
    let bound = fake.all("pods").iter().filter(|pod| !pod["spec"]["nodeName"].is_null()).count();
    assert_eq!(bound, 24, "every half of a GPU is used");
    fake.stop();
}

#[test]
fn restarts_at_fifty_moments_lose_no_pod_and_book_no_gpu_twice() {
    let fake = Fake::start();
    (0..3).for_each(|i| fake.node(&format!("n{i}"), 2, 80));
    let mut dice = 7u64;
    let mut below = |n: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % n
    };
    let sizes = ["10GiB", "25GiB", "40GiB", "80GiB"];
    let mut number = 0;
    for round in 0..50 {
        let replica = Replica::start(&fake);
        for _ in 0..1 + below(4) {
            let pod = fake.pod(&format!("p{number:03}"), &asks(sizes[below(4) as usize]));
            number += 1;
            let answer = replica.filter(&fake, &pod);
            // Some pods get a node but are not bound, as if the kill came between.
            if let Some(node) = answer["NodeNames"][0].as_str()
                && below(3) > 0
            {
                assert_eq!(replica.bind(&pod, node), "", "round {round}");
            }
        }
        if below(3) == 0 {
            let pods = fake.all("pods");
            let name = pods[below(pods.len() as u64) as usize]["metadata"]["name"]
                .as_str()
                .expect("a name")
                .to_owned();
            fake.delete(&format!("/api/v1/namespaces/default/pods/{name}"));
        }
        none_is_over_booked(&fake, 80 * GIB);
    }
    // The last replica knows exactly the bound pods.
    let replica = Replica::start(&fake);
    let bound = fake.all("pods").iter().filter(|pod| !pod["spec"]["nodeName"].is_null()).count();
    replica.wait("it knows the bound pods", |replica| replica.extender.gauges().pods == bound as u64);
    replica.extender.check().expect("the account is right");
    let free: u64 = (0..6).map(|_| 80 * GIB).sum::<u64>() - held(&fake).values().sum::<u64>();
    let gauges = replica.extender.gauges();
    let exact = free as f64 / (80 * GIB) as f64 * 1000.0;
    assert!(
        (gauges.free_milli as f64 - exact).abs() <= 6.0,
        "{} thousandths, {exact} by the pods",
        gauges.free_milli
    );
    fake.stop();
}

#[test]
fn a_booking_that_was_never_bound_counts_until_its_pod_is_bound_elsewhere() {
    let fake = Fake::start();
    (0..2).for_each(|i| fake.node(&format!("n{i}"), 1, 80));
    let left = fake.pod("left", &asks("60GiB"));
    // A replica was killed between its two writes.
    book(&fake, "n0", "left", 0, 60);
    let replica = Replica::start(&fake);
    assert_eq!(replica.extender.gauges().pods, 1, "the booking counts");
    let other = fake.pod("other", &asks("30GiB"));
    assert_eq!(replica.filter(&fake, &other)["NodeNames"], json!(["n1"]), "it is not placed on booked bytes");
    let large = fake.pod("large", &asks("70GiB"));
    assert_eq!(replica.filter(&fake, &large)["NodeNames"], json!([]));
    // The scheduler tries the pod on another node.
    let names = json!({"Pod": left, "NodeNames": ["n1"]});
    assert_eq!(replica.post("/filter", &names)["NodeNames"], json!([]), "30 GiB of n1 are assumed");
    fake.delete("/api/v1/namespaces/default/pods/other");
    replica.wait("other is gone", |replica| replica.extender.gauges().assumed == 0);
    assert_eq!(replica.post("/filter", &names)["NodeNames"], json!(["n1"]));
    assert_eq!(replica.bind(&left, "n1"), "");
    assert_eq!(bookings(&fake, "n0"), json!({}), "what was left on the other node is cleared");
    assert!(bookings(&fake, "n1")["uid-left"].is_string());
    assert!(replica.schedule(&fake, &large).is_some());
    none_is_over_booked(&fake, 80 * GIB);
    replica.extender.check().expect("the account is right");
    fake.stop();
}

#[test]
fn annotations_that_were_edited_by_hand_free_no_gpu() {
    let fake = Fake::start();
    fake.node("n0", 2, 80);
    let replica = Replica::start(&fake);
    let pods: Vec<Value> = (0..2).map(|i| fake.pod(&format!("p{i}"), &asks("80GiB"))).collect();
    assert!(pods.iter().all(|pod| replica.schedule(&fake, pod).is_some()));
    let p0 = "/api/v1/namespaces/default/pods/p0";
    edit(&fake, p0, &json!({"gapless.dev/gpu-booked": "5", "gapless.dev/gpu-memory": "1GiB"}));
    edit(&fake, "/api/v1/namespaces/default/pods/p1", &json!({"gapless.dev/gpu-uuids": "GPU-x"}));
    let late = fake.pod("late", &asks("10GiB"));
    for replica in [&replica, &Replica::start(&fake)] {
        assert_eq!(replica.filter(&fake, &late)["NodeNames"], json!([]), "the node's bookings count");
    }
    // An invalid annotation closes the node.
    edit(&fake, "/api/v1/nodes/n0", &json!({"gapless.dev/bookings": "nonsense"}));
    fake.delete(p0);
    replica.wait("p0 is gone", |replica| replica.extender.gauges().pods == 1);
    assert_eq!(replica.filter(&fake, &late)["NodeNames"], json!([]), "the node is closed");
    // Without the page, the GPU of p1 is not known.
    edit(&fake, "/api/v1/nodes/n0", &json!({"gapless.dev/bookings": ""}));
    replica.wait("p1 is suspicious", |replica| replica.extender.gauges().over_booked > 0);
    assert_eq!(replica.filter(&fake, &late)["NodeNames"], json!([]), "the node is still closed");
    fake.delete("/api/v1/namespaces/default/pods/p1");
    replica.wait("p1 is gone", |replica| replica.extender.gauges().pods == 0);
    assert!(replica.schedule(&fake, &late).is_some(), "the node is open again");
    fake.stop();
}

#[test]
fn bookings_that_somebody_deleted_are_made_anew() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let replica = Replica::start(&fake);
    let pod = fake.pod("p", &asks("30GiB"));
    assert!(replica.schedule(&fake, &pod).is_some());
    edit(&fake, "/api/v1/nodes/n0", &json!({"gapless.dev/bookings": ""}));
    let next = fake.pod("q", &asks("30GiB"));
    assert!(replica.schedule(&fake, &next).is_some());
    let booked = bookings(&fake, "n0");
    assert!(booked["uid-p"].is_string() && booked["uid-q"].is_string(), "{booked}");
    // A deleted pod leaves its booking, which the next booking removes.
    fake.delete("/api/v1/namespaces/default/pods/p");
    replica.wait("p is gone", |replica| replica.extender.gauges().pods == 1);
    let last = fake.pod("r", &asks("50GiB"));
    assert!(replica.schedule(&fake, &last).is_some());
    let booked = bookings(&fake, "n0");
    assert!(booked["uid-p"].is_null() && booked["uid-r"].is_string(), "{booked}");
    fake.stop();
}

#[test]
fn a_node_that_grows_takes_more_and_one_that_vanishes_takes_nothing() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let replica = Replica::start(&fake);
    let pods: Vec<Value> = (0..3).map(|i| fake.pod(&format!("p{i}"), &asks("80GiB"))).collect();
    assert!(replica.schedule(&fake, &pods[0]).is_some());
    assert!(replica.schedule(&fake, &pods[1]).is_none());
    edit(&fake, "/api/v1/nodes/n0", &json!({"gapless.dev/gpus": "2"}));
    replica.wait("it has grown", |replica| replica.extender.gauges().total_milli == 2000);
    assert!(replica.schedule(&fake, &pods[1]).is_some(), "there is a second GPU now");
    none_is_over_booked(&fake, 80 * GIB);
    fake.delete("/api/v1/nodes/n0");
    replica.wait("it is gone", |replica| replica.extender.gauges().total_milli == 0);
    assert!(replica.schedule(&fake, &pods[2]).is_none());
    replica.extender.check().expect("the account is right");
    fake.stop();
}

#[test]
fn pods_without_gpus_are_placed_by_the_policy_if_they_want() {
    let fake = Fake::start();
    (0..2).for_each(|i| fake.node(&format!("n{i}"), 1, 80));
    let replica = Replica::start(&fake);
    let pod = fake.pod("p", &json!({"gapless.dev/gpus": "0"}));
    let answer = replica.filter(&fake, &pod);
    assert_eq!(answer["NodeNames"].as_array().map(Vec::len), Some(1), "{answer}");
    assert_eq!(replica.bind(&pod, answer["NodeNames"][0].as_str().expect("a name")), "");
    assert!(held(&fake).is_empty(), "nothing is booked");
    assert_eq!(replica.extender.gauges().pods, 1, "its CPUs count");
    fake.stop();
}

/// Answers with the length of the question, in GiB.
#[derive(Debug)]
struct Lengths;

impl Sizer for Lengths {
    fn size(&self, wish: &Wish) -> Result<u64, String> {
        match wish {
            Wish::Fit(text) | Wish::Trace(text) => Ok(text.len() as u64 * GIB),
            Wish::Config(config, run) => Ok((config.len() + run.len()) as u64 * GIB),
        }
    }
}

#[test]
fn auto_asks_for_what_the_program_will_take() {
    let fake = Fake::start();
    fake.node("n0", 8, 80);
    fake.config_map("model", &json!({"config.json": "{\"a\": 1}", "fit": "--batch 8"}));
    let replica = Replica::with(&fake, |extender| extender.with_sizer(Box::new(Lengths)));
    for (number, (notes, gib)) in [
        (json!({"gapless.dev/fit": "llama"}), 5),
        (json!({"gapless.dev/fit-config": "{}", "gapless.dev/fit": "--infer"}), 9),
        (json!({"gapless.dev/fit-config-map": "model"}), 17),
        (json!({"gapless.dev/trace": "run.pickle"}), 10),
    ]
    .iter()
    .enumerate()
    {
        let mut notes = notes.clone();
        notes["gapless.dev/gpu-memory"] = json!("auto");
        let pod = fake.pod(&format!("p{number}"), &notes);
        let node = replica.filter(&fake, &pod)["NodeNames"][0].as_str().map(str::to_owned).expect("it fits");
        // A restart between filter and bind: the replica that binds computes the size itself.
        let other = Replica::with(&fake, |extender| extender.with_sizer(Box::new(Lengths)));
        assert_eq!(other.bind(&pod, &node), "");
        let object = fake.get(&format!("/api/v1/namespaces/default/pods/p{number}")).expect("the pod");
        let booked = &object["metadata"]["annotations"]["gapless.dev/gpu-booked"];
        assert_eq!(booked, &json!((gib * GIB).to_string()), "{notes}");
    }
    for (notes, part) in [
        (json!({}), "auto needs"),
        (json!({"gapless.dev/fit-config-map": "none"}), "ConfigMap default/none"),
        (json!({"gapless.dev/fit-config-map": "../secrets"}), "invalid name"),
        (json!({"gapless.dev/trace": "a", "gapless.dev/fit-config": "{}"}), "set one of"),
    ] {
        let mut notes = notes.clone();
        notes["gapless.dev/gpu-memory"] = json!("auto");
        let answer = replica.filter(&fake, &fake.pod("wrong", &notes));
        let why = answer["FailedNodes"]["n0"].as_str().unwrap_or_default().to_owned();
        assert!(why.contains(part), "{notes}: {why}");
    }
    fake.stop();
}
