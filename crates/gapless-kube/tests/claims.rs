//! The driver of Dynamic Resource Allocation, asked as the kubelet asks: claims that are prepared, twice, after a
//! restart, and not at all. `fleet-test/container.py` has the rest, with a real kubelet.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;

use fake::Fake;
use gapless_grpc::Service;
use gapless_grpc::message::{self, Field, Message};
use gapless_kube::api::{Address, Api};
use gapless_kube::dra::driver::{Driver, listen, socket};
use gapless_kube::dra::slices::Gpu;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

const PREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
const UNPREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
const GIB: u64 = 1 << 30;

fn gpus() -> Result<Vec<Gpu>, String> {
    let gpu = |index: u32| Gpu {
        index,
        instance: None,
        uuid: Some(format!("GPU-0000000{index}")),
        model: "H200".to_owned(),
        bytes: 80 * GIB,
    };
    Ok((0..2).map(gpu).collect())
}

fn claim(uid: &str, device: &str, memory: &str) -> Value {
    let result = json!({"request": "gpu", "driver": "gapless.dev", "pool": "n1", "device": device,
        "shareID": "s-1", "consumedCapacity": {"memory": memory}});
    json!({"metadata": {"name": "c", "namespace": "default", "uid": uid},
        "status": {"allocation": {"devices": {"results": [result]}}}})
}

/// The kubelet's message about these claims: namespace, uid and name.
fn asks(claims: &[(&str, &str, &str)]) -> Vec<u8> {
    let one = |(namespace, uid, name): &(&str, &str, &str)| {
        Message::default().text(1, namespace).text(2, uid).text(3, name)
    };
    claims.iter().fold(Message::default(), |message, claim| message.message(1, &one(claim))).finish()
}

/// The answers by the claims' uids: the message of each.
fn answers(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let entry = |field: &(u64, Field<'_>)| {
        let (1, Field::Bytes(bytes)) = *field else { panic!("{field:?}") };
        let fields = message::fields(bytes).expect("an entry");
        let value = fields.iter().find(|(number, _)| *number == 2);
        let Some((_, Field::Bytes(value))) = value else { panic!("{fields:?}") };
        (message::text(&fields, 1).expect("a uid"), value.to_vec())
    };
    message::fields(bytes).expect("a message").iter().map(entry).collect()
}

fn error(answer: &[u8], number: u64) -> String {
    message::text(&message::fields(answer).expect("a message"), number).expect("a text")
}

struct Node {
    api: Api,
    folder: PathBuf,
    log: Mutex<Vec<Value>>,
}

impl Node {
    fn new(fake: &Fake, name: &str) -> Node {
        let address = Address { host: "127.0.0.1".to_owned(), port: fake.port, tls: None, token: None };
        let folder = std::env::temp_dir().join(format!("gapless-claims-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        Node { api: Api::new(address), folder, log: Mutex::default() }
    }

    fn call(&self, method: &str, message: &[u8]) -> Vec<u8> {
        let log = |event: Value| self.log.lock().expect("no panic").push(event);
        let driver = Driver {
            api: &self.api,
            node: "n1".to_owned(),
            folder: self.folder.clone(),
            socket: socket(Path::new("/plugins")),
            gpus: &gpus,
            log: &log,
        };
        driver.call(method, message).expect("an answer")
    }

    fn files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    }
}

#[test]
fn a_claim_is_prepared_and_ends() {
    let fake = Fake::start();
    fake.claim("c", claim("uid-1", "gpu-00000001", "18Gi"));
    let node = Node::new(&fake, "ends");
    let message = asks(&[("default", "uid-1", "c")]);
    let first = node.call(PREPARE, &message);
    assert_eq!(node.call(PREPARE, &message), first, "twice is the same");
    let [(uid, answer)] = &answers(&first)[..] else { panic!("one claim") };
    assert_eq!((uid.as_str(), error(answer, 2)), ("uid-1", String::new()));
    let fields = message::fields(answer).expect("a message");
    let (1, Field::Bytes(device)) = fields[0] else { panic!("{fields:?}") };
    let device = message::fields(device).expect("a device");
    let texts: Vec<String> = (1..=5).map(|number| message::text(&device, number).expect("a text")).collect();
    assert_eq!(texts, ["gpu", "n1", "gpu-00000001", "gapless.dev/claim=uid-1", "s-1"]);
    let file = node.folder.join("gapless.dev-claim_uid-1.json");
    let written: Value = serde_json::from_slice(&std::fs::read(&file).expect("the file")).expect("JSON");
    assert_eq!(written["kind"], "gapless.dev/claim");
    let env = &written["devices"][0]["containerEdits"]["env"];
    let tenant = format!("GAPLESS_TENANT=claim-uid-1:{}", 18 * GIB);
    assert_eq!(*env, json!(["NVIDIA_VISIBLE_DEVICES=GPU-00000001", tenant]));
    assert_eq!(node.files().len(), 1, "nothing is half written");
    for _ in 0..2 {
        let ended = node.call(UNPREPARE, &message);
        assert_eq!(answers(&ended), [("uid-1".to_owned(), Vec::new())], "also if it has ended already");
        assert_eq!(node.files(), [""; 0]);
    }
    fake.stop();
}

#[test]
fn claims_that_cannot_be_prepared_say_why_and_disturb_no_other() {
    let fake = Fake::start();
    fake.claim("c", claim("uid-1", "gpu-00000001", "18Gi"));
    fake.claim("far", claim("uid-2", "gpu-00000009", "18Gi"));
    let node = Node::new(&fake, "why");
    let all = asks(&[
        ("default", "uid-old", "c"),
        ("default", "uid-2", "far"),
        ("default", "uid-3", "none"),
        ("default", "../../etc/x", "c"),
        ("default", "uid-1", "c/../../pods"),
        ("default", "uid-1", "c"),
    ]);
    let answers = answers(&node.call(PREPARE, &all));
    let parts =
        ["another one has its name", "no GPU gpu-00000009", "404", "invalid name", "invalid name", ""];
    for ((uid, answer), part) in answers.iter().zip(parts) {
        let why = error(answer, 2);
        assert!(why.contains(part) && (part.is_empty() == why.is_empty()), "{uid}: {why}");
    }
    assert_eq!(node.files(), ["gapless.dev-claim_uid-1.json"]);
    let wrong = node.call(UNPREPARE, &asks(&[("default", "../x", "c")]));
    assert!(error(&self::answers(&wrong)[0].1, 1).contains("invalid name"));
    assert_eq!(node.log.lock().expect("no panic").len(), 7);
    fake.stop();
}

#[test]
fn the_kubelet_is_told_who_this_is() {
    let fake = Fake::start();
    let node = Node::new(&fake, "who");
    let info = node.call("/pluginregistration.Registration/GetInfo", b"");
    let fields = message::fields(&info).expect("a message");
    let texts: Vec<String> = (1..=4).map(|number| message::text(&fields, number).expect("a text")).collect();
    assert_eq!(texts, ["DRAPlugin", "gapless.dev", "/plugins/gapless.dev.sock", "v1.DRAPlugin"]);
    assert_eq!(node.call("/pluginregistration.Registration/NotifyRegistrationStatus", b"\x08\x01"), b"");
    assert_eq!(node.log.lock().expect("no panic")[0]["ok"], true);
    fake.stop();
}

#[test]
fn the_socket_is_for_root_alone_and_replaces_an_old_one() {
    let folder = std::env::temp_dir().join(format!("gapless-claims-socket-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = socket(&folder);
    drop(listen(&path).expect("a socket"));
    let again = listen(&path).expect("a socket in the place of the old one");
    let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(again);
    std::fs::remove_file(&path).expect("it is there");
    std::fs::write(&path, "a file of someone").expect("written");
    assert!(listen(&path).is_err(), "a file that is no socket stays");
    std::fs::remove_dir_all(&folder).expect("it is there");
}
