//! Roles in deploy/ have the rights that the calls need, and no others.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;
#[allow(dead_code, reason = "other tests use the rest")]
mod replica;

use fake::Fake;
use gapless_grpc::Service;
use gapless_grpc::message::Message;
use gapless_kube::api::{Address, Api};
use gapless_kube::auto::{Sizer, Wish};
use gapless_kube::dra::driver::Driver;
use gapless_kube::dra::publish::Publisher;
use gapless_kube::dra::slices::{Gpu, Owner};
use replica::{Replica, asks, book};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The rights of a role in a manifest.
fn of_role(file: &str, name: &str) -> BTreeSet<[String; 3]> {
    let path = format!("{}/../../deploy/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("the manifest");
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    let documents: Vec<Value> = documents.map(|one| Value::deserialize(one).expect("YAML")).collect();
    let is_it = |one: &&Value| one["kind"] == "ClusterRole" && one["metadata"]["name"] == name;
    let role = documents.iter().find(is_it).expect("the role");
    let list = |rule: &Value, name: &str| -> Vec<String> {
        let all = rule[name].as_array().expect("a list");
        all.iter().map(|one| one.as_str().expect("a text").to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().expect("rules") {
        for verb in list(rule, "verbs") {
            for group in list(rule, "apiGroups") {
                for resource in list(rule, "resources") {
                    rights.insert([verb.clone(), group.clone(), resource]);
                }
            }
        }
    }
    rights
}

#[derive(Debug)]
struct One;

impl Sizer for One {
    fn size(&self, _: &Wish) -> Result<u64, String> {
        Ok(1 << 30)
    }
}

#[test]
fn the_extender_has_the_rights_that_it_uses() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    fake.config_map("m", &json!({"fit": "a-model"}));
    let replica = Replica::with(&fake, |extender| extender.with_sizer(Box::new(One)));
    // A size from a ConfigMap; a bind; a booking that another replica left behind, which is checked and ended.
    let auto = json!({"gapless.dev/gpu-memory": "auto", "gapless.dev/fit-config-map": "m"});
    let pod = fake.pod("sized", &auto);
    replica.wait("it is placed", |replica| replica.schedule(&fake, &pod).is_some());
    fake.pod("left", &asks("1GiB"));
    book(&fake, "n0", "left", 0, 1);
    replica.wait("it knows the booking", |replica| replica.extender.gauges().pods == 2);
    replica.extender.expire(Instant::now());
    replica.extender.expire(Instant::now() + Duration::from_secs(3600));
    replica.wait("all watches began", |_| {
        let used = fake.used.lock().expect("no panic");
        used.iter().filter(|[verb, ..]| verb == "watch").count() == 2
    });
    fake.stop();
    assert_eq!(*fake.used.lock().expect("no panic"), of_role("fleet/rbac.yaml", "gapless-fleet"));
}

#[test]
fn the_driver_has_the_rights_that_it_uses() {
    let fake = Fake::start();
    let address = Address { host: "127.0.0.1".to_owned(), port: fake.port, tls: None, token: None };
    let api = Api::new(address);
    let gpu = |index: u32| Gpu {
        index,
        instance: None,
        uuid: Some(format!("GPU-{index}")),
        model: "H200".to_owned(),
        bytes: 80 << 30,
    };
    let owner = Owner { node: "n1".to_owned(), uid: "u".to_owned() };
    let publisher = Publisher::default();
    for gpus in [vec![gpu(0)], vec![gpu(0), gpu(1)], Vec::new()] {
        publisher.publish(&api, &owner, &gpus).expect("published");
    }
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("rights");
    let driver = Driver {
        api: &api,
        node: "n1".to_owned(),
        folder: folder.clone(),
        socket: folder.join("s"),
        gpus: &|| Ok(Vec::new()),
        log: &|_| {},
    };
    let claim = Message::default().text(1, "default").text(2, "u-1").text(3, "c");
    let asked = Message::default().message(1, &claim).finish();
    for method in ["NodePrepareResources", "NodeUnprepareResources"] {
        driver
            .call(&format!("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}"), &asked)
            .expect("an answer");
    }
    fake.stop();
    assert_eq!(*fake.used.lock().expect("no panic"), of_role("dra/rbac.yaml", "gapless-agent-dra"));
}
