//! Objects of Dynamic Resource Allocation: each keeps to the schema of Kubernetes 1.34 and to the rules that its API
//! server applies beyond the schema, and invalid ones are found. They were not tried on a cluster with DRA.

#[allow(dead_code, reason = "the extender's tests use the rest")]
mod fake;
mod schema;

use fake::{Fake, SLICES};
use gapless_fleet::words::{Request, Share};
use gapless_kube::api::{Address, Api};
use gapless_kube::dra::claims::{claim, pod_of, spec, template, use_template};
use gapless_kube::dra::publish::{PublishError, Published, Publisher};
use gapless_kube::dra::slices::{Gpu, Owner, slices};
use gapless_kube::dra::{claims, class};
use gapless_kube::{objects, quantity};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

const GIB: u64 = 1 << 30;

fn h200(index: u32) -> Gpu {
    Gpu {
        index,
        instance: None,
        uuid: Some(format!("GPU-6a6f2c1b-0000-4000-8000-{index:012}")),
        model: "NVIDIA H200".to_owned(),
        bytes: 150_754_820_096,
    }
}

fn owner() -> Owner {
    Owner { node: "n1".to_owned(), uid: "0c1d2e3f-0000-4000-8000-00000000beef".to_owned() }
}

fn request(gpus: u32, share: Share, models: &str) -> Request {
    Request { cpu_milli: 0, memory: 0, gpus, share, models: models.to_owned() }
}

/// The rules of an API server of 1.34 beyond the schema, by the documentation of its types. They are independent of
/// the code that makes the objects.
fn against_rules(object: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            wrong.push(what.to_owned());
        }
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number =
        |value: &Value| value.as_str().and_then(|text| quantity::whole(text).ok()).unwrap_or(u64::MAX);
    let is_label = |name: &str| {
        let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        (1..=63).contains(&name.len())
            && name.chars().all(inside)
            && !name.starts_with('-')
            && !name.ends_with('-')
    };
    let is_identifier = |name: &str| {
        let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
        (1..=32).contains(&name.len())
            && name.chars().all(inside)
            && !name.starts_with(|c: char| c.is_ascii_digit())
    };
    let is_subdomain = |name: &str| name.len() <= 253 && name.split('.').all(is_label);
    must(is_subdomain(&text(&object["metadata"]["name"])), "the name is not a DNS subdomain");
    for owner in list(&object["metadata"]["ownerReferences"]) {
        must(!text(&owner["uid"]).is_empty(), "an owner without uid");
    }
    let spec = match object["kind"].as_str() {
        Some("ResourceClaimTemplate") => &object["spec"]["spec"],
        _ => &object["spec"],
    };
    if object["kind"] == "ResourceSlice" {
        let (pool, devices) = (&spec["pool"], list(&spec["devices"]));
        must(text(&spec["driver"]).len() <= 63 && is_subdomain(&text(&spec["driver"])), "the driver's name");
        let places = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
        must(places.iter().filter(|one| !spec[**one].is_null()).count() == 1, "one of nodeName and others");
        must(pool["resourceSliceCount"].as_i64() > Some(0), "resourceSliceCount");
        must(pool["generation"].as_i64() >= Some(0), "generation");
        must(devices.len() <= 128, "more than 128 devices");
        let names: BTreeSet<String> = devices.iter().map(|device| text(&device["name"])).collect();
        must(names.len() == devices.len(), "two devices of one name");
        for device in &devices {
            must(is_label(&text(&device["name"])), "the name of a device is not a DNS label");
            let none = serde_json::Map::new();
            let attributes = device["attributes"].as_object().unwrap_or(&none);
            let capacities = device["capacity"].as_object().unwrap_or(&none);
            must(attributes.len() + capacities.len() <= 32, "more than 32 attributes and capacities");
            must(attributes.keys().chain(capacities.keys()).all(|name| is_identifier(name)), "an identifier");
            for attribute in attributes.values() {
                must(attribute.as_object().is_some_and(|one| one.len() == 1), "one value for an attribute");
                must(text(&attribute["string"]).len() <= 64, "an attribute is too long");
            }
            for capacity in capacities.values() {
                let (value, policy) = (number(&capacity["value"]), &capacity["requestPolicy"]);
                if policy.is_null() {
                    continue;
                }
                must(device["allowMultipleAllocations"] == true, "a policy for a device that is not shared");
                let range = &policy["validRange"];
                let [default, least, most, step] =
                    [&policy["default"], &range["min"], &range["max"], &range["step"]].map(number);
                must(least <= default && default <= most && most <= value, "the order of a policy's sizes");
                must(step > 0 && least.saturating_add(step) <= value, "one step is larger than the device");
                let fits = |size: u64| step == 0 || size.saturating_sub(least).is_multiple_of(step);
                must(fits(default) && fits(most), "sizes are no whole steps");
            }
        }
    }
    for selector in list(&spec["selectors"]) {
        must(!text(&selector["cel"]["expression"]).is_empty(), "an empty selector");
    }
    let requests = list(&spec["devices"]["requests"]);
    let names: Vec<String> = requests.iter().map(|one| text(&one["name"])).collect();
    for request in &requests {
        let exactly = &request["exactly"];
        must(is_label(&text(&request["name"])), "the name of a request");
        must(exactly.is_null() != request["firstAvailable"].is_null(), "one of exactly and firstAvailable");
        must(is_subdomain(&text(&exactly["deviceClassName"])), "the name of a class");
        must(exactly["allocationMode"] == "All" || exactly["count"].as_i64() > Some(0), "the count");
        for selector in list(&exactly["selectors"]) {
            must((1..=10_240).contains(&text(&selector["cel"]["expression"]).len()), "a selector's length");
        }
    }
    for constraint in list(&spec["devices"]["constraints"]) {
        let kinds = ["matchAttribute", "distinctAttribute"];
        must(
            kinds.iter().filter(|kind| !constraint[**kind].is_null()).count() == 1,
            "one kind of constraint",
        );
        must(
            list(&constraint["requests"]).iter().all(|one| names.contains(&text(one))),
            "an unknown request",
        );
        let attribute = text(&constraint["distinctAttribute"]);
        must(attribute.split_once('/').is_some_and(|(_, id)| is_identifier(id)), "an attribute's full name");
    }
    wrong
}

fn is_right(object: &Value) {
    assert_eq!(schema::against(object), [""; 0], "{object:#}");
    assert_eq!(against_rules(object), [""; 0], "{object:#}");
}

#[test]
fn slices_of_all_kinds_of_gpus_are_right() {
    let instance = |number| Gpu { instance: Some(number), uuid: None, bytes: 10 * GIB, ..h200(0) };
    let odd =
        Gpu { uuid: Some("GPU_x/..".to_owned()), model: "ü".repeat(90), bytes: 5 * GIB + 17, ..h200(3) };
    for (gpus, devices) in [
        (vec![], 0),
        (vec![h200(0), h200(1)], 2),
        (vec![instance(1), instance(2), odd], 3),
        (vec![Gpu { bytes: 2 << 20, ..h200(0) }, Gpu { bytes: 1 << 20, ..h200(1) }], 1),
        ((0..300).map(h200).collect(), 300),
    ] {
        for shared in [true, false] {
            let all = slices(&owner(), &gpus, shared, 7).expect("right");
            all.iter().for_each(is_right);
            assert_eq!(all.len(), usize::div_ceil(devices, 128));
            let published: usize =
                all.iter().map(|one| one["spec"]["devices"].as_array().expect("a list").len()).sum();
            assert_eq!(published, devices);
        }
    }
    let all = slices(&owner(), &[h200(0)], true, 7).expect("right");
    let device = &all[0]["spec"]["devices"][0];
    assert_eq!(device["name"], "gpu-6a6f2c1b-0000-4000-8000-000000000000");
    assert_eq!(device["capacity"]["memory"]["value"], "143771Mi", "nothing is lost: it is whole MiB");
    assert_eq!(device["attributes"]["uuid"]["string"], "GPU-6a6f2c1b-0000-4000-8000-000000000000");
    let long = Owner { node: "n".repeat(250), ..owner() };
    assert!(slices(&long, &[h200(0)], true, 0).is_err_and(|what| what.contains("name")));
    assert!(slices(&owner(), &[h200(0), h200(0)], true, 0).is_err_and(|what| what.contains("two GPUs")));
}

#[test]
fn the_class_and_claims_of_all_kinds_of_requests_are_right() {
    is_right(&class());
    for gpus in [1, 2, 32] {
        for share in [Share::Bytes(1), Share::Bytes(18 * GIB), Share::Bytes(18 * GIB + 1), Share::Milli(1000)]
        {
            for models in ["", "NVIDIA H200", "A\"]|| true || [\"|B\\n\u{7}", &"x".repeat(100)] {
                for shared in [true, false] {
                    let spec = spec(&request(gpus, share, models), shared).expect("right");
                    is_right(&template("train-gapless", "team", spec.clone()).expect("right"));
                    is_right(&claim("train", "", spec).expect("right"));
                }
            }
        }
    }
    let one = spec(&request(2, Share::Bytes(18 * GIB + 1), "A|B"), true).expect("right");
    let exactly = &one["devices"]["requests"][0]["exactly"];
    assert_eq!(exactly["capacity"]["requests"]["memory"], "18433Mi", "rounded up to a step");
    assert_eq!(
        exactly["selectors"][1]["cel"]["expression"],
        r#"device.attributes["gapless.dev"].model in ["A","B"]"#
    );
    assert_eq!(one["devices"]["constraints"][0]["distinctAttribute"], "gapless.dev/device");
    let whole = spec(&request(2, Share::Bytes(18 * GIB), ""), false).expect("right");
    let exactly = &whole["devices"]["requests"][0]["exactly"];
    assert!(exactly["capacity"].is_null() && whole["devices"]["constraints"].is_null(), "{whole}");
    let expression = exactly["selectors"][0]["cel"]["expression"].as_str().expect("a selector");
    assert!(expression.ends_with("memory.compareTo(quantity(\"18Gi\")) >= 0"), "{expression}");
    for (gpus, share, part) in [
        (1, Share::Milli(300), "gpu-milli"),
        (0, Share::Milli(1000), "1 to 32"),
        (33, Share::Bytes(1), "1 to 32"),
    ] {
        assert!(spec(&request(gpus, share, ""), true).is_err_and(|what| what.contains(part)));
    }
    let many = vec!["m".repeat(60); 500].join("|");
    assert!(spec(&request(1, Share::Bytes(1), &many), true).is_err_and(|what| what.contains("models")));
    assert!(template("Train", "", one).is_err_and(|what| what.contains("name")));
}

/// A change of a valid object, and the error that must name it.
type Slip = (fn(&mut Value), &'static str);

#[test]
fn objects_with_a_slip_are_found() {
    let slips: [Slip; 13] = [
        (|slice| slice["spec"]["devices"][0]["basic"] = json!({}), "not in the schema"),
        (
            |slice| slice["spec"]["devices"][0]["allowMultipleAllocations"] = json!("yes"),
            "is not of type \"boolean\"",
        ),
        (
            |slice| slice["spec"]["devices"][0]["capacity"]["memory"] = json!("80Gi"),
            "is not of type \"object\"",
        ),
        (|slice| slice["spec"]["devices"][0]["capacity"]["memory"]["value"] = json!("80 GB"), "quantity"),
        (|slice| slice["spec"]["pool"]["generation"] = json!("1"), "is not of type \"integer\""),
        (|slice| drop(slice["spec"].as_object_mut().expect("one").remove("driver")), "\"driver\" is missing"),
        (|slice| slice["spec"]["allNodes"] = json!(true), "one of nodeName"),
        (|slice| slice["spec"]["devices"][0]["name"] = json!("GPU-0"), "not a DNS label"),
        (
            |slice| slice["spec"]["devices"][1]["name"] = slice["spec"]["devices"][0]["name"].clone(),
            "two devices",
        ),
        (|slice| slice["spec"]["devices"][0]["allowMultipleAllocations"] = json!(false), "not shared"),
        (
            |slice| {
                slice["spec"]["devices"][0]["capacity"]["memory"]["requestPolicy"]["default"] = json!("1Ei");
            },
            "order",
        ),
        (
            |slice| {
                let policy = &mut slice["spec"]["devices"][0]["capacity"]["memory"]["requestPolicy"];
                policy["validRange"]["step"] = json!("7Mi");
            },
            "whole steps",
        ),
        (|slice| slice["spec"]["devices"][0]["attributes"]["a-b"] = json!({"string": "x"}), "identifier"),
    ];
    for (slip, part) in slips {
        let mut slice = slices(&owner(), &[h200(0), h200(1)], true, 1).expect("right").swap_remove(0);
        slip(&mut slice);
        let wrong = [schema::against(&slice), against_rules(&slice)].concat().join("\n");
        assert!(wrong.contains(part), "{part}: {wrong}");
    }
    let slips: [Slip; 6] = [
        (|claim| claim["spec"]["devices"]["requests"][0]["count"] = json!(1), "not in the schema"),
        (|claim| claim["spec"]["devices"]["requests"][0]["exactly"]["count"] = json!(0), "count"),
        (
            |claim| claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = json!({"memory": "1Gi"}),
            "schema",
        ),
        (
            |claim| claim["spec"]["devices"]["constraints"][0]["requests"] = json!(["other"]),
            "unknown request",
        ),
        (
            |claim| claim["spec"]["devices"]["constraints"][0]["distinctAttribute"] = json!("device"),
            "full name",
        ),
        (|claim| claim["apiVersion"] = json!("resource.k8s.io/v1beta1"), "no schema"),
    ];
    for (slip, part) in slips {
        let spec = spec(&request(2, Share::Bytes(GIB), ""), true).expect("right");
        let mut claim = claim("c", "", spec).expect("right");
        slip(&mut claim);
        let wrong = [schema::against(&claim), against_rules(&claim)].concat().join("\n");
        assert!(wrong.contains(part), "{part}: {wrong}");
    }
}

#[test]
fn a_pod_gets_a_claim_for_its_annotations() {
    let container = |name: &str| json!({"name": name, "image": "i", "resources": {"requests": {"cpu": "1"}}});
    let metadata = json!({"name": "p", "annotations": {"gapless.dev/gpu-memory": "18GiB", "gapless.dev/gpus": "2",
        "gapless.dev/gpu-models": "NVIDIA H200", "other": "stays"}});
    let spec_of = json!({"containers": [container("a"), container("b")]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec_of});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": metadata, "spec": spec_of}}});
    for mut manifest in [pod, deployment] {
        let pod = pod_of(&mut manifest).expect("it has a pod");
        let request = objects::pod(pod).request.expect("right").expect("it asks");
        assert_eq!((request.gpus, request.share), (2, Share::Bytes(18 * GIB)));
        use_template(pod, "p-gapless").expect("it has no claim yet");
        assert!(use_template(pod, "p-gapless").is_err_and(|what| what.contains("already")));
        assert_eq!(
            pod["metadata"]["annotations"],
            json!({"other": "stays"}),
            "the extender books nothing too"
        );
        assert_eq!(pod["spec"]["containers"][1]["resources"]["claims"], json!([{"name": "gapless"}]));
        assert_eq!(schema::against(&manifest), [""; 0]);
    }
    assert!(claims::pod_of(&mut json!({"kind": "Service", "spec": {}})).is_none());
}

#[test]
fn slices_follow_the_gpus_and_the_generation_grows() {
    let fake = Fake::start();
    let api = Api::new(Address { host: "127.0.0.1".to_owned(), port: fake.port, tls: None, token: None });
    let publisher = Publisher::default();
    let publish = |gpus: &[Gpu]| publisher.publish(&api, &owner(), gpus).expect("published");
    let generations = || -> BTreeSet<i64> {
        let all = fake.all("resourceslices");
        all.iter().filter_map(|slice| slice["spec"]["pool"]["generation"].as_i64()).collect()
    };
    let nothing = Published { written: 0, deleted: 0, is_shared: true };
    assert_eq!(publish(&[h200(0)]), Published { written: 1, ..nothing });
    assert_eq!(publish(&[h200(0)]), nothing);
    let many: Vec<Gpu> = (0..130).map(h200).collect();
    assert_eq!(publish(&many), Published { written: 2, ..nothing });
    assert_eq!(generations(), BTreeSet::from([2]), "all slices have one generation");
    fake.all("resourceslices").iter().for_each(is_right);
    // Another agent starts, and finds the slices correct.
    let other = Publisher::default();
    assert_eq!(other.publish(&api, &owner(), &many).expect("published"), nothing);
    assert_eq!(publish(&[h200(1)]), Published { written: 1, deleted: 1, is_shared: true });
    assert_eq!(generations(), BTreeSet::from([3]));
    // A kubelet that starts deletes the slices of drivers that it does not know.
    fake.delete(&format!("{SLICES}/n1-gapless.dev-0"));
    assert_eq!(publish(&[h200(1)]), Published { written: 1, ..nothing });
    assert_eq!(publish(&[]), Published { deleted: 1, ..nothing });
    assert_eq!(fake.all("resourceslices").len(), 0);
    fake.stop();
}

#[test]
fn a_cluster_that_cannot_share_is_told_so_once() {
    let fake = Fake::start();
    fake.shares.store(false, Ordering::Relaxed);
    let api = Api::new(Address { host: "127.0.0.1".to_owned(), port: fake.port, tls: None, token: None });
    let publisher = Publisher::default();
    let publish = || publisher.publish(&api, &owner(), &[h200(0), h200(1)]);
    let whole = Published { written: 1, deleted: 0, is_shared: false };
    assert_eq!(publish().expect("published"), whole);
    assert_eq!(publish().expect("published"), Published { written: 0, ..whole }, "it is not written again");
    // The gate is switched on, and the next start publishes shareable GPUs.
    fake.shares.store(true, Ordering::Relaxed);
    let next = Publisher::default().publish(&api, &owner(), &[h200(0), h200(1)]).expect("published");
    assert!(next.is_shared && next.written == 1);
    fake.has_dra.store(false, Ordering::Relaxed);
    assert!(matches!(publish(), Err(PublishError::NoDra)));
    fake.stop();
}

/// Manifests are written by people: nothing in them ends the program.
#[test]
fn a_pod_of_odd_parts_is_refused_or_left_as_it_is() {
    for odd in [json!("x"), json!(7), json!([]), json!(null)] {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, odd]}});
        assert!(
            claims::use_template(&mut pod, "t").is_err_and(|why| why.contains("invalid container")),
            "{odd}"
        );
        for place in ["/metadata", "/spec/resourceClaims", "/spec/containers/0/resources"] {
            let mut pod = json!({"metadata": {}, "spec": {"resourceClaims": [],
                "containers": [{"name": "a", "resources": {}}]}});
            *pod.pointer_mut(place).expect("it is there") = odd.clone();
            assert_eq!(claims::use_template(&mut pod, "t"), Ok(()), "{place} {odd}");
        }
    }
}
