//! Renders the chart in deploy/helm. This is the part of Go's templates that the chart uses: another construct, and a
//! value that is not in values.yaml, panics. So the chart stays within what this test can see.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Debug)]
enum Node {
    Text(String),
    Show(String),
    /// The kind (`if`, `with`, `range`), the expression, what is inside, and what follows `else`.
    Block(String, String, Vec<Node>, Vec<Node>),
}

type Defined = BTreeMap<String, Vec<Node>>;

/// The documents of a chart with these values over its own.
pub(crate) fn render(chart: &Path, changes: &Value) -> Vec<Value> {
    let read = |name: &str| std::fs::read_to_string(chart.join(name)).expect(name);
    let yaml = |text: &str| -> Value { serde_yaml_ng::from_str(text).expect("YAML") };
    let mut values = yaml(&read("values.yaml"));
    change(&mut values, changes);
    let root = json!({
        "Values": values,
        "Chart": {"AppVersion": yaml(&read("Chart.yaml"))["appVersion"]},
        "Release": {"Name": "gapless", "Namespace": "gapless", "Service": "Helm"},
    });
    let mut files: Vec<_> = std::fs::read_dir(chart.join("templates")).expect("templates").collect();
    files.sort_by_key(|file| file.as_ref().expect("a file").file_name());
    let mut defined = Defined::new();
    let mut parsed = Vec::new();
    for file in files {
        let path = file.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("a template");
        let mut pieces = pieces(&text).into_iter();
        let (nodes, end) = nodes(&mut pieces, &mut defined);
        assert_eq!(end, "", "{path:?}");
        if path.extension().is_some_and(|ending| ending == "yaml") {
            parsed.push((path, nodes));
        }
    }
    let mut documents = Vec::new();
    for (path, nodes) in parsed {
        let mut out = String::new();
        show(&nodes, &root, &root, &defined, &mut out);
        for document in out.split("\n---") {
            let value: Value = serde_yaml_ng::from_str(document)
                .unwrap_or_else(|error| panic!("{path:?}: {error}\n{document}"));
            if !value.is_null() {
                documents.push(value);
            }
        }
    }
    documents
}

/// Lays changes over values. They may only change values that there are.
fn change(values: &mut Value, changes: &Value) {
    match (values, changes) {
        (Value::Object(values), Value::Object(changes)) if !values.is_empty() => {
            for (name, value) in changes {
                change(values.get_mut(name).unwrap_or_else(|| panic!("no value {name}")), value);
            }
        }
        (value, new) => *value = new.clone(),
    }
}

/// Texts and actions in turn. White space beside `{{-` and `-}}` is gone.
fn pieces(text: &str) -> Vec<(bool, String)> {
    let mut all: Vec<(bool, String)> = Vec::new();
    let mut rest = text;
    let mut trims = false;
    loop {
        let (before, after) = rest.split_once("{{").unwrap_or((rest, ""));
        let mut before = if trims { before.trim_start() } else { before };
        if after.starts_with("- ") {
            before = before.trim_end();
        }
        all.push((false, before.to_owned()));
        if after.is_empty() {
            return all;
        }
        let (action, behind) = after.split_once("}}").expect("an action ends");
        trims = action.ends_with(" -");
        let action = action.strip_prefix('-').unwrap_or(action);
        let action = action.strip_suffix('-').unwrap_or(action);
        all.push((true, action.trim().to_owned()));
        rest = behind;
    }
}

/// The nodes up to `else` or `end`, and which it was.
fn nodes(
    pieces: &mut impl Iterator<Item = (bool, String)>,
    defined: &mut Defined,
) -> (Vec<Node>, &'static str) {
    let mut all = Vec::new();
    while let Some((is_action, text)) = pieces.next() {
        if !is_action {
            all.push(Node::Text(text));
            continue;
        }
        let (word, expression) = text.split_once(' ').unwrap_or((&text, ""));
        match word {
            "end" => return (all, "end"),
            "else" => return (all, "else"),
            "define" => {
                let (inside, end) = nodes(pieces, defined);
                assert_eq!(end, "end");
                defined.insert(expression.trim_matches('"').to_owned(), inside);
            }
            "if" | "with" | "range" => {
                let (inside, end) = nodes(pieces, defined);
                let otherwise = if end == "else" { nodes(pieces, defined).0 } else { Vec::new() };
                all.push(Node::Block(word.to_owned(), expression.to_owned(), inside, otherwise));
            }
            _ => all.push(Node::Show(text)),
        }
    }
    (all, "")
}

fn show(nodes: &[Node], dot: &Value, root: &Value, defined: &Defined, out: &mut String) {
    for node in nodes {
        match node {
            Node::Text(text) => out.push_str(text),
            Node::Show(expression) => out.push_str(&scalar(&value(expression, dot, root, defined))),
            Node::Block(kind, expression, inside, otherwise) => {
                let value = value(expression, dot, root, defined);
                match (kind.as_str(), is_empty(&value)) {
                    (_, true) => show(otherwise, dot, root, defined, out),
                    ("if", false) => show(inside, dot, root, defined, out),
                    ("with", false) => show(inside, &value, root, defined, out),
                    _ => {
                        let items = value.as_array().expect("range over a list");
                        items.iter().for_each(|item| show(inside, item, root, defined, out));
                    }
                }
            }
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is) => !is,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        other => panic!("{other} is shown as it is: use toYaml"),
    }
}

/// The words of a command. A text in quotes is one.
fn words(command: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = command.trim();
    while !rest.is_empty() {
        let end = match rest.strip_prefix('"') {
            Some(text) => text.find('"').map(|at| at + 2),
            None => rest.find(char::is_whitespace),
        };
        let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
        all.push(word);
        rest = behind.trim_start();
    }
    all
}

/// The value of a pipeline.
fn value(expression: &str, dot: &Value, root: &Value, defined: &Defined) -> Value {
    let mut last: Option<Value> = None;
    for command in expression.split('|') {
        let words = words(command);
        let operand = |word: &str| operand(word, dot, root);
        let mut inputs: Vec<Value> = match words[0].starts_with(['.', '$', '"']) {
            true => words.iter().map(|word| operand(word)).collect(),
            false => words[1..].iter().map(|word| operand(word)).collect(),
        };
        inputs.extend(last.take());
        last = Some(match (words[0], &inputs[..]) {
            (word, [one]) if word.starts_with(['.', '$', '"']) => one.clone(),
            ("include", [Value::String(name), context]) => {
                let mut text = String::new();
                show(defined.get(name).expect("a template"), context, root, defined, &mut text);
                json!(text)
            }
            ("toYaml", [one]) => json!(serde_yaml_ng::to_string(one).expect("YAML").trim_end()),
            ("nindent", [Value::Number(count), Value::String(text)]) => {
                let blanks = " ".repeat(count.as_u64().expect("a number") as usize);
                json!(text.lines().map(|line| format!("\n{blanks}{line}")).collect::<String>())
            }
            ("quote", [one]) => json!(json!(scalar(one)).to_string()),
            ("default", [other, one]) => {
                if is_empty(one) {
                    other.clone()
                } else {
                    one.clone()
                }
            }
            ("eq", [one, other]) => json!(one == other),
            _ => panic!("the test does not know {command:?}"),
        });
    }
    last.expect("a value")
}

fn operand(word: &str, dot: &Value, root: &Value) -> Value {
    if let Ok(number) = word.parse::<u64>() {
        return json!(number);
    }
    if word.starts_with('"') {
        return json!(word.trim_matches('"'));
    }
    let (start, path) = match word.strip_prefix('$') {
        Some(path) => (root, path),
        None => (dot, word),
    };
    let mut found = start;
    for name in path.split('.').filter(|name| !name.is_empty()) {
        static NOTHING: Value = Value::Null;
        let members: &Map<String, Value> = found.as_object().unwrap_or_else(|| panic!("{word}: no {name}"));
        // Members of items of a list are optional. All others are in values.yaml.
        let is_item = std::ptr::eq(start, dot) && !std::ptr::eq(dot, root);
        found = match members.get(name) {
            Some(member) => member,
            None if is_item => &NOTHING,
            None => panic!("{word} is not in values.yaml"),
        };
    }
    found.clone()
}
