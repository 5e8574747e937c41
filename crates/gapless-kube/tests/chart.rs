//! The chart in deploy/helm: what it renders keeps to the API of Kubernetes, and is the same as the other manifests.
//! The renderer is this test's own (`helm/`); no helm runs here.

mod helm;
mod schema;

use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn rendered(changes: &Value) -> Vec<Value> {
    helm::render(&deploy().join("helm"), changes)
}

fn documents(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(deploy().join(path)).expect("the file");
    let parse = |document| Value::deserialize(document).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_yaml_ng::Deserializer::from_str(&text).map(parse).collect()
}

fn named<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let mut found = all.iter().filter(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    let one = found.next().unwrap_or_else(|| panic!("no {kind} {name}"));
    assert!(found.next().is_none(), "two of {kind} {name}");
    one
}

#[test]
fn whatever_is_chosen_keeps_to_the_schema() {
    let tolerations = json!([{"key": "gpu", "operator": "Exists"}]);
    let fleet = json!({"nodeSelector": {"a": "b"}, "tolerations": tolerations, "replicas": 3});
    for (changes, kinds) in [
        (json!({}), 23),
        (json!({"inject": "webhook"}), 25),
        (json!({"inject": "webhook", "webhook": {"certManager": false, "caBundle": "Zm9v"}}), 23),
        (json!({"agent": {"dra": true}}), 26),
        (json!({"agent": {"nodeSelector": {}, "tolerations": []}, "fleet": fleet}), 23),
        (json!({"fleet": {"enabled": false}, "inject": "none", "guard": false}), 4),
        (json!({"agent": {"enabled": false}, "imagePullSecrets": [{"name": "s"}]}), 17),
        (
            json!({"priorityClasses": [{"name": "low", "value": 10}, {"name": "high", "value": 20, "description": "x"}]}),
            25,
        ),
    ] {
        let all = rendered(&changes);
        for document in &all {
            if document["apiVersion"] == "cert-manager.io/v1" {
                continue;
            }
            assert_eq!(schema::against(document), [""; 0], "{changes}: {document:#}");
        }
        assert_eq!(
            all.len(),
            kinds,
            "{changes}: {:?}",
            all.iter().map(|one| &one["kind"]).collect::<Vec<_>>()
        );
    }
    let webhook = rendered(&json!({"inject": "webhook", "webhook": {"caBundle": "Zm9v"}}));
    let configuration = named(&webhook, "MutatingWebhookConfiguration", "gapless-admit");
    assert_eq!(configuration["webhooks"][0]["clientConfig"]["caBundle"], "Zm9v");
}

/// An object without what a chart adds: its labels, the namespace, and where images come from.
fn plain(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.retain(|name, _| !name.starts_with("app.kubernetes.io/"));
        if labels.is_empty() {
            object["metadata"].as_object_mut().expect("metadata").remove("labels");
        }
    }
    object["metadata"].as_object_mut().expect("metadata").remove("namespace");
    let containers = object.pointer_mut("/spec/template/spec/containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        container.as_object_mut().expect("a container").remove("imagePullPolicy");
        let image = container["image"].as_str().expect("an image").to_owned();
        let image = image.rsplit('/').next().and_then(|image| image.split(':').next());
        container["image"] = json!(image);
    }
    object
}

#[test]
fn the_chart_is_the_same_as_the_other_manifests() {
    let all = [
        rendered(&json!({"agent": {"dra": true}})),
        rendered(&json!({"inject": "webhook", "fleet": {"enabled": false}, "agent": {"enabled": false}, "guard": false})),
    ]
    .concat();
    let mut seen = 0;
    for file in [
        "fleet/deployment.yaml",
        "fleet/rbac.yaml",
        "fleet/service.yaml",
        "fleet/disruption.yaml",
        "agent/rbac.yaml",
        "admission/outputs.yaml",
        "admission/agent.yaml",
        "inject/policy.yaml",
        "dra/rbac.yaml",
        "dra/class.yaml",
        "webhook/deployment.yaml",
        "webhook/certificate.yaml",
        "webhook/webhook.yaml",
    ] {
        for document in documents(file) {
            let of = |name: &Value| name.as_str().expect("a text").to_owned();
            let one = named(&all, &of(&document["kind"]), &of(&document["metadata"]["name"]));
            assert_eq!(plain(one), plain(&document), "{file}");
            seen += 1;
        }
    }
    assert!(seen >= 25, "{seen}");
    let config =
        named(&all, "ConfigMap", "gapless-scheduler")["data"]["scheduler.yaml"].as_str().expect("a text");
    let config: Value = serde_yaml_ng::from_str(config).expect("YAML");
    assert_eq!(vec![config], documents("fleet/scheduler.yaml"));
    // The agent without DRA, and what the patches of deploy/dra add.
    let agent = rendered(&json!({}));
    let mut plain_agent = plain(named(&agent, "DaemonSet", "gapless-agent"));
    assert_eq!(
        vec![plain_agent.clone()],
        documents("agent/daemonset.yaml").iter().map(plain).collect::<Vec<_>>()
    );
    let patches = &documents("dra/kustomization.yaml")[0]["patches"][0]["patch"];
    let patches: Value = serde_yaml_ng::from_str(patches.as_str().expect("a patch")).expect("YAML");
    for patch in patches.as_array().expect("a list") {
        assert_eq!(patch["op"], "add");
        let path =
            patch["path"].as_str().and_then(|path| path.strip_suffix("/-")).expect("the end of a list");
        let list = plain_agent.pointer_mut(path).and_then(Value::as_array_mut).expect("a list");
        list.push(patch["value"].clone());
    }
    assert_eq!(plain(named(&all, "DaemonSet", "gapless-agent")), plain_agent);
}

#[test]
fn no_right_is_wider_than_its_use() {
    let all = rendered(&json!({"agent": {"dra": true}, "inject": "webhook"}));
    for role in all.iter().filter(|one| matches!(one["kind"].as_str(), Some("Role" | "ClusterRole"))) {
        for rule in role["rules"].as_array().expect("rules") {
            let list = |name: &str| rule[name].as_array().cloned().unwrap_or_default();
            let (verbs, resources) = (list("verbs"), list("resources"));
            assert!(!verbs.contains(&json!("*")) && !resources.contains(&json!("*")), "{rule}");
            let deletes = verbs.contains(&json!("delete"));
            assert!(!deletes || resources == [json!("resourceslices")], "{rule}");
            assert!(!resources.contains(&json!("secrets")), "{rule}");
        }
    }
}
