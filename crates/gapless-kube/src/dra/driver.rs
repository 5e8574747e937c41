//! The driver's part on a node: the kubelet asks it to prepare the claims of a pod, and hands its devices to the
//! container runtime (Container Device Interface).
//!
//! ```text
//! gapless.dev-claim_UID.json    device gapless.dev/claim=UID    GAPLESS_TENANT, NVIDIA_VISIBLE_DEVICES
//! ```
//!
//! The allocation is read from the API server. All containers that use a claim are one tenant, with the bytes that the
//! scheduler took of each GPU. Preparing twice gives the same, and so does a restart in between: the files are all
//! state.

use super::slices::Gpu;
use super::{DRIVER, MEMORY};
use crate::api::Api;
use crate::objects::text;
use crate::{names, quantity, tenant};
use gapless_grpc::message::{self, Field, Message};
use gapless_grpc::{Service, Status};
use serde_json::{Value, json};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

const KIND: &str = "gapless.dev/claim";
const PREFIX: &str = "gapless.dev-claim_";
/// The version of the kubelet's interface for drivers: Kubernetes 1.34 and later.
const VERSION: &str = "v1.DRAPlugin";
/// The most claims of one call. A pod has at most 32.
const MOST_CLAIMS: usize = 1000;

/// The socket in the kubelet's folder of plug-ins, at which it finds the driver.
pub fn socket(folder: &Path) -> PathBuf {
    folder.join(format!("{DRIVER}.sock"))
}

/// Listens at a socket, which only root can open. The kubelet registers the driver when the socket appears.
pub fn listen(socket: &Path) -> std::io::Result<UnixListener> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    // That of an agent that has ended.
    if std::fs::symlink_metadata(socket).is_ok_and(|about| about.file_type().is_socket()) {
        std::fs::remove_file(socket)?;
    }
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// The driver of one node.
pub struct Driver<'a> {
    pub api: &'a Api,
    pub node: String,
    /// The folder in which the container runtime looks for devices.
    pub folder: PathBuf,
    /// The socket at which the kubelet reaches this driver.
    pub socket: PathBuf,
    /// The GPUs that the node has now.
    pub gpus: &'a (dyn Fn() -> Result<Vec<Gpu>, String> + Sync),
    /// Is told of each prepared claim, of failures, and of the kubelet's answer to the registration.
    pub log: &'a (dyn Fn(Value) + Sync),
}

impl std::fmt::Debug for Driver<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("node", &self.node)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// A claim as the kubelet names it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    namespace: String,
    uid: String,
    name: String,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Granted {
    request: String,
    device: String,
    share: String,
    uuid: String,
    /// Bytes of the GPU; `None` for a claim that only looks at it.
    bytes: Option<u64>,
}

impl Service for Driver<'_> {
    fn call(&self, method: &str, message: &[u8]) -> Result<Vec<u8>, Status> {
        match method {
            "/pluginregistration.Registration/GetInfo" => Ok(Message::default()
                .text(1, "DRAPlugin")
                .text(2, DRIVER)
                .text(3, &self.socket.display().to_string())
                .text(4, VERSION)
                .finish()),
            "/pluginregistration.Registration/NotifyRegistrationStatus" => {
                let fields = message::fields(message).map_err(Status::invalid)?;
                let is_registered = fields.contains(&(1, Field::Number(1)));
                let why = message::text(&fields, 2).map_err(Status::invalid)?;
                (self.log)(json!({"event": "registered", "ok": is_registered, "why": why}));
                Ok(Vec::new())
            }
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources" => {
                self.each(message, "prepared", &|claim| self.prepare(claim))
            }
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources" => {
                self.each(message, "unprepared", &|claim| self.unprepare(claim))
            }
            _ => Err(Status::unimplemented(format!("this driver has no {method}"))),
        }
    }
}

impl Driver<'_> {
    /// Serves the kubelet until `stop` is set.
    pub fn serve(&self, listener: &UnixListener, stop: &AtomicBool) -> std::io::Result<()> {
        gapless_grpc::serve(listener, self, stop)
    }

    /// Does `work` for each claim of a call. A failure is that of its claim: the kubelet tries it again.
    fn each(
        &self,
        message: &[u8],
        event: &str,
        work: &dyn Fn(&Named) -> Result<Message, String>,
    ) -> Result<Vec<u8>, Status> {
        let mut answer = Message::default();
        for claim in claims(message).map_err(Status::invalid)? {
            let full_name = format!("{}/{}", claim.namespace, claim.name);
            let result = check(&claim).and_then(|()| work(&claim));
            let why = result.as_ref().err();
            (self.log)(json!({"event": event, "claim": full_name, "ok": why.is_none(), "why": why}));
            // Both answers have their error in another field: it is the last one of the message.
            let error = if event == "prepared" { 2 } else { 1 };
            let one = result.unwrap_or_else(|why| Message::default().text(error, &why));
            answer = answer.message(1, &Message::default().text(1, &claim.uid).message(2, &one));
        }
        Ok(answer.finish())
    }

    fn prepare(&self, claim: &Named) -> Result<Message, String> {
        let Named { namespace, uid, name } = claim;
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let object = self.api.get(&path).map_err(|error| error.to_string())?;
        if text(&object, &["metadata", "uid"]) != uid {
            return Err("the claim was deleted, and another one has its name".to_owned());
        }
        let granted = granted(&object, &self.node, &(self.gpus)()?)?;
        let specification = specification(uid, &granted)?;
        let written = write(&self.folder, &file(uid), &specification);
        written.map_err(|error| format!("{}: {error}", self.folder.display()))?;
        let device = format!("{KIND}={uid}");
        let of = |granted: &Granted| {
            Message::default()
                .text(1, &granted.request)
                .text(2, &self.node)
                .text(3, &granted.device)
                .text(4, &device)
                .text(5, &granted.share)
        };
        Ok(granted.iter().fold(Message::default(), |message, granted| message.message(1, &of(granted))))
    }

    fn unprepare(&self, claim: &Named) -> Result<Message, String> {
        match std::fs::remove_file(self.folder.join(file(&claim.uid))) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.to_string()),
            _ => Ok(Message::default()),
        }
    }
}

fn file(uid: &str) -> String {
    format!("{PREFIX}{uid}.json")
}

/// The claims in a message of the kubelet.
fn claims(message: &[u8]) -> Result<Vec<Named>, String> {
    let mut all = Vec::new();
    for (number, field) in message::fields(message)? {
        let Field::Bytes(bytes) = field else { continue };
        if number != 1 {
            continue;
        }
        let fields = message::fields(bytes)?;
        let [namespace, uid, name] = [1, 2, 3].map(|number| message::text(&fields, number));
        all.push(Named { namespace: namespace?, uid: uid?, name: name? });
        if all.len() > MOST_CLAIMS {
            return Err("too many claims".to_owned());
        }
    }
    Ok(all)
}

/// An error unless the names are valid, because they become parts of paths.
fn check(claim: &Named) -> Result<(), String> {
    let Named { namespace, uid, name } = claim;
    if names::is_namespace(namespace) && names::is_name(name) && names::is_uid(uid) && tenant::is_name(uid) {
        return Ok(());
    }
    Err(format!("invalid name of a claim: {namespace:?}, {name:?}, {uid:?}"))
}

/// The devices of this driver that were allocated to a claim on this node.
fn granted(claim: &Value, node: &str, gpus: &[Gpu]) -> Result<Vec<Granted>, String> {
    let results = claim["status"]["allocation"]["devices"]["results"].as_array().map(Vec::as_slice);
    let mut all = Vec::new();
    for result in results.unwrap_or_default().iter().filter(|result| result["driver"] == DRIVER) {
        let [request, pool, device] = ["request", "pool", "device"].map(|name| text(result, &[name]));
        if pool != node {
            return Err(format!("the claim has a device of node {pool}"));
        }
        let gpu = gpus.iter().find(|gpu| gpu.name() == device);
        let gpu = gpu.ok_or_else(|| format!("the node has no GPU {device} any more"))?;
        let consumed = &result["consumedCapacity"];
        let consumed = [MEMORY.to_owned(), format!("{DRIVER}/{MEMORY}")]
            .iter()
            .find_map(|name| consumed[name].as_str().map(quantity::whole));
        let bytes = match consumed.transpose()? {
            _ if result["adminAccess"] == true => None,
            Some(bytes) => Some(bytes.min(gpu.bytes)),
            None => Some(gpu.bytes),
        };
        all.push(Granted {
            request: request.to_owned(),
            device: device.to_owned(),
            share: text(result, &["shareID"]).to_owned(),
            uuid: gpu.uuid.clone().unwrap_or_else(|| gpu.index.to_string()),
            bytes,
        });
    }
    if all.is_empty() {
        Err("no device of this driver is allocated to the claim".to_owned())
    } else {
        Ok(all)
    }
}

/// The device of a claim for the container runtime.
fn specification(uid: &str, granted: &[Granted]) -> Result<Value, String> {
    let mut bytes: Vec<u64> = granted.iter().filter_map(|one| one.bytes).collect();
    bytes.sort_unstable();
    bytes.dedup();
    if bytes.len() > 1 {
        // A tenant has one share of each of its GPUs.
        return Err("the claim takes different amounts of its GPUs: make a claim for each amount".to_owned());
    }
    let uuids: Vec<&str> = granted.iter().map(|one| one.uuid.as_str()).collect();
    let mut env = vec![format!("NVIDIA_VISIBLE_DEVICES={}", uuids.join(","))];
    env.extend(bytes.first().map(|bytes| format!("GAPLESS_TENANT=claim-{uid}:{bytes}")));
    let device = json!({"name": uid, "containerEdits": {"env": env}});
    Ok(json!({"cdiVersion": "0.5.0", "kind": KIND, "devices": [device]}))
}

/// Writes a file that appears whole.
fn write(folder: &Path, name: &str, specification: &Value) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let half = folder.join(format!(".{name}.new"));
    std::fs::write(&half, format!("{specification:#}\n"))?;
    std::fs::rename(&half, folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const UID: &str = "0c1d2e3f-0000-4000-8000-00000000beef";

    fn gpu(index: u32) -> Gpu {
        let uuid = Some(format!("GPU-0000000{index}"));
        Gpu { index, instance: None, uuid, model: "H200".to_owned(), bytes: 80 * GIB }
    }

    fn claim(results: Value) -> Value {
        json!({"metadata": {"uid": UID}, "status": {"allocation": {"devices": {"results": results}}}})
    }

    fn result(device: &str, more: &Value) -> Value {
        let mut one = json!({"request": "gpu", "driver": DRIVER, "pool": "n1", "device": device});
        for (name, value) in more.as_object().expect("members") {
            one[name] = value.clone();
        }
        one
    }

    #[test]
    fn a_claim_has_the_bytes_that_the_scheduler_took() {
        let gpus = [gpu(0), gpu(1)];
        let part = json!({"consumedCapacity": {"memory": "18Gi"}, "shareID": "s"});
        let other = json!({"request": "nic", "driver": "other.dev", "pool": "n1", "device": "x"});
        let one = granted(&claim(json!([result("gpu-00000001", &part), other])), "n1", &gpus).expect("one");
        assert_eq!((one.len(), one[0].bytes, one[0].uuid.as_str()), (1, Some(18 * GIB), "GPU-00000001"));
        let env = &specification(UID, &one).expect("one amount")["devices"][0]["containerEdits"]["env"];
        let wanted = [
            "NVIDIA_VISIBLE_DEVICES=GPU-00000001".to_owned(),
            format!("GAPLESS_TENANT=claim-{UID}:{}", 18 * GIB),
        ];
        assert_eq!(*env, json!(wanted));
        let whole = granted(&claim(json!([result("gpu-00000000", &json!({}))])), "n1", &gpus).expect("one");
        assert_eq!(whole[0].bytes, Some(80 * GIB));
        let most = json!({"consumedCapacity": {"gapless.dev/memory": "900Gi"}});
        let most = granted(&claim(json!([result("gpu-00000000", &most)])), "n1", &gpus).expect("one");
        assert_eq!(most[0].bytes, Some(80 * GIB), "no more than the GPU has");
        let looks = json!({"adminAccess": true});
        let looks = granted(&claim(json!([result("gpu-00000000", &looks)])), "n1", &gpus).expect("one");
        let env = &specification(UID, &looks).expect("no amount")["devices"][0]["containerEdits"]["env"];
        assert_eq!(*env, json!(["NVIDIA_VISIBLE_DEVICES=GPU-00000000"]));
    }

    #[test]
    fn what_is_not_on_this_node_is_not_prepared() {
        let gpus = [gpu(0), gpu(1)];
        let wrong = |results: Value| granted(&claim(results), "n1", &gpus).expect_err("an error");
        assert!(wrong(json!([result("gpu-00000007", &json!({}))])).contains("gpu-00000007"));
        assert!(wrong(json!([result("gpu-00000000", &json!({"pool": "n2"}))])).contains("n2"));
        assert!(wrong(json!([])).contains("no device"));
        assert!(wrong(Value::Null).contains("no device"));
        let amount = |memory: &str| json!({"consumedCapacity": {"memory": memory}});
        assert!(!wrong(json!([result("gpu-00000000", &amount("lots"))])).is_empty());
        let two = json!([result("gpu-00000000", &amount("1Gi")), result("gpu-00000001", &amount("2Gi"))]);
        let two = granted(&claim(two), "n1", &gpus).expect("two");
        assert!(specification(UID, &two).expect_err("two amounts").contains("different amounts"));
    }

    #[test]
    fn names_that_would_leave_a_path_are_refused() {
        let right = Named { namespace: "d".to_owned(), uid: UID.to_owned(), name: "c".to_owned() };
        assert_eq!(check(&right), Ok(()));
        for wrong in ["", "../x", "a/b", "a\r\nb", "a?b"] {
            let wrong = wrong.to_owned();
            assert!(check(&Named { uid: wrong.clone(), ..right.clone() }).is_err(), "{wrong:?}");
            assert!(check(&Named { name: wrong.clone(), ..right.clone() }).is_err(), "{wrong:?}");
            assert!(check(&Named { namespace: wrong.clone(), ..right.clone() }).is_err(), "{wrong:?}");
        }
    }
}
