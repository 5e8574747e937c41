//! From the JSON of an exported program to a `Graph`: tensors, nodes, and which of them are inputs, parameters, buffers
//! and outputs.

use super::error::{Fault, malformed, unsupported};
use super::json::{Json, Value, brief};
use crate::model::{Dtype, Graph, GraphNode, GraphTensor};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The graph of a program. `aliases` has the stored member of each parameter: two of one member are one tensor.
pub(crate) fn build(
    json: &Json,
    aliases: &HashMap<String, String>,
    notes: &mut Vec<String>,
) -> Result<Graph, Fault> {
    Builder::new(json, aliases, notes)?.build()
}

struct Builder<'a> {
    graph: &'a Json,
    signature: Option<&'a Json>,
    aliases: &'a HashMap<String, String>,
    notes: &'a mut Vec<String>,
    /// Tensors and sizes by their names in the graph that is being read.
    places: HashMap<&'a str, u32>,
    lengths: HashMap<&'a str, &'a Json>,
    out: Graph,
    symbols: BTreeSet<String>,
    unsized_symbol: Option<String>,
}

fn dtype(number: i128) -> Option<Dtype> {
    Some(match number {
        1 => Dtype::U8,
        2 => Dtype::I8,
        3 | 28 => Dtype::I16,
        4 => Dtype::I32,
        5 => Dtype::I64,
        6 => Dtype::F16,
        7 => Dtype::F32,
        8 => Dtype::F64,
        // Two floats of 32 bits take the bytes of one of 64.
        10 => Dtype::F64,
        12 => Dtype::Bool,
        13 => Dtype::Bf16,
        29..=32 => Dtype::F8,
        _ => return None,
    })
}

impl<'a> Builder<'a> {
    fn new(
        json: &'a Json,
        aliases: &'a HashMap<String, String>,
        notes: &'a mut Vec<String>,
    ) -> Result<Builder<'a>, Fault> {
        let module = json.get("graph_module");
        let Some(graph) =
            module.and_then(|module| module.get("graph")).filter(|graph| graph.object().is_some())
        else {
            return malformed(json.at, "there is no graph_module.graph: this is not an exported program");
        };
        let signature = module.and_then(|module| module.get("signature"));
        Ok(Builder {
            graph,
            signature,
            aliases,
            notes,
            places: HashMap::new(),
            lengths: HashMap::new(),
            out: Graph::default(),
            symbols: BTreeSet::new(),
            unsized_symbol: None,
        })
    }

    fn build(mut self) -> Result<Graph, Fault> {
        self.tensors(self.graph, "", &HashMap::new())?;
        self.inputs()?;
        self.nodes(self.graph)?;
        self.outputs()?;
        self.unused();
        if let Some(symbol) = &self.unsized_symbol {
            return unsupported(
                format!("the dimension {} has no size", brief(symbol)),
                "export the model with static shapes (without dynamic_shapes)",
            );
        }
        if !self.symbols.is_empty() {
            let symbols: Vec<&str> = self.symbols.iter().map(String::as_str).collect();
            self.notes.push(format!(
                "symbolic dimensions have the sizes of the exported example: {}",
                symbols.join(", ")
            ));
        }
        Ok(self.out)
    }

    /// Old archives do not say which parameters are one tensor. One that no node uses may be the second name of a tied
    /// one, and gets a note.
    fn unused(&mut self) {
        if !self.aliases.is_empty() {
            return;
        }
        let used: HashSet<u32> = self.out.nodes.iter().flat_map(|node| node.inputs.iter().copied()).collect();
        for at in self.out.parameters.iter().filter(|at| !used.contains(at)).take(8) {
            let name = brief(&self.out.tensors[*at as usize].name);
            self.notes.push(format!(
                "no operator uses the parameter \"{name}\": it is counted, though it may be another one's second name"
            ));
        }
    }

    /// The tensors of a graph, but for those that it shares with the one around it.
    fn tensors(
        &mut self,
        graph: &'a Json,
        prefix: &str,
        shared: &HashMap<&'a str, u32>,
    ) -> Result<(), Fault> {
        let Some(values) = graph.get("tensor_values").and_then(Json::object) else {
            return malformed(graph.at, "the graph has no tensor_values");
        };
        for (name, meta) in values {
            let place = match shared.get(name.as_str()) {
                Some(place) => *place,
                None => {
                    let mut tensor = self.tensor(name, meta)?;
                    tensor.name.insert_str(0, prefix);
                    self.out.tensors.push(tensor);
                    self.out.tensors.len() as u32 - 1
                }
            };
            self.places.insert(name, place);
        }
        let lengths = graph.get("sym_int_values").and_then(Json::object).unwrap_or_default();
        self.lengths.extend(lengths.iter().map(|(name, value)| (name.as_str(), value)));
        Ok(())
    }

    fn nodes(&mut self, graph: &'a Json) -> Result<(), Fault> {
        for node in graph.get("nodes").and_then(Json::list).unwrap_or_default() {
            if self.wrapped(node)? {
                continue;
            }
            let node = self.node(node)?;
            self.out.nodes.push(node);
        }
        Ok(())
    }

    /// A graph that a node runs once, as it is (under no_grad, or under autocast), takes the node's place: its inputs
    /// are the arguments after it, in order, and its outputs are the node's.
    fn wrapped(&mut self, node: &'a Json) -> Result<bool, Fault> {
        let target = node.get("target").and_then(Json::text).unwrap_or_default();
        if !target.starts_with("torch.ops.higher_order.wrap_with_") {
            return Ok(false);
        }
        let arguments: Vec<&'a Json> = node
            .get("inputs")
            .and_then(Json::list)
            .unwrap_or_default()
            .iter()
            .filter_map(|input| input.get("arg"))
            .collect();
        let Some(at) = arguments.iter().position(|argument| argument.get("as_graph").is_some()) else {
            return Ok(false);
        };
        let outer = arguments[at].get("as_graph");
        let Some(inner) = outer.and_then(|outer| outer.get("graph")) else { return Ok(false) };
        let name = outer.and_then(|outer| outer.get("name")).and_then(Json::text).unwrap_or_default();
        let mut shared = HashMap::new();
        let inputs = inner.get("inputs").and_then(Json::list).unwrap_or_default();
        for (argument, input) in arguments[at + 1..].iter().zip(inputs) {
            if let (Some(argument), Some(input)) = (argument.get("as_tensor"), tensor_name(input)) {
                shared.insert(input, self.place(argument)?);
            }
        }
        let mut made = Vec::new();
        for output in node.get("outputs").and_then(Json::list).unwrap_or_default() {
            self.argument(output, &mut made)?;
        }
        let outputs = inner.get("outputs").and_then(Json::list).unwrap_or_default();
        for (place, output) in made.into_iter().zip(outputs) {
            // An input that is handed through stays the input.
            if let Some(output) = tensor_name(output) {
                shared.entry(output).or_insert(place);
            }
        }
        let (places, lengths) = (std::mem::take(&mut self.places), std::mem::take(&mut self.lengths));
        self.tensors(inner, &format!("{}.", brief(name)), &shared)?;
        self.nodes(inner)?;
        (self.places, self.lengths) = (places, lengths);
        Ok(true)
    }

    /// A size that is a number, or a symbol with a hint.
    fn size(&mut self, value: &Json) -> Result<i64, Fault> {
        if let Some(number) = value.get("as_int").and_then(Json::int).or(value.int()) {
            return i64::try_from(number)
                .or_else(|_| malformed(value.at, "a size that does not fit 64 bits"));
        }
        let Some(expression) = value.get("as_expr") else {
            return malformed(value.at, "a size is neither a number nor a symbol");
        };
        let text = expression.get("expr_str").and_then(Json::text).unwrap_or("?");
        let hint =
            expression.get("hint").and_then(|hint| hint.get("as_int").and_then(Json::int).or(hint.int()));
        match hint.and_then(|hint| i64::try_from(hint).ok()) {
            Some(hint) => {
                if self.symbols.len() < 16 {
                    self.symbols.insert(format!("{} = {hint}", symbol(text)));
                }
                Ok(hint)
            }
            None => {
                self.unsized_symbol.get_or_insert_with(|| symbol(text));
                Ok(1)
            }
        }
    }

    fn sizes(&mut self, meta: &Json, key: &str) -> Result<Vec<u64>, Fault> {
        let mut sizes = Vec::new();
        for size in meta.get(key).and_then(Json::list).unwrap_or_default() {
            match u64::try_from(self.size(size)?) {
                Ok(size) => sizes.push(size),
                Err(_) => return malformed(size.at, format!("a negative number in {key}")),
            }
        }
        Ok(sizes)
    }

    fn tensor(&mut self, name: &str, meta: &Json) -> Result<GraphTensor, Fault> {
        let number = meta.get("dtype").and_then(Json::int).unwrap_or(0);
        let Some(dtype) = dtype(number) else {
            return malformed(
                meta.at,
                format!("tensor \"{}\" has the dtype {number}, which is not known", brief(name)),
            );
        };
        let shape = self.sizes(meta, "sizes")?;
        let strides = self.sizes(meta, "strides")?;
        let elements = shape.iter().try_fold(1u64, |product, side| product.checked_mul(*side));
        if elements.and_then(|elements| elements.checked_mul(8)).is_none_or(|bytes| bytes > 1 << 60) {
            return malformed(
                meta.at,
                format!("tensor \"{}\" has more elements than can be counted", brief(name)),
            );
        }
        if strides.len() != shape.len() {
            return malformed(
                meta.at,
                format!("tensor \"{}\" has {} sides and {} strides", brief(name), shape.len(), strides.len()),
            );
        }
        let mut expected = 1u64;
        let contiguous = shape.iter().zip(&strides).rev().all(|(side, stride)| {
            let fits = *side <= 1 || *stride == expected;
            expected = (*side).max(1).saturating_mul(expected);
            fits
        });
        Ok(GraphTensor {
            name: name.to_owned(),
            shape,
            strides: if contiguous { Vec::new() } else { strides },
            dtype,
        })
    }

    fn place(&self, argument: &Json) -> Result<u32, Fault> {
        let name = argument.get("name").and_then(Json::text).unwrap_or_default();
        match self.places.get(name) {
            Some(place) => Ok(*place),
            None => {
                malformed(argument.at, format!("the tensor \"{}\" is used but not described", brief(name)))
            }
        }
    }

    fn inputs(&mut self) -> Result<(), Fault> {
        let mut stored: HashMap<&str, u32> = HashMap::new();
        for spec in self
            .signature
            .and_then(|signature| signature.get("input_specs"))
            .and_then(Json::list)
            .unwrap_or_default()
        {
            let Some([(kind, spec)]) = spec.object() else { continue };
            let argument = spec.get("arg");
            let (named, list) = match kind.as_str() {
                "user_input" => {
                    if let Some(tensor) = argument.and_then(|argument| argument.get("as_tensor")) {
                        let place = self.place(tensor)?;
                        self.out.inputs.push(place);
                    }
                    continue;
                }
                "parameter" => ("parameter_name", true),
                "buffer" => ("buffer_name", false),
                "tensor_constant" => ("tensor_constant_name", false),
                _ => continue,
            };
            let Some(argument) = argument else {
                return malformed(spec.at, "an input of the signature has no argument");
            };
            let place = self.place(argument)?;
            if let Some(full) = spec.get(named).and_then(Json::text) {
                full.clone_into(&mut self.out.tensors[place as usize].name);
                if let Some(path) = self.aliases.get(full) {
                    let tensor = &self.out.tensors[place as usize];
                    match stored.get(path.as_str()) {
                        Some(first) if self.out.tensors[*first as usize].shape == tensor.shape => {
                            let (first, argument) =
                                (*first, argument.get("name").and_then(Json::text).unwrap_or_default());
                            if let Some(place) = self.places.get_mut(argument) {
                                *place = first;
                            }
                            continue;
                        }
                        _ => _ = stored.insert(path, place),
                    }
                }
            }
            if list { self.out.parameters.push(place) } else { self.out.buffers.push(place) }
        }
        Ok(())
    }

    fn outputs(&mut self) -> Result<(), Fault> {
        for spec in self
            .signature
            .and_then(|signature| signature.get("output_specs"))
            .and_then(Json::list)
            .unwrap_or_default()
        {
            let Some([(kind, spec)]) = spec.object() else { continue };
            self.out.joint |= kind.starts_with("gradient_to_");
            let Some(argument) = spec.get("arg") else { continue };
            let argument = argument.get("as_tensor").unwrap_or(argument);
            if argument
                .get("name")
                .is_some_and(|name| name.text().is_some_and(|name| self.places.contains_key(name)))
            {
                let place = self.place(argument)?;
                self.out.outputs.push(place);
            }
        }
        Ok(())
    }

    fn node(&mut self, node: &Json) -> Result<GraphNode, Fault> {
        let Some(target) = node.get("target").and_then(Json::text) else {
            return malformed(node.at, "a node has no target");
        };
        let mut out = GraphNode {
            op: operator(target),
            inputs: Vec::new(),
            outputs: Vec::new(),
            attributes: Vec::new(),
        };
        for input in node.get("inputs").and_then(Json::list).unwrap_or_default() {
            let name = input.get("name").and_then(Json::text).unwrap_or_default();
            if let Some(argument) = input.get("arg") {
                let mut inputs = std::mem::take(&mut out.inputs);
                let numbers = self.argument(argument, &mut inputs)?;
                out.inputs = inputs;
                if let Some(numbers) = numbers {
                    out.attributes.push((name.to_owned(), numbers));
                }
            }
        }
        for output in node.get("outputs").and_then(Json::list).unwrap_or_default() {
            let mut outputs = std::mem::take(&mut out.outputs);
            self.argument(output, &mut outputs)?;
            out.outputs = outputs;
        }
        Ok(out)
    }

    /// Tensors of an argument go to `tensors`; its integers are returned.
    fn argument(&mut self, argument: &Json, tensors: &mut Vec<u32>) -> Result<Option<Vec<i64>>, Fault> {
        let Some([(kind, value)]) = argument.object() else { return Ok(None) };
        let items = value.list().unwrap_or_default();
        match kind.as_str() {
            "as_tensor" => tensors.push(self.place(value)?),
            "as_tensors" => {
                for item in items {
                    tensors.push(self.place(item)?);
                }
            }
            "as_nested_tensors" => {
                for item in items.iter().flat_map(|inner| inner.list().unwrap_or_default()) {
                    tensors.push(self.place(item)?);
                }
            }
            "as_optional_tensor" => _ = self.argument(value, tensors)?,
            "as_optional_tensors" => {
                for item in items {
                    if let Some(tensor) = item.get("as_tensor") {
                        tensors.push(self.place(tensor)?);
                    }
                }
            }
            "as_int" | "as_scalar_type" | "as_bool" => return Ok(Some(vec![self.integer(value)?])),
            "as_ints" | "as_bools" => {
                return items.iter().map(|item| self.integer(item)).collect::<Result<_, _>>().map(Some);
            }
            "as_sym_int" => return Ok(Some(vec![self.symbolic(value)?])),
            "as_sym_ints" => {
                return items.iter().map(|item| self.symbolic(item)).collect::<Result<_, _>>().map(Some);
            }
            "as_graph" => {
                let note = "a graph within the graph (a branch or a loop) is left out";
                if !self.notes.iter().any(|known| known == note) {
                    self.notes.push(note.into());
                }
            }
            _ => {}
        }
        Ok(None)
    }

    fn integer(&mut self, value: &Json) -> Result<i64, Fault> {
        match value.value {
            Value::Int(number) => {
                i64::try_from(number).or_else(|_| malformed(value.at, "an integer that does not fit 64 bits"))
            }
            Value::Bool(flag) => Ok(i64::from(flag)),
            _ => malformed(value.at, format!("expected an integer, but found {}", value.kind())),
        }
    }

    /// A number, or the name of one that the graph computes.
    fn symbolic(&mut self, value: &Json) -> Result<i64, Fault> {
        if let Some(number) = value.get("as_int").and_then(Json::int) {
            return i64::try_from(number)
                .or_else(|_| malformed(value.at, "an integer that does not fit 64 bits"));
        }
        let name = value.get("as_name").and_then(Json::text).unwrap_or_default();
        match self.lengths.get(name).copied() {
            Some(meaning) => self.size(meaning),
            None => malformed(value.at, format!("the size \"{}\" is used but not described", brief(name))),
        }
    }
}

fn tensor_name(argument: &Json) -> Option<&str> {
    argument.get("as_tensor")?.get("name")?.text()
}

/// `Symbol('s77', positive=True, integer=True)` is `s77`.
fn symbol(text: &str) -> String {
    let bare = text
        .replace(", positive=True", "")
        .replace(", integer=True", "")
        .replace("Symbol('", "")
        .replace("')", "");
    brief(&bare)
}

/// `torch.ops.aten.linear.default` is `aten.linear`.
fn operator(target: &str) -> String {
    let short = target.strip_prefix("torch.ops.").unwrap_or(target);
    let mut parts = short.splitn(3, '.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(space), Some(name), Some(_)) => format!("{space}.{name}"),
        _ => short.to_owned(),
    }
}
