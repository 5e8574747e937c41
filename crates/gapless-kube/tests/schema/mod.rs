//! Checks objects against the API of Kubernetes 1.34, and of 1.36 for newer kinds (testdata/kubernetes). Like a strict
//! API server, it refuses members that the schema lacks.

use serde_json::Value;
use std::path::Path;
use std::sync::LazyLock;

/// The parts of an object that violate the schema of its kind.
pub(crate) fn against(object: &Value) -> Vec<String> {
    static ROOTS: LazyLock<[Value; 2]> = LazyLock::new(|| {
        ["schema.json", "newer.json"].map(|name| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/kubernetes");
            let text = std::fs::read(folder.join(name)).expect("the schema");
            serde_json::from_slice(&text).expect("JSON")
        })
    });
    let of = |member: &str| object[member].as_str().unwrap_or_default();
    let kind = format!("{} {}", of("apiVersion"), of("kind"));
    let Some((root, schema)) = ROOTS.iter().find_map(|root| Some((root, root["kinds"].get(&kind)?))) else {
        return vec![format!("no schema for {kind}")];
    };
    let mut wrong = Vec::new();
    validate(root, schema, object, "$", &mut wrong);
    wrong
}

fn validate(root: &Value, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let definition = root.pointer(name.trim_start_matches('#')).expect("it is defined");
        validate(root, definition, value, at, wrong);
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        validate(root, part, value, at, wrong);
    }
    if schema["x-kubernetes-int-or-string"] == true {
        let is_right = value.is_i64() || value.as_str().is_some_and(is_quantity_or_name);
        if !is_right {
            wrong.push(format!("{at}: {value} is neither a number nor a quantity"));
        }
    }
    let is_right = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        Some(other) => panic!("{at}: the schema has a type {other}"),
        None => true,
    };
    if !is_right {
        wrong.push(format!("{at}: {value} is not of type {}", schema["type"]));
        return;
    }
    if let (Some(members), Some(object)) = (schema["properties"].as_object(), value.as_object()) {
        for name in schema["required"].as_array().into_iter().flatten() {
            if !object.contains_key(name.as_str().expect("a name")) {
                wrong.push(format!("{at}: {name} is missing"));
            }
        }
        for (name, member) in object {
            match members.get(name) {
                Some(schema) => validate(root, schema, member, &format!("{at}.{name}"), wrong),
                None => wrong.push(format!("{at}.{name}: not in the schema")),
            }
        }
    }
    if let (Some(rest), Some(object)) = (schema.get("additionalProperties"), value.as_object()) {
        for (name, member) in object {
            validate(root, rest, member, &format!("{at}.{name}"), wrong);
        }
    }
    if let (Some(items), Some(array)) = (schema.get("items"), value.as_array()) {
        for (i, item) in array.iter().enumerate() {
            validate(root, items, item, &format!("{at}[{i}]"), wrong);
        }
    }
}

/// A quantity, or the name of a port: the schema has one type for both.
fn is_quantity_or_name(text: &str) -> bool {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
    gapless_kube::quantity::whole(text).is_ok() || (!text.is_empty() && text.chars().all(is_name))
}
