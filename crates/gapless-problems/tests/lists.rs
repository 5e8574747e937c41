//! The readers of buffer lists in JSON and of ONNX models: exact buffers from models that the onnx package wrote, and
//! errors, never panics, from files that are cut or damaged.

use std::path::PathBuf;

use gapless_plan::{Buffer, Lifetime, Problem};
use gapless_problems::{Error, json, onnx};

fn model(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/planner/onnx");
    std::fs::read(folder.join(name)).unwrap()
}

fn dims(dims: &[(&str, u64)]) -> Vec<(String, u64)> {
    dims.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// Name, start, end and size of each buffer.
fn rows(problem: &Problem) -> Vec<(String, i64, i64, u64)> {
    let row = |(index, buffer): (usize, &Buffer)| {
        assert_eq!((buffer.alignment.0, buffer.fixed, buffer.hint), (1, None, None));
        (problem.name(index), buffer.lifetime.start, buffer.lifetime.end, buffer.size.0)
    };
    problem.buffers().iter().enumerate().map(row).collect()
}

fn expect(problem: &Problem, expected: &[(&str, i64, i64, u64)]) {
    let expected: Vec<_> =
        expected.iter().map(|(name, a, b, size)| ((*name).to_owned(), *a, *b, *size)).collect();
    assert_eq!(rows(problem), expected);
}

/// A field of wire type 2.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(content);
    bytes
}

fn onnx_error(bytes: &[u8]) -> String {
    onnx::read(bytes, &[]).unwrap_err().to_string()
}

#[test]
fn a_named_batch_scales_every_tensor_of_a_perceptron() {
    for batch in [1, 4, 1000] {
        let problem = onnx::read(&model("mlp.onnx"), &dims(&[("batch", batch)])).unwrap();
        expect(
            &problem,
            &[
                ("x", 0, 1, batch * 24),
                ("h1", 0, 2, batch * 32),
                ("a1", 1, 3, batch * 32),
                ("logits", 2, 4, batch * 12),
                ("y", 3, 4, batch * 12),
            ],
        );
    }
}

#[test]
fn a_residual_input_lives_to_the_addition_and_weights_and_constants_are_no_buffers() {
    let problem = onnx::read(&model("residual.onnx"), &[]).unwrap();
    expect(
        &problem,
        &[
            ("x", 0, 6, 200),
            ("c1", 0, 3, 200),
            ("r1", 2, 4, 200),
            ("c2", 3, 5, 200),
            ("d", 4, 6, 200),
            ("sum", 5, 8, 200),
            ("half", 6, 8, 100),
            ("quarter", 7, 8, 25),
        ],
    );
}

#[test]
fn what_the_branches_of_an_if_read_lives_until_the_if() {
    let problem = onnx::read(&model("branch.onnx"), &[]).unwrap();
    expect(
        &problem,
        &[
            ("x", 0, 3, 16),
            ("flag", 0, 4, 1),
            ("early", 0, 4, 16),
            ("other", 1, 4, 16),
            ("unread", 2, 3, 16),
            ("y", 3, 5, 16),
            ("z", 4, 5, 16),
        ],
    );
}

#[test]
fn unknown_sizes_are_listed_with_their_causes_and_the_way_out() {
    assert_eq!(
        onnx_error(&model("mlp.onnx")),
        "5 of 5 tensors have no known size: \"x\" (dimension \"batch\" has no value), \
         \"h1\" (dimension \"batch\" has no value), \"a1\" (dimension \"batch\" has no value), \
         \"logits\" (dimension \"batch\" has no value), \"y\" (dimension \"batch\" has no value); give the dimensions \
         that have a name (--dim batch=8), or run ONNX shape inference (onnx.shape_inference.infer_shapes) and save \
         the model anew"
    );
    let bare = onnx::read(&model("mlp_no_shapes.onnx"), &dims(&[("batch", 2)])).unwrap_err();
    let first = "\"h1\" (no shape), \"a1\" (no shape), \"logits\" (no shape)".to_owned();
    assert_eq!(bare.to_string(), Error::OnnxShapes { unknown: 3, tensors: 5, first }.to_string());
}

#[test]
fn a_dimension_that_the_model_does_not_have_or_with_two_values_is_refused() {
    let typo = onnx::read(&model("mlp.onnx"), &dims(&[("bacth", 2)])).unwrap_err().to_string();
    assert_eq!(typo, "the ONNX model: no dimension is named \"bacth\"; its named dimensions are \"batch\"");
    let none = onnx::read(&model("residual.onnx"), &dims(&[("batch", 2)])).unwrap_err().to_string();
    assert!(none.ends_with("no dimension of it has a name"), "{none}");
    let two = onnx::read(&model("mlp.onnx"), &dims(&[("batch", 2), ("batch", 3)])).unwrap_err().to_string();
    assert!(two.contains("\"batch\" is given two values"), "{two}");
    let huge = onnx::read(&model("mlp.onnx"), &dims(&[("batch", u64::MAX)])).unwrap_err().to_string();
    assert!(huge.contains("\"x\" (more than 2^60 bytes)"), "{huge}");
}

#[test]
fn graphs_that_break_the_rules_are_refused_with_the_node() {
    let node = |input: &str, output: &str| {
        let parts = [field(1, input.as_bytes()), field(2, output.as_bytes()), field(4, b"Relu")].concat();
        field(1, &parts)
    };
    let graph = |parts: &[Vec<u8>]| field(7, &parts.concat());
    let x = field(11, &field(1, b"x"));
    assert!(onnx_error(b"").contains("no graph"));
    assert!(onnx_error(b"id,lower,upper,size\n").starts_with("byte "));
    assert!(onnx_error(&[graph(&[]), graph(&[])].concat()).contains("two graphs"));
    assert_eq!(
        onnx_error(&graph(&[x.clone(), node("y", "z"), node("x", "y")])),
        "the ONNX model: node 0, named \"\", of type \"Relu\", reads \"y\", which nothing before it produces"
    );
    assert!(
        onnx_error(&graph(&[x.clone(), node("x", "y"), node("x", "y")]))
            .contains("of type \"Relu\", produces \"y\"")
    );
    assert!(onnx_error(&graph(&[x.clone(), x.clone()])).contains("two inputs"));
    assert!(
        onnx_error(&graph(&[field(12, &field(1, b"o"))]))
            .contains("nothing produces the graph's output \"o\"")
    );
    assert!(onnx_error(&graph(&[field(11, &field(1, b"\xff"))])).contains("not UTF-8"));
    assert!(onnx_error(&[0x3b]).contains("wire type 3"));
    assert!(onnx_error(&[0x38, 1]).contains("field 7 is not a message"));
    assert!(
        onnx_error(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]).contains("64 bits")
    );
    assert!(onnx::read(&graph(&[]), &[]).unwrap().is_empty());
}

#[test]
fn a_subgraph_that_hands_out_an_outer_tensor_reads_it() {
    // A float of one dimension, 3 elements.
    let declared = |number: u8, name: &str| {
        let shape = field(2, &field(1, &[0x08, 3]));
        let kind = field(1, &[vec![0x08, 1], shape].concat());
        field(number, &[field(1, name.as_bytes()), field(2, &kind)].concat())
    };
    let relu = field(1, &[field(1, b"x"), field(2, b"y"), field(4, b"Relu")].concat());
    // The inner graph lies two deep.
    let inner = field(1, &field(5, &field(11, &field(12, &field(1, b"y")))));
    let looped = field(1, &[field(4, b"Loop"), field(5, &field(6, &inner))].concat());
    let idle = field(1, &field(4, b"Nothing"));
    let graph = [declared(11, "x"), declared(13, "y"), relu, idle.clone(), looped, idle].concat();
    expect(&onnx::read(&field(7, &graph), &[]).unwrap(), &[("x", 0, 1, 12), ("y", 0, 3, 12)]);
}

#[test]
fn long_names_are_cut_in_messages() {
    let name = "n".repeat(100_000);
    let message = onnx_error(&field(7, &field(11, &field(1, name.as_bytes()))));
    assert!(message.len() < 500 && message.contains("nnn\"... (no type)"), "{message}");
}

#[test]
fn subgraphs_are_followed_to_the_limit_and_refused_beyond() {
    let nested = |depth: usize| {
        let mut graph = Vec::new();
        for _ in 0..depth {
            graph = field(1, &field(5, &field(6, &graph)));
        }
        field(7, &graph)
    };
    assert!(onnx::read(&nested(onnx::DEPTH_LIMIT), &[]).unwrap().is_empty());
    for depth in [onnx::DEPTH_LIMIT + 1, 5_000] {
        assert!(onnx_error(&nested(depth)).contains("subgraphs more than 64 deep"));
    }
}

#[test]
fn a_model_that_is_cut_anywhere_is_an_error_or_whole() {
    for name in ["mlp.onnx", "residual.onnx", "branch.onnx"] {
        let given = if name == "mlp.onnx" { dims(&[("batch", 3)]) } else { Vec::new() };
        let bytes = model(name);
        let whole = rows(&onnx::read(&bytes, &given).unwrap());
        let mut complete = 0;
        for cut in 0..bytes.len() {
            if let Ok(problem) = onnx::read(&bytes[..cut], &given) {
                assert_eq!(rows(&problem), whole);
                complete += 1;
            }
        }
        // Only a cut between the graph and the operator set after it leaves the graph complete.
        assert_eq!(complete, 1, "{name}");
    }
}

#[test]
fn damaged_models_never_panic_and_never_grow() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut dice = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let (mut read, mut refused) = (0, 0);
    for name in ["mlp.onnx", "residual.onnx", "branch.onnx"] {
        let bytes = model(name);
        for _ in 0..20_000 {
            let mut damaged = bytes.clone();
            for _ in 0..=dice(4) {
                let at = dice(damaged.len());
                damaged[at] = dice(256) as u8;
            }
            match onnx::read(&damaged, &[]) {
                Ok(problem) => {
                    assert!(problem.len() <= bytes.len());
                    read += 1;
                }
                Err(error) => {
                    assert!(error.to_string().len() < 2_000);
                    refused += 1;
                }
            }
        }
    }
    assert!(read > 1000 && refused > 1000, "{read} read, {refused} refused");
}

fn json_error(text: &str) -> String {
    json::read(text).unwrap_err().to_string()
}

#[test]
fn json_has_all_the_members_of_a_buffer_in_any_order() {
    let list = r#"[{"size": 16, "upper": 9, "note": {"deep": [[1]]}, "lower": -4, "alignment": 8,
        "gaps": [[-2, -1], [3, 5]], "offset": 32, "id": "a"},
        {"id": 7, "lower": 0, "upper": 2, "size": 5, "alignment": 0, "offset": null, "hint": 3}]"#;
    for text in [list.to_owned(), format!(r#"{{"schema": 1, "buffers": {list}, "peak": [1.5, null]}}"#)] {
        let problem = json::read(&text).unwrap();
        let gaps = vec![Lifetime::new(-2, -1), Lifetime::new(3, 5)];
        let mut second = Buffer::new(0, 2, 5);
        second.hint = Some(gapless_trace::Bytes(3));
        let first = Buffer::new(-4, 9, 16).aligned(8).with_gaps(gaps).fixed_at(32);
        assert_eq!(problem.buffers(), &[first, second]);
        assert_eq!((problem.name(0), problem.name(1)), ("a".to_owned(), "7".to_owned()));
    }
    assert!(json::read("\u{feff}[]").unwrap().is_empty());
}

#[test]
fn every_mistake_in_json_is_told_with_position_and_id() {
    let good = r#"{"id": "g", "lower": 0, "upper": 1, "size": 1}"#;
    let second = |members: &str| json_error(&format!("[{good}, {{{members}}}]"));
    let with = |members: &str| second(&format!(r#""id": "b", "lower": 0, "upper": 9, {members}"#));
    assert_eq!(
        second(r#""lower": 3, "upper": 3, "size": 1, "id": "b""#),
        "buffers[1] (id \"b\"): lower 3 is not below upper 3; lifetimes are half-open"
    );
    assert_eq!(with(r#""hint": 1"#), "buffers[1] (id \"b\"): size is missing");
    assert_eq!(with(r#""size": -4"#), "buffers[1] (id \"b\"): size is -4; it must not be negative");
    assert!(with(r#""size": 1.5"#).ends_with("size is 1.5, not a whole number of bytes"));
    assert!(with(r#""size": "16""#).ends_with("size is \"16\", not a whole number of bytes"));
    assert!(with(r#""size": 18446744073709551615"#).contains("2^60"));
    assert!(with(r#""size": 1, "size": 2"#).ends_with("the member \"size\" stands there twice"));
    assert!(with(r#""size": 1, "gaps": [3, 4]"#).contains("invalid gap 3: gaps have the form"));
    assert!(with(r#""size": 1, "gaps": [[3, 12]]"#).contains("past the end"));
    assert!(with(r#""size": 1, "alignment": 8, "offset": 4"#).contains("not a multiple of the alignment"));
    assert!(second(r#""lower": 0"#).starts_with("buffers[1] (no id): each buffer needs an id"));
    assert!(second(r#""id": [1]"#).starts_with("buffers[1] (no id): each buffer needs an id"));
    assert!(
        second(r#""id": "g", "lower": 5, "upper": 6, "size": 1"#).ends_with("buffers[0] has this id already")
    );
    let many: Vec<String> = (0..5)
        .map(|id| format!(r#"{{"id": {id}, "lower": 0, "upper": 1, "size": {}}}"#, 1u64 << 60))
        .collect();
    let sum = json_error(&format!("[{}]", many.join(",")));
    assert!(sum.starts_with("buffers[3] (id \"3\"): up to here the sizes add up"), "{sum}");
}

#[test]
fn text_that_is_no_list_of_buffers_is_told_where() {
    assert!(json_error("").starts_with("not a list of buffers in JSON: EOF"));
    assert!(json_error("3").contains("expected an array of buffers or an object with a member \"buffers\""));
    assert!(json_error("{}").contains("no member \"buffers\""));
    assert!(json_error(r#"{"buffers": 3}"#).contains("expected an array of buffers at line 1"));
    assert!(json_error(r#"{"buffers": [], "buffers": []}"#).contains("twice"));
    assert!(json_error("[] x").contains("trailing characters at line 1 column 4"));
    let cut = r#"[{"id": "g", "lower": 0, "upper": 1, "size": 1}, 3]"#;
    assert!(json_error(cut).contains("expected a buffer, an object with id"));
    assert!(json_error(cut).ends_with("buffers[1]"));
    assert!(json_error(&format!(r#"[{{"gaps": {}"#, "[".repeat(100_000))).contains("recursion limit"));
}
