//! Archives of torch.export: programs that torch 2.11 wrote, and archives with false figures.

use gapless_fit::model::{Architecture, Dtype, Graph, Model};
use gapless_fit::{parameters, read};

fn path(name: &str) -> String {
    format!("{}/../../testdata/fit/pt2/{name}.pt2", env!("CARGO_MANIFEST_DIR"))
}

fn model(name: &str) -> Model {
    read::open(&path(name)).unwrap_or_else(|error| panic!("{error}"))
}

fn graph(name: &str) -> Graph {
    match model(name).architecture {
        Some(Architecture::Graph(graph)) => *graph,
        other => panic!("{other:?}"),
    }
}

fn names(graph: &Graph, places: &[u32]) -> Vec<String> {
    places.iter().map(|at| graph.tensors[*at as usize].name.clone()).collect()
}

#[test]
fn a_perceptron_is_three_operators() {
    for name in ["mlp", "mlp_old_layout"] {
        let graph = graph(name);
        assert_eq!(
            graph.nodes.iter().map(|node| node.op.as_str()).collect::<Vec<_>>(),
            ["aten.linear", "aten.gelu", "aten.linear"]
        );
        assert_eq!(names(&graph, &graph.parameters), ["a.weight", "a.bias", "b.weight", "b.bias"]);
        assert_eq!(
            (names(&graph, &graph.inputs), names(&graph, &graph.outputs)),
            (vec!["x".into()], vec!["linear_1".into()])
        );
        let first = &graph.nodes[0];
        assert_eq!(names(&graph, &first.inputs), ["x", "a.weight", "a.bias"]);
        let out = &graph.tensors[first.outputs[0] as usize];
        assert_eq!((out.shape.clone(), out.dtype, out.strides.clone()), (vec![2, 32], Dtype::F32, vec![]));
        assert!(!graph.joint);
        assert_eq!(parameters::count(&Architecture::Graph(Box::new(graph))), Some(16 * 32 + 32 + 32 * 4 + 4));
    }
}

#[test]
fn a_symbol_has_the_size_of_the_example() {
    let model = model("mlp_dynamic");
    assert!(model.notes[0].contains("s77 = 3"), "{:?}", model.notes);
    assert_eq!(
        graph("mlp_dynamic")
            .tensors
            .iter()
            .find(|tensor| tensor.name == "x")
            .map(|tensor| tensor.shape.clone()),
        Some(vec![3, 16])
    );
}

#[test]
fn buffers_stand_apart_from_parameters() {
    let graph = graph("conv");
    assert_eq!(names(&graph, &graph.parameters), ["c.weight", "n.weight", "n.bias", "f.weight", "f.bias"]);
    assert_eq!(names(&graph, &graph.buffers), ["n.running_mean", "n.running_var", "n.num_batches_tracked"]);
    let convolution = graph.nodes.iter().find(|node| node.op == "aten.conv2d").expect("a convolution");
    assert!(convolution.attributes.contains(&("padding".into(), vec![1, 1])), "{:?}", convolution.attributes);
}

#[test]
fn a_block_has_one_tensor_for_its_tied_weights_and_strides_where_it_views() {
    let graph = graph("block");
    let parameters = names(&graph, &graph.parameters);
    assert_eq!(
        parameters.iter().filter(|name| *name == "e.weight" || *name == "head.weight").count(),
        1,
        "{parameters:?}"
    );
    let embedding = graph.nodes.iter().find(|node| node.op == "aten.embedding").expect("an embedding");
    let head = graph.nodes.iter().rfind(|node| node.op == "aten.linear").expect("a head");
    assert_eq!(embedding.inputs[0], head.inputs[1]);
    let unbind = graph.nodes.iter().find(|node| node.op == "aten.unbind").expect("an unbind");
    assert_eq!(unbind.outputs.len(), 3);
    let transposed = graph.tensors.iter().find(|tensor| tensor.name == "permute").expect("a view");
    assert_eq!(
        (transposed.shape.clone(), transposed.strides.clone()),
        (vec![3, 2, 2, 6, 8], vec![16, 288, 8, 48, 1])
    );
    assert_eq!(graph.outputs.len(), 2);
}

#[test]
fn a_joint_graph_holds_the_gradients() {
    let graph = graph("joint");
    assert!(graph.joint);
    assert_eq!(graph.outputs.len(), 1 + graph.parameters.len());
    assert!(graph.nodes.iter().any(|node| node.op == "aten.mm"));
}

#[test]
fn a_wrapped_graph_takes_the_place_of_its_node() {
    let graph = graph("nograd");
    let operators: Vec<&str> = graph.nodes.iter().map(|node| node.op.as_str()).collect();
    assert_eq!(operators, ["aten.sin", "aten.mul", "aten.add", "aten.linear", "aten.add"]);
    assert_eq!(graph.nodes[0].inputs, graph.inputs);
    assert_eq!(graph.nodes[3].inputs[0], graph.nodes[1].outputs[0]);
    assert_eq!(graph.nodes[4].inputs[1], graph.nodes[2].outputs[0]);
}

/// A zip archive with these members: name, method, declared size, packed content.
fn archive(members: &[(&str, u16, u32, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, method, size, packed) in members {
        let at = bytes.len() as u32;
        let mut crc = flate2::Crc::new();
        crc.update(packed);
        let mut common = vec![20, 0, 0, 0];
        common.extend(method.to_le_bytes());
        common.extend([0; 4]);
        common.extend(crc.sum().to_le_bytes());
        common.extend((packed.len() as u32).to_le_bytes());
        common.extend(size.to_le_bytes());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0; 2]);
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&common);
        bytes.extend(name.as_bytes());
        bytes.extend(*packed);
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let start = bytes.len() as u32;
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend((members.len() as u16).to_le_bytes());
    bytes.extend((members.len() as u16).to_le_bytes());
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend([0; 2]);
    bytes
}

fn refused(bytes: &[u8]) -> String {
    read::pt2("x.pt2", bytes).expect_err("it is refused").to_string()
}

fn deflated(content: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut out = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    out.write_all(content).expect("in memory");
    out.finish().expect("in memory")
}

#[test]
fn archives_that_lie_are_refused() {
    const MEMBER: &str = "m/models/model.json";
    let bomb = deflated(&vec![b' '; 64 << 20]);
    for (bytes, want) in [
        (archive(&[(MEMBER, 8, 64 << 20, &bomb)]), "refused as a zip bomb"),
        (archive(&[(MEMBER, 8, 100, &bomb)]), "has 101 bytes, the directory says 100"),
        (archive(&[(MEMBER, 0, u32::MAX - 1, b"{}")]), "the limit is 536870912"),
        (archive(&[(MEMBER, 0, 3, b"{}")]), "has 2 bytes, the directory says 3"),
        (archive(&[(MEMBER, 12, 2, b"{}")]), "compressed by method 12"),
        (archive(&[(MEMBER, 8, 5, b"\xff\xff\xff")]), "is damaged"),
        (archive(&[(MEMBER, 0, 2, b"{}")]), "there is no graph_module.graph"),
        (archive(&[(MEMBER, 0, 1, b"{")]), "the file ends at byte 1, in the middle of JSON (of the member"),
        (archive(&[("m/data.pkl", 0, 0, b"")]), "a checkpoint or a pickled module"),
        (archive(&[]), "holds no exported program"),
        (b"PK\x03\x04".to_vec(), "its directory is missing"),
    ] {
        let error = refused(&bytes);
        assert!(error.contains(want), "{want}: {error}");
    }
}

#[test]
fn graphs_that_lie_are_refused() {
    let graph = |values: &str, nodes: &str| {
        let text = format!(
            r#"{{"graph_module":{{"graph":{{"tensor_values":{{{values}}},"nodes":[{nodes}]}},"signature":{{}}}}}}"#
        );
        refused(&archive(&[("models/model.json", 0, text.len() as u32, text.as_bytes())]))
    };
    let tensor =
        |dtype: u32, sizes: &str| format!(r#""x":{{"dtype":{dtype},"sizes":[{sizes}],"strides":[{sizes}]}}"#);
    assert!(graph(&tensor(99, ""), "").contains("the dtype 99"));
    assert!(graph(&tensor(7, r#"{"as_int":-1}"#), "").contains("a negative number in sizes"));
    assert!(
        graph(&tensor(7, r#"{"as_int":9223372036854775807},{"as_int":8}"#), "")
            .contains("more elements than can be counted")
    );
    assert!(
        graph(&tensor(7, r#"{"as_expr":{"expr_str":"Symbol('u0', integer=True)","hint":null}}"#), "")
            .contains("the dimension u0 has no size; export the model with static shapes")
    );
    let node = r#"{"target":"torch.ops.aten.relu.default","inputs":[{"name":"self","arg":{"as_tensor":{"name":"y"}}}],"outputs":[]}"#;
    assert!(graph("", node).contains("the tensor \"y\" is used but not described"));
}
