//! Each call of a bind goes wrong in each way: refused, lost, or answered with something else. The pod is bound once in
//! the end, its memory is booked, and nothing is promised twice.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;
#[allow(dead_code, reason = "other tests use the rest")]
mod replica;

use fake::{Fake, Fault};
use gapless_kube::book::BOOKINGS;
use replica::{GIB, Replica, asks, bookings, edit, held, none_is_over_booked};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

/// The calls of a bind on a page that must be founded again: pod, node, pods of the node, page, binding. And one more.
const CALLS: u64 = 6;

const ANSWERS: [Option<(u16, &str)>; 13] = [
    None,
    Some((200, "{}")),
    Some((200, "[]")),
    Some((200, "null")),
    Some((200, "{\"kind\":\"Status\",\"status\":\"Failure\"}")),
    Some((200, "{\"metadata\":{\"name\":\"other\",\"namespace\":\"default\",\"uid\":\"u\"}}")),
    Some((200, "<html>")),
    Some((204, "")),
    Some((403, "{}")),
    Some((409, "{}")),
    Some((410, "{}")),
    Some((429, "{}")),
    Some((500, "<html>")),
];

fn bind_with(call: u64, fault: Fault, is_founded: bool) {
    let case = format!("call {call}, {fault:?}, {is_founded}");
    let fake = Fake::start();
    fake.node("n0", 2, 80);
    let replica = Replica::start(&fake);
    let first = fake.pod("first", &asks("80GiB"));
    assert!(replica.schedule(&fake, &first).is_some(), "{case}");
    if !is_founded {
        // As after an edit by hand: the page is founded again from the pods that are bound.
        let page = bookings(&fake, "n0").to_string();
        edit(&fake, "/api/v1/nodes/n0", &json!({ BOOKINGS: page }));
    }
    let pod = fake.pod("second", &asks("80GiB"));
    replica.wait("it knows both", |replica| replica.extender.gauges().known == 2);
    *fake.fault.lock().expect("no panic") = Some((fake.calls.load(Ordering::Relaxed) + call, fault));
    let is_bound = |name: &str| {
        let pod = fake.get(&format!("/api/v1/namespaces/default/pods/{name}")).expect("the pod");
        pod["spec"]["nodeName"].is_string()
    };
    let node = replica.filter(&fake, &pod)["NodeNames"][0].clone();
    if node.is_string() && replica.bind(&pod, "n0").is_empty() {
        assert!(is_bound("second"), "{case}: it was said to be bound");
    }
    *fake.fault.lock().expect("no panic") = None;
    replica.wait(&format!("{case}: it is bound"), |replica| {
        is_bound("second") || (replica.schedule(&fake, &pod).is_some() && is_bound("second"))
    });
    let third = fake.pod("third", &asks("1GiB"));
    assert_eq!(replica.schedule(&fake, &third), None, "{case}: both GPUs are taken");
    none_is_over_booked(&fake, 80 * GIB);
    assert_eq!(held(&fake).len(), 2, "{case}");
    let page = bookings(&fake, "n0");
    let uids: Vec<&String> = page.as_object().map(|page| page.keys().collect()).unwrap_or_default();
    assert_eq!(uids, ["uid-first", "uid-second"], "{case}");
    replica.extender.check().unwrap_or_else(|what| panic!("{case}: {what}"));
    assert!(fake.bound.load(Ordering::Relaxed) == 2, "{case}: each is bound once");
    fake.stop();
}

fn in_each_way(is_founded: bool) {
    for call in 1..=CALLS {
        for answer in ANSWERS {
            bind_with(call, Fault { is_done: false, answer }, is_founded);
            // The first calls only read, so it is the same if they are carried out.
            if call > 2 {
                bind_with(call, Fault { is_done: true, answer }, is_founded);
            }
        }
    }
}

#[test]
fn a_bind_survives_any_answer_to_any_call() {
    in_each_way(true);
}

#[test]
fn so_does_one_on_a_page_that_was_edited() {
    in_each_way(false);
}

/// A list that is none leaves what is known as it was.
#[test]
fn an_answer_that_is_no_list_is_not_an_empty_one() {
    for (status, body) in
        [(200, "{}"), (200, "[]"), (200, "{\"items\":{}}"), (200, "{\"items\":null}"), (500, "{}")]
    {
        let fake = Fake::start();
        fake.node("n0", 1, 80);
        let replica = Replica::start(&fake);
        let pod = fake.pod("p", &asks("80GiB"));
        assert!(replica.schedule(&fake, &pod).is_some());
        replica.wait("the pod is booked", |replica| replica.extender.gauges().free_milli == 0);
        let calls = fake.calls.load(Ordering::Relaxed);
        let fault = Fault { is_done: false, answer: Some((status, body)) };
        *fake.fault.lock().expect("no panic") = Some((calls + 1, fault));
        let troubles = replica.extender.gauges().troubles;
        fake.restore();
        replica.wait("a list went wrong", |replica| replica.extender.gauges().troubles > troubles);
        let gauges = replica.extender.gauges();
        assert_eq!((gauges.known, gauges.total_milli, gauges.free_milli), (1, 1000, 0), "{status} {body}");
        fake.stop();
    }
    let real: Value = json!({"kind": "PodList", "items": null});
    assert_eq!(gapless_kube::api::items(&mut real.clone()).map_err(|why| why.to_string()), Ok(Vec::new()));
}
