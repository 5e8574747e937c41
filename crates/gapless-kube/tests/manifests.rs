//! The manifests in deploy/ keep to the API of Kubernetes.

mod schema;

use gapless_kube::admit::VARIABLES;
use gapless_kube::objects::OUTPUTS;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// All documents of a YAML file.
fn documents(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the file");
    let parse = |document| Value::deserialize(document).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_yaml_ng::Deserializer::from_str(&text).map(parse).collect()
}

/// The YAML files of each folder, without those that only kustomize or the scheduler read.
fn files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in std::fs::read_dir(deploy()).expect("deploy/") {
        let folder = folder.expect("an entry").path();
        // A chart's templates are no YAML yet: chart.rs looks at what they make.
        if folder.ends_with("helm") {
            continue;
        }
        for file in std::fs::read_dir(folder).expect("a folder") {
            let file = file.expect("an entry").path();
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.ends_with(".yaml") && !["kustomization.yaml", "scheduler.yaml"].contains(&name) {
                found.push(file);
            }
        }
    }
    found
}

#[test]
fn every_manifest_keeps_to_the_schema() {
    let files = files();
    assert!(files.len() >= 8, "{files:?}");
    for file in &files {
        for document in documents(file) {
            // Objects of cert-manager have a schema of their own, which is not here.
            if document["apiVersion"] == "cert-manager.io/v1" {
                continue;
            }
            assert_eq!(schema::against(&document), [""; 0], "{file:?}");
        }
    }
}

#[test]
fn every_file_is_named_by_its_kustomization() {
    for file in files() {
        let folder = file.parent().expect("a folder");
        let [kustomization] = &documents(&folder.join("kustomization.yaml"))[..] else {
            panic!("{folder:?}")
        };
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        let resources = kustomization["resources"].as_array().expect("resources");
        let patches = kustomization["patches"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_named = resources.contains(&json!(name)) || patches.iter().any(|patch| patch["path"] == name);
        assert!(is_named, "{file:?}");
        for other in resources.iter().filter_map(Value::as_str) {
            assert!(folder.join(other).exists(), "{folder:?} names {other}");
        }
    }
}

/// The policy in deploy/inject and the webhook give containers the same variables. `fleet-test/container.py` runs both.
#[test]
fn the_policy_injects_what_the_webhook_does() {
    let [policy, _, later, _] = &documents(&deploy().join("inject/policy.yaml"))[..] else {
        panic!("four documents")
    };
    let text = |value: &Value| value["expression"].as_str().expect("an expression").to_owned();
    let ours = text(&policy["spec"]["variables"][0]);
    for (name, annotation) in VARIABLES {
        let one = format!("{{'name': '{name}', 'path': \"metadata.annotations['{annotation}']\"}}");
        assert!(ours.contains(&one), "{ours}");
    }
    let mutations = policy["spec"]["mutations"].as_array().expect("mutations");
    let [containers, before] = &mutations[..] else { panic!("two mutations") };
    let (containers, before) = (text(&containers["jsonPatch"]), text(&before["jsonPatch"]));
    let same = format!(
        "!has(object.spec.initContainers) ? [] : {}",
        containers.replace("containers", "initContainers")
    );
    assert_eq!(before, same, "both kinds of containers get the same");
    assert_eq!(policy["spec"]["matchConditions"], later["spec"]["matchConditions"]);
    assert_eq!(policy["spec"]["variables"][0], later["spec"]["variables"][0]);
    let added =
        text(&later["spec"]["mutations"][0]["jsonPatch"]).replace("one.name in variables.before ? [] : ", "");
    assert_eq!(added, before.replace("initContainers", "ephemeralContainers"), "those that are added too");
}

#[test]
fn all_outputs_are_guarded() {
    let [policy, _] = &documents(&deploy().join("admission/outputs.yaml"))[..] else {
        panic!("two documents")
    };
    let text = policy["spec"]["validations"][0]["expression"].as_str().expect("an expression");
    for name in OUTPUTS {
        assert!(text.contains(&format!("'{name}'")), "{name}");
    }
}

#[test]
fn the_class_is_the_one_that_claims_name() {
    let written = documents(&deploy().join("dra/class.yaml"));
    assert_eq!(written, [gapless_kube::dra::class()]);
}

#[test]
fn a_manifest_with_a_slip_is_found() {
    let mut right = documents(&deploy().join("agent/daemonset.yaml")).swap_remove(0);
    assert_eq!(schema::against(&right), [""; 0]);
    right["spec"]["template"]["spec"]["hostPid"] = json!(true);
    right["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!("64 MB");
    let wrong = schema::against(&right).join("\n");
    assert!(wrong.contains("hostPid: not in the schema") && wrong.contains("64 MB"), "{wrong}");
}

/// `crates/gapless/tests/examples.rs` checks the other code blocks of the docs with the program.
#[test]
fn yaml_blocks_in_the_docs_parse() {
    let mut seen = 0;
    for entry in std::fs::read_dir(deploy().join("../docs")).expect("docs/") {
        let path = entry.expect("an entry").path();
        let text = match path.extension().is_some_and(|ending| ending == "md") {
            true => std::fs::read_to_string(&path).expect("a page"),
            false => continue,
        };
        for block in text.split("```yaml\n").skip(1) {
            let block = block.split("```").next().unwrap_or_default();
            let parsed: Result<Value, _> = serde_yaml_ng::from_str(block);
            assert!(parsed.is_ok_and(|value| !value.is_null()), "{}:\n{block}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 3, "only {seen} blocks of YAML were found");
}
