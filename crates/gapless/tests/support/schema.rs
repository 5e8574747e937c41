//! Checks JSON against a contract of `schema/`.

use super::repo;
use serde_json::Value;

/// The parts of `value` that violate `schema/gapless.NAME.schema.json`.
pub(crate) fn against(name: &str, value: &Value) -> Vec<String> {
    let text = std::fs::read(repo(&format!("schema/gapless.{name}.schema.json"))).expect("the schema");
    let schema: Value = serde_json::from_slice(&text).expect("JSON");
    let mut wrong = Vec::new();
    validate(&schema, &schema, value, "$", &mut wrong);
    wrong
}

/// The part of JSON Schema that our schemas use.
pub(crate) fn validate(root: &Value, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let definition =
            root.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("{name} is defined"));
        return validate(root, definition, value, at, wrong);
    }
    if let Some(options) = schema["anyOf"].as_array() {
        let fits = options.iter().any(|option| {
            let mut errors = Vec::new();
            validate(root, option, value, at, &mut errors);
            errors.is_empty()
        });
        if !fits {
            wrong.push(format!("{at}: fits no option"));
        }
        return;
    }
    if let Some(expected) = schema.get("const") {
        if expected != value {
            wrong.push(format!("{at}: {value} is not {expected}"));
        }
        return;
    }
    if let Some(options) = schema["enum"].as_array() {
        if !options.contains(value) {
            wrong.push(format!("{at}: {value} is none of {options:?}"));
        }
        return;
    }
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("the schema has a type {other}"),
    };
    let fits = match &schema["type"] {
        Value::String(kind) => is(kind),
        Value::Array(kinds) => kinds.iter().any(|kind| is(kind.as_str().expect("a type"))),
        _ => panic!("{at}: the schema has no type here"),
    };
    if !fits {
        wrong.push(format!("{at}: {value} is no {}", schema["type"]));
        return;
    }
    if let (Some(least), Some(number)) = (schema["minimum"].as_f64(), value.as_f64())
        && number < least
    {
        wrong.push(format!("{at}: {number} is below {least}"));
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
    if let (Some(items), Some(array)) = (schema.get("items"), value.as_array()) {
        for (i, item) in array.iter().enumerate() {
            validate(root, items, item, &format!("{at}[{i}]"), wrong);
        }
    }
}
