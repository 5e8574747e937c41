//! Files that people have beside a trace, recognised by their first bytes, and the command that reads each.

/// The kind of a file, and the next step. `name` helps only if the bytes have no mark of their own.
pub(crate) fn known(head: &[u8], name: &str) -> Option<(&'static str, &'static str)> {
    binary(head).or_else(|| json(head)).or_else(|| named(head, name))
}

const WEIGHTS: &str = "it holds weights, not memory events: `gapless weights info FILE` lists them, `gapless fit FILE` says what they take";
const PROFILE: &str = "it has times, not every allocation and free: give a file from torch.cuda.memory._dump_snapshot(PATH), recorded \
                       in the same program";
const NSIGHT: &str = "Nsight records no blocks of PyTorch's allocator: give a file from torch.cuda.memory._dump_snapshot(PATH)";

fn binary(head: &[u8]) -> Option<(&'static str, &'static str)> {
    if is_safetensors(head) {
        return Some(("a safetensors file", WEIGHTS));
    }
    if is_onnx(head) {
        return Some((
            "an ONNX model",
            "`gapless fit FILE` says what it will take, `gapless plan FILE` packs its activations, `gapless weights info FILE` \
             lists its weights",
        ));
    }
    // The first object of torch.save's old format is this number.
    if head.starts_with(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19") {
        return Some(("a checkpoint of torch.save in its old format", WEIGHTS));
    }
    if head.starts_with(b"PK\x03\x04") {
        return Some(zip(head));
    }
    if head.get(9..24).is_some_and(|event| event.windows(11).any(|part| part == b"brain.Event")) {
        return Some(("a log of TensorBoard", PROFILE));
    }
    let marks: [(&[u8], &str, &str); 5] = [
        (b"GGUF", "a GGUF model", WEIGHTS),
        (b"\x93NUMPY", "an array of numpy", "`gapless weights info FILE` lists it"),
        (b"SQLite format 3", "an SQLite database, as `nsys export` writes it", NSIGHT),
        (b"QDSTRM", "a recording of Nsight Systems", NSIGHT),
        (b"ARROW1", "an Arrow file", "give the trace that it was exported from"),
    ];
    marks.iter().find(|(mark, ..)| head.starts_with(mark)).map(|&(_, what, help)| (what, help))
}

/// The length of the header in eight bytes, then the header, which is JSON.
fn is_safetensors(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk::<8>() else { return false };
    let length = u64::from_le_bytes(*length);
    let text = rest.trim_ascii_start();
    (2..1 << 32).contains(&length) && (text.starts_with(b"{\"") || text.starts_with(b"{}"))
}

/// A protocol buffer: the version of the format in field 1, then the producer, the graph or the operator sets.
fn is_onnx(head: &[u8]) -> bool {
    match *head {
        [0x08, version, field, length, ref rest @ ..] if (1..=64).contains(&version) => match field {
            // The producer's name, its version, a domain.
            0x12 | 0x1a | 0x22 => {
                let length = usize::from(length);
                rest.len() > length && rest[..length].iter().all(|b| b.is_ascii_graphic() || *b == b' ')
            }
            // The graph, or the operator sets.
            0x3a | 0x42 => true,
            _ => false,
        },
        _ => false,
    }
}

fn zip(head: &[u8]) -> (&'static str, &'static str) {
    let has = |part: &[u8]| head.windows(part.len()).any(|window| window == part);
    if has(b".npy") {
        return ("arrays of numpy (.npz)", "`gapless weights info FILE` lists them");
    }
    if has(b"/models/")
        || has(b"/data/weights/")
        || has(b"archive_format")
        || has(b"serialized_exported_program")
    {
        return ("an exported model (.pt2)", "`gapless fit FILE` says what it will take");
    }
    if has(b"data.pkl") {
        return (
            "a checkpoint of torch.save (.pt)",
            "checkpoints hold weights, not memory events: `gapless weights info FILE` lists them",
        );
    }
    (
        "a zip archive, such as a checkpoint of torch.save (.pt)",
        "checkpoints hold weights, not memory events: `gapless weights info FILE` lists them; unpack any other archive first",
    )
}

fn json(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let text = head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(head).trim_ascii_start();
    if !matches!(text, [b'{' | b'[', ..]) {
        return None;
    }
    let has = |key: &str| text.windows(key.len()).any(|window| window == key.as_bytes());
    // Members of a snapshot, one of which comes early.
    if ["\"segments\"", "\"device_traces\""].into_iter().any(has) {
        return None;
    }
    let any = |keys: &[&str]| keys.iter().any(|key| has(key));
    if any(&["\"schema\":\"gapless.", "\"schema\": \"gapless."]) {
        return Some((
            "a result that Gapless wrote",
            "give the trace that it was made from; `gapless check TRACE --baseline FILE` compares a trace with a saved report",
        ));
    }
    if any(&["\"traceEvents\"", "\"deviceProperties\"", "\"displayTimeUnit\"", "\"ph\":", "\"ph\" :"]) {
        return Some(("a timeline of torch.profiler or another tracer (Chrome's trace events)", PROFILE));
    }
    if any(&["\"weight_map\""]) {
        return Some((
            "the index of a model's shards",
            "give the folder to `gapless weights info` or to `gapless fit`",
        ));
    }
    if any(&["\"model_type\"", "\"architectures\"", "\"_class_name\"", "\"transformers_version\""]) {
        return Some(("a model's configuration", "`gapless fit FILE` says what the model will take"));
    }
    if any(&["\"zero_optimization\"", "\"train_micro_batch_size_per_gpu\"", "\"train_batch_size\""]) {
        return Some((
            "a configuration of DeepSpeed",
            "give a recording of the run; `gapless fit MODEL --emit deepspeed` writes such a file",
        ));
    }
    if any(&["\"nbformat\""]) {
        return Some((
            "a notebook",
            "run its cells between torch.cuda.memory._record_memory_history() and _dump_snapshot(PATH)",
        ));
    }
    // `export_memory_timeline` writes a list of times and a list of lists of sizes.
    let is_list_of_lists = text.starts_with(b"[") && text[1..].trim_ascii_start().starts_with(b"[");
    let is_number = |text: &[u8]| text.trim_ascii_start().first().is_some_and(u8::is_ascii_digit);
    let inner = text.iter().position(u8::is_ascii_digit);
    if is_list_of_lists
        && inner
            .is_some_and(|at| text[..at].iter().all(|b| b" [\n\r\t".contains(b)) && is_number(&text[at..]))
    {
        return Some(("a memory timeline of torch.profiler", PROFILE));
    }
    None
}

/// Files whose format is not public, by their names.
fn named(head: &[u8], name: &str) -> Option<(&'static str, &'static str)> {
    let name = name.to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    let is_text = head.iter().all(|&b| b >= b' ' || matches!(b, b'\t' | b'\n' | b'\r'));
    if ends(&[".nsys-rep", ".qdrep", ".qdstrm"]) && !is_text {
        return Some(("a recording of Nsight Systems", NSIGHT));
    }
    if ends(&[".ncu-rep"]) && !is_text {
        return Some(("a report of Nsight Compute", NSIGHT));
    }
    if ends(&[".py"]) && is_text {
        return Some((
            "a Python program",
            "`gapless run --record run.gtrace -- python FILE` records it, `gapless estimate FILE` runs it without a GPU",
        ));
    }
    None
}
