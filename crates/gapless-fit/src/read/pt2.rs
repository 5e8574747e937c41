//! `.pt2` archives of torch.export: the graph's JSON becomes a `Graph`. Both layouts are read: one program at the root (torch 2.4 to 2.7), and
//! `models/<name>.json` with a table of weights (2.8 and later). Weights are never read; where the table says that two parameters are one tensor,
//! they become one. Dimensions that were exported as symbols take the value of the example they were exported with.

use super::error::{Fault, Problem, malformed, unsupported};
use super::json::{Json, Value, brief};
use super::zip::{Member, Zip};
use crate::model::{Architecture, Dtype, Graph, GraphNode, GraphTensor, Model, Weight};
use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Seek};

const LARGEST: u64 = 512 << 20;
const VALUES: u64 = 5_000_000;

/// The model in an archive.
pub(crate) fn read<R: Read + Seek>(name: String, file: R) -> Result<Model, Fault> {
    let mut zip = Zip::open(file)?;
    let Some(program) = program(&zip.members)? else {
        let python = zip.members.iter().any(|member| member.name.ends_with("/data.pkl"));
        return unsupported(
            if python {
                "this archive is a checkpoint or a pickled module, not an exported program"
            } else {
                "this archive holds no exported program"
            },
            "save the model with torch.export.save(torch.export.export(model, inputs), PATH)",
        );
    };
    let text = zip.read(&program, LARGEST)?;
    let within = |fault: Fault| inside(fault, &program.name);
    let json = Json::parse(&text, VALUES).map_err(within)?;
    let aliases = aliases(&mut zip, &program)?;
    let mut notes = Vec::new();
    let graph = Builder::new(&json, &aliases, &mut notes).map_err(within)?.build().map_err(within)?;
    super::bounded(&graph)?;
    let weights = graph
        .parameters
        .iter()
        .chain(&graph.buffers)
        .map(|at| weight(&graph.tensors[*at as usize]))
        .collect();
    Ok(Model {
        name,
        architecture: Some(Architecture::Graph(Box::new(graph))),
        weights: Some(weights),
        notes,
    })
}

/// Offsets of the JSON are those within its member.
fn inside(fault: Fault, member: &str) -> Fault {
    let member = brief(member);
    Box::new(match *fault {
        Problem::Malformed { offset, what } => {
            Problem::Malformed { offset, what: format!("of the member \"{member}\": {what}") }
        }
        Problem::Truncated { offset, reading } => {
            Problem::Truncated { offset, reading: format!("{reading} (of the member \"{member}\")") }
        }
        other => other,
    })
}

/// The member that holds the graph.
fn program(members: &[Member]) -> Result<Option<Member>, Fault> {
    if let Some(old) = members
        .iter()
        .find(|member| member.name.rsplit('/').next() == Some("serialized_exported_program.json"))
    {
        return Ok(Some(old.clone()));
    }
    let models: Vec<&Member> = members
        .iter()
        .filter(|member| {
            let mut parts = member.name.rsplit('/');
            parts.next().is_some_and(|file| file.ends_with(".json")) && parts.next() == Some("models")
        })
        .collect();
    if let Some(model) = models.iter().find(|member| member.name.ends_with("/model.json")) {
        return Ok(Some((*model).clone()));
    }
    match models[..] {
        [] => Ok(None),
        [model] => Ok(Some(model.clone())),
        _ => unsupported(
            format!("this archive holds {} programs", models.len()),
            "save the one to be looked at alone",
        ),
    }
}

/// Names of parameters by the member that stores them, where the archive has that table.
fn aliases<R: Read + Seek>(zip: &mut Zip<R>, program: &Member) -> Result<HashMap<String, String>, Fault> {
    let mut paths = HashMap::new();
    let stem = program
        .name
        .rsplit('/')
        .next()
        .and_then(|file| file.strip_suffix(".json"))
        .unwrap_or_default()
        .to_owned();
    let wanted = format!("data/weights/{stem}_weights_config.json");
    let Some(member) = zip.members.iter().find(|member| member.name.ends_with(&wanted)).cloned() else {
        return Ok(paths);
    };
    let text = zip.read(&member, LARGEST)?;
    let json = Json::parse(&text, VALUES).map_err(|fault| inside(fault, &member.name))?;
    for (name, entry) in json.get("config").and_then(Json::object).unwrap_or_default() {
        // A view of part of a stored tensor is not the tensor again: it needs the same shape, which is compared where the two meet.
        if let Some(path) = entry.get("path_name").and_then(Json::text) {
            paths.insert(name.clone(), path.to_owned());
        }
    }
    Ok(paths)
}

fn weight(tensor: &GraphTensor) -> Weight {
    // Sizes were checked when the tensor was read.
    let bytes = tensor.shape.iter().product::<u64>() * tensor.dtype.bytes();
    Weight { name: tensor.name.clone(), shape: tensor.shape.clone(), dtype: Some(tensor.dtype), bytes }
}

struct Builder<'a> {
    graph: &'a Json,
    signature: Option<&'a Json>,
    aliases: &'a HashMap<String, String>,
    notes: &'a mut Vec<String>,
    places: HashMap<&'a str, u32>,
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
            out: Graph::default(),
            symbols: BTreeSet::new(),
            unsized_symbol: None,
        })
    }

    fn build(mut self) -> Result<Graph, Fault> {
        let Some(values) = self.graph.get("tensor_values").and_then(Json::object) else {
            return malformed(self.graph.at, "the graph has no tensor_values");
        };
        for (name, meta) in values {
            let tensor = self.tensor(name, meta)?;
            self.places.insert(name, self.out.tensors.len() as u32);
            self.out.tensors.push(tensor);
        }
        self.inputs()?;
        for node in self.graph.get("nodes").and_then(Json::list).unwrap_or_default() {
            let node = self.node(node)?;
            self.out.nodes.push(node);
        }
        self.outputs()?;
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
                let note = "a graph within the graph (a branch, a loop or a wrapped block) is left out";
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
        match self.graph.get("sym_int_values").and_then(|values| values.get(name)) {
            Some(meaning) => self.size(meaning),
            None => malformed(value.at, format!("the size \"{}\" is used but not described", brief(name))),
        }
    }
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
