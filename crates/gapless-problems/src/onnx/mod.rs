//! The tensors of an ONNX model as buffers: the memory of inference beside the weights.
//!
//! Time is the position in the graph's list of nodes. A tensor that a node produces is alive from that node through
//! its last reader, `[producer, last reader + 1)`; a graph input from 0; a graph output to the end. Initializers and
//! the outputs of `Constant` nodes are weights, not buffers; outputs without a name do not exist. Sizes come from the
//! declared types, so the model must have been through shape inference; named dimensions take the values given.
//!
//! Tensors of the outer graph that a subgraph (`If`, `Loop`, `Scan`) reads count as read by its node; the tensors
//! within it are left out, as are those within a model-local function. No two tensors share a place, even if an
//! operator could work in place. The file is untrusted: see `wire.rs`.

use std::collections::HashMap;

use self::shape::{Dims, Size, value_info};
use self::wire::Message;
use crate::error::{Error, Result};
use gapless_plan::{Buffer, Problem};

mod shape;
mod wire;

/// Subgraphs deeper than this are refused; models nest two or three.
pub const DEPTH_LIMIT: usize = 64;

/// The most tensors or names that a message lists.
const LISTED: usize = 5;

/// Reads the buffers of a model from the bytes of its file; `dims` gives named dimensions their values. The order is
/// that of the graph's inputs, then of the nodes' outputs.
pub fn read(bytes: &[u8], dims: &[(String, u64)]) -> Result<Problem> {
    let mut known = Dims::default();
    for (name, value) in dims {
        if known.given.insert(name, *value).is_some_and(|other| other != *value) {
            return Err(wrong(format!("the dimension {} is given two values", quoted(name))));
        }
    }
    let graph = Graph::of_model(bytes, &mut known)?;
    if let Some(name) = known.given.keys().find(|name| !known.seen.contains(*name)) {
        let names = match known.seen.len() {
            0 => "no dimension of it has a name".to_owned(),
            _ => format!("its named dimensions are {}", listed(known.seen.iter().map(|name| quoted(name)))),
        };
        return Err(wrong(format!("no dimension is named {}; {names}", quoted(name))));
    }
    graph.problem()
}

/// The parts of the main graph, borrowed from the file.
#[derive(Default)]
struct Graph<'f> {
    nodes: Vec<Message<'f>>,
    inputs: Vec<&'f str>,
    outputs: Vec<&'f str>,
    /// Declared sizes, of weights too.
    sizes: HashMap<&'f str, Size>,
    live: Live<'f>,
}

/// The tensors met so far, as the nodes are gone through in order.
#[derive(Default)]
struct Live<'f> {
    /// `None`: a weight.
    tensors: HashMap<&'f str, Option<usize>>,
    /// Name, producer and the end of the lifetime.
    spans: Vec<(&'f str, usize, usize)>,
}

impl<'f> Live<'f> {
    /// Begins a tensor's lifetime; false if the name is taken.
    fn begin(&mut self, name: &'f str, time: usize) -> bool {
        let fresh = self.tensors.insert(name, Some(self.spans.len())).is_none();
        self.spans.push((name, time, time + 1));
        fresh
    }

    /// Extends a tensor's lifetime; false if the name is unknown.
    fn reach(&mut self, name: &str, end: usize) -> bool {
        match self.tensors.get(name) {
            None => false,
            Some(None) => true,
            Some(Some(at)) => {
                let span = &mut self.spans[*at];
                span.2 = span.2.max(end);
                true
            }
        }
    }

    /// Reads and writes of one node of the main graph.
    fn node(&mut self, time: usize, mut node: Message<'f>) -> Result<()> {
        let (mut inputs, mut outputs, mut subgraphs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut name, mut operator) = ("", "");
        while let Some(field) = node.next()? {
            match field.number {
                1 => inputs.push(field.text()?),
                2 => outputs.push(field.text()?),
                3 => name = field.text()?,
                4 => operator = field.text()?,
                5 => graphs_of(field.message()?, 1, &mut subgraphs)?,
                _ => {}
            }
        }
        let wrong = |what: String| {
            wrong(format!("node {time}, named {}, of type {}, {what}", quoted(name), quoted(operator)))
        };
        for input in inputs.into_iter().filter(|input| !input.is_empty()) {
            if !self.reach(input, time + 1) {
                return Err(wrong(format!("reads {}, which nothing before it produces", quoted(input))));
            }
        }
        while let Some((depth, graph)) = subgraphs.pop() {
            self.subgraph(time, depth, graph, &mut subgraphs)?;
        }
        for output in outputs.into_iter().filter(|output| !output.is_empty()) {
            let fresh = match operator {
                "Constant" => self.tensors.insert(output, None).is_none(),
                _ => self.begin(output, time),
            };
            if !fresh {
                return Err(wrong(format!("produces {}, which is there already", quoted(output))));
            }
        }
        Ok(())
    }

    /// Notes outer tensors that a subgraph reads: names that its nodes read or that are its outputs. The subgraph's
    /// own names are unknown here and skipped; ONNX forbids that they hide outer ones.
    fn subgraph(
        &mut self,
        time: usize,
        depth: usize,
        mut graph: Message<'f>,
        deeper: &mut Vec<(usize, Message<'f>)>,
    ) -> Result<()> {
        while let Some(field) = graph.next()? {
            match field.number {
                1 => {
                    let mut node = field.message()?;
                    while let Some(field) = node.next()? {
                        match field.number {
                            1 => {
                                self.reach(field.text()?, time + 1);
                            }
                            5 => graphs_of(field.message()?, depth + 1, deeper)?,
                            _ => {}
                        }
                    }
                }
                12 => {
                    self.reach(text_field(field.message()?, 1)?, time + 1);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl<'f> Graph<'f> {
    fn of_model<'d>(bytes: &'f [u8], dims: &mut Dims<'d>) -> Result<Graph<'f>>
    where
        'f: 'd,
    {
        let mut model = Message::new(bytes);
        let mut found = None;
        while let Some(field) = model.next()? {
            if field.number == 7 && found.replace(field.message()?).is_some() {
                return Err(wrong("it has two graphs".to_owned()));
            }
        }
        let Some(mut message) = found else {
            return Err(wrong("it has no graph; is the file an ONNX model?".to_owned()));
        };
        let mut graph = Graph::default();
        while let Some(field) = message.next()? {
            match field.number {
                1 => graph.nodes.push(field.message()?),
                5 => graph.weight(text_field(field.message()?, 8)?),
                11 => {
                    let name = graph.declare(field.message()?, dims)?;
                    graph.inputs.push(name);
                }
                12 => {
                    let name = graph.declare(field.message()?, dims)?;
                    graph.outputs.push(name);
                }
                13 => {
                    graph.declare(field.message()?, dims)?;
                }
                15 => {
                    // A sparse tensor has the name of its values.
                    let mut sparse = field.message()?;
                    while let Some(part) = sparse.next()? {
                        if part.number == 1 {
                            graph.weight(text_field(part.message()?, 8)?);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(graph)
    }

    fn weight(&mut self, name: &'f str) {
        self.live.tensors.insert(name, None);
    }

    /// Notes a declared size. A tensor may be declared more than once, not always completely.
    fn declare<'d>(&mut self, info: Message<'f>, dims: &mut Dims<'d>) -> Result<&'f str>
    where
        'f: 'd,
    {
        let (name, size) = value_info(info, dims)?;
        match (self.sizes.get(name), &size) {
            (Some(Ok(first)), Ok(second)) if first != second && !name.is_empty() => {
                return Err(wrong(format!(
                    "the tensor {} is declared with {first} and with {second}",
                    quoted(name)
                )));
            }
            (Some(Ok(_)), _) => {}
            _ => {
                self.sizes.insert(name, size);
            }
        }
        Ok(name)
    }

    fn problem(mut self) -> Result<Problem> {
        for name in std::mem::take(&mut self.inputs) {
            // Models of before 2019 list their weights among the inputs.
            let weight = self.live.tensors.get(name).is_some_and(Option::is_none);
            if !weight && !name.is_empty() && !self.live.begin(name, 0) {
                return Err(wrong(format!("two inputs are named {}", quoted(name))));
            }
        }
        let end = self.nodes.len().max(1);
        for (time, node) in std::mem::take(&mut self.nodes).into_iter().enumerate() {
            self.live.node(time, node)?;
        }
        for name in self.outputs.iter().filter(|name| !name.is_empty()) {
            if !self.live.reach(name, end) {
                return Err(wrong(format!("nothing produces the graph's output {}", quoted(name))));
            }
        }
        self.buffers()
    }

    fn buffers(self) -> Result<Problem> {
        let mut buffers = Vec::with_capacity(self.live.spans.len());
        let mut names: Vec<Box<str>> = Vec::with_capacity(self.live.spans.len());
        let mut unknown = Vec::new();
        for (name, start, end) in &self.live.spans {
            match self.sizes.get(name) {
                Some(Ok(size)) => {
                    buffers.push(Buffer::new(instant(*start), instant(*end), size.0));
                    names.push((*name).into());
                }
                Some(Err(why)) => unknown.push((name, why.as_str())),
                None => unknown.push((name, "no shape")),
            }
        }
        if !unknown.is_empty() {
            let first = listed(unknown.iter().map(|(name, why)| format!("{} ({why})", quoted(name))));
            return Err(Error::OnnxShapes { unknown: unknown.len(), tensors: self.live.spans.len(), first });
        }
        Ok(Problem::with_names(buffers, names)?)
    }
}

/// A position in a list in memory is below 2^63.
fn instant(position: usize) -> i64 {
    i64::try_from(position).unwrap_or(i64::MAX)
}

/// The graphs that an attribute holds, each with its depth below the main graph.
fn graphs_of<'f>(
    mut attribute: Message<'f>,
    depth: usize,
    graphs: &mut Vec<(usize, Message<'f>)>,
) -> Result<()> {
    while let Some(field) = attribute.next()? {
        if matches!(field.number, 6 | 11) {
            if depth > DEPTH_LIMIT {
                return Err(wrong(format!("subgraphs more than {DEPTH_LIMIT} deep are not accepted")));
            }
            graphs.push((depth, field.message()?));
        }
    }
    Ok(())
}

fn text_field(mut message: Message<'_>, number: u64) -> Result<&str> {
    let mut text = "";
    while let Some(field) = message.next()? {
        if field.number == number {
            text = field.text()?;
        }
    }
    Ok(text)
}

/// The first few, with commas between them.
fn listed(mut items: impl Iterator<Item = String>) -> String {
    let mut text = items.by_ref().take(LISTED).collect::<Vec<_>>().join(", ");
    if items.next().is_some() {
        text.push_str(", ...");
    }
    text
}

/// A name for a message, quoted, and cut if it is long: a name may be as long as the file.
fn quoted(name: &str) -> String {
    const LONGEST: usize = 80;
    match name.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{:?}...", &name[..cut]),
        None => format!("{name:?}"),
    }
}

fn wrong(what: String) -> Error {
    Error::Onnx { what }
}
